"""Rules of asynchronous training: the share of a change by its staleness, and compensation.

Replicas fetch parameters from a server, train on them for some steps, and push the change that they
made. The *staleness* of a push is the number of pushes of others that the server took since the
fetch. Pure: no threads, no clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from syncpretrain.kernels.arrays import LONG_BLOCK, Array

__all__ = ["AsyncRules", "DelayCompensation"]

MEMORY = 0.95  # of the mean square of changes (Zheng et al. 2017, DC-ASGD-a)
TINY = np.float32(1e-30)  # keeps 0 / 0 out where nothing has changed yet


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncRules:
    """Rules that one run goes by.

    Attributes
    ----------
    push_every, fetch_every : int
        Local steps before a push, and before a fetch; the second is a multiple of the first.
    rate : str
        ``staleness`` divides a change by its staleness (Zhang, Gupta et al. 2016), which is to
        divide the learning rate; ``constant`` takes it whole.
    compensation : float
        Of the delay, 0 for none; see :class:`DelayCompensation`.
    max_staleness : int or None
        A change of a larger staleness is not taken: its replica fetches anew and repeats it.
    """

    push_every: int = 1
    fetch_every: int = 1
    rate: str = "staleness"
    compensation: float = 0.0
    max_staleness: int | None = None

    @property
    def period(self) -> int:
        """Number of pushes from a fetch to the next one."""
        return self.fetch_every // self.push_every

    def share(self, staleness: int) -> float:
        """Return the share of a change that is added to the parameters."""
        return 1.0 if self.rate == "constant" else 1 / max(1, staleness)

    def takes(self, staleness: int) -> bool:
        """Return whether a change is taken."""
        return self.max_staleness is None or staleness <= self.max_staleness

    def fetches(self, pushes: int) -> bool:
        """Return whether a replica fetches after a number of pushes since its start."""
        return pushes % self.period == 0


class DelayCompensation:
    """Compensation of a change for its delay (Zheng et al. 2017).

    A gradient g at the parameters w' is a guess of that at w: g + lambda g*g*(w - w'), where
    g*g stands for the diagonal of the Hessian. With the adaptive lambda = lambda_0 / sqrt(mean of
    g*g) and a change d = -rate g the rate drops out, and d becomes
    d - lambda_0 d*d / sqrt(mean of d*d) (w - w').

    Parameters
    ----------
    strength : float
        lambda_0.
    mean_square : ndarray of shape (n,), float32
        Of the changes so far, 0 at first; kept in place.
    """

    def __init__(self, strength: float, mean_square: Array) -> None:
        self._strength = np.float32(strength)
        self.mean_square = mean_square
        self._scratch = np.empty(min(len(mean_square), LONG_BLOCK), dtype=np.float32)

    def apply(self, change: Array, parameters: Array, fetched: Array) -> None:
        """Change ``change`` in place, which was made of ``fetched``, for ``parameters``."""
        for start in range(0, len(change), LONG_BLOCK):
            block = slice(start, start + LONG_BLOCK)
            d, mean = change[block], self.mean_square[block]
            square = np.multiply(d, d, out=self._scratch[: len(d)])
            mean *= np.float32(MEMORY)
            mean += np.float32(1 - MEMORY) * square
            square *= self._strength
            square /= np.sqrt(mean) + TINY
            square *= parameters[block] - fetched[block]
            d -= square
