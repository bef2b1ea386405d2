"""Asynchronous fine-tuning: replicas of the network, each on minibatches of its own.

An epoch has the same minibatches in the same order as the synchronous trainer; the replica that is
free next trains on the next one. The server has the parameters, and nothing else: each replica has
its own momentum or Adam's moments, because a momentum of the server would go on along directions as
stale as it is long (Giladi et al. 2019).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from syncpretrain.events import Event, Notice, Progress
from syncpretrain.finetuning.optimizers import optimizer_vectors
from syncpretrain.finetuning.options import TuningOptions
from syncpretrain.finetuning.state import FinetuneSaver, FinetuneState
from syncpretrain.finetuning.trainable import Trainable
from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.cursor import Cursor
from syncpretrain.parallel.replicas.server import AsyncRules, ParameterServer
from syncpretrain.parallel.replicas.steps import Fleet, ReplicaFactory, Task, tasks_of
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.schedule.kinds import ASYNC
from syncpretrain.workers.replicas import replicas_in

__all__ = [
    "OptimizersOfReplicas",
    "Training",
    "async_epoch",
    "copies_of_replicas",
    "fleet_of",
]

REPORT_SECONDS = 0.2  # five reports a second: smooth to the eye, and no cost beside the minibatches


class OptimizersOfReplicas:
    """All replicas' optimizers, as the one optimizer that a trainer calls."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.steps = 0

    def numbers(self, rate: float, steps: int) -> tuple[()]:
        """Return none: no step is recorded."""
        return ()

    def state(self) -> dict[str, Array]:
        """Return what the replicas remember."""
        return self.fleet.state()

    def load_state(self, state: Mapping[str, Array], *, steps: int) -> None:
        """Go back to what :meth:`state` held."""
        self.fleet.load_state(state)

    def train(self, *arguments: Any, **options: Any) -> float:
        """Raise an error: the trainer's own network is the server's, and not trained."""
        raise AssertionError("an asynchronous trainer trains its replicas alone")


class Training(Protocol):
    """The trainer of an asynchronous fine-tuning: see ``syncpretrain/finetuning/trainer.py``."""

    options: TuningOptions
    examples: Any  # ``inputs`` has a row for each example
    steps: int
    first_error: float
    stop: Callable[[], bool]
    save: FinetuneSaver | None

    def state(self, epoch: int, cursor: Cursor) -> FinetuneState:
        """Return a copy of all that the rest depends on."""
        ...

    def diverged(self, epoch: int, cause: str) -> BaseException:
        """Return the error."""
        ...

    def interrupted(self, epoch: int, step: int) -> BaseException:
        """Return the error."""
        ...

    def emit(self, event: Event) -> None:
        """Pass an event to the observers."""
        ...


def async_epoch(training: Training, fleet: Fleet, epoch: int, begin: Cursor) -> float:
    """Train on every minibatch once; return the sum of their errors, each before its update."""
    options, steps = training.options, training.steps
    total, trained, reported = begin.error, begin.minibatches, time.monotonic()

    def each(task: Task, errors: Sequence[float], staleness: int) -> None:
        nonlocal total, trained, reported
        if (task.epoch, task.first) == (1, 0):
            rows = min(task.count * options.batch_size, len(training.examples.inputs))
            training.first_error = errors[0] / rows
        total, trained = total + errors[0], trained + task.count
        if not np.isfinite(total):
            raise training.diverged(epoch, f"the error is {total} after {trained} minibatches")
        if time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            training.emit(Progress(reported, 0, epoch, trained / steps))

    tasks = tasks_of(epoch, trained, steps, options.push_every)
    if fleet.train(tasks, training.stop, each) < len(tasks):
        if training.save is not None:
            at = Cursor(trained, float(total))
            training.save(lambda: training.state(epoch, at), done=epoch - 1, final=True)
        raise training.interrupted(epoch, trained)
    return float(total)


def fleet_of(
    build: ReplicaFactory,
    network: Trainable,
    options: TuningOptions,
    data: Sequence[Any],
    emit: Callable[[Event], None],
    times: Timeouts,
) -> Fleet:
    """Return the replicas, made by ``build``; ``network`` holds the server's parameters."""
    push = options.push_every
    rules = AsyncRules(
        push_every=push,
        fetch_every=options.fetch_every or push,
        rate=options.async_rate,
        compensation=options.delay_compensation,
        max_staleness=options.max_staleness,
    )
    return replicas_in(
        options.runtime,
        ParameterServer(network.parameters, rules, options.servers),
        rules,
        build,
        data,
        replicas=options.replicas or 1,
        delay=options.simulate_staleness,
        trims=options.trim_replicas,
        report=lambda message: emit(Notice(time.monotonic(), message)),
        times=times,
    )


def copies_of_replicas(options: TuningOptions, examples: int) -> int:
    """Return how many vectors of the parameters' size asynchronous replicas hold here."""
    if options.schedule != ASYNC:
        return 0
    replicas = options.replicas or 1
    if options.runtime == "mpi":
        return 2 * replicas  # the fetched parameters and the change
    own = 4 + optimizer_vectors(options)  # parameters, gradients, fetched ones and the change
    late = max(options.simulate_staleness or 0, replicas)
    tasks = -(-examples // (options.batch_size * options.push_every))  # of an epoch
    waiting = min(late, tasks) * 2 if options.runtime == "serial" else 0
    return own * replicas + waiting
