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

    Slices are float32 arrays of the device, each made anew on the current stream; minibatches are
    what ``Backend.gather`` makes of them. Another device gets a run of them by its
    ``Backend.asarray``, which divides there.
    """

    backend: Backend

    def __getitem__(self, key: slice) -> Any:
        return self.backend.asarray(self.run(key))

    def blocks(self) -> Iterator[Any]:
        """Yield all rows, a few at a time."""
        for chunk in chunks(self.shape):
            yield self[chunk]
