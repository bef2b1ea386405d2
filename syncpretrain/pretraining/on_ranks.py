"""A call that every rank of a job makes: rank 0 works, the others hold layers for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from syncpretrain.cluster.job import member
from syncpretrain.errors import WorkerError

# What ranks are sent is of these: they import them now, while rank 0 prepares the run.
from syncpretrain.workers.ranks import epochs, replicas, stream  # noqa: F401
from syncpretrain.workers.ranks.worker import CONTROL, RunEnded, follow

T = TypeVar("T")


def on_every_rank(work: Callable[[], T]) -> T:
    """Do some work on rank 0; return its result, or raise its error, on every rank.

    Raises
    ------
    SettingsError
        If MPI is missing, or this is the only rank.
    WorkerError
        On the others, if rank 0 was lost.
    """
    own = member()
    if own.transport.rank == 0:
        try:
            result = work()
        except BaseException as error:
            own.known = error
            release(RunEnded(error=error))
            raise
        release(RunEnded(result))
        return result
    ended = _follow()
    if ended.error is not None:
        own.known = ended.error
        raise ended.error
    if ended.value is None:
        raise WorkerError("rank 0 has left before it came to this call")
    return cast("T", ended.value)


def release(ended: RunEnded) -> None:
    """Send every other rank what became of the work."""
    transport = member().transport
    for rank in range(1, transport.size):
        transport.send(rank, CONTROL, ended)


def follow_command() -> int:
    """Hold layers for a command of rank 0; return the status with which it ends."""
    return _follow().status


def _follow() -> RunEnded:
    """Hold layers for rank 0; a rank that has lost it aborts the job as it leaves."""
    own = member()
    try:
        return follow(own.transport)
    except WorkerError:
        own.broken = True  # MPI's own end would wait for it
        raise
