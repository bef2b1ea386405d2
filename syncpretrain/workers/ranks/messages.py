"""Messages between rank 0, which leads a run, and the ranks of its workers.

The data are sent as bytes where every value is a byte divided by 255: over a link of 1 Gb/s the
float32 values would take longer than half an epoch of a layer.
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


def to_send(data: Iterable[Any]) -> tuple[Any, ...]:
    """Return the form in which data are sent: the fewest bytes that keep all bits."""
    return tuple(map(in_bytes, data))


def received(data: Iterable[Any]) -> tuple[Any, ...]:
    """Return the data that :func:`to_send` packed."""
    return tuple(rows.rows() if isinstance(rows, ByteRows) else rows for rows in data)


CONTROL: Port = (0, "control")  # RunJob, RunOver and RunEnded, to every rank but 0
DUMP: Port = (0, "dump")  # asks for the stacks of all threads on stderr


def port(run: int, name: str, number: int = 0) -> Port:
    """Return a port of a run.

    Ports of a worker's rank: ``orders``, ``workers``, ``minibatches`` and ``activations`` from the
    layer below, ``versions`` to hand up or to drop, ``group`` from other ranks that share the work,
    and ``stop``. Ports of rank 0: ``answers`` of a worker, ``failures`` in blocks that were
    answered before they failed, ``progress``, and ``left``.

    A replica gets parameters at ``slices``, and sends the change for server N to ``change N``.
    """
    return run, name, number


@dataclass(frozen=True, slots=True)
class Assignment:
    """Job of a worker on a rank: the worker's number, and the ranks of the group that shares it.

    The first rank of ``group`` answers for all; the group of a worker on one rank is empty.
    """

    reports_progress: ClassVar[bool] = False  # True to report to rank 0 in the middle of an order

    number: int
    group: tuple[int, ...] = field(default=(), kw_only=True)

    @property
    def reads_data(self) -> bool:
        """True if the worker reads the data of the run."""
        return True

    def open(self, context: Any) -> AbstractContextManager[Obey]:
        """Return the context of a new worker; see :class:`syncpretrain.workers.link.Job`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class RunJob:
    """Message to a rank: its jobs in a run, and the data packed by :func:`to_send`."""

    run: int
    jobs: tuple[Assignment, ...]
    data: tuple[Any, ...] | None
    blas_threads: int
    times: Timeouts


@dataclass(frozen=True, slots=True)
class RunOver:
    """Message to a rank: a run is over, and its workers end."""

    run: int


@dataclass(frozen=True, slots=True)
class RunEnded:
    """Message to a rank: the result of a call on rank 0, which all ranks return.

    ``status`` is the exit status of a command.
    """

    value: Any = None
    error: BaseException | None = None
    status: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        error = None if self.error is None else SentError(self.error)
        return RunEnded, (self.value, error, self.status)
