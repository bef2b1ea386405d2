"""Standardization of examples for Gaussian visible units, whose variance is 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Scaling"]

SMALLEST_SHARE = 0.1  # of a column's range


@dataclass(frozen=True, eq=False)
class Scaling:
    """(X - shift) / scale, a value a column each; float32 arrays of shape (width,)."""

    shift: NDArray[np.float32]
    scale: NDArray[np.float32]

    @classmethod
    def of(cls, X: NDArray[np.float32]) -> Scaling:
        """Return the scaling to mean 0 and standard deviation 1 of each column of X.

        A column that is nearly constant is divided by a tenth of its range instead, so that no
        rare value lies further than 10 from the mean; a constant one by 1.
        """
        scale = X.std(axis=0, dtype=np.float64)
        scale = np.maximum(scale, SMALLEST_SHARE * (X.max(axis=0) - X.min(axis=0)))
        shift = X.mean(axis=0, dtype=np.float64)
        rounded = scale.astype(np.float32)
        rounded[rounded == 0] = 1  # of the smallest numbers there are, too
        return cls(shift.astype(np.float32), rounded)

    def apply(self, X: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return standardized examples in an array of their own."""
        scaled: NDArray[np.float32] = X - self.shift
        scaled /= self.scale
        return scaled

    def invert(self, X: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return examples of which X are the standardized ones, in an array of their own."""
        original: NDArray[np.float32] = X * self.scale
        original += self.shift
        return original
