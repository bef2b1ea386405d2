"""What a layer's worker does with one command, whatever runs it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.examples import evenly_spaced
from syncpretrain.errors import DivergedError, WorkerError
from syncpretrain.learners.epoch import Stopped, train_epoch
from syncpretrain.learners.rbm import RBM
from syncpretrain.runtime.store import Versions
from syncpretrain.schedule.machine import Train

__all__ = ["Failed", "Finished", "LayerWorker", "Message"]

PROBE_ROWS = 1000  # validation rows looked at after each epoch; more would cost over 1 %


@dataclass(frozen=True, slots=True)
class Finished:
    """A worker finished its epoch and published the version. Times as in ``time.monotonic``."""

    command: Train
    started: float
    trained_from: float
    ended: float
    train_error: float
    validation_error: float | None


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker failed in an epoch, or was stopped in it."""

    command: Train
    error: BaseException

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
    learner : RBM
    versions : Versions
        Shared with the other layers' workers.
    """

    def __init__(self, learner: RBM, versions: Versions) -> None:
        self.learner = learner
        self.fraction = 0.0  # of the running epoch; written here, read by whoever shows progress
        self._versions = versions
        self._last_good = learner.snapshot()

    def execute(self, command: Train, stop: Callable[[], bool]) -> Message:
        """Train an epoch and publish it; never raises.

        A stop keeps what the learner has, as long as that is finite; any other failure takes it
        back to its last epoch.
        """
        try:
            return self._train(command, stop)
        except Stopped as stopped:
            if not self.learner.is_finite():  # the next minibatch would have diverged
                self.learner.restore(self._last_good)
            return Failed(command, stopped)
        except BaseException as error:  # the worker boundary: the driver raises it
            self.learner.restore(self._last_good)
            return Failed(command, error)

    def _train(self, command: Train, stop: Callable[[], bool]) -> Finished:
        self.fraction = 0.0
        started = time.monotonic()
        X = self._versions.activations(command.layer - 1, command.reads, command.below_reads, stop)
        if X is None:
            raise Stopped
        trained_from = time.monotonic()
        train_error = train_epoch(
            self.learner,
            X.train,
            epoch=command.epoch,
            stop=stop,
            progress=self._note,
        )
        self._last_good = self.learner.snapshot()
        self._versions.publish(command.layer, command.epoch, self._last_good)
        validation_error = self._probe(X.validation)
        return Finished(
            command, started, trained_from, time.monotonic(), train_error, validation_error
        )

    def _probe(self, X: NDArray[np.float32]) -> float | None:
        return self.learner.validation_error(evenly_spaced(X, PROBE_ROWS)) if len(X) else None

    def _note(self, fraction: float) -> None:
        self.fraction = fraction
