"""The operations a second of cores and GPUs in float32: in registers alone, and by products."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import permutations
from time import perf_counter
from timeit import repeat
from typing import Any

import numpy as np

from syncpretrain.backends.base import Backend
from syncpretrain.kernels import native
from syncpretrain.kernels.dispatch import multiply
from syncpretrain.kernels.precision import multiply_float32
from syncpretrain.parallel.blas import blas_limit
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.rng import Address, Purpose

# The fastest of these counts, after one more to warm up: a peak is what the machine can do
# undisturbed.
TRIES = 5
OPERATIONS_OF_A_ROUND = 400  # in registers, about
SIDE_ON_GPU = 4096  # of the matrices of a peak: 137 GFLOP, some ms
PRODUCTS_ON_GPU = 5


def core_peaks(threads: int, side: int) -> dict[str, float]:
    """Return the operations a second that some cores reach, by what multiplies.

    ``blas`` is a product of float32 matrices by the BLAS with as many threads, ``own`` the same by
    own products, with some rows for each thread, and ``registers`` are multiply-adds that read no
    memory, which nothing can be faster than. Without the compiled kernels there is ``blas`` alone,
    and without AVX2 there are no ``registers``.

    Parameters
    ----------
    threads : int
    side : int
        Rows and columns of the matrices.

    Raises
    ------
    SettingsError
        If another run in this process holds BLAS at a number of threads.
    """
    draw = np.random.default_rng(0).random
    a, b, out = (draw((side, side), dtype=np.float32) for _ in range(3))
    operations = 2 * side**3

    def own(part: int) -> None:
        rows = slice(side * part // threads, side * (part + 1) // threads)
        multiply_float32(a[rows], b, out=out[rows])

    def registers(part: int) -> None:
        rounds = operations // threads // OPERATIONS_OF_A_ROUND
        done[part] = native.extension.multiply_in_registers(rounds, None)

    done = [0] * threads
    peaks: dict[str, float] = {}
    with closing(WorkerPool(threads, "syncpretrain-peaks")) as pool:
        in_parts = partial(pool.run, shards=threads, workers=threads)
        if native.available():
            seconds = _least_seconds(partial(in_parts, [registers]))
            peaks |= {"registers": sum(done) / seconds} if sum(done) else {}
            peaks["own"] = operations / _least_seconds(partial(in_parts, [own]))
    with blas_limit(threads):  # at the end, for its threads spin for a while
        peaks["blas"] = operations / _least_seconds(partial(multiply, a, b, out=out))
    return peaks


def in_words(peaks: dict[str, float]) -> str:
    """Return the operations a second by what multiplies in words, as ``BLAS 213 GFLOP/s``."""
    names = {"blas": "BLAS", "own": "own products", "registers": "registers alone"}
    known = {name: f"{peaks[key] / 1e9:.0f}" for key, name in names.items() if key in peaks}
    return ", ".join(f"{name} {speed}" for name, speed in known.items()) + " GFLOP/s"


def _least_seconds(work: Callable[[], object]) -> float:
    return min(repeat(work, number=1, repeat=TRIES + 1))


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
    return backend.generator(Address(0, Purpose.PROBE)).random(shape, dtype=np.float32)


def unreadable_pairs(cupy: Any) -> list[tuple[int, int]]:
    """Return the pairs of GPUs in which the first cannot read the memory of the second."""
    runtime = cupy.cuda.runtime
    pairs = permutations(range(runtime.getDeviceCount()), 2)
    return [pair for pair in pairs if not runtime.deviceCanAccessPeer(*pair)]
