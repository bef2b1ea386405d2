"""Checks of examples: numbers in rows, finite, in [0, 1]; bytes are scaled by 1/255."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from syncpretrain.data.blocks import as_float32, chunks
from syncpretrain.data.file_rows import FileRows
from syncpretrain.data.sparse_rows import SparseRows, rows_of_matrix
from syncpretrain.errors import DataError

T = TypeVar("T", bound=np.generic)
LARGEST = 1e18  # the square of a larger float32 is infinite
SCALING = (
    "take visible_units gaussian, which standardizes each column, or scale each column to its"
    " range, (X - X.min(0)) / (X.max(0) - X.min(0))"
)

COUNTING = "take visible_units counts for numbers of words, or gaussian for other numbers"
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
) -> FileRows:
    """Check every value of a file in one pass; return its rows, checked again at every reading.

    ``seen`` is called with each block of rows, of the file's own type. Without ``seen``, a file of
    bytes is not read.

    Raises
    ------
    DataError
        As :func:`check_examples`.
    """
    watched = watched_rows(rows, name, bounded=bounded)
    if seen is None and _is_sound(rows.raw_dtype):
        return watched
    start = 0
    for block in rows.raw_blocks():
        if not _is_sound(block.dtype):
            _check_block(block, name, start, bounded=bounded)
        if seen is not None:
            seen(block)
        start += len(block)
    return watched


def watched_rows(rows: FileRows, name: str = "X", *, bounded: bool = True) -> FileRows:
    """Return checked rows of a file that are checked again at every reading."""
    if _is_sound(rows.raw_dtype):
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
        rows: Any = X if isinstance(X, SparseRows) else rows_of_matrix(X, name)
        return rows  # type: ignore[no-any-return]
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
    if not _is_inside(values, low, high):
        raise DataError(f"{name}: {_first_bad(X, values, start, (low, high), names, advice)}")


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


def _first_bad(
    original: NDArray[Any],
    values: NDArray[np.float32],
    start: int,
    limits: tuple[float, float],
    names: Sequence[str] | None,
    advice: str,
) -> str:
    low, high = limits
    good = (values >= low) & (values <= high)
    row, column = divmod(int(np.argmin(good)), good.shape[1])
    value = float(original[row, column])
    place = f"got {value:g} at row {start + row}, column {column} (counted from 0)"
    if names is not None:
        place = f"got {value:g} at row {start + row} (counted from 0), column {names[column]!r}"
    if not math.isfinite(value):
        return f"{place}, expected finite numbers; drop such rows, or fill in their values"
    if low < 0:
        return f"{place}, expected numbers from {low:g} to {high:g}; divide by a larger unit"
    return f"{place}, expected values in [0, 1]; {advice}"
