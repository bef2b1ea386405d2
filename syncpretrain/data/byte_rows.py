"""Rows of values that are bytes divided by 255, in a quarter of the memory and with every bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["ByteRows", "bytes_of", "in_bytes"]

B = TypeVar("B", bound="ByteRows")
LEAST_BYTES = 1 << 20  # what is smaller stays as it is
BLOCK_VALUES = 2**18  # values that are looked at together
LARGEST_BYTE = np.float32(255)


@dataclass(frozen=True, slots=True)
class ByteRows:
    """Rows of float32 values that are bytes divided by 255.

    Attributes
    ----------
    numbers : array of shape (n, width), uint8
        On the host or on a device.
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
        values = np.empty(self.shape, dtype=np.float32)
        np.divide(self.numbers, LARGEST_BYTE, out=values)
        return values


def bytes_of(rows: Any) -> int:
    """Return the bytes of memory that dense rows take as they are; those of a file as float32."""
    size: int = rows.nbytes if hasattr(rows, "nbytes") else 4 * rows.size
    return size


def in_bytes(rows: Any) -> Any:
    """Return rows as :class:`ByteRows`, or as they are if that would change a bit.

    Small arrays, and what is no float32 array on the host, stay as they are too.
    """
    if not isinstance(rows, np.ndarray) or rows.dtype != np.float32 or rows.nbytes < LEAST_BYTES:
        return rows
    numbers: NDArray[np.uint8] = np.empty(rows.shape, dtype=np.uint8)
    step = max(1, BLOCK_VALUES // rows.shape[1])
    with np.errstate(invalid="ignore"):  # what is not a number is found to differ
        for start in range(0, len(rows), step):
            part, own = rows[start : start + step], numbers[start : start + step]
            if not (part.min() >= 0 and part.max() <= 1):
                return rows
            own[:] = np.rint(part * LARGEST_BYTE)
            again = np.divide(own, LARGEST_BYTE, dtype=np.float32)
            if not np.array_equal(again.view(np.int32), part.view(np.int32)):
                return rows  # a negative zero, which is a missing value, differs too
    return ByteRows(numbers)
