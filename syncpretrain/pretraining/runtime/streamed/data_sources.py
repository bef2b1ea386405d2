"""Minibatches of layer 1 in a stream: of rows in memory or in a file, or of an iterable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.examples import check_again
from syncpretrain.data.file_rows import FileRows
from syncpretrain.data.minibatches import ArrayPasses
from syncpretrain.data.order import PassOrder
from syncpretrain.kernels.arrays import Array
from syncpretrain.pretraining.runtime.split import Split
from syncpretrain.pretraining.runtime.streamed.rings import DataSource
from syncpretrain.settings.checks import parsed_shuffle
from syncpretrain.settings.fields import PretrainFields

__all__ = ["PassesSource", "RowsSource", "source_of"]


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
        """Return the minibatch of a number, counted from 1, all rows of which count.

        Raises
        ------
        DataError
            If the iterable ends early, or gives what cannot be trained on.
        """
        number_of_pass, step = divmod(number - 1, self.passes.steps)
        if number <= self._read or self._read < number - 1 - step:
            self._running = None  # another pass, or back in this one
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
            self._running = None  # a DataLoader ends its processes
        return self._newest, self._all[: len(self._newest)]

    def check(self, X: Array, rows: NDArray[np.intp]) -> None:
        """Find nothing: every array was checked as it came."""

    @property
    def means(self) -> NDArray[np.float64] | None:
        """Those of the columns in the first pass, if they were measured."""
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
