"""Classes as a user writes them: whole numbers or texts, and what stands for no label."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.dataset import UNLABELLED
from syncpretrain.data.labels import check_size
from syncpretrain.errors import DataError

__all__ = ["Classes", "as_classes", "minus_ones", "objective_of"]

Classes = tuple[int, ...] | tuple[str, ...]
# Different whole numbers of a float type up to which they are classes: files and frames often turn
# class numbers into floats. More of them are rather counts or prices, to be predicted as numbers.
MOST_WHOLE = 50


def objective_of(y: Any) -> str:
    """Return what targets are for: numbers of a float type are a regression's.

    Unless they are whole and few: then they are classes that were read as such.
    """
    array = _as_array(y, "y")
    if array.dtype.kind != "f":
        return "classification"
    present = array[~np.isnan(array)]
    is_whole = array.ndim == 1 and np.isfinite(present).all() and not np.mod(present, 1).any()
    few = is_whole and 0 < len(np.unique(present)) <= MOST_WHOLE
    return "classification" if few else "regression"


def as_classes(y: Any, name: str) -> NDArray[Any]:
    """Return classes as int64 with -1 for none, or as texts with "" for none.

    None and NaN stand for no label, and so does -1 among numbers.

    Raises
    ------
    DataError
        If they are neither whole numbers nor texts, or some of each.
    """
    # A list of numbers and texts would become texts.
    array = _as_array(y, name, dtype=object if isinstance(y, (list, tuple)) else None)
    if array.dtype.kind in "OT":
        array = _of_one_type(array, name)
    if array.dtype.kind == "U":
        return array
    if array.dtype.kind in "uf":
        check_size(array, name)
    if array.dtype.kind == "f" and not np.mod(array[np.isfinite(array)], 1).any():
        missing = np.isnan(array)
        if not np.isinf(array).any():
            array = np.where(missing, UNLABELLED, array).astype(np.int64)
    if array.dtype.kind not in "biu":
        raise DataError(
            f"{name}: got {array.dtype} values, expected classes as whole numbers or texts, -1 or"
            " None for no label"
        )
    return array.astype(np.int64)


def minus_ones(y: Any) -> int:
    """Return how many classes are given as the number -1, which stands for no label."""
    array = _as_array(y, "y", dtype=object if isinstance(y, (list, tuple)) else None)
    if array.dtype.kind == "O":
        return sum(isinstance(x, Real) and x == UNLABELLED for x in array.ravel().tolist())
    return int(np.count_nonzero(array == UNLABELLED)) if array.dtype.kind in "if" else 0


def _as_array(y: Any, name: str, dtype: Any = None) -> NDArray[Any]:
    try:
        return np.asarray(y, dtype=dtype)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{name}: got no array ({error}), expected a class or a number for each row"
        ) from error


def _of_one_type(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Return an array of objects as texts, or as numbers with NaN for what is missing."""
    cells = [None if _is_missing(cell) else cell for cell in array.ravel().tolist()]
    texts = [cell for cell in cells if isinstance(cell, str)]
    others = [cell for cell in cells if cell is not None and not isinstance(cell, str)]
    if not all(isinstance(cell, Real) for cell in others):
        return array  # which is refused
    if texts and others:
        if set(others) == {UNLABELLED}:  # as in scikit-learn's semi-supervised module
            return _texts([cell if isinstance(cell, str) else "" for cell in cells], array.shape)
        raise DataError(
            f"{name}: got classes of two types, such as {others[0]!r} and {texts[0]!r}; write all"
            " as whole numbers, or all as text"
        )
    if texts:
        return _texts([cell or "" for cell in cells], array.shape)
    numbers = [np.nan if cell is None else float(cell) for cell in cells]
    return np.array(numbers, dtype=np.float64).reshape(array.shape)


def _texts(cells: list[str], shape: tuple[int, ...]) -> NDArray[np.str_]:
    return np.array(cells, dtype=np.str_).reshape(shape)


def _is_missing(cell: Any) -> bool:
    if cell is None or type(cell).__name__ == "NAType":
        return True
    return isinstance(cell, float) and cell != cell
