"""Standardization of examples for Gaussian visible units, which have variance 1."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import blocks_of
from syncpretrain.errors import DataError
from syncpretrain.units.kinds import kind_of

SMALLEST_SHARE = 0.1  # smallest scale, as a share of a column's range
NOVEL = 1 / SMALLEST_SHARE  # deviations from the mean; no rare value of training lies further
# Relative differences up to which two numbers are equal: in training, sums in float64 (0.1 + 0.2 is
# 0.3); in use, float32, as which the shift is kept.
ROUNDING, SAME = 16 * float(np.finfo(np.float64).eps), 4 * float(np.finfo(np.float32).eps)


@dataclass(frozen=True, eq=False)
class Scaling:
    """(X - shift) / scale, with one value a column; float32 arrays of shape (width,).

    A constant column has the scale 0, for it has no unit: its value becomes 0, and 0 becomes this
    value again. Any other value becomes ``novel``.
    """

    shift: NDArray[np.float32]
    scale: NDArray[np.float32]
    novel: float = 0.0

    @classmethod
    def of(cls, X: Any) -> Scaling:
        """Return the scaling to mean 0 and standard deviation 1 of each column of X.

        A column that is nearly constant is divided by a tenth of its range instead, so that no
        rare value lies further than 10 from the mean; a constant column has the scale 0. X is an
        array, or an object with a shape and with ``blocks`` that yield some rows at a time.
        """
        count, mean, squares = 0, np.zeros(X.shape[1]), np.zeros(X.shape[1])
        low, high = np.full((2, X.shape[1]), [[np.inf], [-np.inf]], dtype=np.float32)
        for block in blocks_of(X):
            away = block.mean(axis=0, dtype=np.float64) - mean
            share = len(block) / (count + len(block))
            squares += block.var(axis=0, dtype=np.float64) * len(block)
            squares += away * away * (count * share)  # Chan et al. 1983
            mean += away * share
            count += len(block)
            np.minimum(low, block.min(axis=0), out=low)
            np.maximum(high, block.max(axis=0), out=high)
        if np.isnan(mean).any():
            return cls._of_known(X)
        return cls._from(mean, np.sqrt(squares / count), low, high)

    @classmethod
    def for_units(cls, X: Any, units: str) -> Scaling | None:
        """Return the scaling of the Gaussian columns of visible units; None if none is Gaussian."""
        normal = kind_of(units).normal_columns(np, X.shape[1])
        if not normal.any():
            return None
        found, zero, one = cls.of(X), np.float32(0), np.float32(1)
        return cls(np.where(normal, found.shift, zero), np.where(normal, found.scale, one))

    @classmethod
    def _of_known(cls, X: NDArray[np.float32]) -> Scaling:
        """Return the scaling of an array with missing values, NaN, left out."""
        count = np.maximum((~np.isnan(X)).sum(axis=0), 1)
        mean = np.nansum(X, axis=0, dtype=np.float64) / count
        squares = np.nansum(np.square(X - mean), axis=0)
        low, high = np.fmin.reduce(X, axis=0), np.fmax.reduce(X, axis=0)
        return cls._from(mean, np.sqrt(squares / count), low, high)

    @classmethod
    def _from(cls, mean: Any, scale: Any, low: Any, high: Any) -> Scaling:
        scale = np.maximum(scale, SMALLEST_SHARE * (high - low))
        rounded = scale.astype(np.float32)
        rounded[rounded == 0] = 1  # deviations below the smallest float32
        rounded[high - low <= ROUNDING * np.maximum(np.abs(low), np.abs(high))] = 0
        return cls(mean.astype(np.float32), rounded)

    @property
    def constant(self) -> NDArray[np.bool_]:
        """True for each constant column."""
        return np.equal(self.scale, 0)

    @property
    def divisor(self) -> NDArray[np.float32]:
        """The divisor of each column: infinity for a constant column, which becomes 0."""
        return np.where(self.constant, np.float32(np.inf), self.scale)

    def marking(self) -> Scaling:
        """Return the scaling that turns any new value of a constant column into 10.

        The rarest value of a nearly constant column lies as far from its mean, in any unit.
        """
        return replace(self, novel=NOVEL)

    def novelty(self, X: NDArray[Any]) -> NDArray[np.bool_]:
        """Return where rows differ from the value of a constant column; NaN does not differ."""
        far = np.abs(X - self.shift) > SAME * np.abs(self.shift)
        return np.logical_and(far, self.constant)

    def novel_in(self, X: Any) -> tuple[int, NDArray[np.intp]]:
        """Return the number of rows with a new value in a constant column, and these columns.

        X is an array, or an object with ``blocks``.
        """
        places, rows = np.flatnonzero(self.constant), 0
        own, found = Scaling(self.shift[places], self.scale[places]), np.zeros(len(places), bool)
        for block in blocks_of(X) if len(places) else ():
            novel = own.novelty(block[:, places])
            rows += int(novel.any(axis=1).sum())
            found |= novel.any(axis=0)
        return rows, places[found]

    def varied_by(self, X: Any) -> Scaling:
        """Return the scaling after more rows, in which a constant column may begin to vary.

        Such a column was always 0 for the model, so that any scaling suits it: it takes the scaling
        of its new values and the old one. The other columns keep the scaling of the training.
        """
        _, places = self.novel_in(X)
        if not len(places):
            return self
        rows = [self.shift[None, places], *(block[:, places] for block in blocks_of(X))]
        own = Scaling.of(np.concatenate(rows))
        shift, scale = self.shift.copy(), self.scale.copy()
        shift[places], scale[places] = own.shift, own.scale
        return Scaling(shift, scale)

    def apply(self, X: Any) -> NDArray[np.float32]:
        """Return standardized examples in a new array.

        Examples that are not in memory are standardized at every reading.
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
        """Return examples from standardized ones, in a new array."""
        original: NDArray[np.float32] = X * self.scale
        original += self.shift
        return original


def without_novel(X: NDArray[Any], scaling: Scaling | None) -> NDArray[Any]:
    """Return rows scaled with ``marking``, with 0 in place of the marks, as a layer sees them."""
    if scaling is None or not scaling.novel or not scaling.constant.any():
        return X
    return np.where(scaling.constant & (scaling.novel == X), X.dtype.type(0), X)


def check_varies(X: Any, scaling: Scaling | None = None) -> None:
    """Refuse rows that are all the same, since they teach nothing; one row is permitted.

    With their ``scaling`` the rows are not read.

    Raises
    ------
    DataError
    """
    if scaling is not None and not scaling.constant.all():
        return
    if found := same_rows(X, scaling):
        raise DataError(f"X: {found}")


def same_rows(X: Any, scaling: Scaling | None = None) -> str | None:
    """Return a sentence if there are two rows or more, all the same; else None."""
    if len(X) < 2 or (scaling is None and _vary(X)):
        return None
    which = f"all {X.shape[1]:,} columns are" if X.shape[1] > 1 else "the only column is"
    how = "without a value" if isinstance(X, np.ndarray) and np.isnan(X[0]).all() else "constant"
    return f"{which} {how}, got {len(X):,} times the same row; expected rows that differ"


def _vary(X: Any) -> bool:
    low, high = np.full((2, X.shape[1]), [[np.inf], [-np.inf]], dtype=np.float32)
    for block in blocks_of(X):
        low = np.fmin(low, np.fmin.reduce(block, axis=0))
        high = np.fmax(high, np.fmax.reduce(block, axis=0))
        if (low < high).any():
            return True
    return False


def column_means(X: Any) -> Any:
    """Return the mean of each column of an array, or of an object with ``blocks``, in float64."""
    total = 0.0
    for block in blocks_of(X):
        total = total + block.sum(axis=0, dtype=np.float64)
    return total / len(X)


def spread(X: Any) -> float:
    """Return the squared distance of a row to the mean row, averaged over rows."""
    mean, total = column_means(X), 0.0
    for block in blocks_of(X):
        difference = block - mean
        total += float(np.square(difference, out=difference).sum())
    return total / len(X)
