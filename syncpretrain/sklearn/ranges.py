"""Columns that share one range, such as pixels: shares of it are probabilities.

Standardized, a pixel that is hardly ever on counts as much as one that separates digits. As a
share of the range that all pixels have, each keeps the weight that its values give it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import chunks
from syncpretrain.data.facts import look_like_counts
from syncpretrain.data.scaling import Scaling
from syncpretrain.sklearn.passes import Matrix

__all__ = ["FEWEST_COLUMNS", "are_bits", "in_shared_range", "shared_range"]

FEWEST_COLUMNS = 25  # fewer are no picture
SHARING = 0.5  # of the columns that vary, at least
END_SHARE = 0.1  # of the range, at both of its ends
# Of the variance of zeros and ones with the same means: 1/12 against 1/4 for even values, and less
# than a tenth for Gaussian ones, of which only the outermost reach the ends.
LEAST_SPREAD = 0.25
OUTLIERS = 10_000  # values, of which one may lie beyond either end, as by a slip of a sensor
MOST_RANGE = float(np.finfo(np.float32).max)


def shared_range(X: Any) -> Scaling | None:
    """Return what scales columns that share one range to [0, 1]; None if they do not, or are there.

    They share it if half of the columns that vary reach both of its ends, and if their values lie
    towards these. If they do not because of a few far values in an array, these have no part in it.
    NaN is missing. The range of a sparse matrix has to begin at 0.

    Parameters
    ----------
    X : array or sparse matrix of shape (n_examples, n_features)
    """
    low, high = _ends(X)
    if not (np.isfinite(low) & np.isfinite(high)).all():
        return None
    least, most = float(low.min()), float(high.max())
    if least == most or (least >= 0 and most <= 1) or X.shape[1] < FEWEST_COLUMNS:
        return None
    if hasattr(X, "toarray"):
        return None if least else _shared(X, low, high, least, most)  # zeros stay zeros
    found = _shared(X, low, high, least, most)
    if found is not None or (least == 0 and look_like_counts(X)):
        return found
    inner = _inner_ends(X)
    if inner == (least, most) or inner[0] >= inner[1]:
        return None
    return _shared(X, np.clip(low, *inner), np.clip(high, *inner), *inner)


def _shared(
    X: Any, low: NDArray[Any], high: NDArray[Any], least: float, most: float
) -> Scaling | None:
    """Return what scales columns to [0, 1], whose ends are low and high; None unless they share."""
    if most - least > MOST_RANGE:
        return None
    varying, near = low < high, END_SHARE * (most - least)
    shares = (low <= least + near) & (high >= most - near)
    if shares.sum() < SHARING * varying.sum():
        return None
    means, squares = _moments(X, least, most - least)
    if (squares - means**2).sum() < LEAST_SPREAD * (means - means**2).sum():
        return None
    shift, scale = np.full((2, X.shape[1]), [[least], [most - least]], dtype=np.float32)
    return Scaling(shift, scale)


def in_shared_range(X: Any, scaling: Scaling) -> Any:
    """Return examples in [0, 1] of float32; a sparse matrix stays sparse."""
    if hasattr(X, "toarray"):
        sparse = X.astype(np.float32)
        sparse.data = np.clip(sparse.data / scaling.scale[0], 0, 1)
        return sparse
    scaled: Matrix = np.clip(scaling.apply(X.astype(np.float32, copy=False)), 0, 1)
    return scaled


def are_bits(X: Any) -> bool:
    """Return whether all values of an array or a sparse matrix are 0 or 1."""
    parts = [X.data] if hasattr(X, "toarray") else _parts(X)
    return all(bool(((part == 0) | (part == 1)).all()) for part in parts)


def _parts(X: Matrix) -> Iterator[Matrix]:
    return (X[rows] for rows in chunks(X.shape))


def _ends(X: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the smallest and the largest value of each column."""
    if hasattr(X, "toarray"):
        return X.min(axis=0).toarray().ravel(), X.max(axis=0).toarray().ravel()
    ends = [(np.fmin.reduce(part, axis=0), np.fmax.reduce(part, axis=0)) for part in _parts(X)]
    lows, highs = zip(*ends, strict=True)
    return np.fmin.reduce(lows, axis=0), np.fmax.reduce(highs, axis=0)


def _inner_ends(X: Matrix) -> tuple[float, float]:
    """Return the smallest and the largest value but for the few beyond them."""
    count = max(X.size // OUTLIERS, 1) + 1
    low = high = np.empty(0, dtype=X.dtype)
    for part in _parts(X):
        known = part[~np.isnan(part)]
        low = -_largest(-np.concatenate([low, known]), count)
        high = _largest(np.concatenate([high, known]), count)
    return float(low.max()), float(high.min())


def _largest(values: Matrix, count: int) -> Matrix:
    """Return the ``count`` largest values, in any order."""
    return values if len(values) <= count else np.partition(values, -count)[-count:]


def _moments(X: Any, shift: float, scale: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the means of scaled columns, and those of their squares."""
    if hasattr(X, "toarray"):  # whose shift is 0
        means = X.mean(axis=0), X.multiply(X).mean(axis=0)
        mean, square = (np.asarray(row).ravel() for row in means)  # a matrix of one row, or a row
        return mean / scale, square / scale**2
    known, sums, squares = np.zeros((3, X.shape[1]))
    for part in _parts(X):
        scaled = np.clip((part - shift) / scale, 0, 1)
        known += (~np.isnan(scaled)).sum(axis=0)
        sums += np.nansum(scaled, axis=0)
        squares += np.nansum(scaled * scaled, axis=0)
    known = np.maximum(known, 1)
    return sums / known, squares / known
