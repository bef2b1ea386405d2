"""The ``syncpretrain`` program: its commands, and the message and status of each failure.

On several ranks, which ``mpiexec`` started, rank 0 leads, and it alone prints.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any, cast

import click

from syncpretrain import errors
from syncpretrain.cluster.launched import launched

if TYPE_CHECKING:
    from syncpretrain.settings import Settings

COMMANDS = {
    "train": "Pretrain a stack of layers in parallel, and fine-tune it.",
    "plan": "Measure a stack on this machine, and choose the schedule that is fastest.",
    "simulate": "Predict a run on any number of devices, by the times of its layers.",
    "compare": "Compare starts, pretrained or not, with the same fine-tuning.",
    "finetune": "Fine-tune an earlier run on other data, in a run folder of its own.",
    "predict": "Write the classes of examples, or the numbers that a regression predicts.",
    "score": "Write how unlike the training data examples are, and which are outliers.",
    "evaluate": "Measure the reconstruction error of each layer and of the stack.",
    "report": "Write a page about a run, or about two: whether it worked, curves, images.",
    "encode": "Write the codes of examples to a file.",
    "export": "Write a part of a run for ONNX, PyTorch, Keras, scikit-learn or NumPy.",
    "reconstruct": "Draw examples above their reconstructions as a PNG.",
    "filters": "Draw the weights of a layer as images, as a PNG.",
    "sample": "Sample from the top RBM and draw the samples as a PNG.",
    "runs": "List the runs in a folder, show one, remove some.",
    "data": "List the published data sets that --data knows by name, and fetch them.",
    "presets": "List the presets of train, settings with the papers they come from.",
    "bench": "Measure how near to this machine's limit each schedule runs.",
    "doctor": "Check this machine: versions, BLAS and its threads, GPU.",
    "completion": "Complete commands and options in the shell: print or install its script.",
}
# Modules of several commands, each a function with the command's name; the other commands have a
# module of their own name with the function ``command``.
SHARED = {
    **dict.fromkeys(("train", "finetune"), "train"),
    **dict.fromkeys(("plan", "simulate"), "predictions"),
    **dict.fromkeys(("predict", "score", "encode", "export"), "files"),
    **dict.fromkeys(("evaluate", "report", "reconstruct", "filters", "sample"), "results"),
    **dict.fromkeys(("presets", "doctor", "completion", "data"), "installation"),
}
COMMANDS_ON_RANKS = ("train", "finetune")
FAILED, REFUSED, STALLED, SIGNAL = 1, 2, 75, 128
KEY = "syncpretrain.arguments"  # of the program


@contextmanager
def leading() -> Iterator[None]:
    """Send the other ranks the exit status of this rank."""
    status = FAILED
    try:
        yield
        status = 0
    except click.exceptions.Exit as end:
        status = end.exit_code
        raise
    finally:
        # Not imported before it is needed: other commands have no ranks.
        job: Any = sys.modules.get("syncpretrain.cluster.job")
        if job is not None and job.is_member():
            from syncpretrain.pretraining.on_ranks import release
            from syncpretrain.workers.ranks.worker import RunEnded

            release(RunEnded(status=status))


class Program(click.Group):
    """The group of all commands, each imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of a user's work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import a command."""
        if name not in COMMANDS:
            return None
        module = import_module(f"syncpretrain.cli.{SHARED.get(name, name)}")
        command: click.Command = getattr(module, name if name in SHARED else "command")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete commands without importing them, and the program's own options."""
        from click.shell_completion import CompletionItem

        named = [n for n in COMMANDS if n.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=COMMANDS[name]) for name in named), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a command that may run on these ranks; suggest another one for a wrong name."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = _nearest(args[0], list(COMMANDS))
            raise click.UsageError(f"No such command {args[0]!r}{near}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        check_command(name or "")
        return name, command, rest

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the program's own options; a rank other than 0 follows rank 0 instead."""
        _open_closed()
        place = launched()
        if place is not None and place.rank > 0:
            ctx.exit(follow(args))
        if not args:
            return super().parse_args(ctx, args)  # shows the help
        ctx.meta[KEY] = tuple(args)  # for command_line
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            click.echo(f"Error: {_usage(error, ctx)}", err=True)
            return ctx.exit(REFUSED)

    @leading()
    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; turn an error into one message and an exit status."""
        try:
            with _warnings_in_lines():
                return super().invoke(ctx)
        except errors.RunInterrupted as stopped:
            text = str(stopped)
            return _end(ctx, text[:1].upper() + text[1:], SIGNAL + stopped.signum)
        except KeyboardInterrupt:
            return _end(ctx, "Stopped", SIGNAL + signal.SIGINT)
        except BrokenPipeError:
            raise  # click ends quietly when the reader of a pipe is gone
        except click.UsageError as error:
            return _end(ctx, f"Error: {_usage(error, ctx)}", REFUSED)
        except errors.SyncpretrainError as error:
            return _end(ctx, f"Error: {_in_option_names(str(error), ctx)}", _status(error))
        except OSError as error:
            file = f"{error.filename}: " if error.filename else ""
            return _end(ctx, f"Error: {file}{error.strerror or error}", FAILED)
        except MemoryError as error:
            return _end(ctx, f"Error: there is not enough memory: {error}", FAILED)


def _in_option_names(message: str, ctx: click.Context) -> str:
    """Write names of settings as options: at the start of a message, and in name=value."""
    setting, colon, rest = message.partition(": ") if ": " in message else ("", "", message)
    option = _option_of(setting)
    head = option if option in _options(ctx)[0] else setting  # the name of a file stays
    return f"{head}{colon}{as_options(rest, ctx)}"


def as_options(text: str, ctx: click.Context) -> str:
    """Write each name=value of a text as an option; leave out what names a function of Python.

    A value may also be that of an option of ``train``, by which a run could have begun.
    """
    options, begun = _options(ctx)

    def in_words(found: re.Match[str]) -> str:
        option = _option_of(found[1])
        end = "" if found[2] else " "
        return f"{option}{end}" if option in options | begun else found[0]

    text = re.sub(r" \([a-z_]+: [a-z_]+=\w+\)", "", text)
    return re.sub(r"(?<!['\"])\b([a-z_]+)=(True\b|(?=\S))", in_words, text)


def _options(ctx: click.Context) -> tuple[set[str], ...]:
    """Return the options of the running command, and of ``train``."""
    program = ctx.find_root()
    group = cast(click.Group, program.command)
    names = (program.invoked_subcommand or "", "train")
    commands = [group.get_command(program, name) for name in names]
    return tuple({x for p in (own.params if own else ()) for x in p.opts} for own in commands)


def _option_of(setting: str) -> str:
    return "--" + setting.replace("_", "-")


@contextmanager
def _warnings_in_lines() -> Iterator[None]:
    """Print each warning of new values in a line on standard error, unless --quiet forbids it."""
    told = set[str]()

    def quiet() -> bool:
        context = click.get_current_context(silent=True)  # none in other threads
        return context is not None and bool(context.params.get("quiet"))

    def show(message: Warning | str, category: type[Warning], *where: Any, **others: Any) -> None:
        if not issubclass(category, errors.NovelValueWarning):
            shown(message, category, *where, **others)
        elif not quiet() and str(message) not in told:
            told.add(str(message))
            click.echo(f"warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", errors.NovelValueWarning)
        shown, warnings.showwarning = warnings.showwarning, show
        yield


def _open_closed() -> None:
    """Open the null device in place of a stream that was closed before the program began."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def _end(ctx: click.Context, message: str, status: int) -> None:
    if ctx.params["debug"]:
        traceback.print_exc()
    click.echo(message, err=True)
    ctx.exit(status)


def _usage(error: click.UsageError, ctx: click.Context) -> str:
    """Return a usage error of click as one sentence."""
    if isinstance(error, click.BadParameter) and error.param and error.message:
        return f"{error.param.opts[0]}: {error.message.rstrip('.')}"
    program = [ctx.command_path, *filter(None, [ctx.invoked_subcommand])]
    message = error.format_message()
    if isinstance(error, click.NoSuchOption):
        own = error.ctx.command.params if error.ctx else []
        known = [option for p in own for option in (*p.opts, *p.secondary_opts)]
        message = f"No such option {error.option_name}{_nearest(error.option_name, known)}"
    elif isinstance(error, getattr(click, "NoSuchCommand", ())):  # since click 8.4
        group = error.ctx.command if error.ctx else None
        known = list(group.commands) if isinstance(group, click.Group) else []
        name: str = vars(error)["command_name"]
        message = f"No such command {name!r}{_nearest(name, known)}"
    return f"{message.rstrip('.')}; see {' '.join(program)} --help"


def _nearest(name: str, known: list[str]) -> str:
    """Return a suggestion for a wrong name: its meaning in other libraries, or the nearest name."""
    from difflib import get_close_matches

    from syncpretrain.settings.convert import USUAL_ELSEWHERE

    usual = USUAL_ELSEWHERE.get(name.lstrip("-").replace("-", "_"), "")
    option = _option_of(usual)
    found = [option] if option in known else get_close_matches(name, known, n=1, cutoff=0.65)
    return f"; the nearest one is {found[0]}" if found else ""


def _status(error: Exception) -> int:

    if isinstance(error, errors.StalledError):
        return STALLED
    return FAILED if isinstance(error, (errors.WorkerError, errors.SaveError)) else REFUSED


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

    RUN is the folder that train writes, or a model.safetensors.
    """


def command_line() -> str:
    """Return the command line of the running command, as it was typed."""
    return join(["syncpretrain", *click.get_current_context().meta[KEY]])


def follow(arguments: Sequence[str]) -> int:
    """Hold layers for rank 0, and print nothing; return the exit status of its command."""
    from syncpretrain.pretraining.on_ranks import follow_command

    names = [argument for argument in arguments if not argument.startswith("-")]
    if not names or names[0] not in COMMANDS_ON_RANKS:
        return REFUSED if names else 0
    try:
        return follow_command()
    except errors.SettingsError:  # rank 0 prints it
        return REFUSED
    except errors.WorkerError as error:
        click.echo(f"Error: {error}", err=True)
        return FAILED


def check_command(name: str) -> None:
    """Refuse a command that does not run on several ranks; else join the other ranks.

    Raises
    ------
    SettingsError
    """
    place = launched()
    if place is None:
        return
    if name not in COMMANDS_ON_RANKS:
        raise errors.SettingsError(
            f"{name}: got {place.size} ranks, which would all do the same; start it without mpiexec"
        )
    from syncpretrain.cluster.job import joined

    joined()


def check_runtime_of(settings: Settings, runtime: str | None = None) -> None:
    """Refuse several ranks that would each be a run of its own.

    ``runtime`` is the runtime that is given for a resumed run, if any.

    Raises
    ------
    SettingsError
    """
    place = launched()
    pretrained, tuned = settings.pretrain.runtime, settings.finetune.runtime
    if place is not None and "mpi" not in ([runtime] if runtime else [pretrained, tuned]):
        got = runtime or pretrained
        raise errors.SettingsError(
            f"runtime: got {got} on {place.size} ranks, which would be {place.size} runs in one"
            " folder; add --runtime mpi, or --finetune-runtime mpi, or start it without mpiexec"
        )
