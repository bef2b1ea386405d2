"""Timings of a stack's layers on the GPUs that they would be dealt to.

The pieces of a layer's work are timed: blocks of steps, input, validation, products. Each piece is
queued on a learner's stream, and waits for it at the end. So it takes the seconds of the GPU, or of
the interpreter if that is slower. Never tried on a GPU.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.base import Backend, TrainStep
from syncpretrain.data.order import shuffled
from syncpretrain.learners.base import Learner
from syncpretrain.learners.select import step_for
from syncpretrain.models.layer import Layer
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.planning.gpu import drawn, unreadable_pairs
from syncpretrain.planning.probes import LayerProbes, Probe, Work, beside, measured, notes_on
from syncpretrain.planning.samples import MOST_NUMBERS, MOST_SECONDS, Sample
from syncpretrain.planning.timings import GPU, Timings, sizes
from syncpretrain.pretraining.build import backend_of_layers, build_learner
from syncpretrain.pretraining.memory import check_device_memory
from syncpretrain.settings import PretrainSettings
from syncpretrain.shapes import LayerShape
from syncpretrain.workers.activations import CHUNKS_AT_ONCE, chunk_rows, transform
from syncpretrain.workers.split import Split
from syncpretrain.workers.worker import PROBE_ROWS

__all__ = [
    "BareProducts",
    "measure_devices",
    "steps_on_device",
    "transforming_on_device",
    "validating_on_device",
]


def steps_on_device(learner: Learner, train_step: TrainStep, X: Any) -> Work:
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
                learner.recorder.train(
                    *(train_step, X, rows),
                    batch_size=batch,
                    epoch=1,
                    step=done[0],
                    constants=learner.constants(1),
                )
                done[0] += backend.steps_at_once
            learner.stream.synchronize()
            return (perf_counter() - started) / (blocks * backend.steps_at_once) * times

    return work


class BareProducts:
    """The matrix products of a step of contrastive divergence: 2 k + 3 passes over the weights.

    Parameters
    ----------
    learner : Learner
        On a GPU.
    shape : LayerShape
        Shape of the layer; the rows of a convolution's products are the positions.
    cd_steps : int
    """

    def __init__(self, learner: Learner, shape: LayerShape, cd_steps: int) -> None:
        rows, visible, hidden = (
            learner.batch_size * shape.positions,
            shape.fan_in,
            shape.biases[1],
        )
        new = partial(drawn, learner.backend)
        self._multiply, self._cd_steps, self._rows = learner.precision.multiply, cd_steps, rows
        with learner.stream:
            self._v, self._h = new((2 * rows, visible)), new((2 * rows, hidden))
            self._states, self._weights = new((rows, hidden)), new((visible, hidden))
            self._gradient = new((visible, hidden))
            self._error = learner.backend.zeros((), np.float64)
            learner.stream.synchronize()

    def train_step(self, X: Any, rows: NDArray[np.intp], *, epoch: int, step: int) -> Any:
        """Queue the products; the rows do not count."""
        n, multiply = self._rows, self._multiply
        multiply(self._v[:n], self._weights, out=self._h[:n])
        for _ in range(self._cd_steps):
            multiply(self._states, self._weights.T, out=self._v[n:])
            multiply(self._v[n:], self._weights, out=self._h[n:])
        multiply(self._v.T, self._h, out=self._gradient)
        return self._error


def transforming_on_device(
    below: Learner, layer: Layer, X: Any, reader: Backend, rows: int
) -> Work:
    """Return, as work, the making of a layer's activations of X on their reader's device.

    ``rows`` is the number of rows of a chunk.
    """
    stream, width = reader.stream(), layer.shape.hidden
    with stream:
        target = Split(reader.empty((len(X), width)), reader.empty((0, width)))
    with below.stream:
        source = Split(X, below.backend.empty((0, X.shape[1])))
        below.stream.synchronize()

    def work(times: int) -> float:
        with stream:
            started = perf_counter()
            for _ in range(times):
                transform([layer], source, target, lambda: False, reader=reader, rows=rows)
            stream.synchronize()
            return perf_counter() - started

    return work


def validating_on_device(learner: Learner, held_out: Any) -> Work:
    """Return what a worker does at the end of an epoch."""

    def work(times: int) -> float:
        with learner.stream:
            started = perf_counter()
            for _ in range(times):
                learner.largest_weight()
                learner.snapshot()
                if len(held_out):
                    learner.validation_error(held_out)
            learner.stream.synchronize()
            return perf_counter() - started

    return work


def measure_devices(
    settings: PretrainSettings, *, examples: int, held_out: int, seconds: float
) -> Timings:
    """Time every layer on its GPU, by itself, beside the others, and shared by several GPUs.

    Parameters
    ----------
    settings : PretrainSettings
        Settings of the stack, with a backend of GPUs; schedule, replicas and shards do not count.
    examples, held_out : int
        Rows to train on, and to validate on after an epoch.
    seconds : float
        About how long to measure.

    Raises
    ------
    SettingsError
        If there is no such GPU, or the stack does not fit its memory.
    """
    started, depth = perf_counter(), len(settings.layers) - 1
    plain = msgspec.structs.replace(
        settings, replicas=(1,) * depth, shards=(0,) * depth, split="examples"
    )
    bench = _Bench(plain, examples, min(held_out, PROBE_ROWS))
    pool = WorkerPool(depth, "syncpretrain-plan")
    try:
        layers = [bench.probes(i, pool) for i in range(depth)]
        needed = [probe for own in layers for probe in own.needed()]
        others = [probe for own in layers for probe in own.others()]
        most = max(MOST_SECONDS, seconds)
        left = most - (perf_counter() - started)
        measured([*needed, *others], seconds=seconds, most=left)
    finally:
        pool.close()
    found = tuple(own.timings(1.0, 1) for own in layers)
    notes = notes_on(layers, most)
    return Timings(found, bench.gpus, 1, perf_counter() - started, notes=notes, unit=GPU)


class _Bench:
    """The stack's learners on their GPUs, and rows for each."""

    def __init__(self, settings: PretrainSettings, examples: int, held_out: int) -> None:
        self._settings, self._backend = settings, backend_of_layers(settings)
        self.gpus = len(self._backend.devices())
        self._can_share = not unreadable_pairs(self._backend.xp)
        draw, batch = np.random.default_rng(0).random, settings.batch_size
        widths = settings.layers[:-1]
        counts = [max(batch, min(examples, MOST_NUMBERS // width)) for width in widths]
        free = self._backend.free_bytes() or 0
        drawn = [draw((n, width), dtype="f4") for n, width in zip(counts, widths, strict=True)]
        check_device_memory(settings.shapes, free, drawn, batch_size=batch, bounded=False)
        self._learners = [self._learner(i) for i in range(len(widths))]
        self._rows = []
        for learner, rows in zip(self._learners, drawn, strict=True):
            with learner.stream:
                self._rows.append(learner.backend.asarray(rows))
                learner.stream.synchronize()
        self._held_out = held_out
        self._steps = [self._step(i, 1) for i in range(len(widths))]

    def probes(self, i: int, pool: WorkerPool) -> LayerProbes:
        """Return what is timed of a layer."""
        settings, learner, X = self._settings, self._learners[i], self._rows[i]
        batch = settings.batch_size
        bare = BareProducts(learner, settings.shapes[i], settings.cd_steps[i])
        with learner.stream:
            held_out = X[: self._held_out]
        probes = LayerProbes(
            sample=Sample(batch, batch),
            step=Probe(self._steps[i]),
            products=Probe(steps_on_device(self._learner(i), bare.train_step, X)),
            validation=Probe(validating_on_device(learner, held_out)),
            busy=self._busy(i, pool),
        )
        for gpus in sizes(self.gpus) if self._can_share else ():
            if gpus <= batch:
                probes.sharded["examples", gpus] = {1: Probe(self._step(i, gpus))}
        if i:
            below, rows = self._learners[i - 1], chunk_rows(self._backend, settings.layers)
            with below.stream:
                some = self._rows[i - 1][: rows * CHUNKS_AT_ONCE]
                layer = below.snapshot()
                below.stream.synchronize()
            probes.rows = len(some)
            work = transforming_on_device(below, layer, some, learner.backend, rows)
            probes.transform[1] = Probe(work)
        return probes

    def _learner(self, i: int) -> Learner:
        return build_learner(self._settings, i + 1, self._backend)

    def _step(self, i: int, gpus: int) -> Work:
        """Return a layer's steps, whole or in shards on several GPUs."""
        learner = self._learners[i] if gpus == 1 else self._learner(i)
        step = step_for(learner, gpus, "examples", gpus)
        return steps_on_device(learner, step.train_step, self._rows[i])

    def _busy(self, i: int, pool: WorkerPool) -> Probe | None:
        """Return a layer's step while all others train; None if there are none."""
        others = self._steps[:i] + self._steps[i + 1 :]
        if not others:
            return None
        return Probe(beside(self._steps[i], others, pool), cores=len(others) + 1)
