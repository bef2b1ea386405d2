"""Examples in a file, read and converted when they are needed, never as a whole.

They are read from the file instead of through its mapping: mapping a page costs several times as
much as copying it, and every mapped page counts as memory of the process. Pages that were read stay
in the system's page cache as long as nothing else needs the memory.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import Prepare, StoredRows, as_float32, chunks
from syncpretrain.errors import DataError

# Called with values and a function that returns their row numbers; raises an error if one is bad.
Check = Callable[[NDArray[np.float32], Callable[[], NDArray[Any]]], None]
NEAR = 2  # a run of rows is read whole if it has at most this many times the rows asked for


class FileRows(StoredRows):
    """Rows of a file, which stand for float32 examples of shape (n, width).

    ``numpy.asarray`` reads everything.

    Parameters
    ----------
    file : _Table
    rows : ndarray of int, optional
        Numbers of the rows in the file, in order; default all.
    prepare : callable, optional
        Last step for each array that is read, such as a standardization.
    check : callable, optional
        Check of each array before ``prepare``: something may write to the file meanwhile.

    Attributes
    ----------
    path : str
        The path of the file.
    raw_dtype : dtype
        The type of the numbers in the file.
    """

    def __init__(
        self,
        file: _Table,
        rows: NDArray[Any] | None = None,
        prepare: Prepare | None = None,
        check: Check | None = None,
    ) -> None:
        if rows is not None and file.shape[0] < 1 << 32:
            rows = rows.astype(np.uint32)  # one number for each example: half the memory
        self._file, self._rows, self._prepare, self._check = file, rows, prepare, check
        self.path, self.raw_dtype = file.path, file.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows, and of values in each."""
        rows, width = self._file.shape
        return rows if self._rows is None else len(self._rows), width

    def __getitem__(self, key: slice | NDArray[Any]) -> NDArray[np.float32]:
        if self._rows is not None:
            values = self._file.gathered(self._rows[key])
        elif isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            run = self._file.run(start, stop) if step == 1 else None
            values = self._file.gathered(np.arange(start, stop, step)) if run is None else run
        else:
            key = np.asarray(key)
            values = self._file.gathered(np.flatnonzero(key) if key.dtype == bool else key)
        if values.dtype != np.float32 or not values.dtype.isnative:
            values = as_float32(values, np.empty(values.shape, dtype=np.float32))
        if self._check is not None:
            self._check(values, partial(self._numbers, key))
        return values if self._prepare is None else self._prepare(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all rows, in memory."""
        return self[:] if dtype is None else self[:].astype(dtype)

    def raw_blocks(self) -> Iterator[NDArray[Any]]:
        """Yield all rows of the file, of its own type, a few at a time."""
        for chunk in chunks(self._file.shape):
            yield self._file.run(chunk.start, chunk.stop)

    def raw_sample(self, most: int) -> NDArray[Any]:
        """Return at most ``most`` evenly spaced rows of the file, of its own type."""
        count = min(most, self._file.shape[0])
        return self._file.gathered(np.arange(count) * self._file.shape[0] // count)

    def subset(self, rows: NDArray[Any]) -> FileRows:
        """Return some of the rows, still in the file."""
        chosen = rows if self._rows is None else self._rows[rows]
        return FileRows(self._file, chosen, self._prepare, self._check)

    def whole(self) -> FileRows:
        """Return all rows of the file, in its order."""
        return FileRows(self._file, None, self._prepare, self._check)

    def prepared_by(self, prepare: Prepare) -> FileRows:
        """Return the same rows, passed through ``prepare`` at every reading."""
        return FileRows(self._file, self._rows, prepare, self._check)

    def checked_by(self, check: Check) -> FileRows:
        """Return the same rows, passed to ``check`` at every reading."""
        return FileRows(self._file, self._rows, self._prepare, check)

    def will_need(self, rows: slice) -> None:
        """Ask the system to read a run of rows ahead, while others are trained on."""
        first, last = rows.start, rows.stop - 1
        if self._rows is not None:
            first, last = int(self._rows[first]), int(self._rows[last])
        self._file.read_ahead(first, last + 1)

    def _numbers(self, key: slice | NDArray[Any]) -> NDArray[Any]:
        """Return the numbers that rows have in the file."""
        return np.arange(len(self))[key] if self._rows is None else self._rows[key]


class _Table:
    """A table of numbers in a file that is open for reading.

    It can be sent to another process, which opens the file anew.

    Parameters
    ----------
    path : str
    offset : int
        Position of the first byte of the table.
    shape : tuple of int
    dtype : dtype

    Raises
    ------
    OSError
        If the file cannot be opened.
    """

    def __init__(
        self, path: str, offset: int, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> None:
        self.path, self._offset, self.shape, self.dtype = path, offset, shape, dtype
        self._row = shape[1] * dtype.itemsize
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Table, (self.path, self._offset, self.shape, self.dtype)

    def run(self, start: int, stop: int) -> NDArray[Any]:
        """Return consecutive rows."""
        out = np.empty((max(stop - start, 0), self.shape[1]), dtype=self.dtype)
        self._read(out.reshape(-1).view(np.uint8), start)
        return out

    def gathered(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return some rows, in any order."""
        out = np.empty((len(rows), self.shape[1]), dtype=self.dtype)
        numbers = rows.tolist()
        if numbers and numbers[-1] - numbers[0] < NEAR * len(numbers):
            first = min(numbers)
            if max(numbers) - first < NEAR * len(numbers):
                run = self.run(first, max(numbers) + 1)
                np.take(run, rows - rows.dtype.type(first), axis=0, out=out, mode="clip")
                return out
        for row, number in zip(out.view(np.uint8), numbers, strict=True):
            self._read(row, number)
        return out

    def read_ahead(self, start: int, stop: int) -> None:
        """Ask the system to read consecutive rows."""
        if hasattr(os, "posix_fadvise") and stop > start:  # not on macOS
            begin = self._offset + start * self._row
            length = (stop - start) * self._row
            os.posix_fadvise(self._descriptor, begin, length, os.POSIX_FADV_WILLNEED)

    def _read(self, out: NDArray[np.uint8], row: int) -> None:
        """Fill ``out`` with the bytes from the beginning of a row on.

        Raises
        ------
        DataError
            If the file has become shorter.
        """
        at, done, size = self._offset + row * self._row, 0, len(out)
        while done < size:
            count = os.preadv(self._descriptor, [out[done:].data], at + done)
            if not count:
                raise self._cut_off()
            done += count

    def _cut_off(self) -> DataError:
        """Return the error of a file that has become shorter."""
        size = os.fstat(self._descriptor).st_size
        rows = max(size - self._offset, 0) // self._row
        return DataError(
            f"{self.path}: got a file of {size} bytes with {rows} whole rows, expected at least"
            f" {self._offset + self.shape[0] * self._row} bytes with {self.shape[0]} rows; it has"
            " become shorter since the run began, put the whole file back, then begin or resume the"
            " run"
        )


def rows_in_file(X: object) -> FileRows | None:
    """Return the rows of an array that is mapped from a file, such as by ``numpy.load``.

    Return None if the array is in memory, or cannot be read row by row: if it is writable, is in
    Fortran order, or its file is no longer the mapped one.
    """
    if not isinstance(X, np.ndarray) or X.ndim != 2 or not X.flags.c_contiguous or not X.size:
        return None
    base: object = X
    while isinstance(base, np.ndarray) and not isinstance(base.base, mmap.mmap):
        base = base.base
    if not isinstance(base, np.memmap) or base.mode != "r" or base.filename is None:
        return None
    mapping: Any = base.base
    start = base.offset - base.offset % mmap.ALLOCATIONGRANULARITY
    offset = start + _address(X) - _address(np.frombuffer(mapping, dtype=np.uint8))
    try:
        table = _Table(os.fspath(base.filename), offset, (X.shape[0], X.shape[1]), X.dtype)
        ends = [table.run(row, row + 1).tobytes() for row in (0, len(X) - 1)]
    except (OSError, DataError):
        return None
    same = ends == [X[row].tobytes() for row in (0, len(X) - 1)]
    return FileRows(table) if same else None


def _address(X: NDArray[Any]) -> int:
    return cast("int", X.__array_interface__["data"][0])
