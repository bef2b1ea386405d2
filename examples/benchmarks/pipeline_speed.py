"""How much faster the pipeline is with two workers than with one, and than greedy on all cores.

    python examples/benchmarks/pipeline_speed.py --epochs 20 --pairs 3

Pretrains 784-1000-500-250-30 on real digits, batch 100, in turns: pipeline with P workers, with 1
worker, greedy with all cores given to BLAS; then again. Prints medians and the ratios pair by
pair, since the speed of a shared machine drifts.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable
from datetime import date
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from syncpretrain import pretrain
from syncpretrain.data import load_dataset
from syncpretrain.models.stack import Stack
from syncpretrain.parallel.blas import usable_cores

LAYERS = [784, 1000, 500, 250, 30]
Runs = dict[str, Callable[[], Stack]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--cases", type=int, default=4, help="Only the first so many.")
    options = parser.parse_args()

    X = load_dataset("mnist").train[: options.examples]
    runs = cases(X, epochs=options.epochs, workers=options.workers)
    runs = dict(list(runs.items())[: options.cases])
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.pairs):
        for name, run in runs.items():
            started = perf_counter()
            run()
            seconds[name].append(perf_counter() - started)
            print(f"{name:<40} {seconds[name][-1]:7.2f} s", flush=True)
    report(seconds, len(X), options.epochs)


def cases(X: NDArray[np.float32], *, epochs: int, workers: int) -> Runs:
    def pipeline(workers: int, runtime: str = "threads") -> Stack:
        return pretrain(X, layers=LAYERS, epochs=epochs, workers=workers, runtime=runtime)

    return {
        f"pipeline, {workers} workers": lambda: pipeline(workers),
        f"pipeline, {workers} workers, processes": lambda: pipeline(workers, "processes"),
        "pipeline, 1 worker": lambda: pipeline(1),
        f"greedy, BLAS on all {usable_cores()} cores": lambda: pretrain(
            X, layers=LAYERS, epochs=epochs, schedule="greedy"
        ),
    }


def report(seconds: dict[str, list[float]], examples: int, epochs: int) -> None:
    blas = ", ".join(f"{x['internal_api']} {x['version']}" for x in threadpool_info())
    threads = os.environ.get("OPENBLAS_NUM_THREADS", "unset")
    print(f"\n{'-'.join(map(str, LAYERS))}, {examples} digits, {epochs} epochs, {date.today()}")
    print(f"{usable_cores()} cores, {platform.machine()}, NumPy {np.__version__}, {blas}")
    print(f"OPENBLAS_NUM_THREADS {threads}")
    first = next(iter(seconds.values()))
    for name, runs in seconds.items():
        ratios = [other / own for other, own in zip(runs, first, strict=True)]
        print(
            f"{name:<40} median {median(runs):7.2f} s   time against the first: "
            f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
