"""Examples on a device that are kept as bytes, and become float32 as they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from syncpretrain.backends.base import Backend
from syncpretrain.data.blocks import ByteRows, chunks

__all__ = ["DeviceRows"]


@dataclass(frozen=True, slots=True)
class DeviceRows(ByteRows):
    """Rows of a device, of values that are bytes divided by 255.

    A slice is a new float32 array of the device, filled on the current stream; ``Backend.gather``
    makes minibatches. Another device gets a run of the bytes by its ``Backend.asarray``, and
    divides there.
    """

    backend: Backend

    def __getitem__(self, key: slice) -> Any:
        return self.backend.asarray(self.run(key))

    def blocks(self) -> Iterator[Any]:
        """Yield all rows, a few at a time."""
        for chunk in chunks(self.shape):
            yield self[chunk]
