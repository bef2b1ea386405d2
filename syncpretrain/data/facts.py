"""Facts of examples, found before there are settings: range, word counts, suitable visible units.

Nothing here reads an iterable, or a file that is streamed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import as_bits, chunks
from syncpretrain.data.columns import Columns, columns_of
from syncpretrain.data.examples import as_examples
from syncpretrain.data.file_rows import FileRows, rows_in_file
from syncpretrain.data.meaning import Meaning
from syncpretrain.data.minibatches import is_iterable_of_arrays
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.data.table import Table
from syncpretrain.settings.by_data import Facts

FEWEST_WORDS = 20  # columns: fewer are no vocabulary
MOST_PRESENT = 1 / 3  # largest share of values above 0: a text has few of all words
SELDOM = 3  # times: a word that is repeated is seldom there more often
# Columns with a value above 1: fewer than 5 may be numbers of anything, more than 20 are enough.
FEWEST_REPEATED, ENOUGH_REPEATED = 5, 20
LEAST_REPEATED = 0.15  # smallest share of columns with repeats among the columns not all 0
# Smallest ratio of columns with repeats to their expected number: texts have 0.9 and above in
# samples of 30 rows; one-hot columns have no repeats, so that tables with them have 0.6 and below.
LEAST_BY_CHANCE = 0.7


class Look(NamedTuple):
    """Examples, their facts, and the meaning of their numbers.

    The facts of an iterable are None. The meaning is None for an iterable and for a streamed file.
    """

    X: Any
    facts: Facts | None
    meaning: Meaning | None = None


def look_at(X: Any, *, streams: bool = False) -> Look:
    """Return examples as numbers in rows, and their facts; bytes of 0 and 1 become booleans.

    An iterable, and a file that is streamed, are not read.

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
    return Look(as_bits(rows), facts_of(rows), Meaning.of(rows))


def facts_of(X: Any, *, reads: bool = False) -> Facts:
    """Return the facts of examples as they are trained on; the range leaves out NaN.

    Whole numbers in a sparse matrix are taken for counts. Whole numbers in a dense array may be
    pixels of 0 to 16, or ages, so they must look like counts of words.

    A file is read only with ``reads``; without it the facts are the shape alone.
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


def units_of_array(X: NDArray[Any], columns: Columns | None = None) -> str:
    """Return the kinds of units that suit the columns of an array, or encoded ``columns``.

    Bytes, and values in [0, 1] that vary as much as images do, are Bernoulli. Whole numbers in a
    sparse matrix are counts, and so are the numbers of a dense array that look like counts of
    words. Otherwise each column's own values decide.
    """
    if isinstance(X, SparseRows):
        if X.are_counts:
            return f"counts:{X.shape[1]}"
        return "bernoulli" if facts_of(X).are_probabilities else "gaussian"
    if columns is not None and columns.has_categories:
        return columns.visible_units()
    if facts_of(X, reads=True).are_probabilities:
        return "bernoulli"
    if columns is None or not columns.features:
        if look_like_counts(X):
            return f"counts:{X.shape[1]}"
        names = tuple(str(number) for number in range(X.shape[1]))
        columns = columns_of(Table("X", names, tuple(np.asarray(X).T), False), encode=True)
    return columns.visible_units()


def look_like_counts(X: NDArray[Any]) -> bool:
    """Return whether numbers are whole, fall off as counts of words do, and repeat as words do.

    At most a third are not 0; at least half of these are 1, and at least half of the rest are 2 or
    3. Columns that hold ones also hold larger values, as often as Poisson distributions with the
    columns' frequencies do. One-hot columns never do, however many columns of small numbers the
    table has too.

    Parameters
    ----------
    X : ndarray of shape (n_examples, width)
    """
    if X.shape[1] < FEWEST_WORDS:
        return False
    ones = few = 0
    present, repeated = np.zeros((2, X.shape[1]), dtype=np.int64)
    for chunk in chunks(X.shape):
        block = np.asarray(X[chunk], dtype=np.float32)
        numbers = block[block != 0]
        if not ((numbers > 0) & (numbers == np.floor(numbers))).all():  # NaN is no number
            return False
        present += (block > 0).sum(axis=0)
        repeated += (block > 1).sum(axis=0)
        ones += int((numbers == 1).sum())
        few += int(((numbers > 1) & (numbers <= SELDOM)).sum())
    total = int(present.sum())
    if not (total <= MOST_PRESENT * X.size and 2 * ones >= total and 2 * few >= total - ones):
        return False
    return _repeats_as_words(present[present > 0], int((repeated > 0).sum()), len(X))


def _repeats_as_words(present: NDArray[np.int64], repeated: int, n: int) -> bool:
    """Return whether enough columns have a value above 1.

    ``present`` counts for each column the rows, out of n, with a value above 0.
    """
    share = np.minimum(present / n, 1 - 0.5 / n)
    rate = -np.log1p(-share)  # mean of the Poisson distribution with this share of zeros
    once = rate * (1 - share) / share  # probability of 1, given a value above 0
    by_chance = float((1 - once**present).sum())
    least = float(np.clip(LEAST_REPEATED * len(present), FEWEST_REPEATED, ENOUGH_REPEATED))
    return repeated >= max(least, LEAST_BY_CHANCE * by_chance)


def _single_blocks(X: Any) -> Iterator[NDArray[np.float32]]:
    return (np.asarray(X[rows], dtype=np.float32) for rows in chunks(X.shape))


def _spread(X: Any) -> float:
    """Return the columns' variance divided by the variance of bits with the same means.

    Columns that never vary, and NaN, are left out.
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
