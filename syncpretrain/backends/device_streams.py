"""Streams of GPUs, each lent to one user at a time, and events: marks in their queues.

A stream works what is queued on it in order; two streams know nothing of each other. An event marks
the end of what its stream had by then. Another stream that waits for it goes on once that is done,
and the host that queued the wait goes on at once.

Guarantees: a stream has one user at a time; a stream that comes back may still have work, which is
done before the next user's. A wait is for the mark that the event had when the wait was queued:
recording the event again changes no wait that is queued already, so one event serves a whole run.
An event that was never recorded holds nobody up. Assumptions: one thread at a time queues work on a
stream, and the host calls record before it calls the wait that is meant for that mark.
"""

from __future__ import annotations

import ctypes
import weakref
from contextlib import ExitStack
from functools import cache
from types import TracebackType
from typing import Any

import numpy as np

__all__ = ["DeviceEvent", "DeviceLater", "DeviceStream"]


class _Streams:
    """Streams of the devices, each lent to one user at a time.

    CuPy keeps the memory that was freed on a stream for that stream, and hands it to no other when
    the stream is gone. With new streams each run would leave its memory behind.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._free: dict[tuple[int, int], list[Any]] = {}

    def lend(self, device: int, priority: int, user: object) -> Any:
        """Return a non-blocking stream of a device; it comes back when its user is no more."""
        # No lock: the interpreter works setdefault, pop and append each as a whole. A look whether
        # the list is empty, and then a pop, would be two steps: another thread may take the last
        # one.
        free = self._free.setdefault((device, priority), [])
        try:
            stream = free.pop()
        except IndexError:
            with self._cupy.cuda.Device(device):
                stream = self._cupy.cuda.Stream(non_blocking=True, priority=priority)
        # At the end of the process nobody lends streams any more.
        weakref.finalize(user, free.append, stream).atexit = False
        return stream


# One a process, so that the next run gets the streams of the one before, and their memory.
_streams = cache(_Streams)


class DeviceStream:
    """A non-blocking stream of one device; its block sets the device too.

    Parameters
    ----------
    cupy : module
    device : int
    priority : int
        Priority, lower first; see :meth:`syncpretrain.backends.base.Backend.stream`.
    """

    def __init__(self, cupy: Any, device: int, priority: int) -> None:
        self._cupy, self._device = cupy, device
        self._stream = _streams(cupy).lend(device, priority, self)
        # A stack, because blocks of one stream may lie in each other.
        self._entered: list[ExitStack] = []

    def __enter__(self) -> DeviceStream:
        # The device first: CuPy keeps a current stream for each device, and refuses another
        # device's. If the stream cannot be entered, pop_all is not reached, and the device is left
        # again.
        with ExitStack() as stack:
            stack.enter_context(self._cupy.cuda.Device(self._device))
            stack.enter_context(self._stream)
            self._entered.append(stack.pop_all())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered.pop().close()

    def synchronize(self) -> None:
        """Wait until all that was queued here is done."""
        self._stream.synchronize()


class DeviceEvent:
    """A mark in the queue of a stream; see :class:`syncpretrain.backends.base.Event`.

    Parameters
    ----------
    cupy : module
    device : int
        The event is recorded on streams of this device.
    """

    def __init__(self, cupy: Any, device: int) -> None:
        self._cupy = cupy
        # Without a time to note, CUDA records and waits faster.
        with cupy.cuda.Device(device):
            self._event = cupy.cuda.Event(disable_timing=True)

    def record(self) -> None:
        """Mark the end of what is queued on the current stream by now."""
        self._event.record()

    def wait(self) -> None:
        """Make the current stream wait for the mark before the work that is queued from now on."""
        self._cupy.cuda.get_current_stream().wait_event(self._event)


class DeviceLater:
    """A number that is copied to pinned memory, and known once the copy is done."""

    def __init__(self, cupy: Any, number: Any) -> None:
        # Pinned, because a copy to other memory would make the host wait for the stream. The next
        # block may overwrite the number on the device: it is queued behind this copy.
        pinned = cupy.cuda.alloc_pinned_memory(number.nbytes)
        self._number = np.frombuffer(pinned, number.dtype, 1)
        number.data.copy_to_host_async(ctypes.c_void_p(self._number.ctypes.data), number.nbytes)
        self._copied = cupy.cuda.Event(disable_timing=True)
        self._copied.record()

    def value(self) -> float:
        """Return the number; waits for its copy alone."""
        # Not the stream: the next block is queued there, and the host would wait for that too.
        self._copied.synchronize()
        return float(self._number[0])
