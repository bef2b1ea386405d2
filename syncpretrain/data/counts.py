"""Dense arrays that hold counts of words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import chunks

__all__ = ["look_like_counts"]

FEWEST_WORDS = 20  # columns: fewer are no vocabulary
MOST_PRESENT = 1 / 3  # of the values: a text has few of all words
SELDOM = 3  # times: a word that is repeated is seldom there more often
# Columns with a value above 1: fewer than 5 may be numbers of anything, more than 20 are enough.
FEWEST_REPEATED, ENOUGH_REPEATED = 5, 20
LEAST_REPEATED = 0.15  # of the columns that are not all 0
# Of the columns with repeats that chance gives: texts have more, 0.9 and above in samples of 30
# rows; one-hot columns have none, so that tables with them have 0.6 and below.
LEAST_BY_CHANCE = 0.7


def look_like_counts(X: NDArray[Any]) -> bool:
    """Return whether numbers are whole, fall off as counts of words do, and repeat as words do.

    Few of them are not 0, half of these or more are 1, and of the others half or more are 2 or 3.
    A column of which some rows have 1 has a value above 1 somewhere, as often as Poisson
    distributions of the columns' frequencies give it. Categories as columns of 0 and 1 never have
    one, however many columns of small numbers are beside them.

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
    """Return whether enough columns have a repeat; ``present`` is in how many of n rows each is."""
    share = np.minimum(present / n, 1 - 0.5 / n)
    rate = -np.log1p(-share)  # of a Poisson distribution with these zeros
    once = rate * (1 - share) / share  # of what is not 0
    by_chance = float((1 - once**present).sum())
    least = float(np.clip(LEAST_REPEATED * len(present), FEWEST_REPEATED, ENOUGH_REPEATED))
    return repeated >= max(least, LEAST_BY_CHANCE * by_chance)
