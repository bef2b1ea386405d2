"""Minibatches that a streamed layer reads: from the data, or from the ring of the layer below.

The data are rows in memory or in a file, or an iterable. A ring lies in memory of this process, in
memory that processes share, or on the device of its reader. On a device two kinds of events keep
its arrays right, in whatever order the devices get there, and the host waits for none:

* ``filled``: behind the copies into the ring; the reader waits for it before it reads them.
* ``read``: behind what reads some arrays; the writer waits for it before it overwrites them.

On the host the schedule keeps them right: a layer is given a minibatch only once it was handed up,
and once the ring above has room for what the layer hands up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from syncpretrain.backends.base import Backend, Event
from syncpretrain.backends.rows import HostRows
from syncpretrain.data.blocks import StoredRows
from syncpretrain.data.examples import check_again
from syncpretrain.data.file_rows import FileRows
from syncpretrain.data.order import PassOrder, steps_per_epoch
from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.epoch import Stopped
from syncpretrain.workers.activations import Split

HOST: Backend = Backend()


@dataclass(frozen=True, slots=True)
class Passes:
    """Passes over the data: how many examples they have, and how many are held out.

    ``seed`` and ``block`` decide the order of the rows of an array or a file; see
    :class:`syncpretrain.data.order.PassOrder`.
    """

    examples: int
    held_out: int
    batch_size: int
    seed: int = 0
    block: int = 0

    @property
    def steps(self) -> int:
        """Minibatches of a pass."""
        return steps_per_epoch(self.examples, self.batch_size)

    def order(self, number: int) -> PassOrder:
        """Return the order of the rows of a pass."""
        own = {"seed": self.seed, "number": number, "block": self.block}
        return PassOrder(self.examples, self.batch_size, **own)

    def size(self, number: int) -> int:
        """Return the number of examples in a minibatch; the last one of a pass may be smaller."""
        if number % self.steps:
            return self.batch_size
        return self.examples - (self.steps - 1) * self.batch_size

    def rows(self, first: int, last: int) -> int:
        """Return the number of examples in successive minibatches of one pass."""
        return (last - first) * self.batch_size + self.size(last)


class Events:
    """Events of one stream, each by the number of the last array that it is behind.

    On the host there are none: work is finished when its call returns.

    Parameters
    ----------
    backend : Backend
        Backend of the device that records them.
    kept : int
        How many arrays back another stream may ask for.
    """

    def __init__(self, backend: Backend, kept: int) -> None:
        self._backend, self._kept = backend, kept
        self._is_on_host = not backend.devices()
        # The thread of the other layer reads it without a lock: a tuple that is replaced whole.
        self._events: tuple[tuple[int, Event], ...] = ()

    def record(self, number: int) -> None:
        """Record on the current stream, behind the work on an array and on all before it."""
        if self._is_on_host:
            return
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
        return behind is not None or self._is_on_host


class Ring:
    """The newest arrays that one layer hands to the next, by number, counted from 1.

    Parameters
    ----------
    memory : array of shape (capacity * rows, width), float32
        Memory of the arrays, one below another; ``rows`` are the rows of the largest array.
    capacity : int
        The number of arrays that may wait to be read.
    reader, writer : Backend
        Backend of the reader, which has the memory, and of the writer.
    """

    def __init__(
        self, memory: Any, capacity: int, reader: Backend = HOST, writer: Backend = HOST
    ) -> None:
        self.memory, self.capacity, self._reader = memory, capacity, reader
        self._rows = len(memory) // capacity
        self._filled, self._read = Events(writer, capacity), Events(reader, capacity)

    def start(self, number: int) -> int:
        """Return the first row of an array in the memory."""
        # Number n takes the place of number n - capacity, which was read by then. A place is as
        # large as the largest array, so that array n is at the same place each time.
        return (number - 1) % self.capacity * self._rows

    def slot(self, number: int, rows: int) -> Any:
        """Return the array of a number, a view of shape (rows, width)."""
        start = self.start(number)
        return self.memory[start : start + rows]

    def begin_reading(self, last: int) -> None:
        """Have the reader's current stream wait for the arrays up to a number.

        Raises
        ------
        RuntimeError
            If they have not been handed up.
        """
        if not self._filled.wait(last):
            raise RuntimeError(f"array {last} of a ring was read before it was handed up")

    def end_reading(self, last: int) -> None:
        """Allow the writer to overwrite the arrays up to a number behind what is queued by now."""
        self._read.record(last)

    def fill(self, first: int, last: int, arrays: Any) -> None:
        """Copy successive arrays, one below another, on the current stream of the writer."""
        # Events of a stream are in order, so the wait for the last one is a wait for all.
        self._read.wait(last - self.capacity)
        # Arrays that go around the end are copied in two parts. A ring of 5 arrays, filled with 4
        # to 6:
        #
        #     place    0    1    2    3    4
        #     array    6    -    -    4    5
        #            part 2          part 1
        start = self.start(first)
        before_end = len(self.memory) - start
        for at, part in ((start, arrays[:before_end]), (0, arrays[before_end:])):
            if len(part):
                self._reader.send(part, out=self.memory[at : at + len(part)])
        self._filled.record(last)

    def put(self, number: int, array: Any) -> None:
        """Copy one array, on the current stream of the writer."""
        self.fill(number, number, array)

    def on_host(self, number: int, rows: int) -> Array:
        """Return a copy of an array; the caller has waited for its writer."""
        return np.array(self._reader.tohost(self.slot(number, rows)))


class Rings(NamedTuple):
    """Rings between two layers: of minibatches, and of validation examples by pass."""

    minibatches: Ring
    validation: Ring


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

    def on(self, reader: Backend = HOST, writer: Backend = HOST) -> Rings:
        """Return new rings in memory of this process, or of the device of their reader."""
        memory = Split(*(reader.empty((n, self.width)) for n in self.all_rows))
        return self.rings(memory, reader, writer)

    def rings(self, memory: Split | Rings, reader: Backend = HOST, writer: Backend = HOST) -> Rings:
        """Return the rings that lie in a memory of :attr:`all_rows` rows; rings as they are."""
        if isinstance(memory, Rings):
            return memory
        capacities = self.minibatches, self.passes
        return Rings(*(Ring(x, n, reader, writer) for x, n in zip(memory, capacities, strict=True)))


class Source(ABC):
    """Source of a layer's minibatches, which are numbered from 1.

    They come as runs: rows that are always in the same array where a device records its steps, and
    the numbers of the rows of successive minibatches of one pass, one after another.

    Parameters
    ----------
    passes : Passes
        The passes over the data.
    backend : Backend
        Backend of the layer.

    Attributes
    ----------
    is_waiting : bool
        True while an iterable is asked for its next array, which may take any time.
    inputs : Split or None
        The data as they are kept: on the host as they are, on a device its copy; None for a ring.
    rings : Rings or None
        The rings; None for the data.
    """

    inputs: Split | None = None
    rings: Rings | None = None

    def __init__(self, passes: Passes, backend: Backend) -> None:
        self._passes, self._backend, self.is_waiting = passes, backend, False
        self._unchecked: Any = None  # an array that others may write to meanwhile

    def fetch(self, first: int, last: int, stop: Callable[[], bool]) -> None:
        """Wait for the arrays that an iterable gives for a run; called outside of any stream.

        Raises
        ------
        Stopped
            If ``stop`` turned true.
        DataError
            If the iterable ends early, or gives what cannot be trained on.
        """
        if stop():
            raise Stopped

    @abstractmethod
    def run(self, first: int, last: int) -> tuple[Any, Any]:
        """Return rows, and the numbers of the rows of successive minibatches of one pass.

        Work that is queued after :meth:`done` may overwrite them.
        """

    def done(self, last: int) -> None:
        """Allow others to overwrite a run, behind the work that is queued by now."""
        if self.rings is not None:
            self.rings.minibatches.end_reading(last)

    @abstractmethod
    def measured(self, first: int) -> Any:
        """Return the examples to measure before the first step, in the run of that minibatch."""

    @abstractmethod
    def validation(self, count: int) -> AbstractContextManager[Any]:
        """Give the validation examples as they are at the end of a pass."""

    def check(self, X: Any, rows: Any) -> None:
        """Look for values that were written to an array since it was checked.

        Raises
        ------
        DataError
            If one of them is not finite.
        """
        if X is self._unchecked:
            check_again(X[rows], lambda: rows, name="X", bounded=False)


class RingSource(Source):
    """The hidden means that the layer below handed up.

    Parameters
    ----------
    rings : Rings
    passes, backend
        See :class:`Source`.
    """

    def __init__(self, rings: Rings, passes: Passes, backend: Backend = HOST) -> None:
        super().__init__(passes, backend)
        self.rings: Rings = rings
        # The numbers 0 .. n - 1 twice: the rows of successive arrays are one slice of them, also
        # where the arrays go around the end of the ring.
        n = len(rings.minibatches.memory)
        self._numbers = backend.asarray(np.arange(2 * n) % n)

    def run(self, first: int, last: int) -> tuple[Any, Any]:
        """Return the rows of the ring, and the numbers of some."""
        ring = self.rings.minibatches
        ring.begin_reading(last)
        start = ring.start(first)
        return ring.memory, self._numbers[start : start + self._passes.rows(first, last)]

    def measured(self, first: int) -> Any:
        """Return the minibatch: those after it are not known yet."""
        return self.rings.minibatches.slot(first, self._passes.size(first))

    @contextmanager
    def validation(self, count: int) -> Iterator[Any]:
        """Give the validation examples of a pass."""
        ring = self.rings.validation
        ring.begin_reading(count)
        yield ring.slot(count, self._passes.held_out)
        ring.end_reading(count)


class DataSource(Source):
    """The data, one pass after another.

    Parameters
    ----------
    data : Split
    passes, backend
        See :class:`Source`.
    most : int
        The most minibatches of a run.
    """

    def __init__(self, data: Split, passes: Passes, backend: Backend, most: int) -> None:
        super().__init__(passes, backend)
        self._data, self._most = data, most * passes.batch_size  # rows of a run
        self._all = backend.asarray(np.arange(self._most))
        self._validation = backend.asarray(data.validation)

    def validation(self, count: int) -> AbstractContextManager[Any]:
        """Give the validation examples."""
        return nullcontext(self._validation)

    def _room(self, backend: Backend) -> Any:
        """Return an array for the rows of a run."""
        return backend.empty((self._most, self._data.train.shape[1]))


class RowsSource(DataSource):
    """Rows in an order of its own for each pass, on the host, in a file or on a device.

    Parameters
    ----------
    data : Split
        Its training part is an array or StoredRows, of shape (n, visible), float32.
    passes, backend, most
        See :class:`DataSource`.
    beside : int
        Bytes that the run needs on a device apart from the data. Data without room stay on the
        host.
    """

    def __init__(
        self, data: Split, passes: Passes, backend: Backend, most: int, beside: int
    ) -> None:
        super().__init__(data, passes, backend, most)
        kept: Any = data.train
        if not backend.devices():
            self._unchecked = kept  # rows of a file are new arrays, checked as they come
        elif isinstance(kept, StoredRows):
            kept = HostRows(kept, backend)
        else:
            kept = backend.examples(kept, beside)
        self._X, self.inputs = kept, Split(kept, self._validation)
        self._gathered = self._room(backend) if isinstance(kept, HostRows) else None
        self._pass, self._group = 0, -1
        self._order: Any = None  # of the pass, and of a file its row numbers never as a whole
        self._rows: Any = None

    def run(self, first: int, last: int) -> tuple[Any, Any]:
        """Return all rows, or a copy of the rows of the run, and the numbers of the run's rows."""
        X = self._X
        number, step = divmod(first - 1, self._passes.steps)
        if number + 1 != self._pass:
            self._pass, self._group = number + 1, -1
            self._order = self._passes.order(self._pass)
            if not isinstance(X, FileRows):
                self._rows = self._backend.order(X, self._order.rows())
        if isinstance(X, FileRows):
            return self._from_file(X, step)
        start, count = step * self._passes.batch_size, self._passes.rows(first, last)
        rows = self._rows[start : start + count]
        if self._gathered is None:
            return X, rows
        self._backend.gather(X, rows, out=self._gathered[:count])
        return self._gathered, self._all[:count]

    def _from_file(self, X: FileRows, step: int) -> tuple[Any, Any]:
        """Return the rows of one minibatch, and have the blocks behind it read ahead."""
        rows = self._order.minibatch(step)
        if self._passes.block and self._order.group(step) != self._group:
            self._group = self._order.group(step)
            for run in self._order.blocks(self._group) + self._order.blocks(self._group + 1):
                X.will_need(run)
        return X[rows], self._all[: len(rows)]

    def measured(self, first: int) -> Any:
        """Return all rows, in memory or not."""
        return self._X


class PassesSource(DataSource):
    """Minibatches of an iterable, in its order.

    Parameters
    ----------
    data : Split
        Its training part is ArrayPasses.
    passes, backend, most
        See :class:`DataSource`.
    """

    def __init__(self, data: Split, passes: Passes, backend: Backend, most: int) -> None:
        super().__init__(data, passes, backend, most)
        self._arrays: Any = data.train
        self._running: Iterator[Array] | None = None
        self._read = 0  # the newest minibatch
        self._host = self._room(HOST)
        self._fetched: list[Array] = []  # parts of it
        is_here = not backend.devices()
        self._rows = self._host if is_here else self._room(backend)
        self.inputs = data if is_here else Split(self._rows, self._validation)

    def fetch(self, first: int, last: int, stop: Callable[[], bool]) -> None:
        """Take arrays from the iterable; see :class:`Source`."""
        super().fetch(first, last, stop)
        self._fetched.clear()
        done = 0
        for number in range(first, last + 1):
            array = self._next(number)
            own = self._host[done : done + len(array)]
            np.copyto(own, array)  # the iterable may give the same array again, filled anew
            self._fetched.append(own)
            done += len(array)
            if stop():  # by now: an iterable may take any time
                raise Stopped

    def _next(self, number: int) -> Array:
        """Return the minibatch of a number."""
        number_of_pass, step = divmod(number - 1, self._passes.steps)
        # Minibatches are asked for in order, but by a resume: then the pass is begun again, and
        # read up to the one that is asked for.
        if number <= self._read or self._read < number - 1 - step:
            self._running = None
        if self._running is None:
            self._running = self._arrays.minibatches(number_of_pass + 1, self._passes.batch_size)
            self._read = number - 1 - step
        self.is_waiting = True
        try:
            while self._read < number:
                array = next(self._running)
                self._read += 1
        finally:
            self.is_waiting = False
        if step == self._passes.steps - 1:
            self._running = None  # now, not at the next pass: a DataLoader ends its processes
        return array

    def run(self, first: int, last: int) -> tuple[Any, Any]:
        """Return the arrays, on a device a copy, and the numbers of their rows."""
        done = 0
        for array in self._fetched:  # small enough to be copied without a wait
            if self._rows is not self._host:
                self._rows[done : done + len(array)] = self._backend.asarray(array)
            done += len(array)
        return self._rows, self._all[:done]

    def measured(self, first: int) -> Any:
        """Return the means of the first pass, in one row, or without them the first minibatch."""
        if self._arrays.means is None:
            return self._rows[: self._passes.size(first)]
        return self._backend.asarray(self._arrays.means[None])
