"""Streams of GPUs, each lent to one user at a time, and places in their queues.

Other streams wait for such a place, or the host for a number that is copied there.
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

    CuPy keeps the memory that was freed on a stream for that stream, and never hands on that of a
    stream which is no more.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._free: dict[tuple[int, int], list[Any]] = {}

    def lend(self, device: int, priority: int, user: object) -> Any:
        """Return a non-blocking stream of a device; it comes back when its user is no more."""
        free = self._free.setdefault((device, priority), [])
        try:
            stream = free.pop()
        except IndexError:
            with self._cupy.cuda.Device(device):
                stream = self._cupy.cuda.Stream(non_blocking=True, priority=priority)
        weakref.finalize(user, free.append, stream).atexit = False
        return stream


_streams = cache(_Streams)  # of this process


class DeviceStream:
    """A non-blocking stream of one device; its block sets the device too.

    Parameters
    ----------
    cupy : module
    device : int
    priority : int
        As of :meth:`syncpretrain.backends.base.Backend.stream`.
    """

    def __init__(self, cupy: Any, device: int, priority: int) -> None:
        self._cupy, self._device = cupy, device
        self._stream = _streams(cupy).lend(device, priority, self)
        self._entered: list[ExitStack] = []

    def __enter__(self) -> DeviceStream:
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
    """A place in the queue of one device's stream; see :class:`syncpretrain.backends.base.Event`.

    Parameters
    ----------
    cupy : module
    device : int
        On whose streams it is recorded.
    """

    def __init__(self, cupy: Any, device: int) -> None:
        self._cupy = cupy
        with cupy.cuda.Device(device):
            self._event = cupy.cuda.Event(disable_timing=True)

    def record(self) -> None:
        """Mark what is queued on the current stream by now."""
        self._event.record()

    def wait(self) -> None:
        """Let the current stream wait for what was marked, before the work queued from now on."""
        self._cupy.cuda.get_current_stream().wait_event(self._event)


class DeviceLater:
    """A number that is copied to pinned memory, and known once that is done."""

    def __init__(self, cupy: Any, number: Any) -> None:
        pinned = cupy.cuda.alloc_pinned_memory(number.nbytes)
        self._number = np.frombuffer(pinned, number.dtype, 1)
        number.data.copy_to_host_async(ctypes.c_void_p(self._number.ctypes.data), number.nbytes)
        self._copied = cupy.cuda.Event(disable_timing=True)
        self._copied.record()

    def value(self) -> float:
        """Return the number; waits for its copy alone."""
        self._copied.synchronize()
        return float(self._number[0])
