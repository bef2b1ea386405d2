"""The data as it is sent to other ranks: as bytes, where every value is a 255th of one.

A link of 1 Gb/s takes longer for the data in float32 than a layer for half an epoch of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.arrays import LONG_BLOCK, Array
from syncpretrain.pretraining.runtime.split import Split

__all__ = ["ByteRows", "SentSplit", "received", "to_send"]

LEAST_BYTES = 1 << 20  # what is smaller is sent as it is
LARGEST_BYTE = np.float32(255)


@dataclass(frozen=True, slots=True)
class ByteRows:
    """Rows of values that are bytes divided by 255."""

    numbers: NDArray[np.uint8]

    def rows(self) -> Array:
        """Return the values, with all their bits."""
        values = np.empty(self.numbers.shape, dtype=np.float32)
        np.divide(self.numbers, LARGEST_BYTE, out=values)
        return values


@dataclass(frozen=True, slots=True)
class SentSplit:
    """Training and validation rows on their way."""

    train: Any
    validation: Any


def to_send(data: Split) -> SentSplit:
    """Return what is sent for some data, in the fewest bytes that keep all bits."""
    return SentSplit(*(_in_bytes(rows) for rows in data))


def received(data: SentSplit) -> Split:
    """Return the data that were sent."""
    return Split(
        *(
            rows.rows() if isinstance(rows, ByteRows) else rows
            for rows in (data.train, data.validation)
        )
    )


def _in_bytes(rows: Any) -> Any:
    """Return rows as bytes, or as they are if that would change a bit."""
    if not isinstance(rows, np.ndarray) or rows.dtype != np.float32 or rows.nbytes < LEAST_BYTES:
        return rows
    numbers = np.empty(rows.shape, dtype=np.uint8)
    step = max(1, LONG_BLOCK // rows.shape[1])
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
