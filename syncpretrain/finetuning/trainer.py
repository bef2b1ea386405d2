"""The epochs of fine-tuning: errors and events, early stopping, divergence, the state to resume."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.examples import evenly_spaced
from syncpretrain.data.scaling import spread
from syncpretrain.errors import DivergedError
from syncpretrain.events import FinetuneEpochFinished, FinetuneStarted, Progress
from syncpretrain.finetuning.network import Network
from syncpretrain.finetuning.normalization import settled
from syncpretrain.finetuning.optimizers import LEARNING_RATES
from syncpretrain.finetuning.options import STEPPING, TuningOptions
from syncpretrain.finetuning.tasks import Examples, Reconstruction, Supervised
from syncpretrain.finetuning.updates import Updates
from syncpretrain.kernels.backprop import Pair
from syncpretrain.learners.epoch import Cursor, ErrorSum, Stopped
from syncpretrain.models.stack import Stack
from syncpretrain.parallel.replicas.steps import part_of
from syncpretrain.workers.state import FinetuneState, refusing_others
from syncpretrain.workers.training import Training

# Rows that an epoch's error is measured on unless early stopping depends on it: a fraction of the
# time of an epoch, and a standard error of 1.6 points at most for a share of wrong classes.
VALIDATION_ROWS = 1000
PROGRESS_SECONDS = 0.2  # five reports a second: smooth to the eye, and no cost beside minibatches
RESERVED_BYTES = 1 << 28  # of a device, besides copies of the parameters
EXPLODED = 2.0  # times the error before the first update


def placed(examples: Examples, network: Network) -> Examples:
    """Return examples on the network's device, if they leave room there for the rest."""
    # The parameters of the last good and of the best epoch, and a copy for a checkpoint.
    beside = 3 * network.parameters.nbytes + RESERVED_BYTES
    return examples.to(partial(network.backend.examples, beside=beside))


class Trainer(Training):
    """The training of one :class:`syncpretrain.finetuning.prepared.Finetuning`.

    Parameters
    ----------
    task : Reconstruction or Supervised
    updates : Updates
        Trains on the minibatches of an epoch.
    examples, validation : Examples
        ``validation`` is None without such examples.
    options : TuningOptions
    watching
        ``observers``, ``history`` and ``save`` of :class:`Training`.
    """

    def __init__(
        self,
        task: Reconstruction | Supervised,
        updates: Updates,
        examples: Examples,
        validation: Examples | None,
        options: TuningOptions,
        **watching: Any,
    ) -> None:
        super().__init__(**watching)
        self.task, self.updates, self.options = task, updates, options
        self.examples = examples
        self.network, self.backend = updates.network, updates.network.backend
        self.validation, self.unknown = self.judges(validation)
        self.rate = options.learning_rate or LEARNING_RATES[options.optimizer]
        self.good = np.empty_like(self.network.parameters)  # at the end of the last good epoch
        self.best = self.network.parameters.copy()  # where validation was best
        self.best_error, self.best_epoch = math.inf, 0
        self.epoch, self.cursor = 1, Cursor()  # the running epoch, and where it was left

    def train(self, resume: FinetuneState | None = None) -> Stack:
        """Train and return the stack; ``resume`` is where to begin."""
        options, epochs = self.options, self.options.epochs
        self.emit(FinetuneStarted(time.monotonic(), options.objective, options.optimizer, epochs))
        first, begin = 1, Cursor()
        if resume is not None:
            first, begin = resume.epoch, resume.cursor
            self.load_state(resume)
        epoch = first - 1  # those done; a state may be behind the last one
        for epoch in range(first, epochs + 1):
            started, self.epoch = time.monotonic(), epoch
            train_error = self.train_epoch(epoch, begin)
            begin = Cursor()
            self.check_epoch(epoch, train_error)
            np.copyto(self.good, self.network.parameters)
            held_out = self.validation_error()
            # In the units of the targets.
            now, scale = time.monotonic(), self.task.error_scale
            judged = None if held_out is None else held_out * scale
            errors = train_error * scale, judged
            self.emit(FinetuneEpochFinished(now, epoch, epochs, now - started, *errors))
            if held_out is not None and self.stops_early(epoch, held_out):
                break
            if epoch < epochs:
                self.epoch = epoch + 1
                self._save()
        if options.patience is None:
            return self.result(epochs=epoch)
        np.copyto(self.network.parameters, self.best)
        return self.result(epochs=epoch, best_epoch=self.best_epoch)

    def judges(self, validation: Examples | None) -> tuple[Examples | None, int]:
        """Return the examples to validate with, and how many more are of classes not trained on."""
        unknown = 0
        if validation is None:
            return None, unknown
        if self.options.patience is None:
            validation = validation.to(lambda x: evenly_spaced(x, VALIDATION_ROWS))
        if self.options.objective == "classification":
            known: NDArray[np.bool_] = np.asarray(validation.targets.any(axis=1))
            unknown = len(known) - int(known.sum())
            validation = validation.to(lambda x: x[known]) if unknown else validation
        return placed(validation, self.network), unknown

    def train_epoch(self, epoch: int, begin: Cursor) -> float:
        """Train on every minibatch once; return their mean error, each before its update."""
        reported, steps = time.monotonic(), self.updates.steps
        errors = ErrorSum(self.backend, begin.error)

        def each(error: float, done: int) -> None:
            nonlocal reported
            errors.add(error, done)
            if symptom := errors.symptom(done, steps):
                raise self.diverged(epoch, symptom)
            if time.monotonic() - reported >= PROGRESS_SECONDS:
                reported = time.monotonic()
                self.emit(Progress(reported, 0, epoch, done / steps))

        done = self.updates.train(epoch, begin.minibatches, each)
        if done < steps:
            self.cursor = Cursor(done, errors.sum())
            raise Stopped
        return errors.sum() / self.updates.passes.counted

    def validation_error(self) -> float | None:
        """Return the mean error of the validation examples; one of an unknown class is wrong."""
        if self.validation is None:
            return None
        known = len(self.validation.inputs)
        error = self.judging().error(*self.validation[:2]) if known else 0.0
        if not self.unknown:
            return error
        return (error * known + self.unknown) / (known + self.unknown)

    @property
    def done(self) -> int:
        """The epochs that are finished."""
        return self.epoch - 1

    def stack(self) -> Stack:
        """Return the stack in the middle of an epoch."""
        return self.result(epochs=self.done, minibatches_since=self.cursor.minibatches)

    def _how_far(self) -> str:
        return (
            f"fine-tuning was stopped in epoch {self.epoch} of {self.options.epochs}, after"
            f" {self.cursor.minibatches} of its minibatches"
        )

    def state(self) -> FinetuneState:
        """Return a copy of all that the rest depends on."""
        arrays = {
            "parameters": self.network.parameters,
            "good": self.good,
            "best": self.best,
            **{f"optimizer.{name}": array for name, array in self.updates.state().items()},
        }
        packed, host = self.network.places.packed, self.backend.tohost
        arrays = {name: packed(host(array.copy())) for name, array in arrays.items()}
        errors = self.updates.first_error, self.best_error
        first, best = (error if math.isfinite(error) else None for error in errors)
        curve = self.history.finetune.copy()
        return FinetuneState(self.epoch, self.cursor, first, best, self.best_epoch, arrays, curve)

    def load_state(self, state: FinetuneState) -> None:
        """Continue from a state, bit for bit.

        Raises
        ------
        CheckpointError
            If it is that of another network.
        """
        spread, asarray = self.network.places.spread, self.backend.asarray
        with refusing_others("the state is of another network"):
            arrays = {name: asarray(spread(x)) for name, x in state.arrays.items()}
            np.copyto(self.network.parameters, arrays["parameters"])
            np.copyto(self.good, arrays["good"])
            np.copyto(self.best, arrays["best"])
            steps = (state.epoch - 1) * self.updates.steps + state.cursor.minibatches
            self.updates.load_state(part_of(arrays, "optimizer."), steps=steps)
        self.updates.first_error = math.nan if state.first_error is None else state.first_error
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
        if error <= EXPLODED * self.updates.first_error:
            return
        if error > far * (spread(self.examples.targets) or 1.0):  # 0 where they are constant
            first, last = (x * self.task.error_scale for x in (self.updates.first_error, error))
            raise self.diverged(epoch, f"the training error rose from {first:.4g} to {last:.4g}")

    def diverged(self, epoch: int, cause: str) -> DivergedError:
        """Return the error, with the stack of the last good epoch."""
        searches, noise = self.options.optimizer not in STEPPING, self.options.adversarial_noise
        remedy = "a smaller weight decay" if searches else f"a learning rate below {self.rate:g}"
        if noise:
            remedy += f", adversarial noise below {noise:g}"
        return DivergedError(
            f"fine-tuning diverged in epoch {epoch}: {cause}; try {remedy}, and inputs scaled to"
            " [0, 1]",
            stack=self._salvaged(),
        )

    def _salvaged(self) -> Stack:
        """Return the stack of the epoch before."""
        if self.epoch == 1:
            return self.task.stack
        np.copyto(self.network.parameters, self.good)
        return self.result(epochs=self.done)

    def result(self, **done: int) -> Stack:
        """Return the parameters as a stack of their own; ``done`` says what they went through."""
        info = copy.deepcopy(self.task.stack.info)
        record = msgspec.to_builtins(self.options) | {"learning_rate": self.rate}
        record |= {"examples": len(self.examples.targets), **done}
        info["finetune"] = [*info.get("finetune", []), record]
        return self.task.stack_of(self.plain(), info)

    def plain(self) -> list[Pair]:
        """Return the parameters of the chain without normalization, on the host."""
        host = self.backend.tohost
        chain = [(host(weight), host(bias)) for weight, bias in self.network.chain]
        if self.options.normalization == "none":
            return chain
        return settled(chain, self.examples.inputs)

    def judging(self) -> Network:
        """Return the network to judge by: what is trained, without normalization."""
        if self.options.normalization == "none":
            return self.network
        links = zip(self.task.chain(), self.plain(), strict=True)
        chain = [replace(link, weight=weight, bias=bias) for link, (weight, bias) in links]
        return Network(chain, self.task.loss, batch_size=self.options.batch_size)
