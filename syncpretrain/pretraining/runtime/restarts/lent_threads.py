"""Threads of this process that make room for those of a layer in another one."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.program import Phases, in_turn
from syncpretrain.parallel.timeouts import Timeouts

__all__ = ["LentThreads"]


class LentThreads:
    """Threads of this process that sleep, so that a layer in another one may have more of its own.

    Parameters
    ----------
    number : ndarray of shape (1,), float64
        Of those that do, in shared memory: read by the other process before every step.
    times : Timeouts
        Of which ``sleep`` is used.
    """

    def __init__(self, number: NDArray[np.float64], times: Timeouts) -> None:
        self._number, self._times = number, times
        self._changed = threading.Condition()  # guards the number and the calls
        self._calls = 0

    @property
    def calls(self) -> int:
        """How often the threads have been called away."""
        return self._calls

    def run(self, phases: Phases, shards: int) -> None:
        """Run the phases of a step here, where no thread can help."""
        in_turn(phases, shards)

    def help(self, calls: int) -> bool:
        """Sleep until called away; return False if that took long."""
        with self._changed:
            self._number[0] += 1
            try:
                return self._changed.wait_for(lambda: self._calls != calls, self._times.sleep)
            finally:
                self._number[0] -= 1

    def call(self) -> None:
        """Call the threads away: there is other work for them."""
        with self._changed:
            self._calls += 1
            self._changed.notify_all()
