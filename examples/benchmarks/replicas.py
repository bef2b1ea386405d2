"""Two workers in one layer, beside one worker and beside BLAS with as many threads, in turns.

    python examples/benchmarks/replicas.py --rounds 5

Times steps of contrastive divergence (CD-1, momentum, weight decay) on random data, without
anything around them: a layer of 784-1000 and one of 2000-2000, minibatches of 100, 1000 and 5000.
Ratios are taken round by round.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from statistics import median
from time import perf_counter

import numpy as np
from _timing import busy, machine, rst_table, spread

from syncpretrain.learners.rbm import RBM
from syncpretrain.learners.steps import WholeStep
from syncpretrain.parallel.blas import blas_limit, usable_cores
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.pretraining.build import step_for
from syncpretrain.settings import settings_from

SHAPES = ((784, 1000), (2000, 2000))
BATCHES = (100, 1000, 5000)
SECONDS = 1.0  # of a round of one case
Case = tuple[str, int, int, str]  # a name, BLAS threads, workers, the split


def cases(workers: int) -> list[Case]:
    return [
        ("1 worker", 1, 1, ""),
        (f"{workers} BLAS threads", workers, 1, ""),
        (f"{workers} workers, examples", 1, workers, "examples"),
        (f"{workers} workers, units", 1, workers, "units"),
    ]


def step_seconds(shape: tuple[int, int], batch: int, case: Case) -> Iterator[float]:
    """Yield the time of a step, the median of those of a second, each time anew."""
    _, threads, workers, split = case
    settings = settings_from(shape, batch_size=batch, momentum="0.9").pretrain
    rbm = RBM(1, *shape, settings.of_layer(1))
    training = step_for(rbm, workers, split) if workers > 1 else WholeStep(rbm)
    X = np.random.default_rng(0).random((batch, shape[0]), dtype=np.float32)
    rows = np.arange(batch)
    while True:
        with blas_limit(threads), closing(WorkerPool(workers, "benchmark")) as pool:

            def run(phases, shards, pool=pool):  # type: ignore[no-untyped-def]
                pool.run(phases, shards, workers)

            took: list[float] = []
            while sum(took) < SECONDS or len(took) < 5:
                started = perf_counter()
                training.train_step(X, rows, epoch=1, step=len(took), run=run)
                took.append(perf_counter() - started)
        yield median(took[1:])


def measured(shape: tuple[int, int], batch: int, rounds: int, workers: int) -> list[str]:
    """Return one row of the table."""
    streams = {case[0]: step_seconds(shape, batch, case) for case in cases(workers)}
    times: dict[str, list[float]] = {name: [] for name in streams}
    for _ in range(rounds):
        for name, stream in streams.items():
            times[name].append(1000 * next(stream))
    one, blas, *shared = times.values()
    counter: Callable[[list[float]], str] = lambda own: f"{median(own):.2f}"  # noqa: E731
    row = [f"{shape[0]}-{shape[1]}, {batch}", counter(one), counter(blas), *map(counter, shared)]
    row += [spread([b / own for b, own in zip(blas, other, strict=True)]) for other in shared]
    row += [spread([o / own for o, own in zip(one, other, strict=True)]) for other in shared]
    print(row, file=sys.stderr, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    options = parser.parse_args()
    others, workers = busy(), usable_cores()
    rows = [
        measured(shape, batch, options.rounds, workers)
        for shape in SHAPES
        for batch in options.batches
    ]
    head = ["layer, minibatch", *(name for name, *_ in cases(workers))]
    head += ["BLAS over examples", "BLAS over units", "1 over examples", "1 over units"]
    print(rst_table(head, rows))
    print(f"\n(ms a step, medians of {options.rounds} rounds; {machine(())})")
    if others > 0.7:
        print(f"\nNot to be quoted: other programs were running (load {others:.1f}).")


if __name__ == "__main__":
    main()
