"""Streamed layers: each trains on the hidden means that the layer below computes as it trains.

A minibatch is handed up through a ring (:mod:`syncpretrain.pretraining.runtime.streamed.rings`),
the validation examples at the end of every pass over the data through another. What a layer
computes is a function of the minibatches that it has processed, so no timing and no number of
workers changes a bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.program import PhaseRunner, in_turn
from syncpretrain.learners.base import Learner
from syncpretrain.learners.cursor import Stopped
from syncpretrain.learners.early_stopping import EarlyStopping
from syncpretrain.learners.steps import Step
from syncpretrain.models.layer import Layer
from syncpretrain.pretraining.runtime.layer_state import StreamedLayerState
from syncpretrain.pretraining.runtime.streamed.base import EpochResult
from syncpretrain.pretraining.runtime.streamed.learning import LearningLayer
from syncpretrain.pretraining.runtime.streamed.rings import Passes, Rings, Source
from syncpretrain.pretraining.schedule.stream import Block, StreamPlan

__all__ = ["StreamedLayer"]


class StreamedLayer(LearningLayer):
    """One layer of a stream: it trains, and hands up what it computes.

    Parameters
    ----------
    learner, step, plan, passes, stopping
        As of :class:`LearningLayer`.
    source : Source
        Of its minibatches.
    """

    def __init__(
        self,
        learner: Learner,
        step: Step,
        plan: StreamPlan,
        source: Source,
        passes: Passes,
        stopping: EarlyStopping | None = None,
    ) -> None:
        super().__init__(learner, step, plan, passes, stopping)
        self._source = source
        self._above: tuple[Rings, range] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for an iterable, and looks whether to stop before it trains on."""
        return self._source.is_waiting

    def connect(self, rings: Rings, numbers: range) -> None:
        """Hand up the hidden means of some minibatches."""
        self._above = rings, numbers

    def current(self) -> Layer:
        """Return the layer as it was at the end of its last minibatch; if finite, else epoch."""
        return self.learner.snapshot() if self.learner.is_finite() else self._last_good

    def state(self, above: int | None) -> StreamedLayerState:
        """Return a copy of everything that the next minibatch depends on.

        ``above`` is the position of the layer above, None at the top.
        """
        ring: dict[int, Array] = {}
        passes: dict[int, Array] = {}
        if self._above is not None and above is not None:
            (minibatches, validation), numbers = self._above
            for number in range(max(above + 1, numbers.start), self.position + 1):
                if number not in numbers:
                    break
                ring[number] = minibatches.array(number, self._passes.size(number)).copy()
                if number % self._passes.steps == 0 and self._passes.held_out:
                    count = number // self._passes.steps
                    passes[count] = validation.array(count, self._passes.held_out).copy()
        live = self.live_state()
        return replace(live, state=live.state.to(np.copy), ring=ring, passes=passes)

    def load_state(self, state: StreamedLayerState) -> None:
        """Continue from a state; the result is bit-identical.

        Raises
        ------
        KeyError, ValueError
            If it is the state of another layer.
        """
        self._load(state)
        if self._above is not None:
            minibatches, validation = self._above[0]
            for number, array in state.ring.items():
                np.copyto(minibatches.array(number, len(array)), array)
            for number, array in state.passes.items():
                np.copyto(validation.array(number, len(array)), array)

    def process_again(self, last: int, run: PhaseRunner = in_turn) -> None:
        """Go on to a minibatch; all up to it were handed up before, and are not touched."""
        above, busy = self._above, self.busy_seconds
        if above is not None:
            self._above = above[0].aside(), above[1]
        self.process(Block(self.number, self.position + 1, last), lambda: False, run)
        self._above, self.busy_seconds = above, busy

    def process(
        self, block: Block, stop: Callable[[], bool], run: PhaseRunner = in_turn
    ) -> list[EpochResult]:
        """Process the minibatches of a block; return the epochs that ended with one of them.

        Raises
        ------
        DivergedError
            If the layer diverges too often.
        DataError
            If the data of layer 1 are bad.
        Stopped
            After the minibatch in which ``stop`` turned true.
        """
        started = time.monotonic()
        results = []
        with np.errstate(all="ignore"):  # what overflows is found below
            for number in range(block.first, block.last + 1):
                if stop():
                    raise Stopped
                X, rows = self._source.minibatch(number)
                if stop():  # by now: an iterable may take any time
                    raise Stopped
                results += self._process(number, X, rows, run)
                self.progress[0] = number
        self.busy_seconds += time.monotonic() - started
        return results

    def _process(
        self, number: int, X: Array, rows: NDArray[np.intp], run: PhaseRunner
    ) -> list[EpochResult]:
        out = self._hidden(number, len(rows))
        own, steps = number - self.plan.delay, self._passes.steps
        if own > self.plan.steps:
            if out is not None:
                self._forward(X, rows, out)
                if not math.isfinite(out.sum()):
                    self._source.check(X, rows)
            self._pass_validation(number)
            return []
        if own == 1:
            self.learner.start(self._source.measured(number))
        if (own - 1) % steps == 0:
            self._begin_epoch()
        self._train(X, rows, own, out, run)
        self._pass_validation(number)
        return [self._epoch_result(own // steps)] if own % steps == 0 else []

    def _train(
        self, X: Array, rows: NDArray[np.intp], own: int, out: Array | None, run: PhaseRunner
    ) -> None:
        epoch, step = (own - 1) // self._passes.steps + 1, (own - 1) % self._passes.steps
        if out is not None and not self._hands_up_own_means:
            self._forward(X, rows, out)
        error = self.step.train_step(X, rows, epoch=epoch, step=step, run=run)
        if out is not None and self._hands_up_own_means:
            self.step.hand_up(out)
        symptom = ""
        if not math.isfinite(error):
            symptom = f"the error is {error} in minibatch {step + 1}"
        elif own % self._passes.steps == 0:
            symptom = self._run_away()
        if not symptom:
            self._error += error
            self._examples += len(rows)
            return
        self._source.check(X, rows)
        self._roll_back(epoch, symptom)
        if out is not None:  # what was handed up may not be finite
            self._forward(X, rows, out)

    def _hidden(self, number: int, rows: int) -> Array | None:
        if self._above is None or number not in self._above[1]:
            return None
        return self._above[0].minibatches.array(number, rows)

    def _forward(self, X: Array, rows: NDArray[np.intp], out: Array) -> None:
        """Compute hidden means as the layer is now."""
        np.take(X, rows, axis=0, out=self._rows[: len(rows)], mode="clip")
        self.learner.current().up(self._rows[: len(rows)], out=out)

    def _pass_validation(self, number: int) -> None:
        """Take the validation examples along at the end of a pass over the data."""
        if number % self._passes.steps:
            return
        X = self._source.validation(number)
        if not len(X):
            return
        hidden: Array | None = None
        if self._above is not None and number in self._above[1]:
            hidden = self._above[0].validation.array(number // self._passes.steps, len(X))
            self.learner.current().up(X, out=hidden)
        self._validation_error = self.learner.validation_error(X, hidden)
        if self._stopping is not None and number - self.plan.delay <= self.plan.steps:
            self._stopping.stops(self.learner.current(), X[:0], X)
