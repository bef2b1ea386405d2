"""Number of replicas that pays, found while they train. Pure: no threads, no clocks.

More replicas than cores, or than the server can serve, train no more minibatches a second, and
staler ones. So a run begins with a *trial*: all replicas train for a while, then fewer and fewer,
as long as fewer are no slower. What is measured is progress: minibatches a second where errors are
alike, which those of neighbouring minibatches are.
"""

from __future__ import annotations

__all__ = ["PayingReplicas"]

TASKS_EACH = 8  # of a replica, in a trial; the first of them are not counted
WORTH = 0.05  # of the progress, that one more replica must bring


class PayingReplicas:
    """The trial of a run.

    Parameters
    ----------
    replicas : int
        Most of them.

    Attributes
    ----------
    count : int
        Replicas that are to train now.
    measured : dict of int to float
        Tasks a second, by the number of replicas.
    """

    def __init__(self, replicas: int) -> None:
        self.count, self.measured = replicas, dict[int, float]()
        self._left, self._began = replicas * TASKS_EACH, -1.0
        self.is_over = replicas == 1

    def trained(self, now: float) -> None:
        """Record that a task ended, which may change the number of replicas.

        Parameters
        ----------
        now : float
            Seconds.
        """
        if self.is_over:
            return
        counted = (TASKS_EACH - 2) * self.count
        if self._left == counted:
            self._began = now
        self._left -= 1
        if self._left:
            return
        self.measured[self.count] = (counted - 1) / max(now - self._began, 1e-9)
        self._go_on()
        self._left = self.count * TASKS_EACH

    def _go_on(self) -> None:
        """Try fewer, or end the trial with the fewest that are worth it."""
        best = max(self.measured.values())
        if self.measured[self.count] >= best * (1 - WORTH) and self.count > 1:
            self.count = max(1, self.count * 3 // 4)
            return
        worth = [n for n, speed in self.measured.items() if speed >= best * (1 - WORTH)]
        self.count, self.is_over = min(worth), True
