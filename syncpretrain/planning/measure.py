"""Times the pieces of a stack's training, on random data, with everything a plan may choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import msgspec
import numpy as np

from syncpretrain.kernels.program import PhaseRunner, Phases
from syncpretrain.learners.by_examples import ByExamples
from syncpretrain.learners.by_units import ByUnits
from syncpretrain.learners.select import is_plain
from syncpretrain.learners.steps import Step
from syncpretrain.parallel.blas import blas_threads
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.planning.probes import (
    Probe,
    Steps,
    Work,
    beside,
    measured,
    products,
    transforming,
    validating,
)
from syncpretrain.planning.timings import LayerTimings, Timings, no_faster_than_linear, sizes
from syncpretrain.pretraining.build import build_learners
from syncpretrain.pretraining.memory import check_memory
from syncpretrain.pretraining.runtime.activations import CHUNK_ROWS, CHUNKS_AT_ONCE
from syncpretrain.pretraining.runtime.worker import PROBE_ROWS
from syncpretrain.settings import PretrainSettings

__all__ = ["check_measuring", "measure"]

MOST_NUMBERS = 4_000_000  # of a layer's rows: more than caches hold, and soon drawn


@dataclass(slots=True)
class _Probes:
    """What is timed of one layer."""

    step: Probe
    products: Probe
    validation: Probe
    busy: Probe | None
    rows: int  # that a transform makes
    sharded: dict[tuple[str, int], dict[int, Probe]] = field(default_factory=dict)
    transform: dict[int, Probe] = field(default_factory=dict)
    blas: dict[str, Probe] = field(default_factory=dict)
    parts: dict[int, Probe] = field(default_factory=dict)

    def all(self) -> list[Probe]:
        cut = [probe for sizes in self.sharded.values() for probe in sizes.values()]
        busy = [self.busy] if self.busy is not None else []
        rest = [*cut, *self.transform.values(), *self.blas.values(), *self.parts.values()]
        return [self.step, *busy, self.products, self.validation, *rest]


def measure(
    settings: PretrainSettings,
    *,
    workers: int,
    examples: int = 50_000,
    held_out: int = PROBE_ROWS,
    seconds: float = 7.0,
    parts: Sequence[int] = (),
) -> Timings:
    """Time every layer at every allocation of up to ``workers`` workers.

    Parameters
    ----------
    settings : PretrainSettings
        Of the stack; its own schedule, replicas and shards do not count.
    workers : int
        The most there may be, of all layers together.
    examples, held_out : int
        Rows to train on, and to validate on after an epoch; more than a few thousand change
        nothing.
    seconds : float
        About how long to measure. One round of everything is made in any case, which may take
        longer for wide layers and large minibatches.
    parts : sequence of int
        Numbers of rows, fewer than a minibatch has, to time steps of one worker on too.

    Raises
    ------
    SettingsError
        If the stack does not fit the memory, or another run in this process holds BLAS at a number
        of threads.
    """
    check_measuring(settings, workers=workers)
    started = perf_counter()
    threads = min(workers, blas_threads(settings.blas_threads))
    plain = msgspec.structs.replace(
        settings,
        replicas=(1,) * len(settings.replicas),
        shards=(0,) * len(settings.shards),
        split="examples",
    )
    pool = WorkerPool(workers, "syncpretrain-plan")
    try:
        bench = _Bench(plain, pool, workers, threads, min(held_out, PROBE_ROWS), parts)
        kinds = bench.layers(examples)
        once = list({id(probes): probes for probes in kinds}.values())
        measured([probe for probes in once for probe in probes.all()], seconds=seconds)
    finally:
        pool.close()
    layers = tuple(_timings(probes, bench.crowd, threads) for probes in kinds)
    return Timings(layers, workers, threads, perf_counter() - started)


def check_measuring(settings: PretrainSettings, *, workers: int) -> None:
    """Refuse a stack whose layers cannot be timed in the memory that is free.

    Raises
    ------
    SettingsError
    """
    check_memory(settings.shapes, examples=0, batch_size=settings.batch_size)


class _Bench:
    """The stack's learners, and the workers to time them with."""

    def __init__(
        self,
        settings: PretrainSettings,
        pool: WorkerPool,
        workers: int,
        threads: int,
        held_out: int,
        parts: Sequence[int],
    ) -> None:
        self._settings, self._pool, self._parts = settings, pool, parts
        self._workers, self._threads, self._held_out = workers, threads, held_out
        self._steps: list[Steps] = []
        others = min(workers, len(settings.layers) - 1) - 1
        # A layer's step is slowed by what else is at work; a line through one count gives others.
        self.crowd = (workers - 1) / others if others else 0.0

    def layers(self, examples: int) -> list[_Probes]:
        """Return the probes of each layer; layers that are alike share theirs."""
        draw = np.random.default_rng(0).random
        batch = self._settings.batch_size
        for learner, width in zip(
            build_learners(self._settings), self._settings.layers[:-1], strict=True
        ):
            rows = max(
                batch, min(examples, max(MOST_NUMBERS // width, CHUNK_ROWS * CHUNKS_AT_ONCE))
            )
            self._steps.append(Steps(learner, draw((rows, width), dtype=np.float32)))
        found: dict[object, _Probes] = {}
        for i in range(len(self._steps)):
            if self._kind(i) not in found:
                found[self._kind(i)] = self._probes(i)
        return [found[self._kind(i)] for i in range(len(self._steps))]

    def _kind(self, i: int) -> object:
        """Return what two layers share that take the same time."""
        s = self._settings
        options = (s.hidden_units, s.cd_steps, s.persistent, s.sparsity_cost, s.hidden_dropout)
        more = (s.corruption, s.contraction, s.l1)
        below = s.shapes[max(0, i - 1) : i + 1]
        return (i > 0, below, s.visible_units_of(i + 1), *(x[i] for x in (*options, *more)))

    def _probes(self, i: int) -> _Probes:
        steps, settings = self._steps[i], self._settings
        shape, cd_steps = settings.shapes[i], settings.cd_steps[i]
        bare = products(shape, batch_size=settings.batch_size, cd_steps=cd_steps)
        validation = validating(steps.learner, steps.X[: self._held_out])
        probes = _Probes(
            step=Probe(steps.work()),
            products=Probe(bare),
            validation=Probe(validation),
            busy=self._busy(i),
            rows=0,
            parts={rows: Probe(steps.work(rows=rows)) for rows in self._parts},
        )
        for split, cut in self._cuts(i).items():
            for shards in sizes(self._workers):
                sharded = cut(shards)
                if sharded is not None:
                    probes.sharded[split, shards] = {
                        workers: Probe(steps.work(sharded, self._run(workers)), cores=workers)
                        for workers in {1, max(1, shards // 2), shards}
                    }
        if self._threads > 1:
            probes.blas["step"] = Probe(steps.work(), blas_threads=self._threads)
            probes.blas["validation"] = Probe(validation, blas_threads=self._threads)
        if i:
            self._add_transform(probes, self._steps[i - 1])
        return probes

    def _busy(self, i: int) -> Probe | None:
        """Return the layer's step while others train; None if there are none."""
        depth = len(self._steps)
        others = [self._steps[(i + k) % depth].work() for k in range(1, min(self._workers, depth))]
        if not others:
            return None
        work = beside(self._steps[i].work(), others, self._pool)
        return Probe(work, cores=len(others) + 1)

    def _cuts(self, i: int) -> dict[str, Callable[[int], Step | None]]:
        """Return how a layer's step is cut into shards, as far as it can be."""
        settings, learner = self._settings, self._steps[i].learner

        def by_examples(shards: int) -> Step | None:
            return ByExamples(learner, shards) if shards <= settings.batch_size else None

        def by_units(shards: int) -> Step | None:
            if not is_plain(learner):
                return None
            return ByUnits(learner, shards) if shards <= min(learner.weight.shape) else None

        return {"examples": by_examples, "units": by_units}

    def _run(self, workers: int) -> PhaseRunner:
        def run(work: Phases, shards: int) -> None:
            self._pool.run(work, shards, workers)

        return run

    def _add_transform(self, probes: _Probes, below: Steps) -> None:
        rows = below.X[: CHUNK_ROWS * min(CHUNKS_AT_ONCE, max(2, self._workers))]
        probes.rows = len(rows)
        layer = below.learner.snapshot()

        def work(workers: int) -> Work:
            return transforming(layer, rows, self._run(workers))

        for workers in (1, *sizes(self._workers)):
            probes.transform[workers] = Probe(work(workers), cores=workers)
        if self._threads > 1:
            probes.blas["transform"] = Probe(work(1), blas_threads=self._threads)


def _timings(probes: _Probes, crowd: float, threads: int) -> LayerTimings:
    step, validation = probes.step.seconds, probes.validation.seconds
    slower = probes.busy.relative_to(probes.step) - 1 if probes.busy is not None else 0.0
    rows = probes.rows
    transform = no_faster_than_linear({n: p.seconds / rows for n, p in probes.transform.items()})

    def on_blas(name: str, alone: float, share: int = 1) -> float | None:
        if name not in probes.blas:
            return None
        both = {1: alone, threads: probes.blas[name].seconds / share}
        return no_faster_than_linear(both)[threads]

    return LayerTimings(
        step=step,
        products=probes.products.seconds,
        sharded={
            cut: no_faster_than_linear({n: probe.seconds for n, probe in by_size.items()})
            for cut, by_size in probes.sharded.items()
        },
        transform=transform,
        validation=validation,
        contention=1 + max(0.0, slower) * crowd,
        blas_step=on_blas("step", step),
        blas_transform=on_blas("transform", transform.get(1, 0.0), rows),
        blas_validation=on_blas("validation", validation),
        parts={rows: step * p.relative_to(probes.step) for rows, p in probes.parts.items()},
    )
