"""Examples as the visible units of layer 1 take them: values by their kinds, missing values NaN.

Columns of word counts hold whole numbers; the columns of a group of choices hold a one and zeros.
Neither is scaled, even if they are bytes. NaN stays until the examples are standardized.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from syncpretrain.data.blocks import chunks
from syncpretrain.data.examples import as_examples, check_values, scale_examples
from syncpretrain.data.scaling import Scaling
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.errors import DataError
from syncpretrain.units.kinds import kind_of

Floats = NDArray[np.float32]


def visible_examples(X: ArrayLike, name: str, units: str, *, missing: bool = True) -> Floats:
    """Return examples as C-contiguous float32, once every value is found to suit its unit.

    Parameters
    ----------
    X : array-like of shape (n_examples, width)
    name : str
        Name of the examples in errors.
    units : str
        Visible units: a kind, or blocks.
    missing : bool
        True permits NaN, which stands for a missing value.

    Raises
    ------
    DataError
        Naming the first bad place, rows and columns counted from 0.
    """
    return as_visible(check_visible(X, name, units, missing=missing), units)


def check_visible(X: ArrayLike, name: str, units: str, *, missing: bool = True) -> NDArray[Any]:
    """Check examples and return them unscaled; see :func:`visible_examples`."""
    kind, array = kind_of(units), as_examples(X, name)
    check_values(array, name, bounded=kind.is_unit_interval, missing=missing)
    if kind.blocks is None:
        return array
    if array.shape[1] != kind.blocks.width:
        raise DataError(
            f"{name}: got {array.shape[1]} columns, expected {kind.blocks.width}, those of {units}"
        )
    if isinstance(array, SparseRows) and kind.blocks.are_counts:
        whole = (array.data >= 0) & (array.data == np.floor(array.data))
        array.check(whole, partial(_check_parts, kind.blocks.parts, name))
        return array
    for rows in chunks(array.shape):
        _check_parts(kind.blocks.parts, name, array[rows], rows.start)
    return array


def _check_parts(parts: Iterable[Any], name: str, X: NDArray[Any], start: int) -> None:
    """Check the values of some rows block by block; ``start`` is the first row's number."""
    for part in parts:
        BLOCK_CHECKS[part.kind](np.asarray(X, dtype=np.float32), part, name, start)


def as_visible(X: NDArray[Any], units: str) -> Floats:
    """Return checked examples, or some rows of them, as C-contiguous float32, or still sparse."""
    if kind_of(units).blocks is None or isinstance(X, SparseRows):
        return scale_examples(X)
    return np.ascontiguousarray(X, dtype=np.float32)


def check_columns(X: Floats, name: str) -> None:
    """Refuse a column in which every value is missing.

    Raises
    ------
    DataError
    """
    empty = np.isnan(X).all(axis=0)
    if empty.any():
        raise DataError(
            f"{name}: got NaN in every row of column {int(empty.argmax())} (counted from 0),"
            " expected a number in one at least; drop the column"
        )


def has_missing(X: Any) -> bool:
    """Return whether an array has a NaN; examples that are not in memory have none."""
    if not isinstance(X, np.ndarray) or X.dtype.kind != "f" or not X.size:
        return False
    return any(bool(np.isnan(X[rows].min())) for rows in chunks(X.shape))


def marked(X: Floats, scaling: Scaling | None) -> Floats:
    """Return standardized examples with their missing values marked, in a new array."""
    return mark_missing(X.copy() if scaling is None else scaling.apply(X))


def mark_missing(X: Floats) -> Floats:
    """Replace -0 by 0, then NaN by -0, in place; the kernels take -0 for a missing value."""
    X += 0  # -0 + 0 is 0
    np.copyto(X, X.dtype.type(-0.0), where=np.isnan(X))
    return X


def _check_interval(X: Floats, part: Any, name: str, start: int) -> None:
    own = X[:, part.columns]
    expected = f"values in [0, 1] for {part}; take gaussian for numbers of any size"
    _refuse(own, (own < 0) | (own > 1), part, name, start, expected)


def _check_groups(X: Floats, part: Any, name: str, start: int) -> None:
    groups = part.grouped(X)
    lost = np.isnan(groups)
    one = np.where(lost, 0, groups)
    whole = ((one == 0) | (one == 1)).all(axis=2) & (one.sum(axis=2) == 1) & ~lost.any(axis=2)
    bad = ~(whole | lost.all(axis=2))
    if bad.any():
        row, group = np.argwhere(bad)[0]
        column = part.start + group * part.choices
        raise DataError(
            f"{name}: got {np.array2string(groups[row, group], threshold=8)} at"
            f" {_place(row + start, column)}, expected a one and {part.choices - 1} zeros for a"
            f" group of {part}, or NaN in all of them"
        )


def _check_counts(X: Floats, part: Any, name: str, start: int) -> None:
    own = X[:, part.columns]
    with np.errstate(invalid="ignore"):
        bad = ~((own >= 0) & (own == np.floor(own)))
    expected = f"whole numbers of 0 or more for {part}; give 0 for what does not occur"
    _refuse(own, bad, part, name, start, expected)


def _refuse(
    own: Floats, bad: NDArray[np.bool_], part: Any, name: str, start: int, expected: str
) -> None:
    """Refuse the first bad value of a part's columns, if there is one."""
    if bad.any():
        row, column = np.argwhere(bad)[0]
        place = _place(row + start, column + part.start)
        raise DataError(f"{name}: got {own[row, column]:g} at {place}, expected {expected}")


def _place(row: int, column: int) -> str:
    return f"row {row}, column {column} (counted from 0)"


def _check_nothing(X: Floats, part: Any, name: str, start: int) -> None:
    """Permit any number: :func:`check_values` has checked them."""


BLOCK_CHECKS = {
    "bernoulli": _check_interval,
    "gaussian": _check_nothing,
    "softmax": _check_groups,
    "counts": _check_counts,
}
