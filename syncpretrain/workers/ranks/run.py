"""Ranks of a job as the place of a run: the workers on each rank, and their end.

Guarantees:

* A rank with nothing to do sleeps. Orders and answers are messages.
* The death of a rank is a failure of its worker, seen within a tick of the driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from syncpretrain.cluster.job import Membership
from syncpretrain.cluster.transport import Handler
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.workers.link import Inbox, Place, Raised, RemoteTraceback
from syncpretrain.workers.ranks import worker
from syncpretrain.workers.ranks.worker import Assignment, RunJob, RunOver

RANK_DUMP_SECONDS = 0.3


class RankLink(Inbox):
    """Link to a worker on a rank, or on several ranks that share the worker.

    Answers arrive in the thread of the transport.

    Parameters
    ----------
    number : int
        Number of the worker.
    ranks : RunRanks
    """

    def __init__(self, number: int, ranks: RunRanks) -> None:
        super().__init__()
        self.number, self.ranks = number, ranks
        self._failure: Raised | None = None  # in a block that was answered before it failed
        self._is_asked = False  # True while an order is not answered yet
        # Once the rank is lost, a late answer would be taken for the answer to another order.
        self._is_lost = False
        self._has_failed = False  # True after a rank of the group has failed by itself
        ranks.listen("answers", self.take, number)

    @property
    def channel(self) -> Connection | None:
        """Connection that is readable once an answer has come."""
        return None if self._is_lost else super().channel

    @property
    def offset(self) -> float:
        """Seconds to add to a time of the rank's clock, for a time of this process."""
        return self.ranks.transport.peers.offset(self.ranks.groups[self.number][0])

    @property
    def has_ended(self) -> bool:
        """True if the rank is lost, or has failed without an order to answer."""
        if self._is_lost or (self._failure is not None and not self._is_asked):
            return True
        return self.ranks.lost(self.number) is not None

    def take(self, source: int, answer: Any) -> None:
        """Store an answer of a rank."""
        if isinstance(answer, Raised) and not isinstance(answer.error, worker.SHARED_ENDS):
            # A failure of one rank of a group may happen on all, and each rank sends it. A second
            # error would be taken for the answer to the next order, which asks for the layer.
            if self._has_failed and len(self.ranks.groups[self.number]) > 1:
                return
            self._has_failed = True
        self.put(self.placed(source, answer))

    def fail(self, source: int, failure: Raised) -> None:
        """Record a failure of a rank that answers no order."""
        self._failure = self.placed(source, failure)

    def send(self, order: Any) -> None:
        """Send an order to every rank of the worker."""
        self._is_asked = True
        self.ranks.send(self.number, "orders", order)

    def poll(self, seconds: float) -> bool:
        """Wait for an answer or the loss of the rank; return True if one of the two came."""
        return self._is_lost or super().poll(seconds) or self.has_ended

    def receive(self) -> Any:
        """Return the next answer, or None if no answer can come any more."""
        found = None if self._is_lost else super().receive()
        # A failure between two orders stands for an answer, once; without one the rank is lost.
        if found is None and not self._is_asked:
            found, self._failure = self._failure, None
        self._is_lost |= found is None
        self._is_asked = False
        return found

    def ending(self) -> str:
        """Return how the rank was lost."""
        name = self.ranks.transport.peers.name(self.ranks.groups[self.number][0])
        return self.ranks.lost(self.number) or f"{name} does not answer"

    def kill(self) -> None:
        """Count the rank as lost; the job is aborted at the end."""
        self._is_lost = self.ranks.own.broken = True

    def placed(self, source: int, answer: Any) -> Any:
        """Return an answer; write the name of its rank into its error, if it has one."""
        cause = getattr(getattr(answer, "error", None), "__cause__", None)
        if isinstance(cause, RemoteTraceback):
            cause.place = self.ranks.transport.peers.name(source)
        return answer


@dataclass(eq=False)
class RunRanks(Place):
    """Ranks of a job as the place of a run. MPI replaces no rank, and ends a job, not a rank.

    Parameters
    ----------
    own : Membership
    groups : mapping of int to tuple of int
        The ranks of each worker, by the worker's number; the first rank answers.
    times : Timeouts
        Only ``join`` is used.
    data : sequence of arrays, optional
        Sent to the ranks with jobs that read the data.
    blas_threads : int
        BLAS threads of each rank.
    is_eager : bool
        True if this rank exchanges messages with others in every step.
    called : str
        Begin of the witness's message about a dead rank; ``{}`` stands for the workers' numbers.
    link : callable
        Takes the number of a worker and this object; returns the link to the worker.

    Attributes
    ----------
    own, groups
        See the parameters.
    links : dict of int to RankLink
        The link to each started worker, by the worker's number.
    """

    own: Membership
    groups: Mapping[int, tuple[int, ...]]
    times: Timeouts
    _: KW_ONLY
    data: Sequence[Any] | None = None
    blas_threads: int = 1
    is_eager: bool = False
    called: str = "layer {} failed: "
    link: Callable[[int, RunRanks], RankLink] = RankLink

    def __post_init__(self) -> None:
        self.transport = self.own.transport
        # Ports carry the number of the run: a late message of an earlier run reaches nobody.
        self.own.runs += 1
        self.run = self.own.runs
        self._begun: list[int] = []
        self.links: dict[int, RankLink] = {}
        size = len(self.groups) + 1
        self.progress, self.workers = np.zeros(size), np.ones(size)

    def start(self, jobs: Sequence[Assignment]) -> list[RankLink]:
        """Send each rank its jobs."""
        self.transport.is_eager = self.is_eager
        self.links = {job.number: self.link(job.number, self) for job in jobs}
        self.listen("progress", self._record_progress)
        self.listen("failures", self._record_failure)
        # The data are packed once for all ranks.
        sent = None if self.data is None else worker.to_send(self.data)
        for rank in sorted({rank for group in self.groups.values() for rank in group}):
            own = tuple(job for job in jobs if rank in self.groups[job.number])
            if not own:  # the rank only has memory, in a window
                continue
            data = sent if any(job.reads_data for job in own) else None
            self._begun.append(rank)
            self.own.describe(rank, self.called.format(", ".join(str(job.number) for job in own)))
            run = RunJob(self.run, own, data, self.blas_threads, self.times)
            self.transport.send(rank, worker.CONTROL, run)
        return list(self.links.values())

    def set_workers(self, number: int, workers: int) -> None:
        """Set the number of threads that a worker may have, from its next step on."""
        # Rounded up: the ranks of a group share the threads, and each needs one.
        self.send(number, "workers", -(-workers // len(self.groups[number])))

    def send(self, number: int, name: str, thing: Any) -> None:
        """Send an object to a port of a worker, on every rank of the worker."""
        for rank in self.groups[number]:
            self.transport.send(rank, worker.port(self.run, name, number), thing)

    def send_first(self, number: int, name: str, thing: Any) -> None:
        """Send an object to a port of a worker, on the rank that answers for the worker."""
        self.transport.send(self.groups[number][0], worker.port(self.run, name, number), thing)

    def take(self, name: str, timeout: float) -> tuple[int, Any] | None:
        """Return the sender and the next object at a port of this rank, None after a timeout."""
        return self.transport.take(worker.port(self.run, name), timeout)

    def listen(self, name: str, handler: Handler, number: int = 0) -> None:
        """Call a function with every object that arrives at a port of this rank."""
        self.transport.listen(worker.port(self.run, name, number), handler)

    def stop(self) -> None:
        """Ask every worker to leave after its minibatch."""
        for rank in self._begun:
            self.transport.send(rank, worker.port(self.run, "stop"), None)

    def dump_stacks(self) -> None:
        """Ask every other rank to write the stacks of its threads on stderr."""
        for rank in self._begun:
            self.transport.send(rank, worker.DUMP, None)
        time.sleep(RANK_DUMP_SECONDS)  # this process writes its own stacks to the same stream next

    def lost(self, number: int) -> str | None:
        """Return how a rank of a worker was lost, None if all its ranks are there.

        Raises
        ------
        WorkerError
            If this rank can no longer communicate.
        """
        self.transport.check()
        for rank in self.groups[number]:
            how = self.transport.lost(rank)
            if how is not None:
                return f"{self.transport.peers.name(rank)} {how}"
        return None

    def end(self) -> list[str]:
        """End the workers; return the names of the ranks that do not answer in time."""
        self.transport.is_eager = False
        waited = {rank for rank in self._begun if self.transport.lost(rank) is None}
        lost = set(self._begun) - waited
        for rank in waited:
            self.transport.send(rank, worker.CONTROL, RunOver(self.run))
        deadline, alive = time.monotonic() + self.times.join, list[str]()
        while waited and (left := deadline - time.monotonic()) > 0:
            found = self.transport.take(worker.port(self.run, "left"), min(left, self.times.tick))
            if found is not None:
                waited.discard(found[0])
                alive += [f"{name} of {self.transport.peers.name(found[0])}" for name in found[1]]
            # A rank that dies during this wait will not answer.
            dead = {rank for rank in waited if self.transport.lost(rank) is not None}
            lost |= dead
            waited -= dead
        self.transport.forget(self.run)  # from here on no handler fills a link
        for link in self.links.values():
            link.close()
        for rank in self._begun:
            self.own.describe(rank)
        if lost or waited or alive:
            self.own.broken = True
        return alive + [self.transport.peers.name(rank) for rank in sorted(waited)]

    def _record_progress(self, source: int, progress: Mapping[int, float]) -> None:
        for number, done in progress.items():
            self.progress[number] = done

    def _record_failure(self, source: int, failure: tuple[int, Raised]) -> None:
        number, raised = failure
        self.links[number].fail(source, raised)
