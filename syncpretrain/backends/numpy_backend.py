"""NumPy on the cores of this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from syncpretrain.backends.base import Draws, Stream
from syncpretrain.data.blocks import StoredRows
from syncpretrain.rng import Address

__all__ = ["NumpyBackend"]


class _NullStream(nullcontext[None]):
    """The stream of a machine whose calls return when their work is finished."""

    def synchronize(self) -> None:
        """Return at once."""


class NumpyBackend:
    """See :class:`syncpretrain.backends.base.Backend`."""

    name = "numpy"
    xp: Any = np
    array_type: type = np.ndarray
    forms: Mapping[str, Callable[..., Any]] = {}
    steps_between_checks = 1

    def devices(self) -> tuple[int, ...]:
        """Return none."""
        return ()

    def for_layer(self, layer: int) -> NumpyBackend:
        """Return itself."""
        return self

    def asarray(self, array: Any) -> NDArray[Any]:
        """Return the array itself; what lies in a file stays there."""
        return cast("NDArray[Any]", array) if isinstance(array, StoredRows) else np.asarray(array)

    def tohost(self, array: Any) -> NDArray[Any]:
        """Return the array itself."""
        return np.asarray(array)

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Return a new array, its contents undefined."""
        return np.empty(shape, dtype=dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Return a new array of zeros."""
        return np.zeros(shape, dtype=dtype)

    def gather(self, X: Any, rows: Any, *, out: Any) -> Any:
        """Copy some rows of X into ``out`` and return it."""
        return np.take(X, rows, axis=0, out=out, mode="clip")  # "raise" would buffer

    def generator(self, address: Address) -> Draws:
        """Return NumPy's generator at the address."""
        return address.generator()

    def stream(self) -> Stream:
        """Return a null object."""
        return _NullStream()

    def free_bytes(self) -> None:
        """Return None: arrays are in the memory of the machine."""

    def synchronize(self) -> None:
        """Return at once."""
