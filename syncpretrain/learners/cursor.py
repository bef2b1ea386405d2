"""The position in an epoch, the sum of its errors so far, and the request to leave it there.

A device may still compute the errors of the last blocks of minibatches.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from syncpretrain.backends.base import Backend, Later

__all__ = ["Cursor", "ErrorSum", "Stopped"]


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position in an epoch: its minibatches so far, and the sum of their errors."""

    minibatches: int = 0
    error: float = 0.0


class Stopped(Exception):  # noqa: N818 - not an error: the run was asked to stop
    """The epoch was left after a minibatch because the run is to end.

    ``cursor`` is where, or None if no minibatch of the epoch was looked at.
    """

    def __init__(self, cursor: Cursor | None = None) -> None:
        super().__init__()
        self.cursor = cursor


class ErrorSum:
    """The sum of the errors of blocks of minibatches, added up in their order.

    Parameters
    ----------
    backend : Backend
        The backend that computes them.
    first : float
        The sum before the first block.

    Attributes
    ----------
    minibatches : int
        After which the sum was last looked at; 0 before.
    """

    def __init__(self, backend: Backend, first: float) -> None:
        self._backend, self._sum = backend, first
        self._later: deque[tuple[int, Later]] = deque()
        self.minibatches = 0

    def add(self, error: float, done: int) -> None:
        """Add the error of a block, behind which ``done`` minibatches of the epoch are worked."""
        if self._backend.blocks_behind:
            self._later.append((done, self._backend.later(error)))
        else:
            self._sum, self.minibatches = self._sum + error, done

    def so_far(self, done: int, steps: int) -> float:
        """Return the sum that can be looked at while the device is busy; at the end all of it.

        It ends with the first error that is not finite.
        """
        return self._up_to(self._backend.blocks_behind if done < steps else 0)

    def sum(self) -> float:
        """Return the sum of all; waits for them."""
        return self._up_to(0)

    def _up_to(self, left: int) -> float:
        while len(self._later) > left and math.isfinite(self._sum):
            self.minibatches, later = self._later.popleft()
            self._sum += later.value()
        if not math.isfinite(self._sum):
            self._let_go()
        return float(self._sum)

    def _let_go(self) -> None:
        """Wait for the errors that were not looked at: others soon take their memory."""
        while self._later:
            self._later.popleft()[1].value()
