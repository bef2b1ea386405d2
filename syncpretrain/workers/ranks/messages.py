"""Messages between rank 0, which leads a run, and the ranks that hold its layers.

The data are sent as bytes where every value is a 255th of one: a link of 1 Gb/s takes longer for
float32 than a layer takes for half an epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from syncpretrain.cluster.transport import Port
from syncpretrain.data.blocks import ByteRows, in_bytes
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.workers.link import Obey, SentError

__all__ = [
    "CONTROL",
    "DUMP",
    "Assignment",
    "RunEnded",
    "RunJob",
    "RunOver",
    "port",
    "received",
    "to_send",
]


def to_send(data: Iterable[Any]) -> tuple[Any, ...]:
    """Return what is sent for some data, in the fewest bytes that keep all bits."""
    return tuple(map(in_bytes, data))


def received(data: Iterable[Any]) -> tuple[Any, ...]:
    """Return the data that were sent."""
    return tuple(rows.rows() if isinstance(rows, ByteRows) else rows for rows in data)


CONTROL: Port = (0, "control")  # RunJob, RunOver and RunEnded, to every rank but 0
DUMP: Port = (0, "dump")  # asks for the stacks of all threads on stderr


def port(run: int, name: str, number: int = 0) -> Port:
    """Return a port of a run.

    To the rank of a worker: ``orders``, ``workers``, ``minibatches`` and ``activations`` from the
    layer below, ``versions`` to hand up or to drop, ``group`` from other ranks that share the work,
    and ``stop``. To rank 0: ``answers`` of a worker, ``failures`` in blocks that were answered
    before, ``progress``, and ``left``.

    A replica fetches its parameters from ``slices``, and sends its change for server N to
    ``change N``.
    """
    return run, name, number


@dataclass(frozen=True, slots=True)
class Assignment:
    """Job of a worker on a rank: its number, and the ranks that share it, if several do.

    The first rank of the ``group`` answers for all.
    """

    reports_progress: ClassVar[bool] = False  # to rank 0, while it obeys an order

    number: int
    group: tuple[int, ...] = field(default=(), kw_only=True)

    @property
    def reads_data(self) -> bool:
        """Whether the rank is sent the data of the run."""
        return True

    def open(self, context: Any) -> AbstractContextManager[Obey]:
        """Return the context of a new worker; see :class:`syncpretrain.workers.link.Job`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class RunJob:
    """Message to a rank: its jobs in a run, and what :func:`to_send` made of data that it reads."""

    run: int
    jobs: tuple[Assignment, ...]
    data: tuple[Any, ...] | None
    blas_threads: int
    times: Timeouts


@dataclass(frozen=True, slots=True)
class RunOver:
    """Message to a rank: a run needs its layers no more."""

    run: int


@dataclass(frozen=True, slots=True)
class RunEnded:
    """Message to a rank: the end of a call on rank 0, so that all ranks return the same.

    ``status`` is the exit status of a command.
    """

    value: Any = None
    error: BaseException | None = None
    status: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        error = None if self.error is None else SentError(self.error)
        return RunEnded, (self.value, error, self.status)
