"""NumPy on the cores of this machine."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from syncpretrain.backends.base import Draws, Event, Later, Recorder, Stream, TrainStep
from syncpretrain.backends.fused import FusedArrays, Rule, TunedArrays
from syncpretrain.data.blocks import StoredRows
from syncpretrain.rng import Address


class _NullStream(nullcontext[None]):
    """The null stream: a call of NumPy returns when its work is finished."""

    def synchronize(self) -> None:
        """Return at once."""


class _NullEvent:
    """The null event: what it marks is finished when it is recorded."""

    def record(self) -> None:
        """Do nothing."""

    def wait(self) -> None:
        """Return at once."""


class _Direct:
    """The recorder that records nothing: it works one step after another."""

    def take_notice(self) -> None:
        """Return None: there is nothing to record."""

    def train(
        self,
        work: TrainStep,
        X: Any,
        rows: Any,
        *,
        batch_size: int,
        epoch: int,
        step: int,
        constants: Hashable,
        numbers: NDArray[np.float32] | None = None,
    ) -> float:
        """Work the steps of a block; see :class:`syncpretrain.backends.base.Recorder`."""
        total = 0.0
        for number, start in enumerate(range(0, len(rows), batch_size)):
            own = rows[start : start + batch_size]
            total += work(X, own, epoch=epoch, step=step + number)
        return total


class NumpyBackend:
    """See :class:`syncpretrain.backends.base.Backend`."""

    name = "numpy"
    xp: Any = np
    array_type: type = np.ndarray
    forms: Mapping[str, Callable[..., Any]] = {}
    # An error is known when its step returns: nothing is saved by reading it later.
    steps_at_once = 1
    blocks_behind = 0

    def devices(self) -> tuple[int, ...]:
        """Return none."""
        return ()

    def group(self) -> tuple[int, ...]:
        """Return none."""
        return ()

    def dealt(self, costs: Sequence[float], replicas: Sequence[int]) -> NumpyBackend:
        """Return itself."""
        return self

    def for_layer(self, layer: int) -> NumpyBackend:
        """Return itself."""
        return self

    def for_replicas(self, replicas: int) -> tuple[NumpyBackend]:
        """Return itself."""
        return (self,)

    def peers(self, vectors: Sequence[Any]) -> Sequence[Any]:
        """Return the vectors themselves."""
        return vectors

    def fused_step(self, arrays: FusedArrays) -> None:
        """Return None: a program is as good."""

    def fused_tuning(self, arrays: TunedArrays, rule: Rule) -> None:
        """Return None: a program is as good."""

    def asarray(self, array: Any) -> NDArray[Any]:
        """Return the array itself; what lies in a file stays there."""
        return cast("NDArray[Any]", array) if isinstance(array, StoredRows) else np.asarray(array)

    def to_device_if_fits(self, X: Any) -> Any:
        """Return the rows themselves."""
        return X

    def examples(self, X: Any, beside: int = 0) -> NDArray[Any]:
        """Return the examples themselves."""
        return self.asarray(X)

    def order(self, X: Any, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the row numbers themselves."""
        return rows

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
        # With mode "raise" NumPy would fill a buffer, to leave ``out`` alone if a number is wrong.
        return np.take(X, rows, axis=0, out=out, mode="clip")

    def generator(self, address: Address) -> Draws:
        """Return NumPy's generator at the address."""
        return address.generator()

    def recorder(self) -> Recorder:
        """Return what works one step after another."""
        return _Direct()

    def later(self, number: Any) -> Later:
        """Return the number."""
        return Later(lambda: number)

    def stream(self, priority: int = 0) -> Stream:
        """Return a null object."""
        return _NullStream()

    def event(self) -> Event:
        """Return a null object."""
        return _NullEvent()

    def send(self, array: Any, *, out: Any) -> None:
        """Copy an array."""
        np.copyto(out, array)

    def free_bytes(self) -> None:
        """Return None: arrays are in the memory of the machine."""

    def free_unused(self) -> None:
        """Return at once: memory is given back where an array ends."""

    def synchronize(self) -> None:
        """Return at once."""
