"""Blocks of minibatches of fine-tuning, worked by a recorder."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from syncpretrain.data.order import steps_per_epoch
from syncpretrain.finetuning.optimizers import Optimizer, scheduled
from syncpretrain.finetuning.trainable import Trainable
from syncpretrain.finetuning.weights import ExampleWeights
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.program import PhaseRunner
from syncpretrain.settings.finetuning import FinetuneSettings

__all__ = ["TuningBlocks"]


class TuningBlocks:
    """The training of a network on minibatches of some examples.

    Parameters
    ----------
    network : Trainable
    optimizer : Optimizer
    examples : Examples
    place : callable
        Returns inputs or targets where the network is, in the memory that is left there.
    options : FinetuneSettings
    rate : float
        The learning rate at the start.
    weights : ndarray of shape (n_examples, 1) or None
        Of the examples.
    run : callable
        Works the phases of a step.

    Attributes
    ----------
    examples : Examples
        Where the network is.
    recorder : Recorder
        What works the steps.
    steps : int
        Minibatches of an epoch.
    first_error : float
        Of an example of the first minibatch of all, before any update; NaN before that.
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

        ``rows`` are the row numbers of all of them, on a device those of an array there.
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
