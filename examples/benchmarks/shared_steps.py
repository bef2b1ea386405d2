"""Where the time of a step goes that two or more cores share by examples.

    python examples/benchmarks/shared_steps.py --seconds 20

Of layers of several widths, milliseconds (medians, measured in turns): a whole step of one core,
and one on its share of the minibatch; a share's gradient by one core, and those of all shares by
all cores; sum and update of a slice by one core, and of all slices by all; a step of as many phases
in which nothing is done; the whole shared step. What all cores take beyond one core's share is what
they take from each other: caches, memory, and the interpreter, which runs one thread at a time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter

import numpy as np
from _timing import busy, machine, rst_table

from syncpretrain.kernels.program import Phase, Phases
from syncpretrain.learners.by_examples import ByExamples
from syncpretrain.parallel.blas import usable_cores
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.planning.bench import random_rows
from syncpretrain.planning.probes import Probe, Steps, Work, measured
from syncpretrain.pretraining.build import build_learners
from syncpretrain.settings import settings_from

LAYERS = ((784, 1000), (1000, 500), (500, 500), (500, 250), (250, 30))
ROWS = 4000


class SharedSteps:
    """The steps of a layer, whole and in shares."""

    def __init__(self, visible: int, hidden: int, batch: int, cores: int, pool: WorkerPool) -> None:
        stack = settings_from((visible, hidden), batch_size=batch).pretrain
        X = random_rows(ROWS, visible)
        (learner,) = build_learners(stack)
        self._whole, self._cut = Steps(learner, X), ByExamples(learner, cores)
        self._batch, self._cores, self._pool, self._rows = batch, cores, pool, X
        self._order = np.random.default_rng(0).permutation(ROWS)
        self._step = 0

    def probes(self) -> dict[str, Probe]:
        """Return what is timed, by its name."""
        gradient, move = self._cut.gradient, self._cut._move
        cores = self._cores
        share = -(-self._batch // cores)
        return {
            "whole": Probe(self._whole.work()),
            "share": Probe(self._whole.work(rows=share)),
            "gradient by one": Probe(self._timed(lambda: gradient(0))),
            "by all": Probe(self._together([gradient]), cores=cores),
            "update by one": Probe(self._timed(lambda: move(0))),
            "by all ": Probe(self._together([move]), cores=cores),
            "phases": Probe(self._together([_nothing, _nothing]), cores=cores),
            "shared": Probe(self._whole.work(self._cut, self._run), cores=cores),
        }

    def _run(self, phases: Phases, shards: int) -> None:
        self._pool.run(phases, shards, self._cores)

    def _begin(self) -> None:
        self._step += 1
        start = self._step * self._batch % (ROWS - self._batch)
        rows = self._order[start : start + self._batch]
        self._cut.begin(self._rows, rows, epoch=1, step=self._step)

    def _together(self, phases: list[Phase]) -> Work:
        return self._timed(lambda: self._run(phases, self._cores))

    def _timed(self, phase: Callable[[], object]) -> Work:
        def work(times: int) -> float:
            seconds = 0.0
            for _ in range(times):
                self._begin()
                started = perf_counter()
                phase()
                seconds += perf_counter() - started
            return seconds

        return work


def _nothing(shard: int) -> None:
    """Do nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--cores", type=int, default=usable_cores())
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0, help="To measure each layer.")
    options = parser.parse_args()
    pool = WorkerPool(options.cores, "shared-steps")
    rows, head = [], ["layer"]
    try:
        for visible, hidden in LAYERS:
            steps = SharedSteps(visible, hidden, options.batch_size, options.cores, pool)
            probes = steps.probes()
            measured(list(probes.values()), seconds=options.seconds)
            head = ["layer", *map(str.strip, probes)]
            rows.append(
                [f"{visible}-{hidden}", *(f"{1e3 * p.seconds:.2f}" for p in probes.values())]
            )
    finally:
        pool.close()
    print(rst_table(head, rows))
    print(f"\nmilliseconds, minibatches of {options.batch_size} ({machine([])}, load {busy():.1f})")


if __name__ == "__main__":
    main()
