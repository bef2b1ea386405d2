"""The visible units that suit the columns of an array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.column_kinds import columns_of
from syncpretrain.data.columns import Columns
from syncpretrain.data.counts import look_like_counts
from syncpretrain.data.facts import facts_of
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.data.table import Table

__all__ = ["units_of_array"]


def units_of_array(X: NDArray[Any], columns: Columns | None = None) -> str:
    """Return the kinds of units that suit the columns of an array, or encoded ``columns``.

    Bytes, and values that are all in [0, 1] and vary enough, such as those of images, are
    Bernoulli; otherwise each column is by what it holds. Whole numbers in a sparse matrix are
    counts, and so are those of an array that look like it.
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
