"""The workers of a rank in a run: a thread each, which gets orders and answers them.

The communication thread of the transport puts orders into ports and calls handlers. A worker's
thread alone computes; it leaves when the run is over, or when rank 0 is lost.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np

from syncpretrain.cluster.group import AgreedStop, Group, GroupError
from syncpretrain.cluster.transport import Port, Transport
from syncpretrain.errors import DataError, DivergedError
from syncpretrain.learners.epoch import Stopped
from syncpretrain.parallel.blas import blas_limit
from syncpretrain.workers.ranks.messages import (
    Assignment,
    EpochAssignment,
    RunJob,
    SentSplit,
    port,
    received,
)

__all__ = ["RankWorker", "RankWorkers"]

# All ranks of a group compute the same, so each of them raises these at the same minibatch.
SHARED_ENDS = (Stopped, DivergedError, DataError)
AssignmentT = TypeVar("AssignmentT", bound=Assignment)


class RankWorker(ABC, Generic[AssignmentT]):
    """One layer on this rank.

    Parameters
    ----------
    transport : Transport
    job : RunJob
    assignment : Assignment
        What the rank was sent for it, of the class's own kind.
    should_stop : callable
        Asked between minibatches.

    Attributes
    ----------
    progress : ndarray of shape (1,), float64
        Progress of the running epoch, or the last minibatch of the stream.
    worker_count : ndarray of shape (1,), float64
        Number of threads for the next step.
    group : Group or None
        The ranks that hold the layer together, if there are several.
    stop : callable
        Asked between minibatches; all ranks of a group find the same.
    """

    def __init__(
        self,
        transport: Transport,
        job: RunJob,
        assignment: AssignmentT,
        should_stop: Callable[[], bool],
    ) -> None:
        self.progress, self.worker_count = np.zeros(1), np.ones(1)
        self.number = assignment.layer
        self._transport, self._job = transport, job
        self._assignment: AssignmentT = assignment
        self._should_stop, self._times = should_stop, job.times
        self._orders = port(job.run, "orders", self.number)
        self._over = threading.Event()
        self.group: Group | None = None
        self.stop: Callable[[], bool] = should_stop
        self.agreed: AgreedStop | None = None
        if len(assignment.group) > 1:
            base = port(job.run, "group", self.number)
            self.group = Group(transport, assignment.group, base, job.times, self._over.is_set)
            self.stop = self.agreed = AgreedStop(self.group, should_stop)
        transport.listen(port(job.run, "workers", self.number), self._set_workers)

    @abstractmethod
    def work(self) -> None:
        """Obey orders until there are no more; report every failure."""

    def next_order(self) -> Any:
        """Return the next order, None at the end of the run."""
        return self._next(self._orders)

    def _next(self, own: Port) -> Any:
        """Return what comes next to a port of this rank, None at the end of the run."""
        while (found := self._transport.take(own, self._times.sleep)) is None:
            pass  # the loop of this rank notices that rank 0 is lost, and ends the process
        return found[1]

    def send(self, name: str, thing: Any, layer: int = 0) -> None:
        """Send something to a port of rank 0."""
        self._transport.send(0, port(self._job.run, name, layer), thing)

    @property
    def leads(self) -> bool:
        """Whether this rank answers for the layer."""
        return self.group is None or not self.group.number

    @property
    def sharing(self) -> tuple[AgreedStop, ...]:
        """Further arguments of the layer's factory: how a group agrees to stop."""
        return () if self.agreed is None else (self.agreed,)

    def is_to_answer(self, error: BaseException | None = None) -> bool:
        """Return whether rank 0 is to be sent an answer; let the others know of an error.

        The first rank of a group answers, any other one only with an error of its own.
        """
        if self.group is None:
            return True
        # A GroupError is the echo of another rank's failure, and that rank says why.
        if isinstance(error, GroupError):
            return False
        if error is None or isinstance(error, SHARED_ENDS):
            return self.leads
        # The others wait for this rank in the next exchange: they are woken with a GroupError.
        self.group.fail()
        return True

    def take(self, name: str, layer: int) -> Any:
        """Return the next thing that arrives at a port of this rank, None if the run ends first."""
        own = port(self._job.run, name, layer)
        while (found := self._transport.take(own, self._times.tick)) is None:
            if self._should_stop():
                return None
        return found[1]

    def leave(self) -> None:
        """Let :meth:`work` end after its order."""
        # A message to itself: the thread that waits for an order needs no second way to be woken.
        self._over.set()
        self._transport.send(self._transport.rank, self._orders, None)

    def _set_workers(self, source: int, workers: int) -> None:
        self.worker_count[0] = workers


class RankWorkers:
    """All layers of this rank in one run.

    Parameters
    ----------
    transport : Transport
    job : RunJob
    kinds : mapping
        The class of held layers for each class of places.
    """

    def __init__(
        self, transport: Transport, job: RunJob, kinds: Mapping[type, type[RankWorker[Any]]]
    ) -> None:
        if isinstance(job.data, SentSplit):
            job = replace(job, data=received(job.data))
        self._transport, self.job = transport, job
        self._stopping = threading.Event()
        self._limit = blas_limit(job.blas_threads)
        self._limit.__enter__()
        transport.listen(port(job.run, "stop"), self._stop)
        self._layers = [
            # One that is not of pretraining brings its worker along.
            (assignment.worker or kinds[type(assignment)])(
                transport, job, assignment, self._stopping.is_set
            )
            for assignment in job.layers
        ]
        # An eager transport looks more often for messages of other machines, at some per cent of a
        # core: ranks gain by it only if they exchange something in every step.
        transport.is_eager = any(layer.group is not None for layer in self._layers)
        self._sent: dict[int, float] = {}
        # Daemons only so that a thread stuck in foreign code cannot keep the process from ending.
        self._threads = [
            threading.Thread(
                target=layer.work, name=f"syncpretrain-layer-{layer.number}", daemon=True
            )
            for layer in self._layers
        ]
        for thread in self._threads:
            thread.start()

    def report_progress(self) -> None:
        """Report to rank 0 how far the epochs are, if they have moved."""
        now = {layer.number: float(layer.progress[0]) for layer in self._layers if layer.leads}
        epochs = {
            assignment.layer
            for assignment in self.job.layers
            if isinstance(assignment, EpochAssignment)
        }
        moved = {i: x for i, x in now.items() if i in epochs and self._sent.get(i) != x}
        if moved:
            self._sent |= moved
            self._transport.send(0, port(self.job.run, "progress"), moved)

    def close(self) -> list[str]:
        """End the layers after their minibatch; return the names of threads that still live."""
        self._stopping.set()
        for layer in self._layers:
            layer.leave()
        # Half of what rank 0 waits: it hears then which threads still live.
        deadline = time.monotonic() + self.job.times.join / 2
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._limit.__exit__(None, None, None)
        self._transport.is_eager = False
        alive = [thread.name for thread in self._threads if thread.is_alive()]
        self._transport.forget(self.job.run)
        return alive

    def _stop(self, source: int, thing: Any) -> None:
        self._stopping.set()
