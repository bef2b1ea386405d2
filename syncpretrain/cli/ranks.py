"""The program on several ranks that ``mpiexec`` started: rank 0 leads, and it alone prints."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from syncpretrain.cluster.launched import launched
from syncpretrain.errors import SettingsError

if TYPE_CHECKING:
    from syncpretrain.settings import Settings

COMMANDS_ON_RANKS = ("train", "finetune")
WRONG_USE, LOST_RANK = 2, 1


def is_follower() -> bool:
    """Return whether this rank only holds layers for the command of rank 0."""
    place = launched()
    return place is not None and place.rank > 0


def follow(arguments: Sequence[str]) -> int:
    """Hold layers for rank 0, and print nothing; return the exit status of its command."""
    from syncpretrain.errors import WorkerError
    from syncpretrain.pretraining.on_ranks import follow_command

    names = [argument for argument in arguments if not argument.startswith("-")]
    if not names or names[0] not in COMMANDS_ON_RANKS:
        return WRONG_USE if names else 0
    try:
        return follow_command()
    except SettingsError:  # rank 0 prints it
        return WRONG_USE
    except WorkerError as error:
        click.echo(f"Error: {error}", err=True)
        return LOST_RANK


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
        raise SettingsError(
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
        raise SettingsError(
            f"runtime: got {got} on {place.size} ranks, which would be {place.size} runs in one"
            " folder; add --runtime mpi, or --finetune-runtime mpi, or start it without mpiexec"
        )


@contextmanager
def leading() -> Iterator[None]:
    """Send the other ranks the exit status of this rank."""
    status = LOST_RANK
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
