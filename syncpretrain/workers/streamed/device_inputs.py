"""Minibatches that a streamed layer on a device reads: from the data, or from a ring.

The arrays of a ring are on the device of the reader. Two kinds of events keep them right, in
whatever order the devices get there, and the host waits for none:

* ``filled``: behind the copies into the ring, for which the reader waits before it reads them.
* ``read``: behind what reads some arrays, for which the writer waits before it overwrites them.

Minibatches from the data come as runs, which go to the device's recorder as they are: rows that are
always in the same array, and their numbers on the device. Rows of the host are copied to an array
of the device, a run at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np

from syncpretrain.backends.base import Backend, Event
from syncpretrain.backends.rows import HostRows
from syncpretrain.data.blocks import StoredRows
from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.epoch import Stopped
from syncpretrain.workers.split import Split
from syncpretrain.workers.streamed.inputs import (
    DataSource,
    Passes,
    PassesSource,
    RingSize,
    RowsSource,
)

__all__ = ["DeviceRing", "DeviceRings", "DeviceSource", "Events", "RingRuns", "data_runs"]


class Events:
    """Events of one stream, each by the number of the last array that it is behind.

    Parameters
    ----------
    backend : Backend
        Backend of the device that records them.
    kept : int
        How many arrays back another stream may ask for.
    """

    def __init__(self, backend: Backend, kept: int) -> None:
        self._backend, self._kept = backend, kept
        # The thread of the other layer reads it without a lock: a tuple that is replaced whole.
        self._events: tuple[tuple[int, Event], ...] = ()

    def record(self, number: int) -> None:
        """Record on the current stream, behind the work on an array and on all before it."""
        event = self._backend.event()
        event.record()
        known = [pair for pair in self._events if pair[0] >= number - self._kept]
        self._events = (*known, (number, event))

    def wait(self, number: int) -> bool:
        """Have the current stream wait until the work on an array is done.

        Return whether there is an event behind it; else the wait is for the newest there is.
        """
        events = self._events
        behind = next((event for last, event in events if last >= number), None)
        if behind is not None:
            behind.wait()
        elif events:
            events[-1][1].wait()
        return behind is not None


class DeviceRing:
    """The newest arrays that one layer hands to the next, by number, on the reader's device.

    Parameters
    ----------
    backend, writer : Backend
        Backend of the reader, which has the arrays, and of the writer.
    capacity, rows, width : int
        The number of arrays that may wait to be read, and the shape of the largest.
    """

    def __init__(
        self, backend: Backend, writer: Backend, capacity: int, rows: int, width: int
    ) -> None:
        self._backend, self._capacity, self._rows = backend, capacity, rows
        self._arrays = backend.empty((capacity * rows, width))
        # The numbers 0 .. n - 1 twice: the rows of successive arrays are one slice of them, also
        # where the arrays go around the end of the ring.
        self._numbers = backend.asarray(np.arange(2 * capacity * rows) % max(capacity * rows, 1))
        self._filled, self._read = Events(writer, capacity), Events(backend, capacity)

    @contextmanager
    def reading(self, first: int, last: int, rows: int) -> Iterator[tuple[Any, Any]]:
        """Give all rows of the ring, and the numbers of the rows of some successive arrays.

        ``rows`` is their number of rows together. What is queued after the context may overwrite
        them.

        Raises
        ------
        RuntimeError
            If they have not been handed up.
        """
        if not self._filled.wait(last):
            raise RuntimeError(f"array {last} of a ring was read before it was handed up")
        start = self._start(first)
        yield self._arrays, self._numbers[start : start + rows]
        self._read.record(last)

    def slot(self, number: int, rows: int) -> Any:
        """Return the array of a number, a view of shape (rows, width)."""
        start = self._start(number)
        return self._arrays[start : start + rows]

    def fill(self, first: int, last: int, arrays: Any) -> None:
        """Copy successive arrays, one below another, on the current stream of the writer."""
        # Array n takes the place of array n - capacity, which must have been read by then. Events
        # of a stream are in order, so the wait for the last one is a wait for all.
        self._read.wait(last - self._capacity)
        # Arrays that go around the end are copied in two parts. A ring of 5 arrays, filled with 4
        # to 6:
        #
        #     place    0    1    2    3    4
        #     array    6    -    -    4    5
        #            part 2          part 1
        start = self._start(first)
        before_end = len(self._arrays) - start
        for at, part in ((start, arrays[:before_end]), (0, arrays[before_end:])):
            if len(part):
                self._backend.send(part, out=self._arrays[at : at + len(part)])
        self._filled.record(last)

    def put(self, number: int, array: Any) -> None:
        """Copy one array, on the current stream of the writer."""
        self.fill(number, number, array)

    def on_host(self, number: int, rows: int) -> Array:
        """Return a copy of an array; the caller has waited for its writer."""
        return self._backend.tohost(self.slot(number, rows))

    def _start(self, number: int) -> int:
        # A slot is as large as the largest array, so that array n is at the same place each time.
        return (number - 1) % self._capacity * self._rows


class DeviceRings(NamedTuple):
    """Rings between two layers: of minibatches, and of validation examples by pass."""

    minibatches: DeviceRing
    validation: DeviceRing

    @classmethod
    def of(cls, size: RingSize, backend: Backend, writer: Backend) -> DeviceRings:
        """Return the rings of a size on the device of their reader."""
        return cls(
            DeviceRing(backend, writer, size.minibatches, size.rows, size.width),
            DeviceRing(backend, writer, size.passes, size.held_out, size.width),
        )


class DeviceSource(Protocol):
    """Source of a layer's minibatches on a device."""

    @property
    def is_waiting(self) -> bool:
        """True while an iterable is asked for its next array, which may take any time."""
        ...

    def fetch(self, first: int, last: int, stop: Callable[[], bool]) -> None:
        """Wait for the arrays that an iterable gives for a run; called outside of any stream.

        Raises
        ------
        Stopped
            If ``stop`` turned true meanwhile.
        """
        ...

    def run(self, first: int, last: int) -> AbstractContextManager[tuple[Any, Any]]:
        """Give rows, and the numbers of the rows of successive minibatches of one pass.

        What is queued after the context may overwrite them.
        """
        ...

    def measured(self, first: int) -> Any:
        """Return the examples to measure before the first step, in the run of that minibatch."""
        ...

    def validation(self, count: int) -> AbstractContextManager[Any]:
        """Give the validation examples as they are at the end of a pass."""
        ...


class RingRuns:
    """The hidden means that the layer below handed up.

    Parameters
    ----------
    rings : DeviceRings
    passes : Passes
        The passes over the data.
    """

    is_waiting = False

    def __init__(self, rings: DeviceRings, passes: Passes) -> None:
        self._rings, self._passes = rings, passes

    def fetch(self, first: int, last: int, stop: Callable[[], bool]) -> None:
        """Do nothing: they were handed up."""

    def run(self, first: int, last: int) -> AbstractContextManager[tuple[Any, Any]]:
        """Give the rows of the ring, and the numbers of some."""
        return self._rings.minibatches.reading(first, last, self._passes.rows(first, last))

    def measured(self, first: int) -> Any:
        """Return the minibatch: those after it are not known yet."""
        return self._rings.minibatches.slot(first, self._passes.size(first))

    @contextmanager
    def validation(self, count: int) -> Iterator[Any]:
        """Give the validation examples of a pass."""
        held_out = self._passes.held_out
        with self._rings.validation.reading(count, count, held_out) as (rows, _):
            del rows
            yield self._rings.validation.slot(count, held_out)


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
        Backend of layer 1.
    most : int
        The most minibatches of a run.
    beside : int
        Bytes that the run needs on a device apart from the data. Data without room stay on the
        host.

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
        """Give all rows, or a copy of the rows of the run, and the numbers of the run's rows."""
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
        Backend of layer 1.
    most : int
        The most minibatches of a run.

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
        """True while the iterable is asked for its next array, which may take any time."""
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
            np.copyto(own, array)  # the iterable may give the same array again, filled anew
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
