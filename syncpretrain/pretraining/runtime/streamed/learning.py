"""Epochs, roll-backs and state of a streamed layer that is trained in this process."""

from __future__ import annotations

import time

from syncpretrain.learners.base import Learner
from syncpretrain.learners.cursor import Cursor
from syncpretrain.learners.early_stopping import EarlyStopping
from syncpretrain.learners.epoch import LARGEST_WEIGHT, MAX_ROLLBACKS, diverged
from syncpretrain.learners.steps import Step, load_state
from syncpretrain.pretraining.runtime.layer_state import LayerState, StreamedLayerState
from syncpretrain.pretraining.runtime.streamed.base import BaseStreamedLayer, EpochResult
from syncpretrain.pretraining.runtime.streamed.rings import Passes
from syncpretrain.schedule.stream import StreamPlan

__all__ = ["LearningLayer"]


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
        begun = (self.position - self.plan.delay) % self._passes.steps
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
