"""Replicas of asynchronous training: in turns, or one per thread, process or rank.

The thread that calls :meth:`ReplicaPool.train` is the server: it gives each replica a task, waits
for any replica, applies the replica's change and gives the replica the next task. Each replica has
two vectors, one for the parameters and one for its change; messages are short. The vectors of a
replica on another rank are on that rank, and the server may hold a number in place of a vector.

Guarantees:

* A change is applied once and whole, after the replica's message that the change is complete.
* A replica that dies leaves no lock and no half update behind; the server gives the task to another
  replica, and the others go on.
* :meth:`ReplicaPool.train` raises the failure of a replica.

Nothing is locked: a replica writes its vectors from an order to its answer, the server from the
answer to the next order, so each vector has one writer at any moment.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from syncpretrain.errors import StalledError, WorkerError
from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas import steps
from syncpretrain.parallel.replicas.replica_count import Trained, Trial
from syncpretrain.parallel.replicas.server import SERVER_STATE, ParameterServer
from syncpretrain.parallel.replicas.turns import ReplicaTurns
from syncpretrain.parallel.timeouts import Closing, Deadline, Timeouts
from syncpretrain.settings.fields import AsyncFields
from syncpretrain.workers.link import Context, Link, Obey, Raised, described, place_of, ready
from syncpretrain.workers.processes import Processes
from syncpretrain.workers.shared_memory import FLOAT, SharedArrays
from syncpretrain.workers.threads import Threads

if TYPE_CHECKING:
    from syncpretrain.workers.ranks.replicas import RankServers, WindowServer


def replicas_in(
    runtime: str,
    server: ParameterServer,
    rules: AsyncFields,
    factory: steps.ReplicaFactory,
    data: Sequence[Array],
    *,
    replicas: int,
    exchange: str = "messages",
    report: Callable[[str], None],
    times: Timeouts,
) -> Fleet:
    """Return the replicas in a runtime, as a context manager.

    Parameters
    ----------
    runtime : str
        ``serial``, ``threads``, ``processes`` or ``mpi``.
    server : ParameterServer
    rules : AsyncFields
        Without ``simulate_staleness``, changes of ``serial`` replicas are applied ``replicas`` - 1
        changes late, as if all replicas trained at the same speed.
    factory : callable
        Takes the data and returns a replica; for processes it can be pickled.
    data : sequence of ndarray of shape (rows, width)
    replicas : int
    exchange : str
        Way in which replicas on ranks exchange parameters: ``messages`` or ``windows``.
    report : callable
        Called with a sentence for the user.
    times : Timeouts
    """
    if runtime == "serial":
        late = replicas - 1 if rules.simulate_staleness is None else rules.simulate_staleness
        return ReplicaTurns(server, [factory(data) for _ in range(replicas)], rules, late)
    trial = Trial(replicas) if rules.trim_replicas else None
    given = server, factory, tuple(data), replicas, times
    if runtime != "mpi":
        place = (
            Processes(times) if runtime == "processes" else Threads("syncpretrain-replica", times)
        )
        start = partial(_started, place, *given[:-1])
        return ReplicaPool(server, rules, start, place.end, report, times, trial)
    from syncpretrain.workers.ranks.replicas import RankReplicas

    ranks = RankReplicas(*given, exchange)
    return ReplicaPool(ranks.server, rules, ranks.start, ranks.end, report, times, trial)


Started = Sequence[tuple[Link, Any, Any]]  # link, parameters and change of each replica


@dataclass(eq=False)
class ReplicaPool(Closing):
    """Replicas and their server in threads, processes or ranks, to be entered as a context.

    Parameters
    ----------
    server : ParameterServer, RankServers or WindowServer
        The calling thread owns the server.
    rules : AsyncFields
    start : callable
        Starts the replicas; returns the link and the two shared vectors of each replica.
    end : callable
        Ends the replicas; returns the names of the replicas that did not end in time.
    report : callable
        Called with a sentence for the user.
    times : Timeouts
    trial : Trial, optional
        Finds by measurement how many replicas are worth training; None lets all train.
    """

    server: ParameterServer | RankServers | WindowServer
    rules: AsyncFields
    start: Callable[[], Started]
    end: Callable[[], list[str]]
    report: Callable[[str], None]
    times: Timeouts
    trial: Trial | None = None

    def __post_init__(self) -> None:
        super().__init__(self.times)
        self._running: list[_Running] = []
        self._loaded: Mapping[str, Array] = {}
        self._between = 0.0  # seconds between the calls of train, which the trial leaves out
        self._left: float | None = None  # time at which the last call of train ended

    def _open(self) -> None:
        self._running = [_Running(*parts) for parts in self.start()]
        self.server.start()
        if self._loaded:
            self._send_states()

    def _close(self) -> list[str]:
        # Also after an error of the replicas' end, which would leave threads of the server behind.
        try:
            return self.end()
        finally:
            self.server.end()
            self._running = []

    def train(self, tasks: Sequence[steps.Task], stop: Callable[[], bool], each: steps.Each) -> int:
        """Train tasks, each by the next free replica, until all are done or ``stop`` turns true.

        Returns how many were trained. These are the first ones, and the server has their changes.

        Raises
        ------
        WorkerError
            If a replica fails, or all have died.
        StalledError
            If no task ends for ``times.stall`` seconds.
        """
        left, again = deque(tasks), deque[steps.Task]()  # the second: tasks of replicas that died
        last = tasks[-1] if tasks else None  # may have a smaller minibatch
        moved = time.monotonic()
        self._between += 0.0 if self._left is None else moved - self._left
        while True:
            # A stop drops the tasks that no replica has begun. Tasks of replicas that died were
            # begun, and stay: a checkpoint needs the done tasks to be the first ones.
            if left and stop():
                tasks = tasks[: len(tasks) - len(left)]
                left.clear()
            for running in self._training():
                if running.task is None and (again or left):
                    task = again.popleft() if again else left.popleft()
                    self._order(running, task, anew=running.has_rested)
            if not any(running.task for running in self._alive()):
                self.server.settle()
                self._left = time.monotonic()
                return len(tasks)
            for running in self._ready():
                moved = time.monotonic()
                self._take(running, again, each, is_whole=running.task != last)
            if time.monotonic() - moved > self._times.stall:
                raise StalledError(
                    f"no replica ended a task for {self._times.stall:g} s, of"
                    f" {len(self._alive())} that are alive"
                )

    def state(self) -> dict[str, Array]:
        """Return the states of the server and of the living replicas, as named arrays."""
        found = {SERVER_STATE + name: array for name, array in self.server.state().items()}
        for number, running in enumerate(self._running):
            if running.is_alive:
                saved = self._asked(number, steps.Save())
                found |= {f"replica{number}.{name}": array for name, array in saved.items()}
        return found

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go back to a state; a replica that is not in the state begins anew.

        A state of replicas in turns may have changes that wait; they are added to the parameters.
        """
        # The server's state first: its mean squares compensate the changes that wait.
        self.server.load_state(state)
        self.server.add_late(state)
        self._loaded = dict(state)
        if self._running:
            self._send_states()

    def _send_states(self) -> None:
        for number in range(len(self._running)):
            own = steps.part_of(self._loaded, f"replica{number}.")
            if own:
                self._asked(number, steps.Load(own))
        self._loaded = {}

    def _alive(self) -> list[_Running]:
        return [running for running in self._running if running.is_alive]

    def _training(self) -> list[_Running]:
        """Return the living replicas that the trial lets train."""
        alive = self._alive()
        count = len(alive) if self.trial is None else self.trial.count
        # The first living replicas train: as the count moves, few replicas rest and start anew.
        for running in alive[count:]:
            running.has_rested = running.task is None
        return alive[:count]

    def _order(self, running: _Running, task: steps.Task, *, anew: bool = False) -> None:
        fetches = anew or self.rules.fetches(running.pushes)
        # The replica is idle, so its vector may be filled before the order is sent.
        if fetches:
            running.known = self.server.fetch(running.fetched)
            running.has_rested = False
        running.task = task
        running.link.send(steps.Work(task, fetches))

    def _ready(self) -> list[_Running]:
        """Wait a tick; return the replicas that have answered or ended."""
        busy = [running for running in self._alive() if running.task is not None]
        found = ready([running.link for running in busy], self._times.tick)
        return [running for running in busy if running.link in found]

    def _take(
        self, running: _Running, again: deque[steps.Task], each: steps.Each, *, is_whole: bool
    ) -> None:
        """Apply the answer of a replica, or give up a replica that has ended."""
        task, running.task = running.task, None
        assert task is not None
        found = running.link.receive()
        # Nothing of a dead replica's change was applied: another replica does the task again.
        if found is None:
            again.append(task)
            self._bury(running)
            return
        errors = self._checked(running, found)
        push = self.server.push(running.change, running.known, running.fetched)
        # A change that is too stale is refused: the task is done again from the newest parameters.
        if not push.is_taken:
            self._order(running, task, anew=True)
            return
        running.known += 1  # the replica's own push is no staleness
        running.pushes += 1
        each(task, errors, push.staleness)
        trial = self.trial
        if trial is not None and not trial.is_over:
            # The error of a smaller minibatch is a smaller sum, and would look like progress.
            error = sum(errors) / task.count if is_whole else None
            now = time.monotonic() - self._between
            trial.trained(Trained(now, self.rules.share(push.staleness), error))
            if trial.is_over and trial.count < len(self._running):
                self.report(trial.verdict())

    def _bury(self, running: _Running) -> None:
        running.is_alive = False
        number, how = self._running.index(running) + 1, running.link.ending()
        left = len(self._alive())
        if not left:
            raise WorkerError(f"replica {number} failed: {how}; no other one is left")
        self.report(f"warning: replica {number} failed: {how}; the {left} others go on")

    def _asked(self, number: int, order: steps.Save | steps.Load) -> Mapping[str, Array]:
        """Return the state that an idle replica answers with; empty if the replica has died."""
        running = self._running[number]
        running.link.send(order)
        deadline = Deadline(self._times.stall)
        while True:
            if running.link.poll(self._times.tick):
                found = running.link.receive()
                if found is None:
                    self._bury(running)
                    return {}
                state: Mapping[str, Array] = self._checked(running, found)
                return state
            deadline.check(f"replica {number + 1} sent no state for")

    def _checked(self, running: _Running, found: Any) -> Any:
        """Return an answer, or raise the failure that it reports."""
        if isinstance(found, Raised):
            number, error = self._running.index(running) + 1, found.error
            text = f"replica {number} failed{place_of(error)}: {described(error)}"
            raise WorkerError(text) from error
        return found


Fleet = ReplicaTurns | ReplicaPool


class _Running:
    """A replica as the server sees it: link, parameters, change and running task."""

    def __init__(self, link: Link, fetched: Any, change: Any) -> None:
        self.link, self.fetched, self.change = link, fetched, change
        self.known = self.pushes = 0  # clock of the replica's parameters; number of its pushes
        self.task: steps.Task | None = None
        self.is_alive = True
        self.has_rested = False  # True if others trained meanwhile: the parameters are stale


Vectors = SharedArrays | Sequence[Array] | Array


def _started(
    place: Threads | Processes,
    server: ParameterServer,
    factory: steps.ReplicaFactory,
    data: tuple[Array, ...],
    replicas: int,
) -> Started:
    """Start replicas in a place of this machine."""
    size = len(server.parameters)
    vectors: Vectors = np.empty((replicas, 2, size), np.float32)
    given: Vectors = data
    if isinstance(place, Processes):
        vectors = place.share(SharedArrays.create(*[(FLOAT, (2, size))] * replicas))
        given = place.share(SharedArrays.of(*data))
    links = place.start([ReplicaJob(factory, given, vectors)] * replicas)
    return [(link, *pair) for link, pair in zip(links, _mapped(vectors), strict=True)]


def _mapped(arrays: Vectors, *, write: bool = True) -> Any:
    return arrays.map(write=write) if isinstance(arrays, SharedArrays) else arrays


@dataclass(frozen=True, slots=True)
class ReplicaJob:
    """Job of a replica in a thread or a process.

    ``vectors`` has two rows for each replica: the fetched parameters, and the change.
    """

    factory: steps.ReplicaFactory
    data: Vectors
    vectors: Vectors

    @contextmanager
    def open(self, context: Context) -> Iterator[Obey]:
        """Return the context of the worker; see :class:`syncpretrain.workers.link.Job`."""
        fetched, change = _mapped(self.vectors)[context.number - 1]
        data = _mapped(self.data, write=False)
        yield partial(steps.answer, steps.LocalSteps(self.factory(data), fetched, change))
