"""Sparse matrices by rows: the arrays of the CSR format, checked, without SciPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import Prepare, StoredRows, chunks
from syncpretrain.errors import DataError

Array = NDArray[Any]
SPARSE_NAMES = {"data", "indices", "indptr", "shape", "format"}  # as SciPy's save_npz writes them
MATRIX_EXPECTED = "expected a sparse matrix of numbers, such as scipy.sparse makes"


@dataclass(eq=False, repr=False)
class SparseRows(StoredRows):
    """Rows stored without their zeros; they stand for dense float32 rows.

    Row i has ``data[k]`` in column ``indices[k]`` for k from ``indptr[i]`` up to ``indptr[i + 1]``;
    these columns ascend, and none is there twice. Only :meth:`toarray` makes a dense array of all
    rows.

    Parameters
    ----------
    data : ndarray of float32
    indices, indptr : ndarray of int32 or int64
    width : int
        Columns of a row.
    prepare : callable, optional
        Last step for each array of rows, such as a standardization.
    """

    data: NDArray[np.float32]
    indices: Array
    indptr: Array
    width: int
    prepare: Prepare | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows, and of values in each."""
        return len(self.indptr) - 1, self.width

    @property
    def csr(self) -> tuple[NDArray[np.float32], Array, Array]:
        """The stored arrays: values, their columns, and the beginning of each row."""
        return self.data, self.indices, self.indptr

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and the largest value, the zeros included."""
        low = float(np.fmin.reduce(self.data, initial=np.inf))
        high = float(np.fmax.reduce(self.data, initial=-np.inf))
        return (low, high) if len(self.data) == self.size else (min(low, 0.0), max(high, 0.0))

    @property
    def are_counts(self) -> bool:
        """True if all values are whole numbers of 0 or more, and one is above 1."""
        data = self.data
        if not len(data) or not (data.min() >= 0 and data.max() > 1):
            return False
        return bool((data == np.floor(data)).all())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Refuse to become a dense array without an explicit :meth:`toarray`.

        Raises
        ------
        DataError
        """
        raise DataError(
            f"X: got a sparse matrix of shape {self.shape} where a dense array is needed, expected"
            " X.toarray()"
        )

    def __getitem__(self, key: slice | Array) -> NDArray[np.float32]:
        if not isinstance(key, slice):
            key = np.asarray(key)
            key = np.flatnonzero(key) if key.dtype == bool else key
            return self.take(key)
        run = self.run(key)
        out = np.zeros(run.shape, dtype=np.float32)
        owners = np.repeat(np.arange(len(run)), np.diff(run.indptr))
        out[owners, run.indices] = run.data
        return out if self.prepare is None else self.prepare(out)

    def take(
        self,
        indices: Array,
        axis: int = 0,
        out: NDArray[np.float32] | None = None,
        mode: str = "raise",
    ) -> NDArray[np.float32]:
        """Return some rows as a dense array, in ``out`` if it is given."""
        owners, places, _ = self._places(indices)
        if out is None:
            out = np.empty((len(indices), self.width), dtype=np.float32)
        out.fill(0)
        out[owners, self.indices[places]] = self.data[places]
        if self.prepare is not None:
            np.copyto(out, self.prepare(out))
        return out

    def check(self, good: NDArray[np.bool_], judge: Callable[..., Any]) -> None:
        """Call ``judge`` with the first row that has a value that is not ``good``.

        ``judge`` takes the row as a dense array and ``start``, the row's number; it raises the
        error.
        """
        if not good.all():
            row = int(np.searchsorted(self.indptr, np.argmin(good), side="right")) - 1
            judge(self[row : row + 1], start=row)

    def run(self, rows: slice) -> SparseRows:
        """Return consecutive rows, still sparse, without a copy of their values."""
        start, stop, step = rows.indices(len(self))
        if step != 1:
            return self.subset(np.arange(start, stop, step))
        stop = max(start, stop)
        ends = self.indptr[start : stop + 1]
        return self._kept(slice(int(ends[0]), int(ends[-1])), ends - ends[0])

    def subset(self, rows: Array) -> SparseRows:
        """Return a copy of some rows, still sparse."""
        _, places, counts = self._places(np.asarray(rows))
        return self._kept(places, np.concatenate([[0], np.cumsum(counts)]))

    def prepared_by(self, prepare: Prepare) -> SparseRows:
        """Return the same rows, passed through ``prepare`` at every reading."""
        return replace(self, prepare=prepare)

    def toarray(self) -> NDArray[np.float32]:
        """Return all rows as a dense array, filled some at a time."""
        out = np.empty(self.shape, dtype=np.float32)
        for chunk in chunks(self.shape):
            out[chunk] = self[chunk]
        return out

    def _kept(self, places: slice | Array, indptr: Array) -> SparseRows:
        return replace(self, data=self.data[places], indices=self.indices[places], indptr=indptr)

    def _places(self, rows: Array) -> tuple[Array, Array, Array]:
        """Return the row and the place of each value of some rows, and each row's count."""
        starts = self.indptr[:-1][rows]
        counts = self.indptr[1:][rows] - starts
        ends = np.cumsum(counts)
        owners = np.repeat(np.arange(len(rows)), counts)
        total = int(ends[-1]) if len(ends) else 0
        return owners, np.arange(total) + (starts - ends + counts)[owners], counts


def run_of(X: Any, rows: slice) -> Any:
    """Return consecutive rows of examples.

    Plain sparse rows stay sparse, and rows stored as bytes stay bytes.
    """
    return X.run(rows) if hasattr(X, "run") and getattr(X, "prepare", None) is None else X[rows]


def joined(parts: list[SparseRows]) -> SparseRows:
    """Return the rows of several matrices of one width, one behind the other."""
    counts = np.concatenate([np.diff(part.indptr) for part in parts])
    data = np.concatenate([part.data for part in parts])
    indices = np.concatenate([part.indices for part in parts])
    return SparseRows(data, indices, np.concatenate([[0], np.cumsum(counts)]), parts[0].shape[1])


def rows_of_matrix(X: Any, name: str) -> SparseRows:
    """Return the rows of a sparse matrix or array of SciPy, of any format.

    Bytes are taken as they are, and not divided by 255.

    Raises
    ------
    DataError
        If the matrix holds no numbers, no rows or no columns.
    """
    if not hasattr(X, "tocsr"):
        raise DataError(f"{name}: got a sparse array of type {type(X).__name__}, {MATRIX_EXPECTED}")
    try:
        csr = X.tocsr()
        arrays = csr.data, csr.indices, csr.indptr
        rows, columns = csr.shape
    except (AttributeError, ValueError, TypeError) as error:
        raise DataError(f"{name}: got a {type(X).__name__} ({error}), {MATRIX_EXPECTED}") from error
    if arrays[0].dtype.kind not in "biuf" or min(rows, columns) < 1:
        got = f"values of type {arrays[0].dtype} in the shape {(rows, columns)}"
        raise DataError(f"{name}: got {got}, {MATRIX_EXPECTED}")
    if not _fit_each_other(*arrays, rows, columns):  # SciPy does not look at every number of them
        raise DataError(
            f"{name}: got a sparse matrix whose arrays do not fit each other; X.check_format() says"
            " which"
        )
    return _settled(*arrays, columns, name)


def sparse_rows(arrays: Mapping[str, Array], form: str, name: str) -> SparseRows:
    """Build a matrix from the arrays of a file in the format ``csr`` or ``csc``.

    Raises
    ------
    DataError
        If the arrays do not fit each other.
    """
    data, indices, indptr, shape = (arrays[n] for n in ("data", "indices", "indptr", "shape"))
    if data.dtype.kind not in "biuf":
        raise DataError(f"{name}: got values of type {data.dtype}, expected numbers")
    sizes = shape.tolist() if shape.ndim == 1 and shape.dtype.kind in "iu" else []
    if len(sizes) != 2 or min(sizes) < 1:
        raise DataError(f"{name}: got a sparse matrix of shape {sizes}, expected rows and columns")
    rows, columns = sizes if form == "csr" else reversed(sizes)
    fits = _fit_each_other(data, indices, indptr, rows, columns)
    if not fits or indptr[-1] != len(data):  # a file has no room behind its last value
        raise DataError(
            f"{name}: got a sparse matrix whose arrays do not fit each other; save it again with"
            " scipy.sparse.save_npz"
        )
    if form == "csc":  # the arrays of the transposed matrix
        order = np.argsort(indices, kind="stable")
        owners = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        ends = np.cumsum(np.bincount(indices, minlength=columns))
        indices, indptr, data = owners[order], np.concatenate([[0], ends]), data[order]
        columns = rows
    return _settled(data, indices, indptr, columns, name)


def _fit_each_other(data: Array, indices: Array, indptr: Array, rows: int, columns: int) -> bool:
    """Return whether arrays are a CSR matrix; unused room behind the last value is permitted."""
    flat = indices.ndim == indptr.ndim == data.ndim == 1
    whole = flat and indices.dtype.kind in "iu" and indptr.dtype.kind in "iu"
    if not whole or len(indices) != len(data) or len(indptr) != rows + 1:
        return False
    if indptr[0] != 0 or indptr[-1] > len(data) or (indptr[1:] < indptr[:-1]).any():
        return False
    used = indices[: int(indptr[-1])]
    return not len(used) or bool(0 <= used.min() <= used.max() < columns)


def _settled(data: Array, indices: Array, indptr: Array, columns: int, name: str) -> SparseRows:
    """Return rows in their one form: ascending columns, duplicates added, zeros left out."""
    end = int(indptr[-1])  # SciPy leaves room behind it
    with np.errstate(over="ignore"):  # infinite values are refused later, with their place
        values = data[:end].astype(np.float32, copy=False)
    if (lost := np.isinf(values) & np.isfinite(data[:end])).any():
        place = int(np.argmax(lost))
        row = int(np.searchsorted(indptr, place, side="right")) - 1
        raise DataError(
            f"{name}: got {float(data[place]):g} at row {row}, column {indices[place]} (counted"
            " from 0), expected numbers that float32 holds; divide by a larger unit"
        )
    kind = np.int32 if columns <= np.iinfo(np.int32).max else np.int64
    indices, indptr = indices[:end].astype(kind, copy=False), indptr.astype(np.int64)
    owners = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    ascends = (np.diff(indices) > 0) | (np.diff(owners) > 0)
    if not ascends.all():
        order = np.lexsort((indices, owners))
        indices, owners, values = indices[order], owners[order], values[order]
        first = np.diff(indices, prepend=-1) != 0
        first |= np.diff(owners, prepend=-1) != 0
        values = np.add.reduceat(values, np.flatnonzero(first))
        indices, owners = indices[first], owners[first]
    kept = values != 0  # NaN too
    if not (ascends.all() and kept.all()):
        indices, values = indices[kept], values[kept]
        counts = np.bincount(owners[kept], minlength=len(indptr) - 1)
        indptr = np.concatenate([[0], np.cumsum(counts)])
    return SparseRows(values, indices, indptr, columns)
