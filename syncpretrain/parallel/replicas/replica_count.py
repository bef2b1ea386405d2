"""Choose the number of replicas from measured throughput and staleness.

Pure: no threads, no clocks. More replicas are worth it if the error falls faster in a second. To
first order the error falls with the sum of the steps that the parameters take, and the rules leave
of a change that is s pushes late the share 1 / s. So from the same parameters the error falls in
proportion to the *useful updates*, the sum of these shares, which a few tasks show without noise.
This leaves out that stale directions point elsewhere, and that the mean of several is less noisy.
So the prediction from useful updates is compared with the fall of the error itself.

A run begins with a *trial* in two parts:

1. All replicas train for a while, then fewer and fewer, as long as fewer make no fewer useful
   updates a second.
2. Two numbers of replicas take turns, in windows of the same number of examples::

       a b b a b a a b

   In this order (the sequence of Thue and Morse) the change of the slope as training goes on
   cancels: if neither is better, both fall equally far along any polynomial of the third degree. A
   line through the errors of each window is its fall a second. If the two differ by more than noise
   explains, the steeper one wins; else the prediction stands. The best so far competes with all
   replicas, then with half of itself.

Assumption: the caller leaves out the time between two calls, in which nothing trains.
"""

from __future__ import annotations

import math
from typing import NamedTuple

TASKS_EACH = 6  # tasks of each replica in a window
# Tasks of each replica before a window, which another number of replicas has begun or made stale.
SKIPPED_EACH = 2
DUEL_TASKS = 32  # least tasks in a window that measures errors, which are noisier than times
WORTH = 0.05  # least gain of progress for which more replicas are taken
CLEAR = 3.0  # standard errors; noise alone rarely explains a larger difference
ORDER = (0, 1, 1, 0, 1, 0, 0, 1)


class Trained(NamedTuple):
    """A task that ended.

    ``time`` is its end in seconds; ``share`` the part of its change that the rules left; ``error``
    the mean error of its minibatches, None if it compares with no other task.
    """

    time: float
    share: float = 1.0
    error: float | None = None


class ErrorFall(NamedTuple):
    """Fall of the error in a second, and the variance of that number."""

    fall: float
    variance: float

    @classmethod
    def of(cls, tasks: list[Trained]) -> ErrorFall:
        """Return the fall of the line through the errors of some tasks, by least squares."""
        points = [(task.time, task.error) for task in tasks if task.error is not None]
        n = len(points)
        if n < 3:
            return cls(0.0, math.inf)
        x0 = sum(x for x, _ in points) / n
        y0 = sum(y for _, y in points) / n
        spread = sum((x - x0) ** 2 for x, _ in points)
        if not spread:
            return cls(0.0, math.inf)
        slope = sum((x - x0) * (y - y0) for x, y in points) / spread
        rest = sum((y - y0 - slope * (x - x0)) ** 2 for x, y in points)
        return cls(-slope, rest / (n - 2) / spread)

    @classmethod
    def mean(cls, falls: list[ErrorFall]) -> ErrorFall:
        """Return the mean of some falls."""
        n = len(falls)
        return cls(sum(x.fall for x in falls) / n, sum(x.variance for x in falls) / n**2)

    def is_clearly_above(self, other: ErrorFall) -> bool:
        """Return whether it is larger by more than noise explains, and by so much that it pays."""
        noise = math.sqrt(self.variance + other.variance)
        return self.fall - other.fall > max(CLEAR * noise, WORTH * abs(other.fall))


class _Window:
    """Some tasks that are skipped, then the tasks that count."""

    def __init__(self, skipped: int, counted: int) -> None:
        self._skipped, self._counted = skipped, counted
        self.tasks: list[Trained] = []

    def add(self, task: Trained) -> bool:
        """Add a task; return whether it was the last one."""
        if self._skipped:
            self._skipped -= 1
            return False
        self.tasks.append(task)
        return len(self.tasks) == self._counted

    @property
    def useful(self) -> float:
        """Useful updates a second."""
        # The first task only starts the clock: its own work was done before.
        seconds = self.tasks[-1].time - self.tasks[0].time
        return sum(task.share for task in self.tasks[1:]) / max(seconds, 1e-9)


class _Duel:
    """Two numbers of replicas in turns: the best one so far, and another."""

    def __init__(self, best: int, other: int) -> None:
        self.counts = best, other
        self._falls: tuple[list[ErrorFall], list[ErrorFall]] = ([], [])
        self._turn = 0

    @property
    def count(self) -> int:
        """The number of replicas that trains now."""
        return self.counts[ORDER[self._turn]]

    def window(self) -> _Window:
        """Return the next window, of as many tasks for either."""
        most = max(self.counts)
        return _Window(SKIPPED_EACH * most, max(DUEL_TASKS, TASKS_EACH * most))

    def add(self, window: _Window) -> bool:
        """Add a full window; return whether it was the last one."""
        self._falls[ORDER[self._turn]].append(ErrorFall.of(window.tasks))
        self._turn += 1
        return self._turn == len(ORDER)

    def falls(self) -> tuple[ErrorFall, ErrorFall]:
        """Return the fall of each."""
        return ErrorFall.mean(self._falls[0]), ErrorFall.mean(self._falls[1])


class Trial:
    """The trial of a run.

    Parameters
    ----------
    replicas : int
        Most of them.

    Attributes
    ----------
    count : int
        Replicas that are to train now.
    useful : dict of int to float
        Useful updates a second, by the number of replicas.
    falls : dict of int to float
        Fall of the error in a second, by the number of replicas; only of numbers that took turns.
    """

    def __init__(self, replicas: int) -> None:
        self.count = self._most = replicas
        self.useful, self.falls = dict[int, float](), dict[int, float]()
        self.is_over = replicas == 1
        self._window = self._usual_window()
        self._duel: _Duel | None = None
        self._has_met_all = False

    def trained(self, task: Trained) -> None:
        """Record a task, which may change the number of replicas."""
        if self.is_over or not self._window.add(task):
            return
        if self._duel is None:
            self._survey()
        else:
            self._compete(self._duel)

    def verdict(self) -> str:
        """Return a sentence with the number found, and the measurements behind it."""
        useful = ", ".join(f"{n}: {speed:.3g}" for n, speed in self.useful.items())
        falls = ", ".join(f"{n}: {fall:.3g}" for n, fall in sorted(self.falls.items()))
        measured = f"; the error fell in a second by {falls}" if falls else ""
        return (
            f"replicas: {self.count} of {self._most} go on training, more bring less than"
            f" {100 * WORTH:.0f} % (useful updates a second of {useful}{measured})"
        )

    def _usual_window(self) -> _Window:
        return _Window(SKIPPED_EACH * self.count, TASKS_EACH * self.count)

    def _survey(self) -> None:
        """Try fewer, or go on with the fewest that are worth it."""
        has_errors = any(task.error is not None for task in self._window.tasks)
        self.useful[self.count] = self._window.useful
        best = max(self.useful.values())
        if self.useful[self.count] >= best * (1 - WORTH) and self.count > 1:
            self.count = max(1, self.count * 3 // 4)
            self._window = self._usual_window()
            return
        self.count = min(n for n, speed in self.useful.items() if speed >= best * (1 - WORTH))
        if has_errors:
            self._challenge(self.count)
        else:
            self.is_over = True

    def _challenge(self, best: int) -> None:
        """Let the best number compete with the next one, or end the trial."""
        other = best // 2 if self._has_met_all or best == self._most else self._most
        self._has_met_all = True
        if not other:
            self.count, self.is_over = best, True
            return
        self._duel = _Duel(best, other)
        self._begin_turn(self._duel)

    def _begin_turn(self, duel: _Duel) -> None:
        self.count, self._window = duel.count, duel.window()

    def _compete(self, duel: _Duel) -> None:
        """End a turn, and with the last one the duel."""
        if not duel.add(self._window):
            self._begin_turn(duel)
            return
        (best, other), (own, others) = duel.counts, duel.falls()
        self.falls |= {best: own.fall, other: others.fall}
        wins = others.is_clearly_above(own)
        # All replicas are tried once, half the best as long as it wins: numbers only fall, so a
        # trial ends.
        if (wins and other < best) or (not wins and other > best):
            self._challenge(other if wins else best)
        else:
            self.count, self.is_over = (other if wins else best), True
