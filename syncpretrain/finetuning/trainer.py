"""The epochs of fine-tuning: minibatches, the rate's schedule, early stopping, divergence.

A backend that records blocks of steps works minibatches a block at a time.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.base import Backend
from syncpretrain.data.examples import evenly_spaced
from syncpretrain.data.order import shuffled, steps_per_epoch
from syncpretrain.data.scaling import spread
from syncpretrain.errors import CheckpointError, DivergedError, RunInterrupted, WorkerError
from syncpretrain.events import (
    FinetuneEpochFinished,
    FinetuneStarted,
    Notice,
    Observer,
    Progress,
)
from syncpretrain.finetuning.data_parallel import network_of
from syncpretrain.finetuning.optimizers import LEARNING_RATES, Optimizer, scheduled
from syncpretrain.finetuning.options import STEPPING, TuningOptions, network_options
from syncpretrain.finetuning.parts import Examples
from syncpretrain.finetuning.state import FinetuneSaver, FinetuneState
from syncpretrain.finetuning.tasks import Reconstruction, Supervised
from syncpretrain.finetuning.trainable import Trainable
from syncpretrain.finetuning.weights import ExampleWeights
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.program import PhaseRunner, Phases
from syncpretrain.learners.base import Places
from syncpretrain.learners.cursor import Cursor, ErrorSum
from syncpretrain.models.stack import Stack
from syncpretrain.observers.errors import ErrorHistory, Observed
from syncpretrain.settings.finetuning import FinetuneSettings

__all__ = ["Trainer", "TuningBlocks"]


class TuningBlocks:
    """The training of a network on minibatches of some examples.

    Parameters
    ----------
    network : Trainable
    optimizer : Optimizer
    examples : Examples
    place : callable
        Returns inputs or targets on the network's device, in the memory that is left there.
    options : FinetuneSettings
    rate : float
        The learning rate at the start.
    weights : ndarray of shape (n_examples, 1) or None
        Weights of the examples.
    run : callable
        Works the phases of a step.

    Attributes
    ----------
    examples : Examples
        The examples on the network's device.
    recorder : Recorder
        Recorder that works the steps.
    steps : int
        Minibatches of an epoch.
    first_error : float
        Mean error of an example in the very first minibatch, before any update; NaN before that.
    """

    def __init__(
        self,
        network: Trainable,
        optimizer: Optimizer,
        examples: Any,
        options: FinetuneSettings,
        *,
        place: Callable[[Any], Any],
        rate: float,
        weights: Array | None,
        run: PhaseRunner,
    ) -> None:
        self._network, self._optimizer = network, optimizer
        self._options, self._learning_rate, self._run = options, rate, run
        self._backend, size = network.backend, options.batch_size
        self.recorder = self._backend.recorder()
        self._arrays = tuple(self._backend.empty((size, x.shape[1])) for x in examples)
        self._weights = ExampleWeights(weights, network, self._arrays[1].shape)
        self.examples = examples.to(place)
        self.steps = steps_per_epoch(len(self.examples.inputs), size)
        self.first_error = math.nan

    def train(self, rows: Any, *, epoch: int, step: int, done: int) -> float:
        """Train on the minibatches from ``step`` to ``done``; return the sum of their errors.

        ``rows`` holds the row numbers of all of them, on a device as an array of that device.
        """
        optimizer, first = self._optimizer, (epoch - 1) * self.steps
        rates = [self._rate(first + number) for number in range(step, done)]
        table = None
        if self._backend.devices():  # elsewhere nothing is recorded
            numbers = [optimizer.numbers(rate, first + step + i) for i, rate in enumerate(rates, 1)]
            with np.errstate(over="ignore"):  # the caller checks the error
                table = np.array(numbers, dtype=np.float32)
        error: float = self.recorder.train(
            *(self._step, None, rows),
            batch_size=self._options.batch_size,
            epoch=epoch,
            step=step,
            constants=None,
            numbers=table,
        )
        optimizer.steps = first + done  # a block that was launched again has not counted
        return error

    def _step(self, X: None, rows: Any, *, epoch: int, step: int) -> float:
        gather, (inputs, targets) = self._backend.gather, self.examples
        self._weights.take(rows)
        x = target = gather(inputs, rows, out=self._arrays[0][: len(rows)])
        if targets is not inputs:
            target = gather(targets, rows, out=self._arrays[1][: len(rows)])
        # A block whose recording failed has counted its steps without working them.
        self._optimizer.steps = (epoch - 1) * self.steps + step
        rate = self._rate(self._optimizer.steps)
        error = self._optimizer.train(
            self._network, x, target, rate=rate, epoch=epoch, step=step, run=self._run
        )
        if (epoch, step) == (1, 0):
            self.first_error = float(error) / len(rows)
        return error

    def _rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0 over all epochs."""
        done = step / (self._options.epochs * self.steps)
        return self._learning_rate * scheduled(self._options.rate_schedule, done)


# Rows that an epoch's error is measured on unless early stopping depends on it: a fraction of the
# time of an epoch, and a standard error of 1.6 points at most for a share of wrong classes.
VALIDATION_ROWS = 1000
PROGRESS_SECONDS = 0.2
RESERVED_BYTES = 1 << 28  # of a device, besides the copies for a checkpoint
EXPLODED = 2.0  # times the error before the first update


class Trainer(Observed):
    """The training of one :class:`syncpretrain.finetuning.prepared.Finetuning`."""

    def __init__(
        self,
        task: Reconstruction | Supervised,
        examples: Examples,
        validation: Examples | None,
        options: TuningOptions,
        optimizer: Callable[[Trainable], Optimizer],
        *,
        observers: Sequence[Observer],
        history: ErrorHistory,
        stop: Callable[[], bool],
        save: FinetuneSaver | None,
        run_in_pool: Callable[[Phases, int, int], None],
        backend: Backend,
        weights: Array | None = None,
        share: Callable[[Any], Trainable] | None = None,
    ) -> None:
        super().__init__(observers, history)
        self._run_in_pool, self.backend = run_in_pool, backend
        self.task, self.options, self.seed = task, options, options.seed
        self.examples, self.stop, self.save = examples, stop, save
        if validation is not None and options.patience is None:
            validation = validation.to(lambda x: evenly_spaced(x, VALIDATION_ROWS))
        self.unknown = 0  # validation examples of a class that no training example has
        if validation is not None and options.objective == "classification":
            validation, self.unknown = _of_known_classes(validation)
        self.rate = options.learning_rate or LEARNING_RATES[options.optimizer]
        own: Any = {"loss": task.loss, "backend": backend, "share": share}
        self.network = network_of(task.chain(), **own, **network_options(options))
        self.optimizer = optimizer(self.network)
        sizes = [weight.size + bias.size for weight, bias in self.network.chain]
        self.places = Places(sizes, backend)  # which a state has without gaps
        self.good = np.empty_like(self.network.parameters)  # at the end of the last good epoch
        self.best = self.network.parameters.copy()  # where validation was best
        self.best_error, self.best_epoch = math.inf, 0
        self.first_error = math.nan  # of the first minibatch, before any update
        self.record: dict[str, Any] = {}
        # Last of all, in the memory that is left of a device.
        placed = partial(backend.examples, beside=self.best.nbytes + RESERVED_BYTES)
        self.validation = None if validation is None else validation.to(placed)
        self.blocks = TuningBlocks(
            *(self.network, self.optimizer, examples, options),
            place=placed,
            rate=self.rate,
            weights=weights,
            run=self.run,
        )
        self.examples, self.steps = self.blocks.examples, self.blocks.steps

    def train(self, record: Mapping[str, Any], resume: FinetuneState | None = None) -> Stack:
        """Train and return the stack, with ``record`` in its info; ``resume`` is where to begin."""
        options, epochs = self.options, self.options.epochs
        self.record = dict(record)
        self.emit(FinetuneStarted(time.monotonic(), options.objective, options.optimizer, epochs))
        first, begin = 1, Cursor()
        if resume is not None:
            first, begin = resume.epoch, resume.cursor
            self.load_state(resume)
        for epoch in range(first, epochs + 1):
            started = time.monotonic()
            try:
                train_error = self.train_epoch(epoch, begin)
            except WorkerError as error:
                error.stack = error.stack or self.last_good(epoch)
                raise
            begin = Cursor()
            self.check_epoch(epoch, train_error)
            np.copyto(self.good, self.network.parameters)
            held_out = self.validation_error()
            self.report(epoch, started, train_error, held_out)
            if held_out is not None and self.stops_early(epoch, held_out):
                np.copyto(self.network.parameters, self.best)
                return self.result(epochs=epoch, best_epoch=self.best_epoch)
            if self.save is not None and epoch < epochs:
                self.save(lambda: self.state(epoch + 1, Cursor()), done=epoch, final=False)  # noqa: B023
        if options.patience is not None:
            np.copyto(self.network.parameters, self.best)
            return self.result(epochs=epochs, best_epoch=self.best_epoch)
        return self.result(epochs=epochs)

    def report(self, epoch: int, started: float, *errors: float | None) -> None:
        """Report the errors of an epoch, in the units of the targets."""
        own: Any = [None if x is None else x * self.task.error_scale for x in errors]
        now, epochs = time.monotonic(), self.options.epochs
        self.emit(FinetuneEpochFinished(now, epoch, epochs, now - started, *own))

    def train_epoch(self, epoch: int, begin: Cursor) -> float:
        """Train on every minibatch once; return their mean error, each before its update."""
        reported, size, backend = time.monotonic(), self.options.batch_size, self.backend
        inputs = self.examples.inputs
        numbers = shuffled(len(inputs), seed=self.seed, layer=0, epoch=epoch)
        order = backend.order(inputs, numbers)
        errors = ErrorSum(backend, begin.error)
        for step in range(begin.minibatches, self.steps, backend.steps_at_once):
            if self.stop():
                if self.save is not None:
                    at = Cursor(step, errors.sum())
                    self.save(lambda: self.state(epoch, at), done=epoch - 1, final=True)  # noqa: B023
                raise self.interrupted(epoch, step)
            done = min(step + backend.steps_at_once, self.steps)
            rows = order[step * size : done * size]
            errors.add(self.blocks.train(rows, epoch=epoch, step=step, done=done), done)
            if (epoch, step) == (1, 0):
                self.first_error = self.blocks.first_error
            known = errors.so_far(done, self.steps)
            if not math.isfinite(known):
                symptom = f"the error is {known} after {errors.minibatches} minibatches"
                raise self.diverged(epoch, symptom)
            if time.monotonic() - reported >= PROGRESS_SECONDS:
                reported = time.monotonic()
                self.emit(Progress(reported, 0, epoch, done / self.steps))
        if (slow := self.blocks.recorder.slow()) is not None:
            self.emit(Notice(time.monotonic(), f"fine-tuning is {slow}"))
        return errors.sum() / len(inputs)

    def run(self, phases: Phases, shards: int) -> None:
        """Work the phases of a step, with as many workers as there are."""
        self._run_in_pool(phases, shards, self.options.replicas or 1)

    def validation_error(self) -> float | None:
        """Return the mean error of the validation examples; one of an unknown class is wrong."""
        if self.validation is None:
            return None
        known = len(self.validation.inputs)
        error = self.network.error(*self.validation) if known else 0.0
        if not self.unknown:
            return error
        return (error * known + self.unknown) / (known + self.unknown)

    def state(self, epoch: int, cursor: Cursor) -> FinetuneState:
        """Return a copy of all that the rest depends on."""
        arrays = {
            "parameters": self.network.parameters,
            "good": self.good,
            "best": self.best,
            **{f"optimizer.{name}": array for name, array in self.optimizer.state().items()},
        }
        return FinetuneState(
            epoch,
            cursor,
            self.first_error if math.isfinite(self.first_error) else None,
            self.best_error if math.isfinite(self.best_error) else None,
            self.best_epoch,
            {
                name: self.places.packed(self.backend.tohost(array.copy()))
                for name, array in arrays.items()
            },
            self.history.finetune.copy(),
        )

    def load_state(self, state: FinetuneState) -> None:
        """Continue from a state, bit for bit.

        Raises
        ------
        CheckpointError
            If it is that of another network.
        """
        prefix, asarray = "optimizer.", self.backend.asarray
        try:
            arrays = {name: asarray(self.places.spread(x)) for name, x in state.arrays.items()}
            optimizer = {n.removeprefix(prefix): x for n, x in arrays.items() if prefix in n}
            np.copyto(self.network.parameters, arrays["parameters"])
            np.copyto(self.good, arrays["good"])
            np.copyto(self.best, arrays["best"])
            steps = (state.epoch - 1) * self.steps + state.cursor.minibatches
            self.optimizer.load_state(optimizer, steps=steps)
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"resume: the state is of another network: {error}") from error
        self.first_error = math.nan if state.first_error is None else state.first_error
        self.best_error = math.inf if state.best_error is None else state.best_error
        self.best_epoch = state.best_epoch
        if state.curve is not None:
            self.history.finetune = state.curve.copy()

    def stops_early(self, epoch: int, error: float) -> bool:
        """Keep the best parameters; return whether they are as old as patience allows."""
        if self.options.patience is None:
            return False
        if error < self.best_error:
            self.best_error, self.best_epoch = error, epoch
            np.copyto(self.best, self.network.parameters)
        return epoch - self.best_epoch >= self.options.patience

    def check_epoch(self, epoch: int, error: float) -> None:
        """Refuse parameters that are not finite, and an explosion.

        Sigmoid units hide an explosion: they saturate, and nothing ever becomes infinite.
        """
        smallest, largest = self.network.parameters.min(), self.network.parameters.max()
        if not (math.isfinite(smallest) and math.isfinite(largest)):
            raise self.diverged(epoch, "parameters are no longer finite")
        if self.options.objective == "classification":
            return  # a share of wrong classes cannot grow beyond all bounds
        # A few rows may begin far below the mean's error; what has no limit soon leaves it behind.
        far = 1 if self.task.is_bounded else EXPLODED
        if error <= EXPLODED * self.first_error:
            return
        if error > far * (spread(self.examples.targets) or 1.0):  # 0 where they are constant
            first, last = (x * self.task.error_scale for x in (self.first_error, error))
            raise self.diverged(epoch, f"the training error rose from {first:.4g} to {last:.4g}")

    def diverged(self, epoch: int, cause: str) -> DivergedError:
        """Return the error, with the stack of the last good epoch."""
        searches = self.options.optimizer not in STEPPING
        remedy = "a smaller weight decay" if searches else f"a learning rate below {self.rate:g}"
        return DivergedError(
            f"fine-tuning diverged in epoch {epoch}: {cause}; try {remedy}, and inputs scaled to"
            " [0, 1]",
            stack=self.last_good(epoch),
        )

    def last_good(self, epoch: int) -> Stack:
        """Return the stack of the epoch before."""
        if epoch == 1:
            return self.task.stack
        np.copyto(self.network.parameters, self.good)
        return self.result(epochs=epoch - 1)

    def interrupted(self, epoch: int, step: int) -> RunInterrupted:
        """Return the error, with the stack as it is."""
        return RunInterrupted(
            f"fine-tuning was stopped in epoch {epoch} of {self.options.epochs}, after"
            f" {step} of its minibatches",
            stack=self.result(epochs=epoch - 1, minibatches_since=step),
        )

    def result(self, **done: int) -> Stack:
        """Return the parameters as a stack of their own; ``done`` says what they went through."""
        info = copy.deepcopy(self.task.stack.info)
        record: dict[str, Any] = {
            **msgspec.to_builtins(self.options),
            "learning_rate": self.rate,
            **self.record,
            "examples": len(self.examples.inputs),
            **done,
        }
        info["finetune"] = [*info.get("finetune", []), record]
        host = self.backend.tohost
        return self.task.stack_of([(host(w), host(b)) for w, b in self.network.chain], info)


def _of_known_classes(validation: Examples) -> tuple[Examples, int]:
    """Return the examples of classes that training examples have, and the number of others."""
    known: NDArray[np.bool_] = np.asarray(validation.targets.any(axis=1))
    unknown = len(known) - int(known.sum())
    return (validation.to(lambda x: x[known]) if unknown else validation), unknown
