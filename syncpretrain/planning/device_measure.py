"""Timings of a stack's layers on the GPUs that they would be dealt to."""

from __future__ import annotations

from time import perf_counter

import msgspec
import numpy as np

from syncpretrain.learners.base import Learner
from syncpretrain.learners.select import step_for
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.planning.device_probes import (
    BareProducts,
    steps_on_device,
    transforming_on_device,
    validating_on_device,
)
from syncpretrain.planning.gpu import unreadable_pairs
from syncpretrain.planning.probes import LayerProbes, Probe, Work, beside, measured, notes_on
from syncpretrain.planning.samples import MOST_NUMBERS, MOST_SECONDS, Sample
from syncpretrain.planning.timings import GPU, Timings, sizes
from syncpretrain.pretraining.build import backend_of_layers, build_learner
from syncpretrain.pretraining.memory import check_device_memory
from syncpretrain.settings import PretrainSettings
from syncpretrain.workers.activations import CHUNKS_AT_ONCE, chunk_rows
from syncpretrain.workers.worker import PROBE_ROWS

__all__ = ["measure_devices"]


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
