"""Descriptions of the GPUs of this machine, for the doctor."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

__all__ = ["described_devices", "driver_version"]


def described_devices(cupy: Any) -> list[str]:
    """Return name, memory and compute capability of each GPU that CuPy finds."""
    runtime = cupy.cuda.runtime
    found = [runtime.getDeviceProperties(i) for i in range(runtime.getDeviceCount())]
    return [
        f"{x['name'].decode()} ({x['totalGlobalMem'] / 2**30:.0f} GiB, compute capability"
        f" {x['major']}.{x['minor']})"
        for x in found
    ]


def driver_version() -> int | None:
    """Return the newest CUDA that the driver knows, such as 12040 for 12.4; None without one."""
    number = ctypes.c_int()
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        failed = driver.cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return None if failed or not number.value else number.value
