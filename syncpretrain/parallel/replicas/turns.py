"""Replicas that take turns in one thread, with a staleness that is the same every time.

A change is applied ``delay`` turns after it was computed, in the order of the turns::

    delay 2:   compute 0   compute 1   compute 2, apply 0   compute 3, apply 1   ...

So every push but the first few is ``delay`` pushes late. At the end of the tasks all changes that
wait are applied.

The clock of the server counts the changes that it took; *known* is the clock of the parameters that
a replica trains on. With delay 2 and a fetch before each change::

    turn                   0    1    2    3    4
    replica                0    1    0    1    0
    known                  0    0    0    1    2
    change applied                   0    1    2
    staleness of it                  0    1    2      clock - known of its turn

A replica that does not fetch trains on parameters that hold its own pushes already: so each of them
raises its *known* by one, and only pushes of others make it stale.

Guarantee: the result is a function of the seed, the number of replicas and the delay alone; a run
that is interrupted and resumed has the same bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas.server import LATE_CHANGE, SERVER_STATE, ParameterServer
from syncpretrain.parallel.replicas.steps import Each, LocalSteps, Replica, Task, part_of
from syncpretrain.settings.fields import AsyncFields

TURN = "turn"
PUSHES = "pushes"


@dataclass(slots=True)
class _Waiting:
    """A change that is not applied yet, with its replica, its task and the parameters before it."""

    replica: int
    task: Task
    then: int  # the clock that the replica knew when it began
    change: Array
    fetched: Array


class ReplicaTurns:
    """Replicas and their server in one thread, to be entered as a context.

    Parameters
    ----------
    server : ParameterServer
    replicas : sequence of Replica
    rules : AsyncFields
    delay : int
        Turns between a change and its application.
    """

    def __init__(
        self, server: ParameterServer, replicas: Sequence[Replica], rules: AsyncFields, delay: int
    ) -> None:
        self._server, self._rules, self._delay = server, rules, delay
        like = server.parameters
        self._steps = [LocalSteps(r, np.empty_like(like), np.empty_like(like)) for r in replicas]
        self._known = [0] * len(replicas)  # the clock of what each one trains on
        self._pushes = [0] * len(replicas)
        self._turn = 0
        self._waiting: deque[_Waiting] = deque()

    def __enter__(self) -> ReplicaTurns:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: no thread was started."""

    def train(self, tasks: Sequence[Task], stop: Callable[[], bool], each: Each) -> int:
        """Train tasks in turn, until all are done or ``stop`` turns true; return how many were.

        Their changes are in the parameters of the server once all tasks are done.
        """
        for number, task in enumerate(tasks):
            if stop():
                return number
            replica = self._turn % len(self._steps)
            self._turn += 1
            errors = self._work(replica, task, fetches=self._rules.fetches(self._pushes[replica]))
            self._pushes[replica] += 1
            each(task, errors, len(self._waiting))
            steps = self._steps[replica]
            # Only the compensation reads the fetched parameters again.
            fetched = steps.fetched.copy() if self._rules.delay_compensation else steps.fetched
            known, change = self._known[replica], steps.change.copy()
            self._waiting.append(_Waiting(replica, task, known, change, fetched))
            # Its own push is no news to it. Until that is applied, this may be ahead of the clock.
            self._known[replica] += 1
            while len(self._waiting) > self._delay:
                self._apply()
        while self._waiting:
            self._apply()
        return len(tasks)

    def state(self) -> dict[str, Array]:
        """Return the states of server and replicas, and the changes that wait."""
        # A server begins at clock 0 in each run, so clocks are saved as differences to now. Counts
        # are saved modulo their period: float32, in which a checkpoint keeps them, holds whole
        # numbers up to 2^24 only.
        clock = self._server.clock
        found = {
            TURN: np.array([self._turn % len(self._steps)], dtype=np.float32),
            PUSHES: np.array([n % self._rules.period for n in self._pushes], dtype=np.float32),
            "known": np.array([clock - known for known in self._known], dtype=np.float32),
        }
        found |= {SERVER_STATE + name: array for name, array in self._server.state().items()}
        for number, steps in enumerate(self._steps):
            flat = steps.save_parameters(np.empty_like(steps.fetched))
            own = steps.replica.state() | {"own": flat}
            found |= {f"replica{number}.{name}": array for name, array in own.items()}
        for number, item in enumerate(self._waiting):
            task = item.task
            numbers = [item.replica, task.epoch, task.first, task.count, clock - item.then]
            found[f"{LATE_CHANGE}{number}.task"] = np.array(numbers, dtype=np.float32)
            found[f"{LATE_CHANGE}{number}.change"] = item.change
            if self._rules.delay_compensation:
                found[f"{LATE_CHANGE}{number}.fetched"] = item.fetched
        return found

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go back to what :meth:`state` held, bit for bit.

        The state may come from replicas that trained at the same time: then all fetch first.
        """
        # These have no turn, and new replicas begin with a fetch (0 pushes). With turns, the clock
        # may be smaller than at the save: only differences to it count, and they are the same.
        clock = self._server.clock
        if TURN in state:
            self._turn = int(state[TURN][0])
            self._pushes = [int(n) for n in state[PUSHES]]
            self._known = [clock - int(n) for n in state["known"]]
        self._server.load_state(state)
        for number, steps in enumerate(self._steps):
            own = part_of(state, f"replica{number}.")
            if TURN in state:
                steps.load_parameters(own.pop("own"))
            if own:
                steps.replica.load_state(own)
        self._waiting.clear()
        while (task := state.get(f"{LATE_CHANGE}{len(self._waiting)}.task")) is not None:
            name = f"{LATE_CHANGE}{len(self._waiting)}"
            replica, epoch, first, count, behind = map(int, task)
            change = state[f"{name}.change"].copy()
            fetched = self._steps[replica].fetched
            if self._rules.delay_compensation:
                fetched = state[f"{name}.fetched"].copy()
            # Saved as an age: at its turn it is as stale as it would have been.
            task_then = Task(epoch, first, count)
            self._waiting.append(_Waiting(replica, task_then, clock - behind, change, fetched))

    def _work(self, replica: int, task: Task, *, fetches: bool) -> tuple[float, ...]:
        steps = self._steps[replica]
        if fetches:
            self._known[replica] = self._server.fetch(steps.fetched)
        return steps.work(task, fetches=fetches)

    def _apply(self) -> None:
        """Apply the oldest change; one that is too stale is computed anew and applied at once."""
        # A refused change is trained again at once, in its place: their order decides the bits.
        item = self._waiting.popleft()
        if self._server.push(item.change, item.then, item.fetched).is_taken:
            return
        self._work(item.replica, item.task, fetches=True)
        steps = self._steps[item.replica]
        self._server.push(steps.change, self._known[item.replica], steps.fetched)
        self._known[item.replica] += 1
