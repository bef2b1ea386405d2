"""The workers of a rank in a run, and the messages between them and rank 0, which leads the run.

Each worker is a thread that gets orders and answers them. The communication thread of the transport
puts orders into ports and calls handlers. Only the workers' threads compute; they leave when the
run is over, or when rank 0 is lost.

The data are sent as bytes where every value is a byte divided by 255: over a link of 1 Gb/s the
float32 values would take longer than half an epoch of a layer.
"""

from __future__ import annotations

import faulthandler
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from syncpretrain.cluster.group import AgreedStop, Group, GroupError
from syncpretrain.cluster.transport import Port, Transport
from syncpretrain.data.blocks import ByteRows, in_bytes
from syncpretrain.errors import DataError, DivergedError, WorkerError
from syncpretrain.learners.epoch import Stopped
from syncpretrain.parallel.blas import blas_limit
from syncpretrain.parallel.signals import STOPPING, handled_by
from syncpretrain.parallel.timeouts import Timeouts, join_all, started_thread
from syncpretrain.workers.link import STDERR, Obey, SentError, serve


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


# All ranks of a group compute the same, so every rank raises these errors at the same minibatch.
SHARED_ENDS = (Stopped, DivergedError, DataError)
RANK_LOOK_SECONDS = 0.25  # between two checks of rank 0 and of the workers' progress


class RankContext:
    """Environment that a rank gives to a worker; see :class:`syncpretrain.workers.link.Context`.

    Parameters
    ----------
    transport : Transport
    job : RunJob
    assignment : Assignment
    should_stop : callable
        Called between minibatches; True asks the worker to leave.

    Attributes
    ----------
    transport, run, data
        The transport of this rank, the number of the run, and its data.
    group : Group or None
        The ranks that share the worker, if there are several.
    stop : callable
        Called between minibatches; returns the same value on all ranks of a group.
    should_stop : callable
        The parameter: returns the value of this rank alone.
    agreed : AgreedStop or None
        Agreement of a group to stop.
    leads : bool
        True if this rank answers for its group.
    sharing : tuple of AgreedStop
        Further arguments of the layer's factory: :attr:`agreed`, if there is one.
    """

    def __init__(
        self,
        transport: Transport,
        job: RunJob,
        assignment: Assignment,
        should_stop: Callable[[], bool],
    ) -> None:
        self.progress, self.workers = np.zeros(1), np.ones(1)
        self.number, self.times = assignment.number, job.times
        self.transport, self.run, self.data = transport, job.run, job.data
        self.should_stop = self.stop = should_stop
        self._over = threading.Event()
        self.group: Group | None = None
        self.agreed: AgreedStop | None = None
        if len(assignment.group) > 1:
            base = self.port("group")
            self.group = Group(transport, assignment.group, base, job.times, self._over.is_set)
            self.stop = self.agreed = AgreedStop(self.group, should_stop)
        self.leads = self.group is None or not self.group.number
        self.sharing = () if self.agreed is None else (self.agreed,)
        transport.listen(self.port("workers"), lambda source, workers: self.workers.fill(workers))

    def port(self, name: str) -> Port:
        """Return a port of this worker."""
        return port(self.run, name, self.number)

    def next(self, name: str = "orders") -> Any:
        """Return the next object at a port of this worker, None at the end of the run."""
        own = self.port(name)
        while (found := self.transport.take(own, self.times.sleep)) is None:
            pass  # :func:`follow` notices that rank 0 is lost, and ends the process
        return found[1]

    def take(self, name: str, number: int) -> Any:
        """Return the next object at a port of this rank, None if the run ends first."""
        own = port(self.run, name, number)
        while (found := self.transport.take(own, self.times.tick)) is None:
            if self.should_stop():
                return None
        return found[1]

    def send(self, name: str, thing: Any) -> None:
        """Send an object to a port of rank 0."""
        self.transport.send(0, port(self.run, name), thing)

    def answer(self, answer: Any) -> None:
        """Send rank 0 an answer, if this rank is to answer; tell the group of an error."""
        if self._is_to_answer(getattr(answer, "error", None)):
            self.transport.send(0, self.port("answers"), answer)

    def leave(self) -> None:
        """Ask the worker to leave after the running order."""
        # A message to this rank: it wakes the worker's thread just as an order does.
        self._over.set()
        self.transport.send(self.transport.rank, self.port("orders"), None)

    def _is_to_answer(self, error: BaseException | None) -> bool:
        """Return True if this rank is to send rank 0 an answer.

        The first rank of a group answers; any other rank sends only an error of its own.
        """
        if self.group is None:
            return True
        # A GroupError is the echo of another rank's failure, and that rank sends the reason.
        if isinstance(error, GroupError):
            return False
        if error is None or isinstance(error, SHARED_ENDS):
            return self.leads
        # The other ranks wait for this one in the next exchange: a GroupError wakes them.
        self.group.fail()
        return True


class RankWorkers:
    """All workers of this rank in one run.

    Parameters
    ----------
    transport : Transport
    job : RunJob
    """

    def __init__(self, transport: Transport, job: RunJob) -> None:
        if job.data is not None:
            job = replace(job, data=received(job.data))
        self._transport, self._job = transport, job
        self._stopping = threading.Event()
        # Entered by hand: another call, of close, leaves the context.
        self._limit = blas_limit(job.blas_threads)
        self._limit.__enter__()
        transport.listen(port(job.run, "stop"), lambda source, thing: self._stopping.set())
        stop = self._stopping.is_set
        self._contexts = [RankContext(transport, job, own, stop) for own in job.jobs]
        # An eager transport looks more often for messages of other machines, at some per cent of a
        # core: only ranks that exchange messages in every step gain by it.
        transport.is_eager = any(own.group is not None for own in self._contexts)
        self._sent: dict[int, float] = {}
        self._threads: list[threading.Thread] = []
        for assignment, own in zip(job.jobs, self._contexts, strict=True):
            name, build = f"syncpretrain-layer-{own.number}", partial(assignment.open, own)
            self._threads.append(started_thread(name, serve, build, own.next, own.answer))

    def report_progress(self) -> None:
        """Report the progress of long orders to rank 0, where it has changed."""
        now = {
            own.number: float(own.progress[0])
            for assignment, own in zip(self._job.jobs, self._contexts, strict=True)
            if own.leads and assignment.reports_progress
        }
        # Only what has changed is sent: a rank with nothing to do sends nothing.
        moved = {i: x for i, x in now.items() if self._sent.get(i) != x}
        if moved:
            self._sent |= moved
            self._transport.send(0, port(self._job.run, "progress"), moved)

    def close(self) -> list[str]:
        """End the workers after their minibatch; return the names of the threads still alive."""
        self._stopping.set()
        for own in self._contexts:
            own.leave()
        # Half of the time that rank 0 waits, so that rank 0 still gets the names.
        alive = join_all(self._threads, self._job.times.join / 2)
        self._limit.__exit__(None, None, None)
        self._transport.is_eager = False
        self._transport.forget(self._job.run)
        return alive


def follow(transport: Transport) -> RunEnded:
    """Hold workers for rank 0 until the end of its call; return the message that ends the call.

    Raises
    ------
    WorkerError
        If rank 0 is lost.
    """
    transport.listen(DUMP, lambda source, thing: faulthandler.dump_traceback(STDERR))
    held: RankWorkers | None = None
    # Signals to stop reach rank 0 too, which decides what to do.
    with handled_by(dict.fromkeys(STOPPING, signal.SIG_IGN)):
        try:
            while True:
                found = transport.take(CONTROL, RANK_LOOK_SECONDS)
                if held is not None:
                    held.report_progress()
                if found is None:
                    how = transport.lost(0)
                    if how is not None:
                        raise WorkerError(f"{transport.peers.name(0)} {how}")
                    continue
                message: RunJob | RunOver | RunEnded = found[1]
                if isinstance(message, RunJob):
                    held = RankWorkers(transport, message)
                elif isinstance(message, RunOver):
                    alive = held.close() if held is not None else []
                    held = None
                    transport.send(0, port(message.run, "left"), alive)
                else:
                    return message
        finally:
            if held is not None:
                held.close()
