"""Streamed layers: each trains on the hidden means that the layer below computes as it trains.

A minibatch is handed up through a ring (:mod:`syncpretrain.workers.streamed.inputs`), the
validation examples at the end of every pass over the data through another. What a layer computes is
a function of the minibatches that it has processed, so no timing and no number of workers changes a
bit.
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
from syncpretrain.learners.early_stopping import EarlyStopping
from syncpretrain.learners.epoch import LARGEST_WEIGHT, MAX_ROLLBACKS, Cursor, Stopped, diverged
from syncpretrain.learners.steps import Step, load_state
from syncpretrain.models.layer import Layer
from syncpretrain.schedule.stream import Block, StreamPlan
from syncpretrain.workers.state import LayerState, StreamedLayerState
from syncpretrain.workers.streamed.base import BaseStreamedLayer, EpochResult
from syncpretrain.workers.streamed.inputs import Passes, Rings, Source

__all__ = ["LearningLayer", "StreamedLayer"]


class LearningLayer(BaseStreamedLayer):
    """One layer of a stream with its learner, wherever its minibatches come from.

    Parameters
    ----------
    learner : Learner
    step : Step
        How the learner trains on a minibatch.
    plan : StreamPlan
    passes : Passes
        Over the data, which end its epochs.
    stopping : EarlyStopping, optional
        Given the validation examples at the end of every pass, it ends the layer's epochs.
    """

    def __init__(
        self,
        learner: Learner,
        step: Step,
        plan: StreamPlan,
        passes: Passes,
        stopping: EarlyStopping | None = None,
    ) -> None:
        super().__init__(learner.layer, plan, passes.steps)
        self._stopping = stopping
        self.learner, self.step = learner, step
        self._passes = passes
        visible = learner.current().shape.visible
        self._rows = learner.backend.empty((learner.batch_size, visible))
        with learner.stream:
            self._hands_up_own_means = learner.hidden_means(0) is not None
            self._last_good = learner.snapshot()
        self._rollbacks = 0
        self._error, self._examples = 0.0, 0  # of the running epoch
        self._started = 0.0
        self._validation_error: float | None = None
        self._warnings: list[str] = []

    def live_state(self) -> StreamedLayerState:
        """Return the state without the rings, in the arrays that the next minibatch changes."""
        begun = self.plan.at(self.position) % self._passes.steps
        return StreamedLayerState(
            position=self.position,
            state=LayerState(
                layer=self.learner.current(),
                step_state=self.step.state(),
                last_good=self._last_good,
                cursor=Cursor(begun, self._error),
                learning_rate=self.learner.learning_rate,
                rollbacks=self._rollbacks,
                stopping=self._stopping.state if self._stopping else None,
            ),
            steps=self.plan.steps,
            examples=self._examples,
            validation_error=self._validation_error,
            warnings=tuple(self._warnings),
            ring={},
            passes={},
        )

    def _load(self, state: StreamedLayerState) -> None:
        """Continue from a state, but for its rings; its arrays are where the learner's are."""
        own = state.state
        load_state(self.learner, self.step, own.layer, own.step_state)
        self.learner.learning_rate = own.learning_rate
        self._last_good, self._rollbacks = own.last_good, own.rollbacks
        if self._stopping is not None and own.stopping is not None:
            self._stopping.state = own.stopping
        self._take_steps(state)
        self._started = time.monotonic()
        self._error, self._examples = own.cursor.error, state.examples
        self._validation_error, self._warnings = state.validation_error, list(state.warnings)

    def _begin_epoch(self) -> None:
        self._started = time.monotonic()
        self._error, self._examples = 0.0, 0

    def _run_away(self) -> str:
        """Return that a weight has grown too large, or nothing."""
        largest = self.learner.largest_weight()
        return "" if largest <= LARGEST_WEIGHT else f"a weight has grown to {largest:.3g}"

    def _roll_back(self, epoch: int, symptom: str) -> None:
        """Take the layer back to its last epoch, with half the learning rate; it goes on from here.

        The minibatches that it has seen since are lost to it: the layers above have read them.

        Raises
        ------
        DivergedError
            If that was done :data:`MAX_ROLLBACKS` times.
        """
        failure = diverged(self.learner, epoch, symptom)
        if self._rollbacks == MAX_ROLLBACKS:
            raise failure
        self._rollbacks += 1
        self.learner.restore(self._last_good)
        self.step.restart()
        self.learner.learning_rate /= 2
        self._warnings.append(
            f"{failure}. Back to the end of epoch {epoch - 1}, with half the learning rate,"
            f" {self.learner.learning_rate:g}"
        )

    def _epoch_result(self, epoch: int) -> EpochResult:
        self._last_good = self.learner.snapshot()
        warnings, self._warnings = tuple(self._warnings), []
        if self._stopping is not None and self._stopping.is_over:
            self.shorten(epoch)
        return EpochResult(
            layer=self.learner.layer,
            epoch=epoch,
            started=self._started,
            ended=time.monotonic(),
            train_error=self._error / max(self._examples, 1),
            validation_error=self._validation_error,
            warnings=warnings,
            is_last=epoch * self._steps == self.plan.steps,
        )


class StreamedLayer(LearningLayer):
    """One layer of a stream: it trains, and hands up what it computes.

    Parameters
    ----------
    learner, step, plan, passes, stopping
        See :class:`LearningLayer`.
    source : Source
        Source of its minibatches.
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
        # Rings aside take what it hands up: the layer above may be reading the real ones.
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
        own, steps = self.plan.at(number), self._passes.steps
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
        # The layer above reads the means from before this update. Most steps compute them anyway,
        # and are asked for a copy; the others need a forward pass of their own.
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
        # What was handed up may not be finite: the layer as it was taken back computes it again.
        if out is not None:
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
        if self._stopping is not None and number <= self.plan.end:
            self._stopping.stops(self.learner.current(), X[:0], X)
