"""Look at examples before there are settings: their numbers, and their range."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import as_bits, chunks
from syncpretrain.data.counts import look_like_counts
from syncpretrain.data.examples import as_examples
from syncpretrain.data.file_rows import FileRows, rows_in_file
from syncpretrain.data.meaning import Meaning
from syncpretrain.data.minibatches import is_iterable_of_arrays
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.settings.by_data import Facts

__all__ = ["Look", "facts_of", "look_at"]


class Look(NamedTuple):
    """Examples, what is known of them (None of an iterable), and what their numbers mean.

    The meaning is None where nothing was read: of an iterable, and of a file that is streamed.
    """

    X: Any
    facts: Facts | None
    meaning: Meaning | None = None


def look_at(X: Any, *, streams: bool = False) -> Look:
    """Return examples as numbers in rows, and their facts; bytes of 0 and 1 become booleans.

    What a stream reads from a file, or gets from an iterable, is not read for that.

    Raises
    ------
    DataError
        If X is no table of numbers.
    """
    if is_iterable_of_arrays(X):
        return Look(X, None)
    if isinstance(X, FileRows) or (streams and rows_in_file(X) is not None):
        return Look(X, Facts(*X.shape))
    rows = as_examples(X, "X")
    facts = facts_of(rows)
    return Look(as_bits(rows), facts, Meaning.of(rows))


def facts_of(X: Any, *, reads: bool = False) -> Facts:
    """Return the facts of examples as they are trained on; NaN have no part in the range.

    Whole numbers in a sparse matrix are counts, which nothing else there is likely to be. Pixels of
    0 to 16 and ages are whole numbers too, so that dense ones have to look like counts of words.

    A file is read for that only with ``reads``.
    """
    if isinstance(X, FileRows) and not reads:
        return Facts(*X.shape)
    rows, columns = X.shape
    if isinstance(X, SparseRows):
        row_sum = float(X.data.sum(dtype=np.float64)) / max(rows, 1)
        facts = Facts(rows, columns, *X.limits, are_counts=X.are_counts, row_sum=row_sum)
        return facts._replace(spread=_spread_of_sparse(X)) if facts.is_unit_interval else facts
    if X.dtype == np.uint8 or X.dtype.kind == "b":
        return Facts(rows, columns, row_sum=float(X.sum(dtype=np.int64)) / max(rows, 1))
    low, high, total = math.inf, -math.inf, 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # as float32, because 1 + 1e-12 is 1 there
        for block in _single_blocks(X):
            low = min(low, float(np.fmin.reduce(block, axis=None)))
            high = max(high, float(np.fmax.reduce(block, axis=None)))
            total += float(block.sum(dtype=np.float64))
    low, high = (low, high) if low <= high else (0.0, 1.0)
    are_counts = low == 0 and high > 1 and look_like_counts(X)
    row_sum = total / max(rows, 1)
    facts = Facts(rows, columns, low, high, are_counts=are_counts, row_sum=row_sum)
    return facts._replace(spread=_spread(X)) if facts.is_unit_interval else facts


def _single_blocks(X: Any) -> Iterator[NDArray[np.float32]]:
    return (np.asarray(X[rows], dtype=np.float32) for rows in chunks(X.shape))


def _spread(X: Any) -> float:
    """Return the variance of columns as a share of that of zeros and ones with the same means.

    Columns that never vary have no part in it. NaN is missing.
    """
    known, sums, squares = np.zeros((3, X.shape[1]))
    low, high = np.full((2, X.shape[1]), np.nan, dtype=np.float32)
    for block in _single_blocks(X):
        known += len(block) - np.isnan(block).sum(axis=0)
        sums += np.nansum(block, axis=0, dtype=np.float64)
        squares += np.nansum(block * block, axis=0, dtype=np.float64)
        low = np.fmin(low, np.fmin.reduce(block, axis=0))
        high = np.fmax(high, np.fmax.reduce(block, axis=0))
    known, sums, squares = np.stack([known, sums, squares])[:, low < high]
    return _share(sums / known, squares / known)


def _spread_of_sparse(X: SparseRows) -> float:
    rows, columns = X.shape
    values = X.data.astype(np.float64)
    sums, squares = (np.bincount(X.indices, x, columns) for x in (values, values**2))
    return _share(sums / max(rows, 1), squares / max(rows, 1))


def _share(means: NDArray[np.float64], squares: NDArray[np.float64]) -> float:
    bits = float((means - means**2).sum())
    return float((squares - means**2).sum()) / bits if bits > 0 else 1.0
