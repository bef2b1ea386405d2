"""Products of matrices in threads at the same time: whether they are right, and how fast."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from syncpretrain.kernels.arrays import Array

__all__ = ["SECONDS", "deviation", "factors", "rate"]

Factors = tuple[Array, Array]

BATCH, VISIBLE, HIDDEN = 100, 784, 1000  # the widest product of the paper's stack
REPEATS = 12  # of each concurrent product
SECONDS = 0.1  # of each measurement


def factors(threads: int) -> list[Factors]:
    """Return the factors of a product for each thread."""
    random, f4 = np.random.default_rng(0).standard_normal, np.float32
    return [
        (random((BATCH, VISIBLE), dtype=f4), random((VISIBLE, HIDDEN), dtype=f4))
        for _ in range(threads)
    ]


def deviation(pairs: Sequence[Factors]) -> float:
    """Multiply the pairs in turn, then at once; return the worst relative error, 0 if equal."""
    expected = [a @ b for a, b in pairs]
    deadline = time.monotonic() + SECONDS

    def worst(index: int) -> float:
        right, error = expected[index], 0.0
        out, peak = np.empty_like(right), float(np.abs(right).max())
        for repeat in range(REPEATS):
            _multiply(*pairs[index], out)
            if not np.array_equal(out, right):
                gap = np.nan_to_num(np.abs(out - right), nan=peak, posinf=peak).max()
                error = max(error, float(gap) / peak)  # finite, to go into JSON
            if repeat and time.monotonic() > deadline:
                break
        return error

    with ThreadPoolExecutor(len(pairs)) as pool:
        return max(pool.map(worst, range(len(pairs))))


def rate(pairs: Sequence[Factors]) -> float:
    """Return the GFLOP/s of one thread a pair, over about SECONDS."""
    outs = [np.empty((BATCH, HIDDEN), np.float32) for _ in pairs]
    one = min(_trial(pairs[:1], outs, 1) for _ in range(3))
    repeats = max(2, min(200, int(SECONDS / one)))
    seconds = _trial(pairs, outs, repeats)
    return 2e-9 * BATCH * VISIBLE * HIDDEN * repeats * len(pairs) / seconds


def _trial(pairs: Sequence[Factors], outs: Sequence[Array], repeats: int) -> float:
    """Return the seconds of ``repeats`` products of each pair, a thread a pair."""

    def work(index: int) -> None:
        for _ in range(repeats):
            _multiply(*pairs[index], outs[index])

    with ThreadPoolExecutor(len(pairs)) as pool:
        start = time.perf_counter()
        list(pool.map(work, range(len(pairs))))
        return time.perf_counter() - start


def _multiply(a: Array, b: Array, out: Array) -> None:
    np.matmul(a, b, out=out)  # (B, V) @ (V, H) -> (B, H); releases the GIL
