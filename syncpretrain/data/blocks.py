"""Runs of rows, a few megabytes each, in which examples are checked, measured and converted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Prepare",
    "StoredRows",
    "as_bits",
    "as_float32",
    "blocks_of",
    "chunks",
]

Prepare = Callable[[NDArray[np.float32]], NDArray[np.float32]]
CHUNK_VALUES = 1 << 20


def chunks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield runs of rows that are a few megabytes each; they depend on the shape alone."""
    rows = max(CHUNK_VALUES // shape[1], 1)
    for start in range(0, shape[0], rows):
        yield slice(start, min(start + rows, shape[0]))


class StoredRows(ABC):
    """Rows of float32 that are kept in another form, and become arrays as they are asked for.

    Slices and arrays of row numbers give arrays in memory, each made anew; ``numpy.take`` works.
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

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Yield all rows, a few at a time."""
        for chunk in chunks(self.shape):
            yield self[chunk]

    @abstractmethod
    def subset(self, rows: NDArray[Any]) -> StoredRows:
        """Return some of the rows, stored still."""

    @abstractmethod
    def prepared_by(self, prepare: Prepare) -> StoredRows:
        """Return the same rows, which go through ``prepare`` as they are asked for."""


def blocks_of(X: Any) -> Iterator[Any]:
    """Yield a few rows at a time, the same ones wherever they lie, for the same sums.

    What is not in memory has ``blocks`` of its own.
    """
    if hasattr(X, "blocks"):
        yield from X.blocks()
        return
    for chunk in chunks(X.shape):
        yield X[chunk]


def as_float32(values: NDArray[Any], out: NDArray[np.float32]) -> NDArray[np.float32]:
    """Convert numbers to float32 in ``out``; bytes are divided by 255."""
    if values.dtype == np.uint8:
        np.divide(values, np.float32(255), out=out)
    else:
        out[...] = values
    return out


def as_bits(X: NDArray[Any]) -> NDArray[Any]:
    """Return bytes that are all 0 or 1 as booleans, without a copy; anything else as it is.

    Larger bytes are shares of 255, but in a byte that is never above 1 a 1 means on.
    """
    if X.dtype != np.uint8 or any(X[rows].max() > 1 for rows in chunks(X.shape)):
        return X
    return X.view(np.bool_)
