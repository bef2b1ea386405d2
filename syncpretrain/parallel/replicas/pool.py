"""Replicas that train at the same time, and the loop of the server between them.

The thread that calls :meth:`ReplicaPool.train` is the server: it gives each replica a task, waits
for any of them, applies the change that it made and gives it the next one. Parameters and changes
lie in two vectors a replica; what goes to and fro are short messages. The vectors of a replica on
another rank lie there, and the server has a number in their place.

Guarantees:

* A change is applied after its replica's message that it is complete: once, and whole.
* A replica that dies leaves no lock and no half of an update behind; its task is given to another
  one, and the others go on.
* A failure of a replica is raised by :meth:`ReplicaPool.train`.

Nothing is locked: a replica writes its vectors from an order to its answer, the server from the
answer to the next order, so each vector has one writer at any moment.

Assumption: a replica answers each order once, in their order, or ends.
"""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from syncpretrain.errors import StalledError, WorkerError
from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas.replica_count import Trained, Trial
from syncpretrain.parallel.replicas.server import SERVER_STATE, ParameterServer, Server
from syncpretrain.parallel.replicas.steps import (
    Each,
    Load,
    LocalSteps,
    ReplicaFactory,
    Save,
    Saved,
    Task,
    Work,
    Worked,
    answer,
    part_of,
)
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.settings.fields import AsyncFields

__all__ = ["Channel", "Failed", "ReplicaPool", "ReplicaThread", "Started", "StartedReplicas"]


SOMETHING = b"."


class Channel(Protocol):
    """A replica that runs, as its server sees it."""

    channel: Connection | None  # to wait on; None once it is closed

    @property
    def has_ended(self) -> bool:
        """True if it has ended without a message about it."""
        ...

    def send(self, thing: Any) -> None:
        """Send it an order; do nothing if it has ended."""
        ...

    def receive(self) -> Any:
        """Return its next answer; None if there is none, and never will be."""
        ...

    def ending(self) -> str:
        """Return how it ended."""
        ...


@dataclass(frozen=True, slots=True)
class Failed:
    """The error of a replica, with which it ends.

    ``trace`` is its traceback in another process, and ``place`` what to call a rank that has it.
    """

    error: BaseException
    trace: str = ""
    place: str = ""


class ReplicaPool:
    """A :class:`~syncpretrain.parallel.replicas.steps.Fleet` of threads or processes.

    Parameters
    ----------
    server : Server
        The calling thread is its owner.
    rules : AsyncFields
    start : callable
        Starts the replicas; returns the channel of each, and the two vectors that it shares.
    end : callable
        Ends the replicas; called once, whatever happened.
    report : callable
        Given a sentence for the user.
    times : Timeouts
    trial : Trial, optional
        Finds the number of replicas that are worth it; None lets all train.
    """

    def __init__(
        self,
        server: Server[Any],
        rules: AsyncFields,
        start: Callable[[], Sequence[tuple[Channel, Any, Any]]],
        end: Callable[[], None],
        report: Callable[[str], None],
        times: Timeouts,
        trial: Trial | None = None,
    ) -> None:
        self._trial = trial
        self._server, self._rules, self._times = server, rules, times
        self._start, self._end, self._report = start, end, report
        self._running: list[_Running] = []
        self._loaded: Mapping[str, Array] = {}
        self._between = 0.0  # seconds between the calls of train, which the trial leaves out
        self._left: float | None = None  # when the last one ended

    def __enter__(self) -> ReplicaPool:
        try:
            self._running = [_Running(*parts) for parts in self._start()]
            self._server.start()
        except BaseException:
            self.__exit__()
            raise
        if self._loaded:
            self._send_states()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._end()
        finally:
            self._server.end()
            self._running = []

    def train(self, tasks: Sequence[Task], stop: Callable[[], bool], each: Each) -> int:
        """Train tasks, the next one by a replica that is free; return how many were trained.

        Raises
        ------
        WorkerError
            If a replica fails, or all have died.
        StalledError
            If no task ends for ``times.stall`` seconds.
        """
        left, again = deque(tasks), deque[Task]()  # the second: tasks of replicas that died
        last = tasks[-1] if tasks else None  # its minibatch may be a smaller one
        moved = time.monotonic()
        self._between += 0.0 if self._left is None else moved - self._left
        while True:
            # A stop drops the tasks that nobody has begun. Tasks of replicas that died were begun,
            # and stay: the tasks that are done must be the first ones, for a checkpoint.
            if left and stop():
                tasks = tasks[: len(tasks) - len(left)]
                left.clear()
            for running in self._training():
                if running.task is None and (again or left):
                    task = again.popleft() if again else left.popleft()
                    self._order(running, task, anew=running.has_rested)
            if not any(running.task for running in self._alive()):
                self._server.settle()
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
        """Return the states of the server and of the replicas that are alive."""
        found = {SERVER_STATE + name: array for name, array in self._server.state().items()}
        for number, running in enumerate(self._running):
            if running.is_alive:
                saved = self._asked(number, Save())
                found |= {f"replica{number}.{name}": array for name, array in saved.items()}
        return found

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go back to a state; a replica that had died then begins anew.

        The state may come from replicas that took turns: their changes that wait are added here.
        """
        # The server's state before the changes: they are compensated by its mean squares.
        self._server.load_state(state)
        self._server.add_late(state)
        self._loaded = dict(state)
        if self._running:
            self._send_states()

    def _send_states(self) -> None:
        for number in range(len(self._running)):
            own = part_of(self._loaded, f"replica{number}.")
            if own:
                self._asked(number, Load(own))
        self._loaded = {}

    def _alive(self) -> list[_Running]:
        return [running for running in self._running if running.is_alive]

    def _training(self) -> list[_Running]:
        """Return the replicas that are to train."""
        alive = self._alive()
        count = len(alive) if self._trial is None else self._trial.count
        # The first ones alive train, so that as the count moves, few replicas rest and start anew.
        for running in alive[count:]:
            running.has_rested = running.task is None
        return alive[:count]

    def _order(self, running: _Running, task: Task, *, anew: bool = False) -> None:
        fetches = anew or self._rules.fetches(running.pushes)
        # The replica is idle, so its vector may be filled here before the order says that it is.
        if fetches:
            running.known = self._server.fetch(running.fetched)
            running.has_rested = False
        running.task = task
        running.channel.send(Work(task, fetches))

    def _ready(self) -> list[_Running]:
        """Wait a moment; return the replicas that answered or have ended."""
        busy = [running for running in self._alive() if running.task is not None]
        found = wait([r.channel.channel for r in busy if r.channel.channel], self._times.tick)
        # A replica may end without a word, or its pipe may be closed: its end is news as well.
        return [r for r in busy if r.channel.channel in found or r.channel.has_ended]

    def _take(self, running: _Running, again: deque[Task], each: Each, *, is_whole: bool) -> None:
        """Take the answer of a replica, or its end."""
        task, running.task = running.task, None
        assert task is not None
        found = running.channel.receive()
        if found is None:
            again.append(task)
            self._bury(running)
            return
        worked = self._checked(running, found)
        assert isinstance(worked, Worked)
        push = self._server.push(running.change, running.known, running.fetched)
        # Refused as too stale: the same task once more, from the newest parameters.
        if not push.is_taken:
            self._order(running, task, anew=True)
            return
        running.known += 1  # of its own push it knows
        running.pushes += 1
        each(task, worked.errors, push.staleness)
        trial = self._trial
        if trial is not None and not trial.is_over:
            # The error of a smaller minibatch would be a smaller sum, and look like progress.
            error = sum(worked.errors) / task.count if is_whole else None
            now = time.monotonic() - self._between
            trial.trained(Trained(now, self._rules.share(push.staleness), error))
            if trial.is_over and trial.count < len(self._running):
                self._report(trial.verdict())

    def _bury(self, running: _Running) -> None:
        running.is_alive = False
        number, how = self._running.index(running) + 1, running.channel.ending()
        left = len(self._alive())
        if not left:
            raise WorkerError(f"replica {number} failed: {how}; no other one is left")
        self._report(f"warning: replica {number} failed: {how}; the {left} others go on")

    def _asked(self, number: int, order: Save | Load) -> Mapping[str, Array]:
        """Return the answer of an idle replica."""
        running = self._running[number]
        running.channel.send(order)
        deadline = time.monotonic() + self._times.stall
        while time.monotonic() < deadline:
            channel = running.channel.channel
            ready = channel is None or bool(wait([channel], self._times.tick))
            if ready or running.channel.has_ended:
                found = running.channel.receive()
                if found is None:
                    self._bury(running)
                    return {}
                saved = self._checked(running, found)
                assert isinstance(saved, Saved)
                return saved.state
        raise StalledError(f"replica {number + 1} sent no state for {self._times.stall:g} s")

    def _checked(self, running: _Running, found: Any) -> Worked | Saved:
        """Return an answer that is no failure."""
        if isinstance(found, Failed):
            number, error = self._running.index(running) + 1, found.error
            where = f" on {found.place}" if found.place else ""
            text = f"replica {number} failed{where}: {type(error).__name__}: {error}"
            raise WorkerError(text) from error
        answer: Worked | Saved = found
        return answer


class _Running:
    """One replica: its channel, its two vectors as the server has them, and its task."""

    def __init__(self, channel: Channel, fetched: Any, change: Any) -> None:
        self.channel, self.fetched, self.change = channel, fetched, change
        self.known = self.pushes = 0  # clock of the parameters it trains on; its pushes so far
        self.task: Task | None = None
        self.is_alive = True
        self.has_rested = False  # while others trained, so that its parameters are stale


Started = Sequence[tuple[Channel, Any, Any]]  # of each: its channel, and its two vectors


class StartedReplicas(ABC):
    """Replicas of one fleet.

    Parameters
    ----------
    server : ParameterServer
    factory : callable
        Returns a replica, given the data.
    data : sequence of ndarray of shape (rows, width)
    replicas : int
    times : Timeouts
    """

    def __init__(
        self,
        server: ParameterServer,
        factory: ReplicaFactory,
        data: Sequence[Array],
        replicas: int,
        times: Timeouts,
    ) -> None:
        self._parameters, self._size = server, len(server.parameters)
        self._factory, self._data = factory, tuple(data)
        self._replicas, self._times = replicas, times

    @property
    def server(self) -> Server[Any]:
        """The server that their vectors are for."""
        return self._parameters

    @abstractmethod
    def start(self) -> Started:
        """Start them; return channel and vectors of each."""

    @abstractmethod
    def end(self) -> None:
        """End them.

        Raises
        ------
        StalledError
            If one does not end in time.
        """


class ReplicaThread:
    """A thread that follows orders until its channel is closed.

    Messages go by reference; a byte in the pipe only says that there is one, so that the server
    can wait for many replicas together.

    Parameters
    ----------
    name : str
    build : callable
        Returns the replica at work; called in the thread.
    """

    def __init__(self, name: str, build: Callable[[], LocalSteps]) -> None:
        ours, self._theirs = multiprocessing.Pipe()
        self.channel: Connection | None = ours
        self._build = build
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """True if the thread has ended."""
        return not self._thread.is_alive()

    def send(self, thing: Any) -> None:
        """Send the thread an order."""
        self._orders.put(thing)

    def receive(self) -> Any:
        """Return its next answer; None if there is none, and never will be."""
        # The thread may have answered and then ended: its byte is still in the pipe.
        if self.channel is None or (self.has_ended and not self.channel.poll()):
            return None
        try:
            self.channel.recv_bytes()
        except (EOFError, OSError):
            return None
        return self._answers.get()

    def ending(self) -> str:
        """Return how it ended."""
        self.close()
        return "its thread ended"

    def close(self) -> None:
        """Ask the thread to end, which it does after its task."""
        self._orders.put(None)
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def join(self, seconds: float) -> bool:
        """Wait for the end of the thread; return whether it came."""
        self._thread.join(seconds)
        return self.has_ended

    def _run(self) -> None:
        with self._theirs:
            try:
                steps = self._build()
                while (order := self._orders.get()) is not None:
                    self._answer(answer(steps, order))
            except BaseException as error:  # the server's thread raises it
                self._answer(Failed(error))

    def _answer(self, thing: Any) -> None:
        # The answer before its byte, so that whoever reads the byte finds the answer.
        self._answers.put(thing)
        try:
            self._theirs.send_bytes(SOMETHING)
        except OSError:  # the pool is closed, and nothing waits for it any more
            self._answers.get()
