"""Rows as they are stored, and blocks of a few megabytes in which they are checked and converted.

Examples are float32 wherever they are trained on, but may be stored in another form: in a file, as
a sparse matrix (subclasses of :class:`StoredRows`), or as bytes (:class:`ByteRows`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

Prepare = Callable[[NDArray[np.float32]], NDArray[np.float32]]
B = TypeVar("B", bound="ByteRows")
CHUNK_VALUES = 1 << 20
LEAST_BYTES = 1 << 20  # smaller arrays stay float32
BLOCK_VALUES = 2**18  # values compared at a time
LARGEST_BYTE = np.float32(255)


def chunks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield runs of rows that are a few megabytes each; they depend on the shape alone."""
    rows = max(CHUNK_VALUES // shape[1], 1)
    for start in range(0, shape[0], rows):
        yield slice(start, min(start + rows, shape[0]))


class StoredRows(ABC):
    """Rows of float32 that are stored in another form, and become arrays when they are read.

    Slices and arrays of row numbers give new arrays in memory; ``numpy.take`` works.
    """

    ndim = 2
    dtype = np.dtype(np.float32)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """The number of rows, and of values in each."""

    @property
    def size(self) -> int:
        """The number of values."""
        return self.shape[0] * self.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    @abstractmethod
    def __getitem__(self, key: slice | NDArray[Any]) -> NDArray[np.float32]: ...

    def take(
        self,
        indices: NDArray[Any],
        axis: int = 0,
        out: NDArray[np.float32] | None = None,
        mode: str = "raise",
    ) -> NDArray[np.float32]:
        """Return some rows, in ``out`` if it is given; ``numpy.take`` comes here."""
        found = self[indices]
        if out is None:
            return found
        np.copyto(out, found)
        return out

    @abstractmethod
    def subset(self, rows: NDArray[Any]) -> StoredRows:
        """Return some of the rows, stored still."""

    @abstractmethod
    def prepared_by(self, prepare: Prepare) -> StoredRows:
        """Return the same rows, passed through ``prepare`` at every reading."""


def blocks_of(X: Any) -> Iterator[Any]:
    """Yield a few rows at a time.

    The blocks depend on the shape alone, so that sums over them have the same bits wherever the
    rows are stored. An iterable of arrays has a method ``blocks`` of its own.
    """
    if hasattr(X, "blocks"):
        yield from X.blocks()
        return
    for chunk in chunks(X.shape):
        yield X[chunk]


def chosen_rows(X: Any, rows: Any) -> Any:
    """Return some rows; rows of a file stay in the file."""
    return X.subset(rows) if isinstance(X, StoredRows) else X[rows]


def as_float32(values: NDArray[Any], out: NDArray[np.float32]) -> NDArray[np.float32]:
    """Convert numbers to float32 in ``out``; bytes are divided by 255."""
    if values.dtype == np.uint8:
        np.divide(values, LARGEST_BYTE, out=out)
    else:
        out[...] = values
    return out


def as_bits(X: NDArray[Any]) -> NDArray[Any]:
    """Return bytes that are all 0 or 1 as booleans, without a copy; any other array as it is.

    Larger bytes are shares of 255; where no byte is above 1, a 1 means on.
    """
    if X.dtype != np.uint8 or any(X[rows].max() > 1 for rows in chunks(X.shape)):
        return X
    return X.view(np.bool_)


@dataclass(frozen=True, slots=True)
class ByteRows:
    """Rows of float32 values that are bytes divided by 255, in a quarter of the memory.

    Attributes
    ----------
    numbers : array of shape (n, width), uint8
        Bytes, on the host or on a device.
    """

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)

    numbers: Any

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows, and of values in each."""
        rows, width = self.numbers.shape
        return rows, width

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return int(self.numbers.nbytes)

    def __len__(self) -> int:
        return len(self.numbers)

    def run(self: B, rows: slice) -> B:
        """Return consecutive rows as they are kept, without a copy."""
        return replace(self, numbers=self.numbers[rows])

    def rows(self) -> NDArray[np.float32]:
        """Return the values of rows on the host."""
        return as_float32(self.numbers, np.empty(self.shape, dtype=np.float32))


def bytes_of(rows: Any) -> int:
    """Return the bytes of memory that dense rows take; rows of a file count as float32."""
    return int(rows.nbytes if hasattr(rows, "nbytes") else 4 * rows.size)


def in_bytes(rows: Any) -> Any:
    """Return rows as :class:`ByteRows`, or as they are if that would change a bit.

    Small arrays, and rows that are no float32 array on the host, stay as they are too.
    """
    if not isinstance(rows, np.ndarray) or rows.dtype != np.float32 or rows.nbytes < LEAST_BYTES:
        return rows
    numbers: NDArray[np.uint8] = np.empty(rows.shape, dtype=np.uint8)
    step = max(1, BLOCK_VALUES // rows.shape[1])
    with np.errstate(invalid="ignore"):  # NaN is found to differ
        for start in range(0, len(rows), step):
            part, own = rows[start : start + step], numbers[start : start + step]
            if not (part.min() >= 0 and part.max() <= 1):
                return rows
            own[:] = np.rint(part * LARGEST_BYTE)
            again = np.divide(own, LARGEST_BYTE, dtype=np.float32)
            if not np.array_equal(again.view(np.int32), part.view(np.int32)):
                return rows  # a negative zero, which is a missing value, differs too
    return ByteRows(numbers)
