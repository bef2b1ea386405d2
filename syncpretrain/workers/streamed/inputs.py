"""Minibatches that a streamed layer reads: from the data, or from the ring of the layer below.

The data are rows in memory or in a file, or an iterable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.examples import check_again
from syncpretrain.data.file_rows import FileRows
from syncpretrain.data.minibatches import ArrayPasses
from syncpretrain.data.order import PassOrder, steps_per_epoch
from syncpretrain.kernels.arrays import Array
from syncpretrain.settings.checks import parsed_shuffle
from syncpretrain.settings.fields import PretrainFields
from syncpretrain.workers.split import Split

__all__ = [
    "DataSource",
    "Passes",
    "PassesSource",
    "Ring",
    "RingSize",
    "RingSource",
    "Rings",
    "RowsSource",
    "Source",
    "source_of",
]


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
        # Number n takes the place of number n - capacity, which the schedule says has been read.
        array: Array = self._arrays[number % len(self._arrays), :rows]
        return array

    def put(self, number: int, array: Array) -> None:
        """Copy an array into the ring."""
        np.copyto(self.array(number, len(array)), array)

    def on_host(self, number: int, rows: int) -> Array:
        """Return a copy of an array."""
        return np.array(self.array(number, rows))

    def aside(self) -> Ring:
        """Return a ring of one array of its own, for what is not to be handed on."""
        return Ring(np.empty_like(self._arrays[:1]))


class Rings(NamedTuple):
    """Rings between two layers: of minibatches, and of validation examples by pass."""

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
    """Source of a layer's minibatches."""

    @property
    def is_waiting(self) -> bool:
        """True while an iterable is asked for its next array, which may take any time."""
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
        True while an iterable is asked for its next array, which may take any time.
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
        The passes over the data.
    """

    is_waiting = False

    def __init__(self, rings: Rings, passes: Passes) -> None:
        self._rings, self._passes = rings, passes
        self._rows = np.arange(passes.size(1))

    def minibatch(self, number: int) -> tuple[Array, NDArray[np.intp]]:
        """Return the minibatch of a number: an array, and the numbers of all its rows."""
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


class RowsSource(DataSource):
    """Rows in an order of its own for each pass, in memory or in a mapped file.

    Parameters
    ----------
    data : Split
        Its training part is an array or FileRows, of shape (n, visible), float32.
    batch_size, seed : int
    block : int
        Rows that lie together in a pass; 0 shuffles all.
    """

    def __init__(self, data: Split, *, batch_size: int, seed: int, block: int = 0) -> None:
        super().__init__(data, batch_size=batch_size)
        self._train: Any = data.train
        self._seed, self._block = seed, block
        self._pass, self._group = 0, -1
        self._order: PassOrder | None = None
        self._all = np.arange(batch_size)

    def minibatch(self, number: int) -> tuple[Array, NDArray[np.intp]]:
        """Return examples, and the rows of them that are the minibatch of a number, from 1."""
        number_of_pass, step = divmod(number - 1, self.passes.steps)
        order = self._order
        if order is None or number_of_pass + 1 != self._pass:
            self._pass, self._group = number_of_pass + 1, -1
            order = self._order = self._new_order(self._pass)
        rows = order.minibatch(step)
        if not isinstance(self._train, FileRows):
            return self._train, rows
        if self._block and order.group(step) != self._group:
            self._group = order.group(step)
            for run in order.blocks(self._group) + order.blocks(self._group + 1):
                self._train.will_need(run)
        return self._train[rows], self._all[: len(rows)]

    def order_of(self, number: int) -> NDArray[np.intp]:
        """Return the rows of a pass, counted from 1, minibatch after minibatch."""
        order = self._new_order(number)
        return np.concatenate([order.minibatch(step) for step in range(self.passes.steps)])

    def _new_order(self, number: int) -> PassOrder:
        return PassOrder(
            self.passes.examples,
            self.passes.batch_size,
            seed=self._seed,
            number=number,
            block=self._block,
        )

    def measured(self, number: int) -> Any:
        """Return all rows, in memory or not."""
        return self._train

    def check(self, X: Array, rows: NDArray[np.intp]) -> None:
        """Look for values that were written to an array; rows of a file were checked as they came.

        Raises
        ------
        DataError
            If there is one that is not finite.
        """
        if X is self._train:
            check_again(X[rows], lambda: rows, name="X", bounded=False)


class PassesSource(DataSource):
    """Minibatches of an iterable, in its order.

    Parameters
    ----------
    data : Split
        Its training part is ArrayPasses.
    batch_size : int
    """

    def __init__(self, data: Split, *, batch_size: int) -> None:
        super().__init__(data, batch_size=batch_size)
        self._arrays: Any = data.train
        self._all = np.arange(batch_size)
        self._running: Iterator[Array] | None = None
        self._read, self._newest = 0, np.empty((0, 0), dtype=np.float32)

    def minibatch(self, number: int) -> tuple[Array, NDArray[np.intp]]:
        """Return the minibatch of a number, from 1: an array, and the numbers of all its rows.

        Raises
        ------
        DataError
            If the iterable ends early, or gives what cannot be trained on.
        """
        number_of_pass, step = divmod(number - 1, self.passes.steps)
        # Minibatches are asked for in order, but by a resume: then the pass is begun again, and
        # read up to the one that is asked for.
        if number <= self._read or self._read < number - 1 - step:
            self._running = None
        if self._running is None:
            self._running = self._arrays.minibatches(number_of_pass + 1, self.passes.batch_size)
            self._read = number - 1 - step
        self.is_waiting = True
        try:
            while self._read < number:
                self._newest = next(self._running)
                self._read += 1
        finally:
            self.is_waiting = False
        if step == self.passes.steps - 1:
            self._running = None  # now, not at the next pass: a DataLoader ends its processes
        return self._newest, self._all[: len(self._newest)]

    def check(self, X: Array, rows: NDArray[np.intp]) -> None:
        """Find nothing: every array was checked as it came."""

    @property
    def means(self) -> NDArray[np.float64] | None:
        """The means of the columns in the first pass, if they were measured."""
        found: NDArray[np.float64] | None = self._arrays.means
        return found

    def measured(self, number: int) -> Any:
        """Return the means of the first pass, in one row, or without them the first minibatch."""
        return self._newest if self.means is None else self.means[None]


def source_of(settings: PretrainFields, data: Split) -> DataSource:
    """Return the minibatches of an array, of rows of a file, or of what an iterable gives."""
    if isinstance(data.train, ArrayPasses):
        return PassesSource(data, batch_size=settings.batch_size)
    return RowsSource(
        data,
        batch_size=settings.batch_size,
        seed=settings.seed,
        block=parsed_shuffle(settings.shuffle),
    )
