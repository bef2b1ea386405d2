"""Streamed layers: each trains on the hidden means that the layer below computes as it trains.

A minibatch is handed up through a ring (:mod:`syncpretrain.workers.streamed.inputs`), the
validation examples at the end of every pass over the data through another. What a layer computes is
a function of the minibatches that it has processed, so no timing and no number of workers changes a
bit. On the host a layer looks at the error of each minibatch, on a device at the sum of a block.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.base import Later
from syncpretrain.kernels.arrays import Array, ordered_sum
from syncpretrain.kernels.program import PhaseRunner, in_turn
from syncpretrain.learners.epoch import Cursor, Stopped, diverged, run_away
from syncpretrain.models.layer import Layer
from syncpretrain.schedule.stream import Block, StreamPlan
from syncpretrain.workers.state import StreamedLayerState
from syncpretrain.workers.streamed.base import BaseStreamedLayer, EpochResult
from syncpretrain.workers.streamed.device_inputs import DeviceRings, DeviceSource
from syncpretrain.workers.streamed.inputs import Passes, Rings, Source
from syncpretrain.workers.worker import LayerInTraining

__all__ = ["DeviceStreamedLayer", "LearningLayer", "StreamedLayer"]


RingsT = TypeVar("RingsT", Rings, DeviceRings)


class LearningLayer(BaseStreamedLayer, Generic[RingsT]):
    """One layer of a stream with its learner, wherever its minibatches come from.

    Parameters
    ----------
    layer : LayerInTraining
        Its early stopping is given the validation examples at the end of every pass.
    plan : StreamPlan
    passes : Passes
        Over the data, which end its epochs.
    """

    def __init__(self, layer: LayerInTraining, plan: StreamPlan, passes: Passes) -> None:
        learner = layer.learner
        super().__init__(learner.layer, plan, passes.steps)
        self.layer, self.learner, self._passes = layer, learner, passes
        visible = learner.current().shape.visible
        self._rows = learner.backend.empty((learner.batch_size, visible))
        with learner.stream:
            self._hands_up_own_means = learner.hidden_means(0) is not None
        self._error, self._examples = 0.0, 0  # of the running epoch
        self._started = 0.0
        self._validation_error: float | None = None
        self._above: tuple[RingsT, range] | None = None

    def live_state(self) -> StreamedLayerState:
        """Return the state without the rings, in the arrays that the next minibatch changes."""
        begun = self.plan.at(self.position) % self._passes.steps
        return StreamedLayerState(
            position=self.position,
            state=self.layer.state(Cursor(begun, self._error)),
            steps=self.plan.steps,
            examples=self._examples,
            validation_error=self._validation_error,
            warnings=tuple(self.layer.warnings),
            ring={},
            passes={},
        )

    def _with_rings(self, live: StreamedLayerState, above: int | None) -> StreamedLayerState:
        """Add to a state a copy of what was handed up, and is not processed above yet."""
        if self._above is None or above is None:
            return live
        (minibatches, validation), _ = self._above
        handed = self._handed_up(above + 1, self.position)
        ring = {n: minibatches.on_host(n, self._passes.size(n)) for n in handed}
        counts = [n // self._passes.steps for n in handed if n % self._passes.steps == 0]
        passes = {n: validation.on_host(n, self._passes.held_out) for n in counts}
        return replace(live, ring=ring, passes=passes if self._passes.held_out else {})

    def load_state(self, state: StreamedLayerState) -> None:
        """Continue from a state; the result is bit-identical.

        Raises
        ------
        KeyError, ValueError
            If it is the state of another layer.
        """
        self.layer.load_state(state.state)
        self.layer.warnings[:] = state.warnings
        self._take_steps(state)
        self._started = time.monotonic()
        self._error, self._examples = state.state.cursor.error, state.examples
        self._validation_error = state.validation_error
        with self.learner.stream:
            if self._above is not None:
                for ring, arrays in zip(self._above[0], (state.ring, state.passes), strict=True):
                    for number, array in sorted(arrays.items()):
                        ring.put(number, self.learner.backend.asarray(array))
            self.learner.stream.synchronize()

    def connect(self, rings: RingsT, numbers: range) -> None:
        """Hand up the hidden means of some minibatches."""
        self._above = rings, numbers

    def _handed_up(self, first: int, last: int) -> range:
        """Return which of some successive minibatches the layer above reads."""
        if self._above is None:
            return range(0)
        numbers = self._above[1]
        return range(max(first, numbers.start), min(last + 1, numbers.stop))

    def _begin_epoch(self) -> None:
        self._started = time.monotonic()
        self._error, self._examples = 0.0, 0

    def _train_on(
        self,
        X: Any,
        rows: Any,
        *,
        epoch: int,
        step: int,
        out: Any = None,
        run: PhaseRunner = in_turn,
    ) -> Any:
        """Train on a minibatch; fill ``out``, if any, with the means from before the update."""
        # Most steps compute them anyway, and are asked for a copy; the others need a forward pass
        # of their own.
        if out is not None and not self._hands_up_own_means:
            self._forward(X, rows, out)
        error = self.layer.step.train_step(X, rows, epoch=epoch, step=step, run=run)
        if out is not None and self._hands_up_own_means:
            self.layer.step.hand_up(out)
        return error

    def _forward(self, X: Any, rows: Any, out: Any) -> None:
        """Compute hidden means as the layer is now."""
        own = self.learner.backend.gather(X, rows, out=self._rows[: len(rows)])
        self.learner.current().up(own, out=out)

    def _roll_back(self, epoch: int, symptom: str) -> None:
        """Take the layer back to its last epoch; it goes on from here.

        The minibatches that it has seen since are lost to it: the layers above have read them.
        """
        self.layer.roll_back(diverged(self.learner, epoch, symptom), epoch)

    def _epoch_result(self, epoch: int) -> EpochResult:
        self.layer.end_epoch()
        warnings = tuple(self.layer.warnings)
        self.layer.warnings.clear()
        if self.layer.stopping is not None and self.layer.stopping.is_over:
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


class StreamedLayer(LearningLayer[Rings]):
    """One layer of a stream: it trains, and hands up what it computes.

    Parameters
    ----------
    layer, plan, passes
        See :class:`LearningLayer`.
    source : Source
        Source of its minibatches.
    """

    def __init__(
        self, layer: LayerInTraining, plan: StreamPlan, source: Source, passes: Passes
    ) -> None:
        super().__init__(layer, plan, passes)
        self._source = source

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for an iterable, and looks whether to stop before it trains on."""
        return self._source.is_waiting

    def current(self) -> Layer:
        """Return the layer as it was at the end of its last minibatch; if finite, else epoch."""
        return self.learner.snapshot() if self.learner.is_finite() else self.layer.last_good

    def state(self, above: int | None) -> StreamedLayerState:
        """Return a copy of everything that the next minibatch depends on.

        ``above`` is the position of the layer above, None at the top.
        """
        live = self.live_state()
        return self._with_rings(replace(live, state=live.state.to(np.copy)), above)

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
        error = self._train_on(X, rows, epoch=epoch, step=step, out=out, run=run)
        symptom = ""
        if not math.isfinite(error):
            symptom = f"the error is {error} in minibatch {step + 1}"
        elif own % self._passes.steps == 0:
            symptom = run_away(self.learner)
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
        if self.layer.stopping is not None and number <= self.plan.end:
            self.layer.stopping.stops(self.learner.current(), X[:0], X)


class DeviceStreamedLayer(LearningLayer[DeviceRings]):
    """One layer of a stream, with its learner on a device, on a stream of its own there.

    A block of minibatches is queued as a whole: the host goes on to the next block, of this layer
    or another, while the device works. Streams wait for each other's events
    (:mod:`syncpretrain.workers.streamed.device_inputs`), the host for the errors of the block
    before, and at the end of an epoch for the layer.

    The layer computes what it hands up in an array of its own, where a recorded block finds the
    same place every time, and copies it into the ring behind the block. What is not finite is
    handed up as 0, since a divergence is found a block later.

    Parameters
    ----------
    layer, plan, passes
        As of :class:`LearningLayer`.
    source : DeviceSource
        Of its minibatches.
    most : int
        Minibatches of a block.
    """

    def __init__(
        self,
        layer: LayerInTraining,
        plan: StreamPlan,
        source: DeviceSource,
        passes: Passes,
        *,
        most: int,
    ) -> None:
        super().__init__(layer, plan, passes)
        self._backend, self._source, self._most = self.learner.backend, source, most
        self._staged: Any = None  # what a block hands up
        with self.learner.stream:
            self._no_error = self._backend.zeros((), np.float64)
        self._later: deque[tuple[int, Later]] = deque()  # examples of blocks, and their errors
        self._validation: tuple[int, Later] | None = None
        self._released: Layer | None = None  # at the end, on the host

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for an iterable, and looks whether to stop before it trains on."""
        return self._released is None and self._source.is_waiting

    def connect(self, rings: DeviceRings, numbers: range) -> None:
        """Hand up the hidden means of some minibatches."""
        super().connect(rings, numbers)
        width = self.learner.current().shape.hidden
        self._staged = self._backend.empty((self._most * self._passes.batch_size, width))

    def current(self) -> Layer:
        """Return the layer as it was at the end of its last minibatch; if finite, else epoch."""
        if self._released is not None:
            return self._released
        with self.learner.stream:
            finite = self.learner.is_finite()
            layer = self.learner.current() if finite else self.layer.last_good
            return layer.to(self._backend.tohost)

    def release(self) -> None:
        """Keep the layer on the host, and nothing on the device: it is not trained any more."""
        self._released = self.current()
        del self.layer, self.learner, self._source, self._above, self._staged
        del self._rows, self._no_error, self._later, self._validation

    def state(self, above: int | None) -> StreamedLayerState:
        """Return a copy of everything that the next minibatch depends on, on the host.

        ``above`` is the position of the layer above, None at the top.
        """
        with self.learner.stream:
            self._take_validation()
            live = self.live_state()
            own = live.state.to(self._backend.tohost)
            self.learner.stream.synchronize()  # which fills the rings
        # Those not looked at yet stay to be looked at: a state changes nothing.
        pending = [(n, error) for n, later in self._later if math.isfinite(error := later.value())]
        error = ordered_sum((error for _, error in pending), self._error)
        own = replace(own, cursor=Cursor(own.cursor.minibatches, error))
        live = replace(live, state=own, examples=live.examples + sum(n for n, _ in pending))
        return self._with_rings(live, above)

    def process(
        self, block: Block, stop: Callable[[], bool], run: PhaseRunner = in_turn
    ) -> list[EpochResult]:
        """Queue the minibatches of a block; return the epoch that ended with the last, if one did.

        The block does not go beyond the end of an epoch or of a pass.

        Raises
        ------
        DivergedError
            If the layer diverges too often.
        DataError
            If the data of layer 1 are bad.
        Stopped
            Before the block, if ``stop`` turned true.
        """
        started = time.monotonic()
        if stop():
            raise Stopped
        self._source.fetch(block.first, block.last, stop)
        with self.learner.stream, np.errstate(all="ignore"):  # what overflows is found below
            results = self._process(block.first, block.last)
        self.progress[0] = block.last
        self.busy_seconds += time.monotonic() - started
        return results

    def _process(self, first: int, last: int) -> list[EpochResult]:
        own, steps = self.plan.at(first), self._passes.steps
        epoch, trains = (own - 1) // steps + 1, own <= self.plan.steps
        handed_up = self._handed_up(first, last)
        with self._source.run(first, last) as (X, rows):
            if own == 1:
                self.learner.start(self._source.measured(first))
            if trains and (own - 1) % steps == 0:
                self._begin_epoch()
            if trains or handed_up:
                error = self._queue(X, rows, epoch, (own - 1) % steps, trains, bool(handed_up))
            if trains:
                self._later.append((len(rows), self._backend.later(error)))
        if handed_up:
            self._hand_up(first, handed_up)
        if not trains:
            self._pass_validation(last)
            return []
        ends = self.plan.at(last) % steps == 0
        symptom = self._settle(0 if ends else self._backend.blocks_behind)
        if not symptom and ends:
            symptom = run_away(self.learner)
        if symptom:
            self._roll_back(epoch, symptom)
        self._pass_validation(last)
        if not ends:
            return []
        self._take_validation()
        return [self._epoch_result(epoch)]

    def _queue(self, X: Any, rows: Any, epoch: int, step: int, trains: bool, hands_up: bool) -> Any:
        """Queue the steps of a run, or forward passes alone; return the sum of their errors."""
        work: Any = partial(self._serve, first=step)
        if trains:
            work = partial(self._train_staged, first=step, hands_up=hands_up)
        own = self.learner.constants(epoch) if trains else None
        return self.learner.recorder.train(
            work,
            X,
            rows,
            batch_size=self._passes.batch_size,
            epoch=epoch,
            step=step,
            constants=(own, hands_up),
        )

    def _train_staged(
        self, X: Any, rows: Any, *, epoch: int, step: int, first: int, hands_up: bool
    ) -> Any:
        """Train on a minibatch of a run that begins with a step; stage what it hands up."""
        out = self._place(step - first, len(rows)) if hands_up else None
        return self._train_on(X, rows, epoch=epoch, step=step, out=out)

    def _serve(self, X: Any, rows: Any, *, epoch: int, step: int, first: int) -> Any:
        """Stage what is handed up of a minibatch that the layer no longer trains on."""
        self._forward(X, rows, self._place(step - first, len(rows)))
        return self._no_error

    def _place(self, number: int, rows: int) -> Any:
        start = number * self._passes.batch_size
        return self._staged[start : start + rows]

    def _hand_up(self, first: int, numbers: range) -> None:
        """Copy what was staged of some minibatches of a run into the ring."""
        assert self._above is not None
        start, last = (numbers[0] - first) * self._passes.batch_size, numbers[-1]
        rows = self._passes.rows(numbers[0], last)
        staged = _finite(self._staged[start : start + rows])
        self._above[0].minibatches.fill(numbers[0], last, staged)

    def _settle(self, left: int) -> str:
        """Look at the errors of all blocks but the newest; return what is wrong, or nothing."""
        while len(self._later) > left:
            examples, later = self._later.popleft()
            error = later.value()
            if math.isfinite(error):
                self._error += error
                self._examples += examples
                continue
            for _, other in self._later:  # whose memory is soon that of other numbers
                other.value()
            self._later.clear()
            return f"the error is {error} after {self._examples} good examples of it"
        return ""

    def _pass_validation(self, number: int) -> None:
        """Take the validation examples along at the end of a pass over the data."""
        if number % self._passes.steps or not self._passes.held_out:
            return
        count, layer = number // self._passes.steps, self.learner.current()
        with self._source.validation(count) as X:
            hidden = None
            if self._above is not None and number in self._above[1]:
                hidden = _finite(layer.up(X))
                self._above[0].validation.put(count, hidden)
            if number > self.plan.end:
                return  # the error of a layer that was trained is not asked for
            error = self.learner.summed_error(X, hidden)
            self._validation = len(X), self._backend.later(error)
            if self.layer.stopping is not None:
                host = self._backend.tohost  # where likelihoods are computed, in float64
                self.layer.stopping.stops(layer.to(host), host(X[:0]), host(X))

    def _take_validation(self) -> None:
        if self._validation is not None:
            rows, error = self._validation
            self._validation_error, self._validation = error.value() / rows, None


def _finite(array: Any) -> Any:
    """Replace what is not a finite number by 0."""
    np.copyto(array, np.float32(0), where=np.logical_not(np.isfinite(array)))
    return array
