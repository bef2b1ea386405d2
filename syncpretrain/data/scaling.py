"""Standardization of examples for Gaussian visible units, whose variance is 1."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import blocks_of
from syncpretrain.errors import DataError
from syncpretrain.units.kinds import kind_of

__all__ = ["Scaling", "check_varies", "column_means", "same_rows", "spread", "without_novel"]

SMALLEST_SHARE = 0.1  # of a column's range
NOVEL = 1 / SMALLEST_SHARE  # deviations, beyond which no rare value of training lies either
# Relative differences up to which two numbers are one: of float64 with sums behind it in training
# (0.1 + 0.2 is 0.3), of float32, as which it is kept, in use.
ROUNDING, SAME = 16 * float(np.finfo(np.float64).eps), 4 * float(np.finfo(np.float32).eps)


@dataclass(frozen=True, eq=False)
class Scaling:
    """(X - shift) / scale, a value a column each; float32 arrays of shape (width,).

    A column that never varied has the scale 0, for it has no unit: whatever it holds becomes 0, and
    what is made of that the one value that it had. Any other value than this one becomes ``novel``.
    Models of earlier versions have the scale 1 there, and go on as they did.
    """

    shift: NDArray[np.float32]
    scale: NDArray[np.float32]
    novel: float = 0.0

    @classmethod
    def of(cls, X: Any) -> Scaling:
        """Return the scaling to mean 0 and standard deviation 1 of each column of X.

        A column that is nearly constant is divided by a tenth of its range instead, so that no
        rare value lies further than 10 from the mean; a constant one has the scale 0. X may be
        anything with a shape whose ``blocks`` give some rows at a time; an array is taken in
        blocks, too.
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
        rounded = scale.astype(np.float32)
        rounded[rounded == 0] = 1  # of the smallest numbers there are
        rounded[high - low <= ROUNDING * np.maximum(np.abs(low), np.abs(high))] = 0
        return cls(mean.astype(np.float32), rounded)

    @property
    def constant(self) -> NDArray[np.bool_]:
        """Which columns never varied."""
        return np.equal(self.scale, 0)

    @property
    def divisor(self) -> NDArray[np.float32]:
        """What is divided by: infinity where a column never varied, which makes 0 of it."""
        divisor: NDArray[np.float32] = self.scale.copy()
        divisor[self.constant] = np.inf
        return divisor

    def marking(self) -> Scaling:
        """Return the scaling that makes 10 of any other value of a column that never varied.

        As far lies the rarest value of a column that hardly varied, in whatever unit.
        """
        return replace(self, novel=NOVEL)

    def novelty(self, X: NDArray[Any]) -> NDArray[np.bool_]:
        """Return where rows differ from the only value of a column; a missing value does not."""
        far = np.abs(X - self.shift) > SAME * np.abs(self.shift)
        return np.logical_and(far, self.constant)

    def novel_in(self, X: Any) -> tuple[int, NDArray[np.intp]]:
        """Return how many rows are new in a column that never varied, and which columns these are.

        X may be anything that has ``blocks``, too.
        """
        places, rows = np.flatnonzero(self.constant), 0
        own, found = Scaling(self.shift[places], self.scale[places]), np.zeros(len(places), bool)
        for block in blocks_of(X) if len(places) else ():
            novel = own.novelty(block[:, places])
            rows += int(novel.any(axis=1).sum())
            found |= novel.any(axis=0)
        return rows, places[found]

    def varied_by(self, X: Any) -> Scaling:
        """Return the scaling after more rows, in which what never varied may begin to.

        Such a column was 0 to a model until now, so that any scaling suits it: that of its new
        values and the old one. The others keep theirs, by which the model was trained.
        """
        _, places = self.novel_in(X)
        if not len(places):
            return self
        own = Scaling.of(
            np.concatenate([self.shift[None, places], *(rows[:, places] for rows in blocks_of(X))])
        )
        shift, scale = self.shift.copy(), self.scale.copy()
        shift[places], scale[places] = own.shift, own.scale
        return Scaling(shift, scale)

    def apply(self, X: Any) -> NDArray[np.float32]:
        """Return standardized examples in an array of their own.

        Those that are not in memory are standardized as they are asked for.
        """
        if not isinstance(X, np.ndarray):
            return X.prepared_by(self.apply)  # type: ignore[no-any-return]
        scaled: NDArray[np.float32] = X - self.shift
        if not self.constant.any():
            scaled /= self.scale
            return scaled
        scaled /= self.divisor
        scaled += 0  # -0 stands for a missing value
        if self.novel:
            scaled[self.novelty(X)] = self.novel
        return scaled

    def invert(self, X: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return examples of which X are the standardized ones, in an array of their own."""
        original: NDArray[np.float32] = X * self.scale
        original += self.shift
        return original


def without_novel(X: NDArray[Any], scaling: Scaling | None) -> NDArray[Any]:
    """Return rows that ``marking`` has scaled as a layer sees them, 0 where a value is new."""
    if scaling is None or not scaling.novel or not scaling.constant.any():
        return X
    return np.where(scaling.constant & (scaling.novel == X), X.dtype.type(0), X)


def check_varies(X: Any, scaling: Scaling | None = None) -> None:
    """Refuse rows that are all the same, since they teach nothing; one row is permitted.

    With their ``scaling`` they are not read.

    Raises
    ------
    DataError
    """
    if scaling is not None and not scaling.constant.all():
        return
    if found := same_rows(X, scaling):
        raise DataError(f"X: {found}")


def same_rows(X: Any, scaling: Scaling | None = None) -> str | None:
    """Return a sentence about two rows or more that are all the same; None about others."""
    if len(X) < 2 or (scaling is None and _vary(X)):
        return None
    which = f"all {X.shape[1]:,} columns are" if X.shape[1] > 1 else "the only column is"
    return (
        f"{which} constant, got {len(X):,} times the same row; expected rows that differ, of which"
        " something can be learned"
    )


def _vary(X: Any) -> bool:
    low, high = np.full((2, X.shape[1]), [[np.inf], [-np.inf]], dtype=np.float32)
    for block in blocks_of(X):
        low = np.fmin(low, np.fmin.reduce(block, axis=0))
        high = np.fmax(high, np.fmax.reduce(block, axis=0))
        if (low < high).any():
            return True
    return False


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
