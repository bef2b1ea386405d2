"""Time the pieces of a stack's training, on cores or on GPUs, with everything a plan may choose.

The data are random. On GPUs, each piece of a layer's work (blocks of steps, input, validation,
products) is queued on a learner's stream of the GPU that the layer would be dealt to, and waits for
it at the end. So it takes the seconds of the GPU, or of the interpreter if that is slower. Never
tried on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
import numpy as np

from syncpretrain.backends.base import StepBlock, TrainStep
from syncpretrain.data.order import shuffled
from syncpretrain.errors import SettingsError
from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.kernels.precision import precision_of
from syncpretrain.kernels.program import PhaseRunner
from syncpretrain.learners.base import Learner
from syncpretrain.learners.steps import Step
from syncpretrain.parallel.available_memory import check_available
from syncpretrain.parallel.blas import blas_limit, blas_threads, usable_cores
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.planning import probes
from syncpretrain.planning.candidates import Task
from syncpretrain.planning.peaks import unreadable_pairs
from syncpretrain.planning.timings import GPU, PIECES, Timings, sizes
from syncpretrain.pretraining import build
from syncpretrain.pretraining.memory import chain_bytes, check_device_memory, pretraining_bytes
from syncpretrain.settings import PretrainSettings
from syncpretrain.settings.architecture import text_of
from syncpretrain.settings.fields import refuse
from syncpretrain.shapes import ConvolutionShape
from syncpretrain.workers.activations import CHUNK_ROWS, CHUNKS_AT_ONCE, chunk_rows
from syncpretrain.workers.worker import PROBE_ROWS

WIDE_NUMBERS = 40_000_000  # of the rows of a wide layer


def measure(
    task: Task, *, workers: int, seconds: float = 7.0, parts: Sequence[int] = ()
) -> Timings:
    """Time every layer at every allocation of up to ``workers`` workers.

    Parameters
    ----------
    task : Task
        Settings of the stack, without a look at schedule, replicas and shards, and numbers of rows;
        more than a few thousand rows change nothing.
    workers : int
        Largest number of workers, of all layers together.
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
    settings = task.settings
    check_measuring(settings, workers=workers)
    started, most = perf_counter(), max(probes.MOST_SECONDS, seconds)
    threads = min(workers, blas_threads(settings.blas_threads))
    plain = _unshared(settings)
    with closing(WorkerPool(workers, "syncpretrain-plan")) as pool:
        bench = _Bench(plain, pool, workers, threads, min(task.held_out, PROBE_ROWS), parts)
        kinds = bench.layers(task.examples, most)
        once = list({id(own): own for own in kinds}.values())
        _time(once, seconds, most - (perf_counter() - started))
    layers, threads = tuple(own.timings(bench.crowd, bench.threads) for own in kinds), bench.threads
    if any(x.blas_step is None or (x.transform and x.blas_transform is None) for x in layers):
        threads = 1  # what BLAS takes with more was not measured
    notes = probes.notes_on(once, most)
    return Timings(layers, workers, threads, perf_counter() - started, notes=notes)


def _unshared(settings: PretrainSettings) -> PretrainSettings:
    """Return settings in which no layer shares its minibatches."""
    one, none = (1,) * len(settings.replicas), (0,) * len(settings.shards)
    return msgspec.structs.replace(settings, replicas=one, shards=none, split="examples")


def _time(layers: Sequence[probes.LayerProbes], seconds: float, most: float) -> None:
    """Time the probes of layers, first what no prediction can do without."""
    needed = [probe for own in layers for probe in own.needed()]
    others = [probe for own in layers for probe in own.others()]
    is_tried = all(own.sample.is_tried for own in layers)
    probes.measured([*needed, *others], seconds=seconds, most=most if is_tried else 0.0)


def check_measuring(settings: PretrainSettings, *, workers: int) -> None:
    """Refuse a stack with layers that cannot be timed in the free memory.

    Raises
    ------
    SettingsError
    """
    shapes, batch = settings.shapes, settings.batch_size
    rows = [_rows(batch, shape.visible, probes.MOST_NUMBERS) for shape in shapes]
    read = sum(n * shape.visible for n, shape in zip(rows, shapes, strict=True))
    made = sum(n * shape.hidden for n, shape in zip(rows, shapes[:-1], strict=False))
    shards = sum(sizes(workers)) * sum(shape.weights + sum(shape.biases) for shape in shapes)
    bare = sum(2 * (shape.weights + sum(shape.biases)) for shape in shapes)  # of the products
    others = FLOAT_BYTES * (read + made + shards + bare)
    needed = others + pretraining_bytes(shapes, examples=0, batch_size=batch)
    check_available(needed, text_of(shapes), 0)


@dataclass(eq=False)
class _Bench:
    """The stack's learners, and the workers to time them with."""

    settings: PretrainSettings
    pool: WorkerPool
    workers: int
    threads: int
    held_out: int
    parts: Sequence[int]

    def __post_init__(self) -> None:
        self._steps: list[probes.Steps] = []
        self._samples: list[probes.Sample] = []
        layers = range(1, len(self.settings.layers))
        most = min(self.workers, usable_cores())
        self._pieces = [min(most, build.pieces_of(self.settings, i)) for i in layers]
        if max(self._pieces) > 1:
            self.threads = 1  # the workers have the cores, not the BLAS
        others = min(self.workers, len(self.settings.layers) - 1) - 1
        # A layer's step is slowed by what else is at work; a line through one count gives others.
        self.crowd = (self.workers - 1) / others if others else 0.0

    def layers(self, examples: int, seconds: float) -> list[probes.LayerProbes]:
        """Return the probes of each layer; layers that are alike share theirs.

        A round of all probes takes about ``seconds``.
        """
        draw = np.random.default_rng(0).random
        learners = build.build_learners(self.settings)
        for learner, width in zip(learners, self.settings.layers[:-1], strict=True):
            rows = _rows(self.settings.batch_size, width, examples)
            self._steps.append(probes.Steps(learner, draw((rows, width), dtype=np.float32)))
        kinds = [self._kind(i) for i in range(len(self._steps))]
        count = probes.PROBES + probes.PROBES_OF_SIZE * len(sizes(self.workers))
        each = seconds / (count * len(set(kinds)))
        firsts = [kinds.index(kind) for kind in kinds]  # of each layer the first one like it
        samples = {i: self._sample(i, each) for i in dict.fromkeys(firsts)}
        self._samples = [samples[i] for i in firsts]
        found = {i: self._probes(i) for i in dict.fromkeys(firsts)}
        return [found[i] for i in firsts]

    def _sample(self, i: int, seconds: float) -> probes.Sample:
        s = self.settings
        with blas_limit(1), np.errstate(all="ignore"):
            return probes.sampled(
                lambda rows: self._steps[i].work(rows=rows)(1),
                batch_size=s.batch_size,
                operations=2 * s.shapes[i].products * (2 * s.cd_steps[i] + 3),
                parameters=s.shapes[i].weights,
                seconds=seconds,
            )

    def _kind(self, i: int) -> object:
        """Return what two layers share that take the same time."""
        s = self.settings
        options = (s.hidden_units, s.cd_steps, s.persistent, s.sparsity_cost, s.hidden_dropout)
        more = (s.corruption, s.contraction, s.l1, s.chains, s.centred, s.sample_input)
        below = s.shapes[max(0, i - 1) : i + 1]
        return (i > 0, below, s.visible_units_of(i + 1), *(x[i] for x in (*options, *more)))

    def _probes(self, i: int) -> probes.LayerProbes:
        steps, settings, sample = self._steps[i], self.settings, self._samples[i]
        rows, held_out = sample.rows, steps.X[: self.held_out]
        if sample.is_part:
            held_out = held_out[: probes.PASSES * rows]
        validation = probes.validating(steps.learner, held_out)
        shape = settings.shapes[i]
        is_dense = not isinstance(shape, ConvolutionShape)
        # Convolutions have no products of their own.
        precision = precision_of(settings.precision, settings.products if is_dense else "blas")
        own: dict[str, Any] = {"cd_steps": settings.cd_steps[i], "precision": precision}
        found = probes.LayerProbes(
            sample=sample,
            step=probes.Probe(steps.work(rows=rows)),
            products=probes.Probe(probes.products(shape, batch_size=rows, **own)),
            validation=probes.Probe(validation),
            busy=self._busy(i),
            held_out=len(held_out) / self.held_out if self.held_out else 1.0,
            parts={n: probes.Probe(steps.work(rows=min(n, rows))) for n in self.parts},
        )
        in_pieces = max(self._pieces) > 1
        counts = [self._pieces[i]] if in_pieces else sizes(self.workers)
        for split in (PIECES,) if in_pieces else ("examples", "units" if is_dense else "filters"):
            for shards in counts:
                sharded = self._cut(i, split, shards)
                if sharded is not None:
                    found.sharded[split, shards] = {
                        workers: probes.Probe(
                            steps.work(sharded, self._run(workers), rows), cores=workers
                        )
                        for workers in {1, max(1, shards // 2), shards}
                    }
        if self.threads > 1:
            found.blas["step"] = probes.Probe(steps.work(rows=rows), blas_threads=self.threads)
            found.blas["validation"] = probes.Probe(validation, blas_threads=self.threads)
        if i:
            self._add_transform(found, i - 1)
        return found

    def _busy(self, i: int) -> probes.Probe | None:
        """Return the layer's step while others train; None if there are none."""
        depth = len(self._steps)
        timed = zip(self._steps, self._samples, strict=True)
        works = [steps.work(rows=sample.rows) for steps, sample in timed]
        others = [works[(i + k) % depth] for k in range(1, min(self.workers, depth))]
        return probes.beside(works[i], others, self.pool)

    def _cut(self, i: int, split: str, shards: int) -> Step | None:
        """Return a layer's step in shards or pieces; None if it cannot be cut so."""
        learner, rows = self._steps[i].learner, self._samples[i].rows
        if split == PIECES:
            return build.step_for(learner, 1, split, threads=shards) if shards > 1 else None
        permitted = {
            "examples": shards <= rows,
            "units": build.is_plain(learner) and shards <= min(learner.weight.shape),
            "filters": self._has_shards(i, split=split, shards=shards),
        }
        return build.step_for(learner, shards, split) if permitted[split] else None

    def _has_shards(self, i: int, *, split: str, shards: int) -> bool:
        """Return whether the settings permit that a layer's minibatches are cut so."""
        settings = self.settings
        changed = (*settings.shards[:i], shards, *settings.shards[i + 1 :])
        try:
            msgspec.structs.replace(settings, split=split, shards=changed)
        except SettingsError:
            return False
        return True

    def _run(self, workers: int) -> PhaseRunner:
        return partial(self.pool.run, workers=workers)

    def _add_transform(self, found: probes.LayerProbes, below: int) -> None:
        rows = self._steps[below].X[: CHUNK_ROWS * min(CHUNKS_AT_ONCE, max(2, self.workers))]
        if self._samples[below].is_part:
            rows = rows[: probes.PASSES * self._samples[below].rows]
        found.rows = len(rows)
        layer = self._steps[below].learner.snapshot()

        def work(workers: int) -> probes.Work:
            return probes.transforming(layer, rows, self._run(workers))

        for workers in (1, *sizes(self.workers)):
            found.transform[workers] = probes.Probe(work(workers), cores=workers)
        if self.threads > 1:
            found.blas["transform"] = probes.Probe(work(1), blas_threads=self.threads)


def _rows(batch_size: int, width: int, examples: int) -> int:
    """Return how many random rows a layer is timed on; of wide ones fewer than a minibatch has."""
    most = max(probes.MOST_NUMBERS // width, CHUNK_ROWS * CHUNKS_AT_ONCE)
    return min(max(batch_size, min(examples, most)), max(1, WIDE_NUMBERS // width))


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
    workers = workers or settings.workers
    refused = {
        f"batch_size: got {settings.batch_size}, expected at most {task.examples}, the examples to"
        " train on": settings.batch_size > task.examples,
        f"workers: got {workers} with backend {settings.backend}, expected none: the GPUs that the"
        " backend names are timed": is_on_gpus(task) and workers is not None,
    }
    refuse(refused)
    if is_on_gpus(task):
        return measure_devices(task, seconds=seconds)
    return measure(task, workers=workers or usable_cores(), seconds=seconds)


def steps_on_device(learner: Learner, train_step: TrainStep, X: Any) -> probes.Work:
    """Return steps on rows of X as work, done in whole blocks of steps.

    The first block is launched step by step, the second is recorded.
    """
    backend, batch = learner.backend, learner.batch_size
    learner.learning_rate = 1e-9  # the weights stay where they are, however often it is timed
    with learner.stream:
        order = shuffled(len(X), seed=0, layer=learner.layer, epoch=1)
        rows = backend.asarray(np.resize(order, batch * backend.steps_at_once))
        learner.stream.synchronize()
    done = [0]  # steps

    def work(times: int) -> float:
        with learner.stream:
            blocks = -(-times // backend.steps_at_once)
            started = perf_counter()
            for _ in range(blocks):
                own = (batch, 1, done[0], learner.constants(1))
                learner.recorder.train(StepBlock(train_step, X, rows, *own))
                done[0] += backend.steps_at_once
            learner.stream.synchronize()
            return (perf_counter() - started) / (blocks * backend.steps_at_once) * times

    return work


def measure_devices(task: Task, *, seconds: float) -> Timings:
    """Time every layer on its GPU, by itself, beside the others, and shared by several GPUs.

    Parameters
    ----------
    task : Task
        Settings of the stack, with a backend of GPUs, and numbers of rows; schedule, replicas and
        shards do not count.
    seconds : float
        About how long to measure.

    Raises
    ------
    SettingsError
        If there is no such GPU, or the stack does not fit its memory.
    """
    settings = task.settings
    started, depth = perf_counter(), len(settings.layers) - 1
    bench = _DeviceBench(_unshared(settings), task.examples, min(task.held_out, PROBE_ROWS))
    most = max(probes.MOST_SECONDS, seconds)
    with closing(WorkerPool(depth, "syncpretrain-plan")) as pool:
        layers = [bench.layer(i, pool) for i in range(depth)]
        _time(layers, seconds, most - (perf_counter() - started))
    found = tuple(own.timings(1.0, 1) for own in layers)
    notes = probes.notes_on(layers, most)
    return Timings(found, bench.gpus, 1, perf_counter() - started, notes=notes, unit=GPU)


class _DeviceBench:
    """The stack's learners on their GPUs, and rows for each."""

    def __init__(self, settings: PretrainSettings, examples: int, held_out: int) -> None:
        self._settings, self._backend = settings, build.backend_of_layers(settings)
        self.gpus = len(self._backend.devices())
        self._can_share = not unreadable_pairs(self._backend.xp)
        draw, batch = np.random.default_rng(0).random, settings.batch_size
        widths = settings.layers[:-1]
        counts = [max(batch, min(examples, probes.MOST_NUMBERS // width)) for width in widths]
        free = self._backend.free_bytes() or 0
        drawn = [draw((n, width), dtype="f4") for n, width in zip(counts, widths, strict=True)]
        others = chain_bytes(settings)
        check_device_memory(settings, free, drawn, sum(counts), bounded=False, others=others)
        self._learners = [self._learner(i) for i in range(len(widths))]
        self._rows = []
        for learner, rows in zip(self._learners, drawn, strict=True):
            with learner.stream:
                self._rows.append(learner.backend.asarray(rows))
                learner.stream.synchronize()
        self._held_out = held_out
        self._steps = [self._step(i, 1) for i in range(len(widths))]

    def layer(self, i: int, pool: WorkerPool) -> probes.LayerProbes:
        """Return what is timed of a layer."""
        settings, learner, X = self._settings, self._learners[i], self._rows[i]
        batch = settings.batch_size
        shape, cd_steps = settings.shapes[i], settings.cd_steps[i]
        places = batch * shape.positions
        with learner.stream:
            bare = probes.BareProducts(learner.backend, learner.precision, shape, places, cd_steps)
            held_out = X[: self._held_out]
            learner.stream.synchronize()
        found = probes.LayerProbes(
            sample=probes.Sample(batch, batch),
            step=probes.Probe(self._steps[i]),
            products=probes.Probe(steps_on_device(self._learner(i), bare.train_step, X)),
            validation=probes.Probe(probes.validating(learner, held_out)),
            busy=probes.beside(self._steps[i], self._steps[:i] + self._steps[i + 1 :], pool),
        )
        for gpus in sizes(self.gpus) if self._can_share else ():
            if gpus <= batch:
                found.sharded["examples", gpus] = {1: probes.Probe(self._step(i, gpus))}
        if i:
            below, rows = self._learners[i - 1], chunk_rows(self._backend, settings.layers)
            with below.stream:
                some = self._rows[i - 1][: rows * CHUNKS_AT_ONCE]
                layer = below.snapshot()
                below.stream.synchronize()
            found.rows = len(some)
            work = probes.transforming(layer, some, reader=learner.backend, rows=rows)
            found.transform[1] = probes.Probe(work)
        return found

    def _learner(self, i: int) -> Learner:
        return build.build_learner(self._settings, i + 1, self._backend)

    def _step(self, i: int, gpus: int) -> probes.Work:
        """Return a layer's steps, whole or in shards on several GPUs."""
        learner = self._learners[i] if gpus == 1 else self._learner(i)
        step = build.step_for(learner, gpus, "examples", gpus)
        return steps_on_device(learner, step.train_step, self._rows[i])
