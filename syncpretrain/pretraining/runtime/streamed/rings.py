"""Minibatches of a stream: those of the data, and those that one layer hands to the next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.order import steps_per_epoch
from syncpretrain.kernels.arrays import Array
from syncpretrain.pretraining.runtime.split import Split

__all__ = ["DataSource", "Passes", "Ring", "RingSize", "RingSource", "Rings", "Source"]


@dataclass(frozen=True, slots=True)
class Passes:
    """Passes over the data: how many examples they have, and how many are held out."""

    examples: int
    held_out: int
    batch_size: int

    @property
    def steps(self) -> int:
        """Minibatches of a pass."""
        return steps_per_epoch(self.examples, self.batch_size)

    def size(self, number: int) -> int:
        """Return the number of examples in a minibatch; the last one of a pass may be smaller."""
        if number % self.steps:
            return self.batch_size
        return self.examples - (self.steps - 1) * self.batch_size

    def rows(self, first: int, last: int) -> int:
        """Return the number of examples in successive minibatches of one pass."""
        return (last - first) * self.batch_size + self.size(last)


class Ring:
    """The newest arrays that one layer hands to the next, by number.

    Parameters
    ----------
    arrays : ndarray of shape (capacity, rows, width), float32
        As many as may wait to be read, with the most rows that one has.
    """

    def __init__(self, arrays: Array) -> None:
        self._arrays = arrays

    def array(self, number: int, rows: int) -> Array:
        """Return the array of a number, a view of shape (rows, width)."""
        array: Array = self._arrays[number % len(self._arrays), :rows]
        return array

    def aside(self) -> Ring:
        """Return a ring of one array of its own, for what is not to be handed on."""
        return Ring(np.empty_like(self._arrays[:1]))


class Rings(NamedTuple):
    """What one layer hands to the next: minibatches, and validation examples by pass."""

    minibatches: Ring
    validation: Ring

    def aside(self) -> Rings:
        """Return rings for what is not to be handed on."""
        return Rings(self.minibatches.aside(), self.validation.aside())


@dataclass(frozen=True, slots=True)
class RingSize:
    """Size of the rings between two layers.

    ``minibatches`` and ``passes`` are how many may wait, ``rows`` and ``held_out`` the most rows
    of one.
    """

    minibatches: int
    rows: int
    passes: int
    held_out: int
    width: int

    @property
    def all_rows(self) -> tuple[int, int]:
        """Rows of all minibatches, and of all passes."""
        return self.minibatches * self.rows, self.passes * self.held_out

    def memory(self) -> Split:
        """Return memory for the rings, in this process."""
        return Split(*(np.empty((n, self.width), dtype=np.float32) for n in self.all_rows))

    def rings(self, memory: Split) -> Rings:
        """Return the rings that lie in a memory of :attr:`all_rows` rows."""
        shapes = (self.minibatches, self.rows), (self.passes, self.held_out)
        return Rings(
            *(Ring(x.reshape(*n, self.width)) for x, n in zip(memory, shapes, strict=True))
        )


class Source(Protocol):
    """Where a layer's minibatches come from."""

    @property
    def is_waiting(self) -> bool:
        """Whether an iterable is being asked for its next array, which may take any time."""
        ...

    def minibatch(self, number: int) -> tuple[Array, NDArray[np.intp]]:
        """Return examples, and the rows of them that are the minibatch of a number."""
        ...

    def measured(self, number: int) -> Any:
        """Return the examples that a layer measures before its first step, with this minibatch."""
        ...

    def validation(self, number: int) -> Array:
        """Return the validation examples as they are at the end of a pass over the data."""
        ...

    def check(self, X: Array, rows: NDArray[np.intp]) -> None:
        """Look at a minibatch that a layer could not be trained on.

        Raises
        ------
        DataError
            If it is the data that are bad.
        """
        ...


class DataSource(ABC):
    """The data as a stream of minibatches, one pass after another.

    Parameters
    ----------
    data : Split
        Its training part may be in a file, or what an iterable gives.
    batch_size : int

    Attributes
    ----------
    is_waiting : bool
        Whether an iterable is being asked for its next array, which may take any time.
    """

    def __init__(self, data: Split, *, batch_size: int) -> None:
        self.data, self.is_waiting = data, False
        self.passes = Passes(len(data.train), len(data.validation), batch_size)

    @abstractmethod
    def minibatch(self, number: int) -> tuple[Array, NDArray[np.intp]]:
        """Return examples, and the rows of them that are the minibatch of a number, from 1."""

    @abstractmethod
    def measured(self, number: int) -> Any:
        """Return all examples, not necessarily in memory."""

    def validation(self, number: int) -> Array:
        """Return the validation examples."""
        return self.data.validation

    @abstractmethod
    def check(self, X: Array, rows: NDArray[np.intp]) -> None:
        """Raise DataError if a minibatch is bad."""


class RingSource:
    """The hidden means that the layer below handed up.

    Parameters
    ----------
    rings : Rings
    passes : Passes
        Over the data of which these are made.
    """

    is_waiting = False

    def __init__(self, rings: Rings, passes: Passes) -> None:
        self._rings, self._passes = rings, passes
        self._rows = np.arange(passes.size(1))

    def minibatch(self, number: int) -> tuple[Array, NDArray[np.intp]]:
        """Return the minibatch of a number, all rows of which count."""
        rows = self._rows[: self._passes.size(number)]
        return self._rings.minibatches.array(number, len(rows)), rows

    def measured(self, number: int) -> Any:
        """Return the minibatch: those after it are not known yet."""
        return self.minibatch(number)[0]

    def validation(self, number: int) -> Array:
        """Return the validation examples of the pass that ended with a minibatch."""
        count = number // self._passes.steps
        return self._rings.validation.array(count, self._passes.held_out)

    def check(self, X: Array, rows: NDArray[np.intp]) -> None:
        """Find nothing: the layer below looks after what it hands up."""
