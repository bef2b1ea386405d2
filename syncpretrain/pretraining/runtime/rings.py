"""Minibatches of a stream: those of the data, and those that one layer hands to the next."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.order import minibatches, steps_per_epoch
from syncpretrain.kernels.arrays import Array

__all__ = ["DataSource", "Ring", "RingSource", "Source"]


class Ring:
    """The newest arrays that one layer hands to the next, by number.

    Parameters
    ----------
    capacity : int
        Arrays that may wait to be read.
    rows, width : int
        The most rows of an array, and its columns.
    """

    def __init__(self, capacity: int, rows: int, width: int) -> None:
        self._arrays = np.empty((capacity, rows, width), dtype=np.float32)

    def array(self, number: int, rows: int) -> Array:
        """Return the array of a number, a view of shape (rows, width)."""
        array: Array = self._arrays[number % len(self._arrays), :rows]
        return array


class Source(Protocol):
    """Where a layer's minibatches come from."""

    def minibatch(self, number: int) -> tuple[Array, NDArray[np.intp]]:
        """Return examples, and the rows of them that are the minibatch of a number."""
        ...

    def validation(self, number: int) -> Array:
        """Return the validation examples as they are at the end of a pass over the data."""
        ...


class DataSource:
    """The data as a stream of minibatches, one pass after another, each in an order of its own.

    Parameters
    ----------
    train, validation : ndarray of shape (n, visible), float32
    batch_size, seed : int
    """

    def __init__(self, train: Array, validation: Array, *, batch_size: int, seed: int) -> None:
        self._train, self._validation = train, validation
        self._batch_size, self._seed = batch_size, seed
        self.steps = steps_per_epoch(len(train), batch_size)
        self.held_out = len(validation)
        self._pass = 0
        self._order: list[NDArray[np.intp]] = []

    def minibatch(self, number: int) -> tuple[Array, NDArray[np.intp]]:
        """Return the data, and the rows of the minibatch of a number, counted from 1."""
        number_of_pass, step = divmod(number - 1, self.steps)
        if number_of_pass + 1 != self._pass:
            self._pass = number_of_pass + 1
            order = minibatches(
                len(self._train), self._batch_size, seed=self._seed, layer=1, epoch=self._pass
            )
            self._order = list(order)
        return self._train, self._order[step]

    def validation(self, number: int) -> Array:
        """Return the validation examples."""
        return self._validation

    def size(self, number: int) -> int:
        """Return the number of examples in a minibatch; the last one of a pass may be smaller."""
        last = number % self.steps == 0
        return len(self._train) - (self.steps - 1) * self._batch_size if last else self._batch_size


class RingSource:
    """The hidden means that the layer below handed up.

    Parameters
    ----------
    ring, validation : Ring
    data : DataSource
        Whose minibatches these are made of.
    """

    def __init__(self, ring: Ring, validation: Ring, data: DataSource) -> None:
        self._ring, self._validation, self._data = ring, validation, data
        self._rows = np.arange(data.size(1))

    def minibatch(self, number: int) -> tuple[Array, NDArray[np.intp]]:
        """Return the minibatch of a number, all rows of which count."""
        rows = self._rows[: self._data.size(number)]
        return self._ring.array(number, len(rows)), rows

    def validation(self, number: int) -> Array:
        """Return the validation examples of the pass that ended with a minibatch."""
        return self._validation.array(number // self._data.steps, self._data.held_out)
