"""Checks of examples, first as numbers in rows, then as the visible units of layer 1 take them.

Values are finite, and in [0, 1] unless the units take others; bytes are scaled by 1/255. Columns of
word counts hold whole numbers; the columns of a group of choices hold a one and zeros. Neither is
scaled, even if they are bytes. NaN stands for a missing value, and stays until the examples are
standardized.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from syncpretrain.data.blocks import as_float32, chunks
from syncpretrain.data.file_rows import FileRows
from syncpretrain.data.scaling import Scaling
from syncpretrain.data.sparse_rows import SparseRows, rows_of_matrix
from syncpretrain.errors import DataError
from syncpretrain.units.kinds import kind_of

Floats = NDArray[np.float32]
T = TypeVar("T", bound=np.generic)
LARGEST = 1e18  # the square of a larger float32 is infinite
SCALING = (
    "train with visible_units=gaussian, which standardizes each column, or scale each column to its"
    " range, (X - X.min(0)) / (X.max(0) - X.min(0)); what is trained takes rows scaled as before"
)

COUNTING = "take visible_units=counts for numbers of words, or gaussian for other numbers"
JOINING = (
    'join them by np.concatenate(X), or take Minibatches(X) with handoff="minibatch", which reads'
    " one after the other"
)


def checked_rows(
    rows: FileRows,
    name: str = "X",
    *,
    bounded: bool = True,
    seen: Callable[[NDArray[Any]], Any] | None = None,
    are_known: bool = False,
) -> FileRows:
    """Check every value of a file in one pass; return its rows, checked again at every reading.

    ``seen`` is called with each block of rows, of the file's own type. Without ``seen``, a file of
    bytes is not read; nor is one with values that ``are_known`` to be sound.

    Raises
    ------
    DataError
        As :func:`check_examples`.
    """
    is_sound, start = _is_sound(rows.raw_dtype), 0
    for block in () if are_known or (seen is None and is_sound) else rows.raw_blocks():
        if not is_sound:
            _check_block(block, name, start, bounded=bounded)
        if seen is not None:
            seen(block)
        start += len(block)
    if is_sound:
        return rows
    known = name if name != "X" else f"X, mapped from {rows.path}"
    return rows.checked_by(partial(check_again, name=known, bounded=bounded))


def check_again(
    values: NDArray[np.float32], numbers: Callable[[], NDArray[Any]], *, name: str, bounded: bool
) -> None:
    """Check values that were sound when the run began; ``numbers`` returns their row numbers.

    Raises
    ------
    DataError
        Naming the first bad place, and how many more rows are bad.
    """
    low, high = _range(bounded)
    if _is_inside(values, low, high):
        return
    good = (values >= low) & (values <= high)
    bad = np.flatnonzero(~good.all(axis=1))
    column = int(np.argmin(good[bad[0]]))
    more = f", and bad values in {len(bad) - 1} more of the rows read with it"
    raise DataError(
        f"{name}: got {values[bad[0], column]:g} at row {numbers()[bad[0]]}, column {column}"
        f" (counted from 0){more if len(bad) > 1 else ''}, expected the values that it had when the"
        " run began; let nothing write to it, put the former values back, then begin or resume the"
        " run"
    )


def as_examples(X: ArrayLike, name: str) -> NDArray[Any]:
    """Return a numeric array of two dimensions, none of them 0; its values are unchecked.

    A sparse matrix becomes :class:`syncpretrain.data.sparse_rows.SparseRows`.

    Raises
    ------
    DataError
        If X is something else.
    """
    if isinstance(X, SparseRows) or hasattr(X, "toarray"):
        return X if isinstance(X, SparseRows) else rows_of_matrix(X, name)  # type: ignore[return-value]
    # There are none before the module is imported, which takes as long as reading small data. Where
    # another thread is importing it, there is a module, and no such class yet.
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())
    if isinstance(X, masked) and (hidden := np.sum(X.mask)):
        raise DataError(
            f"{name}: got a masked array with {hidden} masked values, expected plain numbers; mark"
            " them as missing by X.astype(float).filled(np.nan), or fill in others"
        )
    try:
        array = np.asarray(X)
    except (ValueError, TypeError, RuntimeError) as error:  # the last from a tensor of PyTorch
        if lists := _of_arrays(X):
            raise DataError(f"{name}: got {lists}, expected one array; {JOINING}") from error
        raise DataError(
            f"{name}: got no array of numbers ({error}), expected shape (n_examples, width)"
        ) from error
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"{name}: got values of type {array.dtype}, expected numbers; convert them to float32"
        )
    if 0 in array.shape:
        raise DataError(f"{name}: got no values, shape {array.shape}; expected one example or more")
    if array.ndim != 2:
        others = f"; where each is a minibatch, {JOINING}" if _of_arrays(X) else ""
        raise DataError(
            f"{name}: got shape {array.shape}, expected (n_examples, width), an example a row;"
            f" reshape it, X.reshape(len(X), -1) where each X[i] is an example{others}"
        )
    return array


def _of_arrays(X: Any) -> str:
    """Return a phrase for a list of arrays with two dimensions each; "" for anything else."""
    if not isinstance(X, (list, tuple)) or not X:
        return ""
    return f"a list of {len(X)} arrays" if all(getattr(x, "ndim", 0) == 2 for x in X) else ""


def check_values(
    X: NDArray[Any],
    name: str,
    *,
    bounded: bool = True,
    names: Sequence[str] | None = None,
    missing: bool = False,
) -> None:
    """Check that every value is finite, and if ``bounded`` in [0, 1]; bytes and booleans pass.

    ``names`` are the names of the columns, if they have any. ``missing`` permits NaN, but not in
    sparse rows.

    Raises
    ------
    DataError
        Naming the first bad place.
    """
    if isinstance(X, SparseRows):
        low, high = _range(bounded)
        advice = COUNTING if X.are_counts else SCALING
        judge = partial(_check_block, name=name, bounded=bounded, advice=advice)
        X.check((X.data >= low) & (X.data <= high), judge)
    elif not _is_sound(X.dtype):
        for rows in chunks(X.shape):
            _check_block(X[rows], name, rows.start, bounded=bounded, names=names, missing=missing)


def _is_sound(dtype: np.dtype[Any]) -> bool:
    """Return whether every value of a type can be trained on."""
    return dtype == np.uint8 or dtype.kind == "b"


def _check_block(
    X: NDArray[Any],
    name: str,
    start: int = 0,
    *,
    bounded: bool,
    names: Sequence[str] | None = None,
    missing: bool = False,
    advice: str = SCALING,
) -> None:
    low, high = _range(bounded)
    with np.errstate(over="ignore"):  # as float32, because 1 + 1e-12 is 1 there
        values = np.asarray(X, dtype=np.float32)
    if _is_inside(values, low, high):
        return
    if missing:
        values = np.where(np.isnan(values), np.float32(0), values)
    if _is_inside(values, low, high):
        return
    good = (values >= low) & (values <= high)
    row, column = divmod(int(np.argmin(good)), good.shape[1])
    value = float(X[row, column])
    place = f"got {value:g} at row {start + row}, column {column} (counted from 0)"
    if names is not None:
        place = f"got {value:g} at row {start + row} (counted from 0), column {names[column]!r}"
    expected = f"values in [0, 1]; {advice}"
    if not math.isfinite(value):
        expected = "finite numbers; drop such rows, or fill in their values"
    elif low < 0:
        expected = f"numbers from {low:g} to {high:g}; divide by a larger unit"
    raise DataError(f"{name}: {place}, expected {expected}")


def _range(bounded: bool) -> tuple[float, float]:
    return (0.0, 1.0) if bounded else (-LARGEST, LARGEST)


def _is_inside(values: NDArray[np.float32], low: float, high: float) -> bool:
    if not values.size:
        return True
    with np.errstate(invalid="ignore"):  # a NaN comes through both min and max
        return bool(values.min() >= low and values.max() <= high)


def scale_examples(X: NDArray[Any], *, rows: NDArray[np.intp] | None = None) -> NDArray[np.float32]:
    """Return checked examples, or the given rows of them, as C-contiguous float32 in [0, 1].

    Bytes are scaled by 1/255. Rows are converted a chunk at a time, without a big temporary. Sparse
    rows stay sparse.
    """
    if isinstance(X, SparseRows):
        return X if rows is None else X.subset(rows)
    flags = X.flags
    if rows is None and X.dtype == np.float32 and flags.c_contiguous and flags.aligned:
        return X
    out = np.empty((len(X) if rows is None else len(rows), X.shape[1]), dtype=np.float32)
    for chunk in chunks(out.shape):
        as_float32(X[chunk] if rows is None else X[rows[chunk]], out[chunk])
    return out


def evenly_spaced(X: NDArray[T], most: int) -> NDArray[T]:
    """Return at most ``most`` rows of X, evenly spaced, since a file may be sorted by class."""
    if len(X) <= most:
        return X if isinstance(X, np.ndarray) else X[:]  # out of its file
    return X[np.arange(most) * len(X) // most]


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
    if isinstance(array, SparseRows) and kind.are_counts:
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


def check_columns(X: Floats, names: Sequence[Any] | None = None) -> None:
    """Refuse a column in which every value is missing; ``names`` has a data frame's names.

    Raises
    ------
    DataError
    """
    empty = np.isnan(X).all(axis=0)
    if empty.any():
        place = int(empty.argmax())
        column = f"{place} (counted from 0)" if names is None else repr(str(names[place]))
        raise DataError(
            f"X: got NaN in every row of column {column}, expected a number in one at least; drop"
            " the column"
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
