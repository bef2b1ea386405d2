"""Rings on devices: what one layer hands to the next, with events between their streams.

The arrays are on the device of the reader. Two kinds of events keep them right, in whatever order
the devices get there, and the host waits for none:

* ``filled``: behind the copies into the ring, for which the reader waits before it reads them.
* ``read``: behind what reads some arrays, for which the writer waits before it overwrites them.

It has never run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np

from syncpretrain.backends.base import Backend, Event
from syncpretrain.kernels.arrays import Array
from syncpretrain.pretraining.runtime.streamed.rings import Passes, RingSize

__all__ = ["DeviceRing", "DeviceRings", "DeviceSource", "Events", "RingRuns"]


class Events:
    """Events of one stream, each by the number of the last array that it is behind.

    Parameters
    ----------
    backend : Backend
        Of the device whose stream records them.
    kept : int
        How far back, in arrays, another stream may ask for.
    """

    def __init__(self, backend: Backend, kept: int) -> None:
        self._backend, self._kept = backend, kept
        self._events: tuple[tuple[int, Event], ...] = ()  # replaced whole: two threads look at it

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
        Of the reader and of the writer.
    capacity, rows, width : int
        The number of arrays that may wait to be read, and the shape of the largest.
    """

    def __init__(
        self, backend: Backend, writer: Backend, capacity: int, rows: int, width: int
    ) -> None:
        self._backend, self._capacity, self._rows = backend, capacity, rows
        self._arrays = backend.empty((capacity * rows, width))
        # Twice, so that the rows of successive arrays are a slice, also of those around the end.
        self._numbers = backend.asarray(np.arange(2 * capacity * rows) % max(capacity * rows, 1))
        self._filled, self._read = Events(writer, capacity), Events(backend, capacity)

    @contextmanager
    def reading(self, first: int, last: int, rows: int) -> Iterator[tuple[Any, Any]]:
        """Give all rows of the ring, and the numbers of those of some successive arrays.

        ``rows`` is how many they have together. They may be overwritten by what is queued after
        the context.

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
        self._read.wait(last - self._capacity)
        start = self._start(first)
        before_end = len(self._arrays) - start
        for at, part in ((start, arrays[:before_end]), (0, arrays[before_end:])):
            if len(part):
                self._backend.send(part, out=self._arrays[at : at + len(part)])
        self._filled.record(last)

    def on_host(self, number: int, rows: int) -> Array:
        """Return a copy of an array, whose writer was waited for."""
        return self._backend.tohost(self.slot(number, rows))

    def _start(self, number: int) -> int:
        return (number - 1) % self._capacity * self._rows  # so that few blocks go around the end


class DeviceRings(NamedTuple):
    """What one layer hands to the next: minibatches, and validation examples by pass."""

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
    """Where a layer's minibatches come from."""

    @property
    def is_waiting(self) -> bool:
        """Whether an iterable is being asked for its next array, which may take any time."""
        ...

    def fetch(self, first: int, last: int, stop: Callable[[], bool]) -> None:
        """Wait for what an iterable gives for a run, in no stream: another thread may look at it.

        Raises
        ------
        Stopped
            If ``stop`` turned true meanwhile.
        """
        ...

    def run(self, first: int, last: int) -> AbstractContextManager[tuple[Any, Any]]:
        """Give rows, and the numbers of those of successive minibatches of one pass.

        They may be overwritten by what is queued after the context.
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
        Over the data of which these are made.
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
