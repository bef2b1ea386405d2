"""A streamed layer trains on the hidden means that the layer below computes as it trains.

A minibatch is handed up through a ring (:mod:`syncpretrain.workers.streamed.inputs`), the
validation examples at the end of every pass over the data through another. What a layer computes is
a function of the minibatches that it has processed, so no timing and no number of workers changes a
bit.

A layer works its minibatches in runs: on the host one at a time, and looks at its error; on a
device a block at a time. There a run is queued as a whole on a stream of the layer's own, and the
host goes on to the next block, of this layer or another, while the device works. Streams wait for
each other's events, the host for the error of the run before, and at the end of an epoch for the
layer.

The host computes hidden means in the ring itself. A device computes them in an array of its own,
where a recorded run finds the same place every time, and copies them into the ring behind the run.
A device hands up 0 in place of what is not finite, since it finds a divergence a run later.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from syncpretrain.backends.base import StepBlock
from syncpretrain.events import EpochFinished
from syncpretrain.kernels.arrays import ordered_sum
from syncpretrain.kernels.program import PhaseRunner, in_turn
from syncpretrain.learners.epoch import Cursor, diverged, run_away
from syncpretrain.models.layer import Layer
from syncpretrain.schedule.stream import Block
from syncpretrain.workers.state import StreamedLayerState
from syncpretrain.workers.streamed.base import BaseStreamedLayer, EpochResult, LayerPart
from syncpretrain.workers.streamed.inputs import Rings, Source
from syncpretrain.workers.worker import LayerInTraining


class StreamedLayer(BaseStreamedLayer):
    """One layer of a stream: it trains, and hands up what it computes.

    Parameters
    ----------
    layer : LayerInTraining
        Its early stopping is given the validation examples at the end of every pass.
    part : LayerPart
        Its plan, the passes that end its epochs, and the minibatches that it hands up.
    source : Source
        Source of its minibatches.
    most : int
        The most minibatches of a run. On a device no block has more, and none goes beyond the end
        of an epoch or of a pass.
    """

    def __init__(
        self, layer: LayerInTraining, part: LayerPart, source: Source, *, most: int = 1
    ) -> None:
        learner = layer.learner
        super().__init__(part.layer, part.plan, part.passes.steps)
        self.layer, self.learner = layer, learner
        self._passes, self._numbers = part.passes, part.handed_up
        self.source, self._backend, self._most = source, learner.backend, most
        self._rows = self._backend.empty((learner.batch_size, learner.current().shape.visible))
        self._staged: Any = None  # what a run on a device hands up
        with learner.stream:
            self._hands_up_own_means = learner.hidden_means(0) is not None
            self._no_error = self._backend.zeros((), np.float64)
        self._error, self._examples = 0.0, 0  # of the running epoch
        # Steps, examples and errors of runs.
        self._later: deque[tuple[int, int, Callable[[], float]]] = deque()
        layer.plan_marks(part.passes.steps)
        self._started = 0.0
        self._validation_error: float | None = None
        # A newer one: examples, and the summed error.
        self._validation: tuple[int, Callable[[], float]] | None = None
        self._above: Rings | None = None
        self._released: Layer | None = None  # at the end, on the host

    @property
    def is_waiting(self) -> bool:
        """True while an iterable is asked for data; a stop is looked for before they are used."""
        return self._released is None and self.source.is_waiting

    def connect(self, rings: Rings) -> None:
        """Hand up hidden means through rings."""
        self._above = rings
        if self._backend.devices():
            width = self.learner.current().shape.hidden
            self._staged = self._backend.empty((self._most * self._passes.batch_size, width))

    def current(self) -> Layer:
        """Return the layer as it was at the end of its last minibatch; if finite, else epoch."""
        if self._released is not None:
            return self._released
        with self.learner.stream:
            finite = self.learner.is_finite()
            return (self.learner.current() if finite else self.layer.last_good).to(self._copy)

    def _copy(self, array: Any) -> Any:
        """Return a copy of an array on the host."""
        return array.copy() if isinstance(array, np.ndarray) else self._backend.tohost(array)

    def release(self) -> None:
        """Keep the layer on the host, and nothing on the device: it is not trained any more."""
        self._released = self.current()
        del self.layer, self.learner, self.source, self._above, self._staged
        del self._rows, self._no_error, self._later, self._validation

    def live_state(self) -> StreamedLayerState:
        """Return the state without the rings, in the arrays that the next minibatch changes."""
        self._take_validation()
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

    def state(self, above: int | None) -> StreamedLayerState:
        """Return a copy of everything that the next minibatch depends on, on the host.

        ``above`` is the position of the layer above, None at the top.
        """
        with self.learner.stream:
            live = self.live_state()
            own = live.state.to(self._copy)
            self.learner.stream.synchronize()  # which fills the rings
        # Those not looked at yet stay to be looked at: a state changes nothing.
        pending = [(n, error) for _, n, later in self._later if math.isfinite(error := later())]
        error = ordered_sum((error for _, error in pending), self._error)
        own = replace(own, cursor=Cursor(own.cursor.minibatches, error))
        live = replace(live, state=own, examples=live.examples + sum(n for n, _ in pending))
        if self._above is None or above is None:
            return live
        # A copy of what was handed up, and is not processed above yet.
        minibatches, validation = self._above
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
        self._validation_error, self._validation = state.validation_error, None
        self._later.clear()
        with self.learner.stream:
            if self._above is not None:
                for ring, arrays in zip(self._above, (state.ring, state.passes), strict=True):
                    for number, array in sorted(arrays.items()):
                        ring.put(number, self._backend.asarray(array))
            self.learner.stream.synchronize()

    def process_again(self, last: int, run: PhaseRunner = in_turn) -> None:
        """Go on to a minibatch; all up to it were handed up before, and are not touched."""
        # It hands up nothing: the layer above may be reading what lies there.
        above, busy = self._above, self.busy_seconds
        self._above = None
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
            Before a run, if ``stop`` turned true.
        """
        started = time.monotonic()
        results = []
        with np.errstate(all="ignore"):  # what overflows is found below
            for first in range(block.first, block.last + 1, self._most):
                last = min(first + self._most - 1, block.last)
                self.source.fetch(first, last, stop)
                with self.learner.stream:
                    results += self._process(first, last, run)
                self.progress[0] = last
        self.busy_seconds += time.monotonic() - started
        return results

    def _process(self, first: int, last: int, run: PhaseRunner) -> list[EpochResult]:
        """Process a run; return the epoch that ended with it, if one did."""
        own, steps = self.plan.at(first), self._passes.steps
        epoch, step = (own - 1) // steps + 1, (own - 1) % steps
        trains, handed_up = own <= self.plan.steps, self._handed_up(first, last)
        X, rows = self.source.run(first, last)
        if own == 1:
            self.learner.start(self.source.measured(first))
        if trains and step == 0:
            self._started = time.monotonic()
            self._error, self._examples = 0.0, 0
        if trains or handed_up:
            error = self._queue(X, rows, epoch, step, trains, first if handed_up else 0, run)
        if trains:
            self._later.append((step, len(rows), self._backend.later(error)))
        self.source.done(last)
        if handed_up and self._staged is not None:
            self._copy_up(first, handed_up)
        ends = trains and self.plan.at(last) % steps == 0
        symptom = self._symptom(ends) if trains else ""
        if symptom:
            self.source.check(X, rows)
            # The minibatches since its last epoch are lost to it: the layers above have read them.
            self.layer.roll_back(diverged(self.learner, epoch, symptom), epoch)
        if handed_up and self._staged is None:
            out = self._place(first, 0, len(rows))
            if symptom:  # it may not be finite: the layer as it was taken back computes it again
                self._forward(X, rows, out)
            elif not trains and not math.isfinite(out.sum()):
                self.source.check(X, rows)
        self._pass_validation(last)
        return [self._epoch_result(epoch)] if ends else []

    def _queue(
        self, X: Any, rows: Any, epoch: int, begin: int, trains: bool, first: int, run: PhaseRunner
    ) -> Any:
        """Queue the steps of a run, or forward passes alone; return the sum of their errors.

        ``begin`` is its first step, ``first`` its first minibatch, 0 if none is handed up.
        """

        def work(X: Any, rows: Any, *, epoch: int, step: int) -> Any:
            out = self._place(first, step - begin, len(rows)) if first else None
            if trains:
                return self._train_on(X, rows, epoch=epoch, step=step, out=out, run=run)
            self._forward(X, rows, out)
            return self._no_error

        if not self._backend.devices():  # where a run is one minibatch, and nothing is recorded
            return work(X, rows, epoch=epoch, step=begin)
        constants = self.learner.constants(epoch) if trains else None, bool(first)
        size = self._passes.batch_size
        return self.learner.recorder.train(StepBlock(work, X, rows, size, epoch, begin, constants))

    def _train_on(
        self, X: Any, rows: Any, *, epoch: int, step: int, out: Any, run: PhaseRunner
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
        own = self._backend.gather(X, rows, out=self._rows[: len(rows)])
        self.learner.current().up(own, out=out)

    def _handed_up(self, first: int, last: int) -> range:
        """Return which of some successive minibatches the layer above reads."""
        if self._above is None:
            return range(0)
        return range(max(first, self._numbers.start), min(last + 1, self._numbers.stop))

    def _place(self, first: int, number: int, rows: int) -> Any:
        """Return where hidden means are computed, for a minibatch of the run from ``first`` on.

        ``number`` is the number of the minibatch in the run, counted from 0.
        """
        if self._staged is None:
            assert self._above is not None
            return self._above.minibatches.slot(first + number, rows)
        start = number * self._passes.batch_size
        return self._staged[start : start + rows]

    def _copy_up(self, first: int, numbers: range) -> None:
        """Copy what was staged of some minibatches of a run into the ring."""
        assert self._above is not None
        start, last = (numbers[0] - first) * self._passes.batch_size, numbers[-1]
        rows = self._passes.rows(numbers[0], last)
        self._above.minibatches.fill(numbers[0], last, _finite(self._staged[start : start + rows]))

    def _symptom(self, ends: bool) -> str:
        """Look at the errors that can be looked at; return what is wrong, or nothing.

        At the end of an epoch, ``ends``, these are all errors, and the weights are looked at too.
        """
        left = 0 if ends else self._backend.blocks_behind
        while len(self._later) > left:
            step, examples, later = self._later.popleft()
            error = later()
            if math.isfinite(error):
                self._error += error
                self._examples += examples
                continue
            for _, _, other in self._later:  # its memory is soon that of other numbers
                other()
            self._later.clear()
            where = f"in minibatch {step + 1}"
            if self._backend.devices():  # where it is that of a block
                where = f"after {self._examples} good examples of it"
            return f"the error is {error} {where}"
        return run_away(self.learner) if ends else ""

    def _pass_validation(self, number: int) -> None:
        """Take the validation examples along at the end of a pass over the data."""
        if number % self._passes.steps or not self._passes.held_out:
            return
        count, layer, hidden = number // self._passes.steps, self.learner.current(), None
        with self.source.validation(count) as X:
            if self._above is not None and number in self._numbers:
                hidden = layer.up(X)
                if self._staged is not None:
                    _finite(hidden)
                self._above.validation.put(count, hidden)
            if number > self.plan.end:
                return  # the error of a layer that was trained is not asked for
            self._validation = len(X), self._backend.later(self.learner.summed_error(X, hidden))
            if self.layer.stopping is not None:
                host = self._backend.tohost  # where likelihoods are computed, in float64
                self.layer.stopping.stops(layer.to(host), host(X[:0]), host(X))

    def _take_validation(self) -> None:
        if self._validation is not None:
            rows, error = self._validation
            self._validation_error, self._validation = float(error()) / rows, None

    def _epoch_result(self, epoch: int) -> EpochResult:
        self._take_validation()
        self.layer.end_epoch()
        warnings = tuple(self.layer.warnings)
        self.layer.warnings.clear()
        if self.layer.stopping is not None and self.layer.stopping.is_over:
            self.shorten(epoch)
        event = EpochFinished(
            time=time.monotonic(),
            layer=self.learner.layer,
            epoch=epoch,
            reads=0,
            started=self._started,
            transform_seconds=0.0,
            # No minibatch of an epoch may be left, if the layer was taken back at its end.
            train_error=self._error / self._examples if self._examples else math.nan,
            validation_error=self._validation_error,
        )
        return EpochResult(
            event=event,
            warnings=warnings,
            is_last=epoch * self._steps == self.plan.steps,
            marks=self.layer.take_marks(),
        )


def _finite(array: Any) -> Any:
    """Replace what is not a finite number by 0."""
    np.copyto(array, np.float32(0), where=np.logical_not(np.isfinite(array)))
    return array
