"""Sparse matrices by rows: the arrays of the CSR format, checked, without SciPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import chunks
from syncpretrain.errors import DataError

__all__ = ["SPARSE_NAMES", "SparseRows", "sparse_rows"]

SPARSE_NAMES = {"data", "indices", "indptr", "shape", "format"}  # as SciPy's save_npz writes them


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Rows of which only the values that are not 0 are kept.

    Row i has ``data[k]`` in column ``indices[k]`` for k from ``indptr[i]`` up to ``indptr[i + 1]``;
    what is there twice is added.
    """

    data: NDArray[np.float32]
    indices: NDArray[Any]
    indptr: NDArray[Any]
    shape: tuple[int, int]

    @property
    def dense_bytes(self) -> int:
        """The memory of the same rows as a dense float32 array."""
        return 4 * self.shape[0] * self.shape[1]

    def dense(self, rows: slice) -> NDArray[np.float32]:
        """Return a run of rows as a dense array."""
        start, stop, _ = rows.indices(self.shape[0])
        first, last = int(self.indptr[start]), int(self.indptr[stop])
        out = np.zeros((stop - start, self.shape[1]), dtype=np.float32)
        counts = np.diff(self.indptr[start : stop + 1])
        numbers = np.repeat(np.arange(stop - start), counts)
        np.add.at(out, (numbers, self.indices[first:last]), self.data[first:last])
        return out

    def toarray(self) -> NDArray[np.float32]:
        """Return all rows as a dense array, filled some at a time."""
        out = np.empty(self.shape, dtype=np.float32)
        for chunk in chunks(self.shape):
            out[chunk] = self.dense(chunk)
        return out


def sparse_rows(arrays: Mapping[str, NDArray[Any]], name: str) -> SparseRows:
    """Return the matrix that the arrays of a file are, in the format CSR or CSC.

    Raises
    ------
    DataError
        If the format is another one, or the arrays do not fit each other.
    """
    written = arrays["format"]
    form = written.item() if written.ndim == 0 else ""
    form = form.decode("ascii", "replace") if isinstance(form, bytes) else str(form)
    if form not in ("csr", "csc"):
        raise DataError(
            f"{name}: got a sparse matrix in the format {form!r}, expected csr; save X.tocsr()"
        )
    data, indices, indptr, shape = (arrays[n] for n in ("data", "indices", "indptr", "shape"))
    if data.dtype.kind not in "biuf":
        raise DataError(f"{name}: got values of type {data.dtype}, expected numbers")
    sizes = shape.tolist() if shape.ndim == 1 and shape.dtype.kind in "iu" else []
    if len(sizes) != 2 or min(sizes) < 1:
        raise DataError(f"{name}: got a sparse matrix of shape {sizes}, expected rows and columns")
    rows, columns = sizes if form == "csr" else reversed(sizes)
    flat = indices.ndim == indptr.ndim == data.ndim == 1
    whole = flat and indices.dtype.kind in "iu" and indptr.dtype.kind in "iu"
    fits = whole and len(indices) == len(data) and len(indptr) == rows + 1
    fits = fits and indptr[0] == 0 and indptr[-1] == len(data) and (np.diff(indptr) >= 0).all()
    if not fits or (len(indices) and not 0 <= indices.min() <= indices.max() < columns):
        raise DataError(
            f"{name}: got a sparse matrix whose arrays do not fit each other; save it again with"
            " scipy.sparse.save_npz"
        )
    if form == "csc":
        indices, indptr, data = _transposed(indices, indptr, data, columns)
        rows, columns = columns, rows
    return SparseRows(data.astype(np.float32), indices, indptr, (rows, columns))


def _transposed(
    indices: NDArray[Any], indptr: NDArray[Any], data: NDArray[Any], columns: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the arrays of a transposed matrix, which has so many rows."""
    order = np.argsort(indices, kind="stable")
    owners = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    counts = np.bincount(indices, minlength=columns)
    return owners[order], np.concatenate([[0], np.cumsum(counts)]), data[order]
