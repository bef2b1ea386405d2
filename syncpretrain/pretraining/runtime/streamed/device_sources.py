"""Minibatches of layer 1 on a device, from the data.

They come as runs, which go to the device's recorder as they are: rows that are always in
the same array, and their numbers on the device. Rows of the host are copied to an array of the
device, a run at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from syncpretrain.backends.base import Backend
from syncpretrain.backends.host_rows import HostRows
from syncpretrain.data.blocks import StoredRows
from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.cursor import Stopped
from syncpretrain.pretraining.runtime.split import Split
from syncpretrain.pretraining.runtime.streamed.data_sources import PassesSource, RowsSource
from syncpretrain.pretraining.runtime.streamed.rings import DataSource, Passes

__all__ = ["data_runs"]


class _DataRuns:
    """The data: their validation examples are on the device."""

    def __init__(self, data: Split, passes: Passes, backend: Backend) -> None:
        self._backend, self._passes = backend, passes
        self._validation = backend.asarray(data.validation)

    def validation(self, count: int) -> AbstractContextManager[Any]:
        """Give the validation examples."""
        return nullcontext(self._validation)


class _Room:
    """An array of a device for the rows of a run, and their numbers."""

    def __init__(self, backend: Backend, rows: int, width: int) -> None:
        self.rows = backend.empty((rows, width))
        self._numbers = backend.asarray(np.arange(rows))

    def first(self, rows: int) -> tuple[Any, Any]:
        """Return the array, and the numbers of its first rows."""
        return self.rows, self._numbers[:rows]


class RowRuns(_DataRuns):
    """Rows in an order of its own for each pass, on the device or on the host.

    Parameters
    ----------
    source : RowsSource
    backend : Backend
        Of layer 1.
    most : int
        Minibatches of a run.
    beside : int
        Bytes that the run needs of devices beside the data, which stay on the host without room.

    Attributes
    ----------
    inputs : Split
        The data as they are kept.
    """

    is_waiting = False

    def __init__(self, source: RowsSource, backend: Backend, most: int, beside: int) -> None:
        super().__init__(source.data, source.passes, backend)
        train: Any = source.data.train
        if isinstance(train, StoredRows):
            self._X: Any = HostRows(train, backend)
        else:
            self._X = backend.examples(train, beside)
        self.inputs = Split(self._X, self._validation)
        self._source = source
        self._room: _Room | None = None
        if isinstance(self._X, HostRows):
            self._room = _Room(backend, most * self._passes.batch_size, train.shape[1])
        self._pass, self._order = 0, None

    def fetch(self, first: int, last: int, stop: Callable[[], bool]) -> None:
        """Do nothing: they are there."""

    def run(self, first: int, last: int) -> AbstractContextManager[tuple[Any, Any]]:
        """Give all rows, or a copy of those of the run, and the numbers of these."""
        number, step = divmod(first - 1, self._passes.steps)
        if number + 1 != self._pass:
            whole = self._source.order_of(number + 1)
            self._pass, self._order = number + 1, self._backend.order(self._X, whole)
        start, count = step * self._passes.batch_size, self._passes.rows(first, last)
        own = self._order[start : start + count]  # type: ignore[index]
        if self._room is None:
            return nullcontext((self._X, own))
        self._backend.gather(self._X, own, out=self._room.rows[:count])
        return nullcontext(self._room.first(count))

    def measured(self, first: int) -> Any:
        """Return all rows."""
        return self._X


class ArrayRuns(_DataRuns):
    """Minibatches of an iterable, in its order.

    Parameters
    ----------
    source : PassesSource
    backend : Backend
        Of layer 1.
    most : int
        Minibatches of a run.

    Attributes
    ----------
    inputs : Split
        The room of a run, and the validation examples.
    """

    def __init__(self, source: PassesSource, backend: Backend, most: int) -> None:
        super().__init__(source.data, source.passes, backend)
        size, width = self._passes.batch_size, source.data.train.shape[1]
        self._source, self._room = source, _Room(backend, most * size, width)
        self._host = np.empty((most * size, width), dtype=np.float32)
        self._fetched: list[Array] = []  # parts of it
        self.inputs = Split(self._room.rows, self._validation)

    @property
    def is_waiting(self) -> bool:
        """Whether the iterable is being asked for its next array, which may take any time."""
        return self._source.is_waiting

    def fetch(self, first: int, last: int, stop: Callable[[], bool]) -> None:
        """Take arrays from the iterable.

        Raises
        ------
        Stopped
            If ``stop`` turned true meanwhile.
        DataError
            If the iterable ends early, or gives what cannot be trained on.
        """
        self._fetched.clear()
        done = 0
        for number in range(first, last + 1):
            array, rows = self._source.minibatch(number)
            own = self._host[done : done + len(rows)]
            np.copyto(own, array)  # which the next one overwrites
            self._fetched.append(own)
            done += len(rows)
            if stop():  # by now: an iterable may take any time
                raise Stopped

    def run(self, first: int, last: int) -> AbstractContextManager[tuple[Any, Any]]:
        """Give a copy of the arrays, and the numbers of its rows."""
        done = 0
        for array in self._fetched:  # small enough to be copied without a wait
            self._room.rows[done : done + len(array)] = self._backend.asarray(array)
            done += len(array)
        return nullcontext(self._room.first(done))

    def measured(self, first: int) -> Any:
        """Return the means of the first pass, in one row, or without them the first minibatch."""
        means = self._source.means
        if means is None:
            return self._room.rows[: self._passes.size(first)]
        return self._backend.asarray(means[None])


def data_runs(
    source: DataSource, backend: Backend, *, most: int, beside: int
) -> RowRuns | ArrayRuns:
    """Return the minibatches of the data for a layer on a device, ready to be read there."""
    if isinstance(source, PassesSource):
        runs: RowRuns | ArrayRuns = ArrayRuns(source, backend, most)
    elif isinstance(source, RowsSource):
        runs = RowRuns(source, backend, most, beside)
    else:
        raise TypeError(f"source: got {type(source).__name__}, expected rows or passes")
    backend.synchronize()
    return runs
