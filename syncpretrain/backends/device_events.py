"""Events of a stream of a GPU, which others wait for. They have never been on one."""

from __future__ import annotations

from typing import Any

__all__ = ["DeviceEvent"]


class DeviceEvent:
    """An event of the device that is current when it is made; see ``Event`` of the backends.

    Parameters
    ----------
    cupy : module
        CuPy, or what stands in for it in a test.
    """

    def __init__(self, cupy: Any) -> None:
        self._cuda = cupy.cuda
        self._event = cupy.cuda.Event(disable_timing=True)

    def record(self) -> None:
        """Stand behind all that is queued on the current stream now."""
        self._event.record()

    def wait(self) -> None:
        """Have the current stream wait for it."""
        self._cuda.get_current_stream().wait_event(self._event)
