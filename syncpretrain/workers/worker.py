"""A layer in training, and the worker that trains its epochs in any runtime."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.examples import evenly_spaced
from syncpretrain.data.order import steps_per_epoch
from syncpretrain.errors import DivergedError
from syncpretrain.events import EpochFinished
from syncpretrain.kernels.program import PhaseRunner, Phases
from syncpretrain.learners.base import Learner
from syncpretrain.learners.early_stopping import EarlyStopping, Outputs
from syncpretrain.learners.epoch import Cursor, Stopped, train_epoch
from syncpretrain.learners.steps import MarkedStep, Step, load_state
from syncpretrain.models.layer import Layer
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.schedule.schedule import Train
from syncpretrain.workers.activations import Split
from syncpretrain.workers.epochs import Failed, Finished, Message
from syncpretrain.workers.ranks.placement import RankShares
from syncpretrain.workers.restarts import Restarts
from syncpretrain.workers.state import LayerState
from syncpretrain.workers.versions import Versions

MAX_ROLLBACKS = 3  # of one layer in one run
PROBE_ROWS = 1000  # rows measured after each epoch; more rows would cost over 1 %


class Inputs(Protocol):
    """Source of a worker's input."""

    def activations(
        self, layer: int, version: int, below: int, stop: Callable[[], bool], run: PhaseRunner
    ) -> Split | None:
        """Return the activations of a version, or None if ``stop`` turned true; see Versions."""


@dataclass(eq=False)
class LayerInTraining:
    """A layer with its learner, step, early stopping and last good state.

    Parameters
    ----------
    learner : Learner
    step : Step
        The learner's training on a minibatch.
    stopping : EarlyStopping, optional
        Decides after each epoch whether the layer has learned enough.
    outputs : Outputs, optional
        Measures the layer's drift after each epoch, and decides whether the layer has settled.

    Attributes
    ----------
    last_good : Layer
        The layer at the end of its last epoch, to which a roll-back returns.
    warnings : list of str
        Warnings of the running epoch.
    """

    learner: Learner
    step: Step
    stopping: EarlyStopping | None = None
    outputs: Outputs | None = None

    def __post_init__(self) -> None:
        with self.learner.stream:
            self.last_good = self.learner.snapshot()
        self.warnings: list[str] = []
        self._rollbacks = 0

    @property
    def marks(self) -> dict[int, Layer]:
        """The layer after some updates, by their number, until it is taken."""
        return self.step.marks if isinstance(self.step, MarkedStep) else {}

    def take_marks(self) -> dict[int, Layer]:
        """Return the marks, and forget them."""
        taken = dict(self.marks)
        self.marks.clear()
        return taken

    def plan_marks(self, steps: int) -> None:
        """Mark updates of epochs of so many minibatches."""
        if isinstance(self.step, MarkedStep):
            self.step.steps = steps

    def end_epoch(self) -> None:
        """Keep a snapshot for a roll-back, and add a notice of the layer's device, if any."""
        if (notice := self.learner.recorder.take_notice()) is not None:
            self.warnings.append(f"layer {self.learner.layer} is {notice}")
        if self.learner.settings.chains:
            self.step.state()  # takes the chains of other ranks
        self.last_good = self.learner.snapshot()

    def restore(self) -> None:
        """Take the layer back to the end of its last epoch."""
        self.learner.restore(self.last_good)
        self.step.restart()

    def roll_back(self, failure: DivergedError, epoch: int) -> None:
        """Take a diverged layer back to the end of its last epoch, with half the learning rate.

        Raises
        ------
        DivergedError
            After :data:`MAX_ROLLBACKS` roll-backs.
        """
        if self._rollbacks == MAX_ROLLBACKS:
            raise failure
        # Half the rate for all the rest of the run: the old one would diverge again.
        self._rollbacks += 1
        self.restore()
        self.learner.learning_rate /= 2
        self.warnings.append(
            f"{failure}. Back to the end of epoch {epoch - 1}, with half the learning rate,"
            f" {self.learner.learning_rate:g}"
        )

    def state(self, cursor: Cursor) -> LayerState:
        """Return the state at a place in an epoch, in the arrays that the next minibatch changes.

        At the begin of an epoch it is the state at the end of the last epoch.
        """
        return LayerState(
            # At the end of an epoch the two are equal, and the snapshot exists already.
            layer=self.learner.current() if cursor.minibatches else self.last_good,
            step_state=self.step.state(),
            last_good=self.last_good,
            cursor=cursor,
            learning_rate=self.learner.learning_rate,
            rollbacks=self._rollbacks,
            stopping=self.stopping.state if self.stopping else None,
            outputs=self.outputs.kept if self.outputs else {},
            marks=dict(self.marks),
        )

    def load_state(self, state: LayerState) -> None:
        """Continue from a state; the result is bit-identical.

        Raises
        ------
        KeyError, ValueError
            If the state is of another layer.
        """
        with self.learner.stream:
            state = state.to(self.learner.backend.asarray)
            load_state(self.learner, self.step, state.layer, state.step_state)
        self.learner.learning_rate = state.learning_rate
        self.last_good, self._rollbacks = state.last_good, state.rollbacks
        if self.stopping is not None and state.stopping is not None:
            self.stopping.state = state.stopping
        if self.outputs is not None:
            self.outputs.kept = dict(state.outputs)
        self.marks.update(state.marks)


class LayerWorker:
    """Trains one layer, epoch by epoch, on the versions that its commands name.

    Parameters
    ----------
    layer : LayerInTraining
    inputs : Inputs
        The versions of the layer below.
    keep_states : bool
        True to end each epoch with a copy of the whole state, for checkpoints.
    replicas : int
        Largest number of threads that may share a step of this layer; this worker's thread leads.
    times : Timeouts
        Deadlines of these threads.

    Attributes
    ----------
    progress : ndarray of shape (1,), float64
        Finished share of the running epoch; the worker writes it, the runtime reads it. A runtime
        may replace the array by one in shared memory.
    worker_count : ndarray of shape (1,), float64
        Number of threads of a step; the runtime sets it, the worker reads it before every step. A
        runtime may replace this array too.
    keep : callable or None
        Called after every minibatch with the number of finished minibatches of the epoch, and the
        sum of their errors.
    """

    def __init__(
        self,
        layer: LayerInTraining,
        inputs: Inputs,
        *,
        keep_states: bool = False,
        replicas: int = 1,
        times: Timeouts = TIMEOUTS,
    ) -> None:
        self.layer, self.learner = layer, layer.learner
        self.progress = np.zeros(1)
        self.worker_count = np.ones(1)
        self._pool = WorkerPool(replicas, f"syncpretrain-layer-{self.learner.layer}", times)
        self._inputs, self._keep_states = inputs, keep_states
        self._cursor = Cursor()
        self.keep: Callable[[int, float], None] | None = None

    def execute(self, command: Train, stop: Callable[[], bool]) -> Message:
        """Train an epoch; never raise an error.

        After a stop the learner keeps its parameters, as long as they are finite; any other failure
        takes the learner back to its last epoch. The arrays in the message are on the device that
        trains the layer, and ready.
        """
        self.layer.warnings.clear()
        message: Message | None = None
        try:
            with self.learner.stream:
                message = self._execute(command, stop)
                # The one wait: other streams read the message, and reuse memory that it freed.
                self.learner.stream.synchronize()
                return message
        except BaseException as error:  # the device has failed, and the state is lost
            first = message.error if isinstance(message, Failed) else error
            return Failed(command, first, tuple(self.layer.warnings))

    def _execute(self, command: Train, stop: Callable[[], bool]) -> Message:
        try:
            return self._train(command, stop)
        except Stopped as stopped:
            self._cursor = stopped.cursor or self._cursor
            # Divergence is noticed a minibatch late: without this look a checkpoint could hold NaN.
            if not self.learner.is_finite():
                self._roll_back()
            return Failed(command, stopped, tuple(self.layer.warnings), self.state())
        # BaseException, also KeyboardInterrupt: every error has to become a message, or the driver
        # would wait for the message until its deadline.
        except BaseException as error:
            try:
                self._roll_back()
                state = self.state()
            except (RuntimeError, MemoryError):  # on a failed device every call fails
                state = None
            return Failed(command, error, tuple(self.layer.warnings), state)

    def state(self) -> LayerState:
        """Return a copy of the whole state before the next minibatch."""
        state = self.layer.state(self._cursor)
        # Copies of the arrays that the next minibatch changes, while the driver writes the state.
        return replace(
            state,
            layer=self.learner.snapshot() if self._cursor.minibatches else state.layer,
            step_state={name: array.copy() for name, array in state.step_state.items()},
        )

    def load_state(self, state: LayerState) -> None:
        """Continue from a state; the result is bit-identical."""
        self.layer.load_state(state)
        self._cursor = state.cursor

    def close(self) -> list[str]:
        """Stop the helper threads; return the names of those still alive."""
        return self._pool.close()

    def _run(self, phases: Phases, shards: int) -> None:
        # Read once a step: the runtime may set another number at any time, from another thread.
        self._pool.run(phases, shards, int(self.worker_count[0]))

    def _roll_back(self) -> None:
        self.layer.restore()
        self._cursor = Cursor()

    def _train(self, command: Train, stop: Callable[[], bool]) -> Finished:
        self.progress[0] = 0.0
        started = time.monotonic()
        reads, below = command.reads, command.below_reads
        X = self._inputs.activations(command.layer - 1, reads, below, stop, self._run)
        if X is None:
            raise Stopped
        trained_from = time.monotonic()
        # Version 0, from which the drift of the first epoch is measured.
        if command.epoch == 1:
            self._record_outputs(X.train, 0)
        train_error = self._epoch(X.train, command.epoch, stop)
        self.layer.end_epoch()
        self._cursor = Cursor()
        held_out = self._probe(X.validation)
        held_out_error = self.learner.validation_error(held_out) if len(held_out) else None
        stops = self._stops(X.train, held_out)
        drifts = self._record_outputs(X.train, command.epoch, command.against)
        outputs = self.layer.outputs
        stops = stops or (outputs is not None and outputs.is_settled)
        event = EpochFinished(
            time=time.monotonic(),
            layer=command.layer,
            epoch=command.epoch,
            reads=reads,
            started=started,
            transform_seconds=trained_from - started,
            train_error=train_error,
            validation_error=held_out_error,
            drift=drifts.get(command.epoch - 1),
        )
        return Finished(
            command=command,
            event=event,
            layer=self.layer.last_good,
            warnings=tuple(self.layer.warnings),
            stops=stops,
            drifts=drifts,
            marks=self.layer.take_marks(),
            state=self.state() if self._keep_states else None,
        )

    def _epoch(self, X: NDArray[np.float32], epoch: int, stop: Callable[[], bool]) -> float:
        """Train an epoch; if it diverges, roll the layer back and train the epoch again.

        Raises
        ------
        DivergedError
            After :data:`MAX_ROLLBACKS` roll-backs.
        """
        self.layer.plan_marks(steps_per_epoch(len(X), self.learner.batch_size))
        while True:
            try:
                return train_epoch(
                    self.learner,
                    self.layer.step,
                    X,
                    epoch=epoch,
                    stop=stop,
                    progress=partial(self.progress.__setitem__, 0),
                    begin=self._cursor,
                    run=self._run,
                    keep=self.keep,
                )
            except DivergedError as diverged:
                self.layer.roll_back(diverged, epoch)
                self._cursor = Cursor()

    def _probe(self, X: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return at most :data:`PROBE_ROWS` evenly spaced rows of X, as a dense array."""
        if len(X) <= PROBE_ROWS:
            return X[:]
        backend, rows = self.learner.backend, evenly_spaced(np.arange(len(X)), PROBE_ROWS)
        out = backend.empty((PROBE_ROWS, X.shape[1]))
        probe: NDArray[np.float32] = backend.gather(X, rows, out=out)
        return probe

    def _stops(self, train: NDArray[np.float32], held_out: NDArray[np.float32]) -> bool:
        if self.layer.stopping is None or not len(held_out):
            return False
        host = self.learner.backend.tohost  # likelihoods are computed on the host, in float64
        last, samples = self.layer.last_good.to(host), map(host, (self._probe(train), held_out))
        return self.layer.stopping.stops(last, *samples)

    def _record_outputs(
        self, train: NDArray[np.float32], version: int, against: Sequence[int] = ()
    ) -> dict[int, float]:
        """Return the distance of a version from older ones; empty if drift is not measured."""
        if self.layer.outputs is None:
            return {}
        outputs = self.learner.backend.tohost(self.layer.last_good.up(self._probe(train)))
        return self.layer.outputs.record(version, outputs, against)


WorkerFactory = Callable[[Inputs], LayerWorker]  # builds a worker in the process that trains


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsRun:
    """All that a runtime may need of a run by epochs.

    Attributes
    ----------
    worker_factories : sequence of callable
        One a layer: builds its worker, here or in a process of its own.
    versions : Versions
        The versions that the workers read.
    blas_threads : int
        BLAS threads of each process that is started.
    stop : callable
        Asked between minibatches whether to stop, by the workers of this process.
    times : Timeouts
        How long the caller and the workers wait for each other.
    restarts : Restarts, optional
        For processes that die.
    shares : RankShares
        How many ranks may share a layer.
    below : callable
        Returns the versions that an epoch trains on, from layer 1 up, on the host.
    """

    worker_factories: Sequence[WorkerFactory]
    versions: Versions
    blas_threads: int
    stop: Callable[[], bool]
    times: Timeouts
    restarts: Restarts | None
    shares: RankShares
    below: Callable[[Train], Sequence[Layer]]

    def workers(self) -> list[LayerWorker]:
        """Build the workers in this process."""
        return [build(self.versions) for build in self.worker_factories]
