"""Asynchronous fine-tuning: replicas of the network, each on minibatches of its own.

An epoch's minibatches are those of the synchronous trainer, in the same order, each trained by the
replica that is free next. The server has the parameters, and nothing else: momentum and Adam's
moments are the replicas', because a momentum of the server would go on along directions that are
as stale as it is long (Giladi et al. 2019).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from syncpretrain.backends.numpy_backend import NumpyBackend
from syncpretrain.data.order import minibatches, steps_per_epoch
from syncpretrain.events import Event, Notice, Progress
from syncpretrain.finetuning.chain import Dropout, Link
from syncpretrain.finetuning.data_parallel import network_of
from syncpretrain.finetuning.optimizers import LEARNING_RATES, optimizer_for, scheduled
from syncpretrain.finetuning.options import TuningOptions
from syncpretrain.finetuning.state import FinetuneSaver, FinetuneState
from syncpretrain.finetuning.trainable import Trainable
from syncpretrain.finetuning.weights import ExampleWeights
from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.cursor import Cursor
from syncpretrain.parallel.replicas.rules import AsyncRules
from syncpretrain.parallel.replicas.server import ParameterServer
from syncpretrain.parallel.replicas.steps import Fleet, ReplicaFactory, Task, tasks_of
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining.runtime.replicas import replicas_in

__all__ = ["OptimizersOfReplicas", "Training", "TunedReplica", "async_epoch", "fleet_of"]

STEPS = "steps"
STEPS_BASE = 1 << 20  # of the two digits in which float32 keeps a number of steps
REPORT_SECONDS = 0.2


class TunedReplica:
    """A network that trains on its own; see :class:`syncpretrain.parallel.replicas.steps.Replica`.

    Parameters
    ----------
    chain : sequence of Link
    loss : str
    options : TuningOptions
    weights : ndarray of shape (n_examples, 1) or None
    data : sequence of ndarray
        The inputs, and the targets if they are others.
    """

    def __init__(
        self,
        chain: Sequence[Link],
        loss: str,
        options: TuningOptions,
        weights: Array | None,
        data: Sequence[Any],
    ) -> None:
        self._options, self._backend = options, NumpyBackend()
        self._inputs, self._targets = data[0], data[-1]
        self.network = network_of(
            chain,
            split="units",
            loss=loss,
            batch_size=options.batch_size,
            dropout=Dropout(options.input_dropout, options.dropout, options.seed),
            shards=1,
            backend=self._backend,
        )
        self.optimizer = optimizer_for(options)(self.network)
        widths = (self._inputs.shape[1], self._targets.shape[1])
        self._batch = [np.empty((options.batch_size, n), np.float32) for n in widths]
        self._weights = ExampleWeights(weights, self.network, self._batch[1].shape)
        self._rate = options.learning_rate or LEARNING_RATES[options.optimizer]
        self._steps = steps_per_epoch(len(self._inputs), options.batch_size)
        self._trained = 0
        self._order: tuple[int, list[Any]] = (0, [])

    @property
    def parameters(self) -> list[Array]:
        """The flat vector of the network."""
        return [self.network.parameters]

    def train(self, epoch: int, step: int) -> tuple[float]:
        """Train on a minibatch of an epoch; return its summed error."""
        rows = self._rows(epoch)[step]
        self._weights.take(rows)
        x = target = self._backend.gather(self._inputs, rows, out=self._batch[0][: len(rows)])
        if self._targets is not self._inputs:
            target = self._backend.gather(self._targets, rows, out=self._batch[1][: len(rows)])
        options = self._options
        done = ((epoch - 1) * self._steps + step) / (options.epochs * self._steps)
        rate = self._rate * scheduled(options.rate_schedule, done)
        self._trained += 1
        return (
            float(self.optimizer.train(self.network, x, target, rate=rate, epoch=epoch, step=step)),
        )

    def state(self) -> dict[str, Array]:
        """Return what the optimizer remembers."""
        digits = np.array(divmod(self._trained, STEPS_BASE), np.float32)
        return {**self.optimizer.state(), STEPS: digits}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go back to what :meth:`state` held."""
        self._trained = 0
        for digit in state[STEPS]:  # an older state has a single one, the number
            self._trained = self._trained * STEPS_BASE + int(digit)
        self.optimizer.load_state(state, steps=self._trained)

    def _rows(self, epoch: int) -> list[Any]:
        if self._order[0] != epoch:
            own = self._options
            order = minibatches(
                len(self._inputs), own.batch_size, seed=own.seed, layer=0, epoch=epoch
            )
            self._order = (epoch, list(order))
        return self._order[1]


class OptimizersOfReplicas:
    """The replicas' optimizers, where a trainer expects that of its network."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

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
    examples: Any  # of which ``inputs`` has a row each
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
    """Return the replicas that ``build`` builds; ``network`` has the parameters of the server."""
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
