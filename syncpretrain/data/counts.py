"""Dense arrays that hold counts of words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import chunks

__all__ = ["look_like_counts"]

MOST_PRESENT = 1 / 3  # of the values: a text has few of all words
SELDOM = 3  # times: a word that is repeated is seldom there more often


def look_like_counts(X: NDArray[Any]) -> bool:
    """Return whether numbers are whole and fall off as counts of words do.

    Few of them are not 0, half of these or more are 1, and of the others half or more are 2 or 3.
    Columns of categories as 0 and 1 beside numbers of any size are not like that.

    Parameters
    ----------
    X : ndarray of shape (n_examples, width)
    """
    ones = few = present = 0
    for chunk in chunks(X.shape):
        block = np.asarray(X[chunk], dtype=np.float32)
        numbers = block[block != 0]
        if not ((numbers > 0) & (numbers == np.floor(numbers))).all():  # NaN is no number
            return False
        present += len(numbers)
        ones += int((numbers == 1).sum())
        few += int(((numbers > 1) & (numbers <= SELDOM)).sum())
    return present <= MOST_PRESENT * X.size and 2 * ones >= present and 2 * few >= present - ones
