"""Streams of GPUs, each lent to one user at a time."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from functools import cache
from types import TracebackType
from typing import Any

__all__ = ["DeviceStream"]


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
