"""The GPUs of this machine: what they are, and how fast they multiply."""

from __future__ import annotations

import ctypes
import sys
from itertools import permutations
from time import perf_counter
from typing import Any

import numpy as np

from syncpretrain.backends.base import Backend
from syncpretrain.kernels.dispatch import multiply
from syncpretrain.rng import Address, Purpose

SIDE_ON_GPU = 4096  # of the matrices of a peak: 137 GFLOP, some ms
PRODUCTS_ON_GPU = 5


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


def device_peak(backend: Backend) -> float:
    """Return the operations a second of large products in float32 on the device of a backend."""
    stream = backend.stream()
    with stream:
        a, b, out = (drawn(backend, (SIDE_ON_GPU, SIDE_ON_GPU)) for _ in range(3))
        multiply(a, b, out=out)
        stream.synchronize()
        started = perf_counter()
        for _ in range(PRODUCTS_ON_GPU):
            multiply(a, b, out=out)
        stream.synchronize()
        return 2 * PRODUCTS_ON_GPU * SIDE_ON_GPU**3 / (perf_counter() - started)


def drawn(backend: Backend, shape: tuple[int, ...]) -> Any:
    """Return an array of numbers drawn from [0, 1), to time products with.

    Products of zeros take a GPU 13 % less time: few bits change, it needs less power and keeps
    a higher clock.
    """
    draws = backend.generator(Address(0, Purpose.PROBE))
    return draws.random(shape, dtype=np.float32)


def unreadable_pairs(cupy: Any) -> list[tuple[int, int]]:
    """Return the pairs of GPUs in which the first cannot read the memory of the second."""
    runtime = cupy.cuda.runtime
    pairs = permutations(range(runtime.getDeviceCount()), 2)
    return [pair for pair in pairs if not runtime.deviceCanAccessPeer(*pair)]
