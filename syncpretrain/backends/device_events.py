"""Places in the queues of a GPU's streams: for other streams to wait for, or for a number."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

__all__ = ["DeviceEvent", "DeviceLater"]


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
