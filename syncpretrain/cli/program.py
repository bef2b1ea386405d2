"""The ``syncpretrain`` program: its commands, and what each failure says and exits with."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import click

__all__ = ["main"]

COMMANDS = {
    "train": "Pretrain a stack of layers in parallel, and fine-tune it.",
    "evaluate": "Measure the reconstruction errors of a trained stack.",
    "encode": "Write the codes of examples to a .npy file.",
    "reconstruct": "Draw examples above their reconstructions as a PNG.",
    "doctor": "Check this machine: versions, BLAS and its threads, GPU.",
}
FAILED, REFUSED, STALLED, SIGNAL = 1, 2, 75, 128


class Program(click.Group):
    """A group that knows its commands by name and imports them on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order one needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import a command."""
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(f"syncpretrain.cli.{name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; turn what it raises into a message and an exit status."""
        from syncpretrain.errors import RunInterrupted, SyncpretrainError

        try:
            return super().invoke(ctx)
        except RunInterrupted as stopped:
            return _fail(ctx, str(stopped), SIGNAL + stopped.signum)
        except KeyboardInterrupt:
            return _fail(ctx, "stopped", SIGNAL + 2)
        except SyncpretrainError as error:
            if ctx.params["debug"]:
                raise
            return _fail(ctx, _in_option_names(str(error)), _status(error))


def _fail(ctx: click.Context, message: str, status: int) -> None:
    click.echo(f"Error: {message}", err=True)
    ctx.exit(status)


def _status(error: Exception) -> int:
    from syncpretrain.errors import StalledError, WorkerError

    if isinstance(error, StalledError):
        return STALLED
    return FAILED if isinstance(error, WorkerError) else REFUSED


def _in_option_names(message: str) -> str:
    """Write a setting's name at the start of a message as its option: batch_size, --batch-size."""
    return re.sub(r"^(\w+): ", lambda found: f"--{found[1].replace('_', '-')}: ", message, count=1)


@click.command(cls=Program)
@click.version_option(package_name="syncpretrain", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def main(debug: bool) -> None:
    """Pretrain deep networks layer by layer, with the layers trained in parallel.

    \b
    Examples:
      syncpretrain train --layers 784,1000,500,250,30
      syncpretrain train --layers 64,32,8 --data digits --finetune reconstruction
      syncpretrain reconstruct runs/NAME
    """
