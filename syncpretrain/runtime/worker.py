"""What a layer's worker does with one command, whatever runs it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.examples import evenly_spaced
from syncpretrain.errors import DivergedError, WorkerError
from syncpretrain.evaluation.stopping import EarlyStopping
from syncpretrain.learners.base import Learner
from syncpretrain.learners.epoch import Stopped, train_epoch
from syncpretrain.runtime.store import Versions
from syncpretrain.schedule.machine import Train

__all__ = ["Failed", "Finished", "LayerWorker", "Message"]

MAX_ROLLBACKS = 3  # of one layer in one run
PROBE_ROWS = 1000  # validation rows looked at after each epoch; more would cost over 1 %


@dataclass(frozen=True, slots=True)
class Finished:
    """A worker finished its epoch and published the version. Times as in ``time.monotonic``.

    ``warnings`` tell of each time the layer was taken back to its last epoch; ``stops`` says that
    it has learned enough.
    """

    command: Train
    started: float
    trained_from: float
    ended: float
    train_error: float
    validation_error: float | None
    warnings: tuple[str, ...] = ()
    stops: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker failed in an epoch, or was stopped in it; ``warnings`` as of :class:`Finished`."""

    command: Train
    error: BaseException
    warnings: tuple[str, ...] = ()

    def failure(self) -> BaseException:
        """Return what the caller is to see: the layer, the epoch, and the error as its cause."""
        if isinstance(self.error, (Stopped, KeyboardInterrupt)):
            return self.error
        if isinstance(self.error, DivergedError):
            failure: WorkerError = DivergedError(str(self.error))
        else:
            failure = WorkerError(
                f"layer {self.command.layer} failed in epoch {self.command.epoch}:"
                f" {type(self.error).__name__}: {self.error}"
            )
        failure.__cause__ = self.error
        return failure


Message = Finished | Failed


class LayerWorker:
    """Trains one layer, epoch by epoch, on the versions it is told to read.

    Parameters
    ----------
    learner : Learner
    versions : Versions
        Shared with the other layers' workers.
    stopping : EarlyStopping, optional
        Asked after each epoch whether the layer has learned enough.
    """

    def __init__(
        self, learner: Learner, versions: Versions, stopping: EarlyStopping | None = None
    ) -> None:
        self.learner = learner
        self.fraction = 0.0  # of the running epoch; written here, read by whoever shows progress
        self._versions = versions
        self._stopping = stopping
        self._last_good = learner.snapshot()
        self._rollbacks = 0
        self._warnings: list[str] = []  # of the running epoch

    def execute(self, command: Train, stop: Callable[[], bool]) -> Message:
        """Train an epoch and publish it; never raises.

        A stop keeps what the learner has, as long as that is finite; any other failure takes it
        back to its last epoch.
        """
        self._warnings.clear()
        try:
            return self._train(command, stop)
        except Stopped as stopped:
            if not self.learner.is_finite():  # the next minibatch would have diverged
                self.learner.restore(self._last_good)
            return Failed(command, stopped, tuple(self._warnings))
        except BaseException as error:  # the worker boundary: the driver raises it
            self.learner.restore(self._last_good)
            return Failed(command, error, tuple(self._warnings))

    def _train(self, command: Train, stop: Callable[[], bool]) -> Finished:
        self.fraction = 0.0
        started = time.monotonic()
        X = self._versions.activations(command.layer - 1, command.reads, command.below_reads, stop)
        if X is None:
            raise Stopped
        trained_from = time.monotonic()
        train_error = self._epoch(X.train, command.epoch, stop)
        self._last_good = self.learner.snapshot()
        self._versions.publish(command.layer, command.epoch, self._last_good)
        held_out = evenly_spaced(X.validation, PROBE_ROWS)
        held_out_error = self.learner.validation_error(held_out) if len(held_out) else None
        stops = self._stops(X.train, held_out)
        return Finished(
            command,
            started,
            trained_from,
            time.monotonic(),
            train_error,
            held_out_error,
            tuple(self._warnings),
            stops,
        )

    def _epoch(self, X: NDArray[np.float32], epoch: int, stop: Callable[[], bool]) -> float:
        """Train an epoch; where it diverges, take the layer back and halve its learning rate.

        Raises
        ------
        DivergedError
            If that has been done :data:`MAX_ROLLBACKS` times.
        """
        while True:
            try:
                return train_epoch(self.learner, X, epoch=epoch, stop=stop, progress=self._note)
            except DivergedError as diverged:
                if self._rollbacks == MAX_ROLLBACKS:
                    raise
                self._rollbacks += 1
                self.learner.restore(self._last_good)
                self.learner.learning_rate /= 2
                self._warnings.append(
                    f"{diverged}. Back to the end of epoch {epoch - 1}, with half the learning"
                    f" rate, {self.learner.learning_rate:g}"
                )

    def _stops(self, train: NDArray[np.float32], held_out: NDArray[np.float32]) -> bool:
        if self._stopping is None or not len(held_out):
            return False
        return self._stopping.stops(self._last_good, evenly_spaced(train, PROBE_ROWS), held_out)

    def _note(self, fraction: float) -> None:
        self.fraction = fraction
