"""Standardization of examples for Gaussian visible units, whose variance is 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import blocks_of
from syncpretrain.units.kinds import kind_of

__all__ = ["Scaling", "column_means", "spread"]

SMALLEST_SHARE = 0.1  # of a column's range


@dataclass(frozen=True, eq=False)
class Scaling:
    """(X - shift) / scale, a value a column each; float32 arrays of shape (width,)."""

    shift: NDArray[np.float32]
    scale: NDArray[np.float32]

    @classmethod
    def of(cls, X: Any) -> Scaling:
        """Return the scaling to mean 0 and standard deviation 1 of each column of X.

        A column that is nearly constant is divided by a tenth of its range instead, so that no
        rare value lies further than 10 from the mean; a constant one by 1. X may be anything with
        a shape whose ``blocks`` give some rows at a time; an array is taken in blocks, too.
        """
        count, mean, squares = 0, np.zeros(X.shape[1]), np.zeros(X.shape[1])
        low, high = np.full((2, X.shape[1]), [[np.inf], [-np.inf]], dtype=np.float32)
        for block in blocks_of(X):
            own = block.mean(axis=0, dtype=np.float64)
            away = own - mean
            share = len(block) / (count + len(block))
            squares += block.var(axis=0, dtype=np.float64) * len(block)
            squares += away * away * (count * share)  # Chan et al. 1983
            mean += away * share
            count += len(block)
            np.minimum(low, block.min(axis=0), out=low)
            np.maximum(high, block.max(axis=0), out=high)
        if np.isnan(mean).any():
            return cls._of_known(X)
        scale = np.sqrt(squares / count)
        return cls._from(mean, scale, low, high)

    @classmethod
    def for_units(cls, X: Any, units: str) -> Scaling | None:
        """Return the scaling for visible units, of Gaussian columns alone; None if none is."""
        kind = kind_of(units)
        if kind.blocks is None:
            return None if kind.is_unit_interval else cls.of(X)
        if not kind.blocks.normal:
            return None
        found, shift, scale = cls.of(X), np.zeros(X.shape[1], "f4"), np.ones(X.shape[1], "f4")
        for part in kind.blocks.normal:
            shift[part.columns] = found.shift[part.columns]
            scale[part.columns] = found.scale[part.columns]
        return cls(shift, scale)

    @classmethod
    def _of_known(cls, X: NDArray[np.float32]) -> Scaling:
        """Return the scaling of an array by its numbers alone; NaN is none."""
        count = np.maximum((~np.isnan(X)).sum(axis=0), 1)
        mean = np.nansum(X, axis=0, dtype=np.float64) / count
        squares = np.nansum(np.square(X - mean), axis=0)
        low, high = np.fmin.reduce(X, axis=0), np.fmax.reduce(X, axis=0)
        return cls._from(mean, np.sqrt(squares / count), low, high)

    @classmethod
    def _from(cls, mean: Any, scale: Any, low: Any, high: Any) -> Scaling:
        scale = np.maximum(scale, SMALLEST_SHARE * (high - low))
        scale[high == low] = 0  # whatever was lost to rounding
        rounded = scale.astype(np.float32)
        rounded[rounded == 0] = 1  # of the smallest numbers there are, too
        return cls(mean.astype(np.float32), rounded)

    def apply(self, X: Any) -> NDArray[np.float32]:
        """Return standardized examples in an array of their own.

        Those that are not in memory are standardized as they are asked for.
        """
        if not isinstance(X, np.ndarray):
            return X.prepared_by(self.apply)  # type: ignore[no-any-return]
        scaled: NDArray[np.float32] = X - self.shift
        scaled /= self.scale
        return scaled

    def invert(self, X: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return examples of which X are the standardized ones, in an array of their own."""
        original: NDArray[np.float32] = X * self.scale
        original += self.shift
        return original


def column_means(X: Any) -> Any:
    """Return the mean of each column of an array, or of anything that has ``blocks``; float64."""
    total = 0.0
    for block in blocks_of(X):
        total = total + block.sum(axis=0, dtype=np.float64)
    return total / len(X)


def spread(X: Any) -> float:
    """Return the squared distance of a row to the mean row, averaged over rows."""
    mean, total = column_means(X), 0.0
    for block in blocks_of(X):
        total += _squared_distance(block, mean)
    return total / len(X)


def _squared_distance(block: Any, mean: Any) -> float:
    """Return that of all rows to the mean, with one array beside the block."""
    difference = block - mean
    return float(np.square(difference, out=difference).sum())
