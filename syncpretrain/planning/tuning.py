"""Fine-tuning on this machine, predicted: synchronous, and asynchronous by the number of replicas.

Some minibatches of random examples are trained on an untrained stack, which is thrown away. Of
asynchronous fine-tuning one replica is timed alone and beside others, and its exchange with the
server; what follows for a number of replicas is in ``planning/asynchronous.py``.
"""

from __future__ import annotations

import dataclasses
import math
from contextlib import closing
from itertools import cycle
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from syncpretrain.data.order import steps_per_epoch
from syncpretrain.errors import RunInterrupted, SettingsError
from syncpretrain.finetuning.options import STEPPING, TuningOptions, tuning_options
from syncpretrain.finetuning.prepared import Finetuning
from syncpretrain.finetuning.tasks import Form, Part
from syncpretrain.finetuning.updates import TunedReplica
from syncpretrain.learners.first_layers import untrained_stack
from syncpretrain.models.stack import Stack
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.planning.asynchronous import AsyncPlan, AsyncStage, predict_stages
from syncpretrain.planning.probes import Probe, Work, beside, exchange_of, measured, repeated
from syncpretrain.schedule.kinds import ASYNC
from syncpretrain.settings import FinetuneSettings, PretrainSettings, off_ranks
from syncpretrain.settings.fields import ASYNC_DEFAULTS

WARM_UP = 2  # minibatches that are not counted
CLASSES = 10  # of random targets, as of MNIST
TUNED_NUMBERS = 4_000_000  # of the random rows
PASS_OPERATIONS = 6  # for a weight and a position: forward, error, gradient
TIMED_OPERATIONS, MOST_OPERATIONS = 1e10, 4e10  # of a minibatch that is timed: about a second


class TuningPlan(NamedTuple):
    """Predicted fine-tuning.

    Attributes
    ----------
    options : TuningOptions
        The options as asked for.
    synchronous : float or None
        Seconds of an epoch if workers share its minibatches; None if steps differ in length.
    replicas : int
        The workers that share a minibatch there.
    asynchronous : AsyncPlan or None
        Plan of one epoch, by the number of replicas; None if the optimizer permits none.
    reason : str
        Reason why something is not predicted.
    note : str
        Note on the part that was timed, if not all was.
    """

    options: TuningOptions
    synchronous: float | None
    replicas: int
    asynchronous: AsyncPlan | None
    reason: str = ""
    note: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """Options of the asynchronous fine-tuning that the user left open."""
        if self.options.schedule != ASYNC or self.asynchronous is None or self.options.replicas:
            return {}
        return {"finetune_replicas": self.asynchronous.paying.replicas}

    @property
    def sentences(self) -> list[str]:
        """All of it in sentences."""
        named = f"fine-tuning for {self.options.objective}"
        if self.synchronous is None:
            found = [f"{named} is not predicted: {self.reason}"]
        else:
            shared = "one worker" if self.replicas == 1 else f"{self.replicas} workers"
            found = [f"{named}: {self.synchronous:.1f} s an epoch, {shared}{self.note}"]
        if self.asynchronous is not None:
            rows = self.asynchronous.by_replicas
            found.append(f"asynchronous fine-tuning, an epoch by the number of replicas: {rows}")
        return found

    def report(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "objective": self.options.objective,
            "schedule": self.options.schedule,
            "epochs": self.options.epochs,
            "epoch_seconds": self.synchronous,
            "replicas": self.replicas,
            "asynchronous": self.asynchronous and self.asynchronous.report(),
            "reason": self.reason,
        }


def plan_tuning(
    pretrain: PretrainSettings,
    finetune: FinetuneSettings,
    *,
    workers: int,
    examples: int,
    seconds: float = 3.0,
) -> TuningPlan:
    """Measure the fine-tuning of a stack here, and predict an epoch of each kind.

    Parameters
    ----------
    pretrain : PretrainSettings
        Settings of the stack.
    finetune : FinetuneSettings
        With an objective. Targets are random: of 10 classes, or one number.
    workers : int
        Largest number of workers.
    examples : int
        To train on.
    seconds : float
        About how long to measure.

    Raises
    ------
    SettingsError
        If the settings do not fit the stack, or the memory does not suffice.

    Notes
    -----
    For large stacks a part of a minibatch is timed, and scaled up.
    """
    options = tuning_options(finetune, seed=pretrain.seed, backend="numpy", patience=None)
    plain = {"schedule": "synchronous", "runtime": "threads", **ASYNC_DEFAULTS}
    is_async = options.schedule == ASYNC
    shared = replace(options, replicas=None, **plain) if is_async else off_ranks(options)
    rows, reason = _timed_rows(pretrain, options, workers), ""
    if options.optimizer not in STEPPING:
        reason = f"steps by {options.optimizer} differ in length"
    elif rows == 0:
        reason = "a minibatch of a few examples takes too long to be timed"
    if reason:
        return TuningPlan(options, None, options.replicas or 1, None, reason)
    B, steps = options.batch_size, steps_per_epoch(examples, options.batch_size)
    units = pretrain.hidden_units, pretrain.visible_units
    stack = untrained_stack(pretrain.shapes, *units, seed=pretrain.seed)
    train = _random_part(pretrain, options, examples)
    tuning = Finetuning(Form.of(stack), replace(_limited(shared, workers), batch_size=rows), train)
    given = {name: getattr(options, name) for name in ASYNC_DEFAULTS}
    given |= {"schedule": ASYNC, "replicas": workers, "split": None, "shards": 0}
    given |= {"simulate_staleness": None, "runtime": "threads", "batch_size": rows}
    replicas = Finetuning(Form.of(stack), replace(options, **given), train)
    minibatch = minibatch_seconds(tuning, stack, seconds=seconds / 2)
    stage = async_stage(replicas, stack, workers=workers, steps=steps, seconds=seconds / 2)
    whole = dataclasses.replace(stage, computing=stage.computing * B / rows)
    return TuningPlan(
        options,
        None if minibatch is None else steps * minibatch * B / rows,
        tuning.options.replicas or 1,
        predict_stages([whole], workers=workers, rate=options.async_rate),
        note="" if rows == B else f"; timed on {rows} of the {B} examples of a minibatch",
    )


def _timed_rows(pretrain: PretrainSettings, options: TuningOptions, workers: int) -> int:
    """Return how many examples of a minibatch are timed; 0 where even a few take too long."""
    both = 2 if options.objective == "reconstruction" else 1  # encoder and decoder
    operations = both * PASS_OPERATIONS * sum(shape.products for shape in pretrain.shapes)
    least = min(options.batch_size, max(workers, options.replicas or 1, options.shards))
    if least * operations > MOST_OPERATIONS:
        return 0
    return min(options.batch_size, max(least, int(TIMED_OPERATIONS // operations)))


def minibatch_seconds(tuning: Finetuning, stack: Stack, *, seconds: float) -> float | None:
    """Return the seconds of a minibatch of synchronous fine-tuning; None for cg and lbfgs.

    The stack is trained for about that many seconds, and stays as it is.

    Raises
    ------
    RunInterrupted
        If a signal asked for it.
    """
    if tuning.options.optimizer not in STEPPING:
        return None
    started: list[float] = []  # when each minibatch began

    def is_over() -> bool:
        return len(started) > WARM_UP + 1 and started[-1] - started[WARM_UP] > seconds

    def stop() -> bool:
        started.append(perf_counter())
        return is_over()

    began = perf_counter()
    try:
        tuning.run(stack, stop=stop)
    except RunInterrupted:
        if not is_over():
            raise
        return (started[-1] - started[WARM_UP]) / (len(started) - 1 - WARM_UP)
    return (perf_counter() - began) / max(1, len(started))  # all of it was over before


def async_stage(
    tuning: Finetuning, stack: Stack, *, workers: int, steps: int, seconds: float
) -> AsyncStage:
    """Measure the tasks of an epoch of asynchronous fine-tuning, of ``steps`` minibatches."""
    options = tuning.options
    replicas = [tuning.replica(stack) for _ in range(workers)]
    works = [_training(replica, tuning) for replica in replicas]
    alone = Probe(works[0])
    with closing(WorkerPool(workers, "syncpretrain-plan")) as pool:
        busy = beside(works[0], works[1:], pool)
        measured([alone, busy] if busy else [alone], seconds=seconds)
    exchange = exchange_of(sum(array.size for array in replicas[0].parameters), options)
    return AsyncStage(
        tasks=math.ceil(steps / options.push_every),
        computing=options.push_every * alone.seconds,
        contention=max(1.0, busy.relative_to(alone)) if busy else 1.0,
        local=exchange.local,
        server=exchange.server(options.period),
    )


def _training(replica: TunedReplica, tuning: Finetuning) -> Work:
    """Return the minibatches of a replica as work."""
    steps = cycle(range(tuning.steps))
    return repeated(lambda: replica.train(1, next(steps)))


def _limited(options: TuningOptions, workers: int) -> TuningOptions:
    """Return options that leave to the workers of this machine what they leave open."""
    if options.replicas is not None:
        return options
    return replace(options, blas_threads=min(workers, options.blas_threads or workers))


def _random_part(pretrain: PretrainSettings, options: TuningOptions, examples: int) -> Part:
    """Return random examples, with targets if the objective has some."""
    width = pretrain.layers[0]
    if options.batch_size > examples:
        raise SettingsError(
            f"finetune_batch_size: got {options.batch_size}, expected at most {examples}, the"
            " examples to train on"
        )
    rows = max(options.batch_size, min(examples, TUNED_NUMBERS // width))
    draws = np.random.default_rng(0)
    X = draws.random((rows, width), dtype=np.float32)
    targets: Any = None
    if options.objective == "classification":
        targets = np.arange(rows) % CLASSES
    elif options.objective == "regression":
        targets = draws.random(rows)
    return Part(X, targets, "y")
