"""Time the pieces of a stack's training, on cores or on GPUs, with everything a plan may choose.

The data are random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import msgspec
import numpy as np

from syncpretrain.errors import SettingsError
from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.kernels.program import PhaseRunner, Phases
from syncpretrain.learners.by_examples import ByExamples
from syncpretrain.learners.by_units import ByUnits
from syncpretrain.learners.select import is_plain, step_for
from syncpretrain.learners.steps import Step
from syncpretrain.parallel.blas import blas_limit, blas_threads, usable_cores
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.planning.candidates import Task
from syncpretrain.planning.device_measure import measure_devices
from syncpretrain.planning.probes import (
    PASSES,
    LayerProbes,
    Probe,
    Steps,
    Work,
    beside,
    measured,
    notes_on,
    products,
    transforming,
    validating,
)
from syncpretrain.planning.samples import (
    MOST_NUMBERS,
    MOST_SECONDS,
    PROBES,
    PROBES_OF_SIZE,
    Sample,
    sampled,
)
from syncpretrain.planning.timings import Timings, sizes
from syncpretrain.pretraining.build import build_learners
from syncpretrain.pretraining.memory import check_memory
from syncpretrain.settings import PretrainSettings
from syncpretrain.shapes import ConvolutionShape
from syncpretrain.workers.activations import CHUNK_ROWS, CHUNKS_AT_ONCE
from syncpretrain.workers.worker import PROBE_ROWS

__all__ = ["check_measuring", "is_on_gpus", "measure", "timings_of"]


WIDE_NUMBERS = 40_000_000  # of the rows of a wide layer


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
        Settings of the stack; schedule, replicas and shards do not count.
    workers : int
        Largest number of workers, of all layers together.
    examples, held_out : int
        Rows to train on, and to validate on after an epoch; more than a few thousand change
        nothing.
    seconds : float
        About how long to measure. A round of everything may take longer, for wide layers and large
        minibatches; after 18 s, or these seconds if they are more, nothing more is begun.
    parts : sequence of int
        Numbers of rows, fewer than a minibatch has, to time steps of one worker on too.

    Raises
    ------
    SettingsError
        If the stack does not fit the memory, or another run in this process holds BLAS at a number
        of threads.
    """
    check_measuring(settings, workers=workers)
    started, most = perf_counter(), max(MOST_SECONDS, seconds)
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
        kinds = bench.layers(examples, most)
        once = list({id(probes): probes for probes in kinds}.values())
        needed = [probe for own in once for probe in own.needed()]
        others = [probe for own in once for probe in own.others()]
        left = most - (perf_counter() - started)
        is_tried = all(own.sample.is_tried for own in once)
        measured([*needed, *others], seconds=seconds, most=left if is_tried else 0.0)
    finally:
        pool.close()
    layers = tuple(own.timings(bench.crowd, threads) for own in kinds)
    if not all(layer.has_blas for layer in layers):
        threads = 1  # what BLAS takes with more was not measured
    notes = notes_on(once, most)
    return Timings(layers, workers, threads, perf_counter() - started, notes=notes)


def check_measuring(settings: PretrainSettings, *, workers: int) -> None:
    """Refuse a stack with layers that cannot be timed in the free memory.

    Raises
    ------
    SettingsError
    """
    shapes, batch = settings.shapes, settings.batch_size
    rows = [_rows(batch, shape.visible, MOST_NUMBERS) for shape in shapes]
    read = sum(n * shape.visible for n, shape in zip(rows, shapes, strict=True))
    made = sum(n * shape.hidden for n, shape in zip(rows, shapes[:-1], strict=False))
    shards = sum(sizes(workers)) * sum(shape.weights + sum(shape.biases) for shape in shapes)
    bare = sum(2 * (shape.weights + sum(shape.biases)) for shape in shapes)  # of the products
    others = FLOAT_BYTES * (read + made + shards + bare)
    check_memory(shapes, examples=0, batch_size=batch, others=others)


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
        self._samples: list[Sample] = []
        others = min(workers, len(settings.layers) - 1) - 1
        # A layer's step is slowed by what else is at work; a line through one count gives others.
        self.crowd = (workers - 1) / others if others else 0.0

    def layers(self, examples: int, seconds: float) -> list[LayerProbes]:
        """Return the probes of each layer; layers that are alike share theirs.

        A round of all probes takes about ``seconds``.
        """
        draw = np.random.default_rng(0).random
        batch = self._settings.batch_size
        for learner, width in zip(
            build_learners(self._settings), self._settings.layers[:-1], strict=True
        ):
            rows = _rows(batch, width, examples)
            self._steps.append(Steps(learner, draw((rows, width), dtype=np.float32)))
        kinds = [self._kind(i) for i in range(len(self._steps))]
        count = PROBES + PROBES_OF_SIZE * len(sizes(self._workers))
        each = seconds / (count * len(set(kinds)))
        samples: dict[object, Sample] = {}
        for i, kind in enumerate(kinds):
            if kind not in samples:
                samples[kind] = self._sample(i, each)
        self._samples = [samples[kind] for kind in kinds]
        found: dict[object, LayerProbes] = {}
        for i, kind in enumerate(kinds):
            if kind not in found:
                found[kind] = self._probes(i)
        return [found[kind] for kind in kinds]

    def _sample(self, i: int, seconds: float) -> Sample:
        s = self._settings
        with blas_limit(1), np.errstate(all="ignore"):
            return sampled(
                lambda rows: self._steps[i].work(rows=rows)(1),
                batch_size=s.batch_size,
                operations=2 * s.shapes[i].products * (2 * s.cd_steps[i] + 3),
                parameters=s.shapes[i].weights,
                seconds=seconds,
            )

    def _kind(self, i: int) -> object:
        """Return what two layers share that take the same time."""
        s = self._settings
        options = (s.hidden_units, s.cd_steps, s.persistent, s.sparsity_cost, s.hidden_dropout)
        more = (s.corruption, s.contraction, s.l1)
        below = s.shapes[max(0, i - 1) : i + 1]
        return (i > 0, below, s.visible_units_of(i + 1), *(x[i] for x in (*options, *more)))

    def _probes(self, i: int) -> LayerProbes:
        steps, settings, sample = self._steps[i], self._settings, self._samples[i]
        rows, held_out = sample.rows, steps.X[: self._held_out]
        if sample.is_part:
            held_out = held_out[: PASSES * rows]
        validation = validating(steps.learner, held_out)
        probes = LayerProbes(
            sample=sample,
            step=Probe(steps.work(rows=rows)),
            products=Probe(
                products(
                    settings.shapes[i],
                    batch_size=rows,
                    cd_steps=settings.cd_steps[i],
                    precision=settings.precision,
                )
            ),
            validation=Probe(validation),
            busy=self._busy(i),
            held_out=len(held_out) / self._held_out if self._held_out else 1.0,
            parts={n: Probe(steps.work(rows=min(n, rows))) for n in self._parts},
        )
        for split, cut in self._cuts(i).items():
            for shards in sizes(self._workers):
                sharded = cut(shards)
                if sharded is not None:
                    probes.sharded[split, shards] = {
                        workers: Probe(steps.work(sharded, self._run(workers), rows), cores=workers)
                        for workers in {1, max(1, shards // 2), shards}
                    }
        if self._threads > 1:
            probes.blas["step"] = Probe(steps.work(rows=rows), blas_threads=self._threads)
            probes.blas["validation"] = Probe(validation, blas_threads=self._threads)
        if i:
            self._add_transform(probes, i - 1)
        return probes

    def _busy(self, i: int) -> Probe | None:
        """Return the layer's step while others train; None if there are none."""
        depth = len(self._steps)
        works = [
            steps.work(rows=sample.rows)
            for steps, sample in zip(self._steps, self._samples, strict=True)
        ]
        others = [works[(i + k) % depth] for k in range(1, min(self._workers, depth))]
        if not others:
            return None
        return Probe(beside(works[i], others, self._pool), cores=len(others) + 1)

    def _cuts(self, i: int) -> dict[str, Callable[[int], Step | None]]:
        """Return how a layer's step is cut into shards, as far as it can be."""
        learner, rows = self._steps[i].learner, self._samples[i].rows

        def by_examples(shards: int) -> Step | None:
            return ByExamples(learner, shards) if shards <= rows else None

        def by_units(shards: int) -> Step | None:
            if not is_plain(learner):
                return None
            return ByUnits(learner, shards) if shards <= min(learner.weight.shape) else None

        def by_filters(shards: int) -> Step | None:
            is_permitted = self._has_shards(i, split="filters", shards=shards)
            return step_for(learner, shards, "filters") if is_permitted else None

        if isinstance(self._settings.shapes[i], ConvolutionShape):
            return {"examples": by_examples, "filters": by_filters}
        return {"examples": by_examples, "units": by_units}

    def _has_shards(self, i: int, *, split: str, shards: int) -> bool:
        """Return whether the settings permit that a layer's minibatches are cut so."""
        settings = self._settings
        changed = (*settings.shards[:i], shards, *settings.shards[i + 1 :])
        try:
            msgspec.structs.replace(settings, split=split, shards=changed)
        except SettingsError:
            return False
        return True

    def _run(self, workers: int) -> PhaseRunner:
        def run(work: Phases, shards: int) -> None:
            self._pool.run(work, shards, workers)

        return run

    def _add_transform(self, probes: LayerProbes, below: int) -> None:
        rows = self._steps[below].X[: CHUNK_ROWS * min(CHUNKS_AT_ONCE, max(2, self._workers))]
        if self._samples[below].is_part:
            rows = rows[: PASSES * self._samples[below].rows]
        probes.rows = len(rows)
        layer = self._steps[below].learner.snapshot()

        def work(workers: int) -> Work:
            return transforming(layer, rows, self._run(workers))

        for workers in (1, *sizes(self._workers)):
            probes.transform[workers] = Probe(work(workers), cores=workers)
        if self._threads > 1:
            probes.blas["transform"] = Probe(work(1), blas_threads=self._threads)


def _rows(batch_size: int, width: int, examples: int) -> int:
    """Return how many random rows a layer is timed on; of wide ones fewer than a minibatch has."""
    usual = max(batch_size, min(examples, max(MOST_NUMBERS // width, CHUNK_ROWS * CHUNKS_AT_ONCE)))
    return min(usual, max(1, WIDE_NUMBERS // width))


def is_on_gpus(task: Task) -> bool:
    """Return whether the settings of a task name GPUs."""
    return task.settings.backend.startswith("cupy")


def timings_of(task: Task, *, workers: int | None, seconds: float) -> Timings:
    """Measure the layers of a task.

    Parameters
    ----------
    task : Task
    workers : int or None
        Largest number of workers; None for the settings' number, or the usable cores.
    seconds : float
        About how long to measure.

    Raises
    ------
    SettingsError
        If a minibatch has more examples than there are, or the stack cannot be measured.
    """
    settings = task.settings
    if settings.batch_size > task.examples:
        raise SettingsError(
            f"batch_size: got {settings.batch_size}, expected at most {task.examples}, the"
            " examples to train on"
        )
    workers = workers or settings.workers
    if is_on_gpus(task):
        if workers is not None:
            raise SettingsError(
                f"workers: got {workers} with backend {settings.backend}, expected none: the GPUs"
                " that the backend names are timed"
            )
        return measure_devices(
            settings, examples=task.examples, held_out=task.held_out, seconds=seconds
        )
    return measure(
        settings,
        workers=workers or usable_cores(),
        examples=task.examples,
        held_out=task.held_out,
        seconds=seconds,
    )
