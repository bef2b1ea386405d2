"""Streamed layers on a device, each on a stream of its own.

A block of minibatches is queued as a whole: the host goes on to the next block, of this layer or
another, while the device works. Streams wait for each other's events
(:mod:`syncpretrain.workers.streamed.device_inputs`), the host for the errors of the
block before, and at the end of an epoch for the layer.

A layer computes what it hands up in an array of its own, where a recorded block finds the same
place every time, and copies it into the ring behind the block. What is not finite is handed up as
0, since a divergence is found a block later.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from syncpretrain.backends.base import Later
from syncpretrain.kernels.arrays import ordered_sum
from syncpretrain.kernels.program import PhaseRunner, in_turn
from syncpretrain.learners.base import Learner
from syncpretrain.learners.early_stopping import EarlyStopping
from syncpretrain.learners.epoch import Cursor, Stopped
from syncpretrain.learners.steps import Step
from syncpretrain.models.layer import Layer
from syncpretrain.schedule.stream import Block, StreamPlan
from syncpretrain.workers.state import StreamedLayerState
from syncpretrain.workers.streamed.base import EpochResult
from syncpretrain.workers.streamed.device_inputs import DeviceRings, DeviceSource
from syncpretrain.workers.streamed.inputs import Passes
from syncpretrain.workers.streamed.layer import LearningLayer

__all__ = ["DeviceStreamedLayer"]


class DeviceStreamedLayer(LearningLayer):
    """One layer of a stream, with its learner on a device.

    Parameters
    ----------
    learner, step, plan, passes, stopping
        As of :class:`LearningLayer`.
    source : DeviceSource
        Of its minibatches.
    most : int
        Minibatches of a block.
    """

    def __init__(
        self,
        learner: Learner,
        step: Step,
        plan: StreamPlan,
        source: DeviceSource,
        passes: Passes,
        stopping: EarlyStopping | None = None,
        *,
        most: int,
    ) -> None:
        super().__init__(learner, step, plan, passes, stopping)
        self._backend, self._source, self._most = learner.backend, source, most
        self._above: tuple[DeviceRings, range] | None = None
        self._staged: Any = None  # what a block hands up
        with learner.stream:
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
        self._above = rings, numbers
        width = self.learner.current().shape.hidden
        self._staged = self._backend.empty((self._most * self._passes.batch_size, width))

    def current(self) -> Layer:
        """Return the layer as it was at the end of its last minibatch; if finite, else epoch."""
        if self._released is not None:
            return self._released
        with self.learner.stream:
            finite = self.learner.is_finite()
            layer = self.learner.current() if finite else self._last_good
            return layer.to(self._backend.tohost)

    def release(self) -> None:
        """Keep the layer on the host, and nothing on the device: it is not trained any more."""
        self._released = self.current()
        del self.learner, self.step, self._source, self._above, self._staged
        del self._rows, self._last_good, self._no_error, self._later, self._validation

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
        if self._above is None or above is None:
            return live
        (minibatches, validation), numbers = self._above
        handed = range(max(above + 1, numbers.start), min(self.position + 1, numbers.stop))
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
        asarray = self._backend.asarray
        with self.learner.stream:
            self._load(replace(state, state=state.state.to(asarray)))
            if self._above is not None:
                for ring, arrays in zip(self._above[0], (state.ring, state.passes), strict=True):
                    for number, array in sorted(arrays.items()):
                        ring.fill(number, number, asarray(array))
            self.learner.stream.synchronize()

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
            symptom = self._run_away()
        if symptom:
            self._roll_back(epoch, symptom)
        self._pass_validation(last)
        if not ends:
            return []
        self._take_validation()
        if (notice := self.learner.recorder.take_notice()) is not None:
            self._warnings.append(f"layer {self.number} is {notice}")
        return [self._epoch_result(epoch)]

    def _queue(self, X: Any, rows: Any, epoch: int, step: int, trains: bool, hands_up: bool) -> Any:
        """Queue the steps of a run, or forward passes alone; return the sum of their errors."""
        work: Any = partial(self._serve, first=step)
        if trains:
            work = partial(self._train_on, first=step, hands_up=hands_up)
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

    def _train_on(
        self, X: Any, rows: Any, *, epoch: int, step: int, first: int, hands_up: bool
    ) -> Any:
        """Train on a minibatch of a run that begins with a step; stage what it hands up."""
        out = self._place(step - first, len(rows)) if hands_up else None
        if out is not None and not self._hands_up_own_means:
            self._forward(X, rows, out)
        error = self.step.train_step(X, rows, epoch=epoch, step=step)
        if out is not None and self._hands_up_own_means:
            self.step.hand_up(out)
        return error

    def _serve(self, X: Any, rows: Any, *, epoch: int, step: int, first: int) -> Any:
        """Stage what is handed up of a minibatch that the layer no longer trains on."""
        self._forward(X, rows, self._place(step - first, len(rows)))
        return self._no_error

    def _place(self, number: int, rows: int) -> Any:
        start = number * self._passes.batch_size
        return self._staged[start : start + rows]

    def _forward(self, X: Any, rows: Any, out: Any) -> None:
        """Compute hidden means as the layer is now."""
        own = self._backend.gather(X, rows, out=self._rows[: len(rows)])
        self.learner.current().up(own, out=out)

    def _handed_up(self, first: int, last: int) -> range:
        """Return which of some successive minibatches the layer above reads."""
        if self._above is None:
            return range(0)
        numbers = self._above[1]
        return range(max(first, numbers.start), min(last + 1, numbers.stop))

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
                self._above[0].validation.fill(count, count, hidden)
            if number > self.plan.end:
                return  # the error of a layer that was trained is not asked for
            error = self.learner.summed_error(X, hidden)
            self._validation = len(X), self._backend.later(error)
            if self._stopping is not None:
                host = self._backend.tohost  # where likelihoods are computed, in float64
                self._stopping.stops(layer.to(host), host(X[:0]), host(X))

    def _take_validation(self) -> None:
        if self._validation is not None:
            rows, error = self._validation
            self._validation_error, self._validation = error.value() / rows, None


def _finite(array: Any) -> Any:
    """Replace what is not a finite number by 0."""
    np.copyto(array, np.float32(0), where=np.logical_not(np.isfinite(array)))
    return array
