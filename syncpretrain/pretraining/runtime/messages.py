"""Messages of a layer's worker in answer to a command, and the state that they may hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import DivergedError, StalledError, WorkerError
from syncpretrain.learners.cursor import Cursor, Stopped
from syncpretrain.models.layer import DenseLayer
from syncpretrain.pretraining.schedule.machine import Train

__all__ = ["Failed", "Finished", "LayerState", "Message", "StreamedLayerState", "failure_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """Everything that a layer's next minibatch depends on: what a checkpoint keeps of it.

    ``step_state`` is that of its :class:`~syncpretrain.learners.steps.Step`. ``last_good`` is the
    layer at its last epoch's end, where a roll-back goes. ``cursor`` is where in the epoch after
    that it stands; ``stopping`` the state of early stopping.
    """

    layer: DenseLayer
    step_state: dict[str, NDArray[np.float32]]
    last_good: DenseLayer
    cursor: Cursor
    learning_rate: float
    rollbacks: int
    stopping: tuple[float, int] | None

    def to(self, device: Callable[[Any], Any]) -> LayerState:
        """Return the state with every array moved by ``device``."""
        return replace(
            self,
            layer=self.layer.to(device),
            step_state={name: device(array) for name, array in self.step_state.items()},
            last_good=self.last_good.to(device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedLayerState:
    """One layer between two minibatches.

    ``position`` is the last minibatch that it processed. Of the running epoch, ``examples`` is how
    many its errors are summed over. ``ring`` and ``passes`` hold, by number, the minibatches and
    the validation examples that it handed up and that the layer above has not processed.
    """

    position: int
    state: LayerState
    examples: int
    validation_error: float | None
    warnings: tuple[str, ...]
    ring: dict[int, NDArray[np.float32]]
    passes: dict[int, NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A worker finished its epoch. Times as in ``time.monotonic``.

    ``layer`` is the version to publish. ``warnings`` report each time the layer was taken back to
    its last epoch; ``stops`` says that it has learned enough. ``state`` is None unless states are
    asked for.
    """

    command: Train
    started: float
    trained_from: float
    ended: float
    train_error: float
    validation_error: float | None
    layer: DenseLayer
    warnings: tuple[str, ...] = ()
    stops: bool = False
    state: LayerState | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker failed in an epoch, or was stopped in it; ``warnings`` as of :class:`Finished`.

    ``state`` is what it has: where it was stopped, or else its last epoch's end; None if it died.
    """

    command: Train
    error: BaseException
    warnings: tuple[str, ...] = ()
    state: LayerState | None = None

    def failure(self) -> BaseException:
        """Return what the caller is to see: the layer, the epoch, and the error as its cause."""
        return failure_of(self.command.layer, self.command.epoch, self.error)


def failure_of(layer: int, epoch: int, error: BaseException) -> BaseException:
    """Return the error that the caller of a run is to see, with that of the layer as its cause."""
    if isinstance(error, (Stopped, KeyboardInterrupt)):
        return error
    if type(error) is WorkerError:  # a process that ended says it all itself
        return error
    if isinstance(error, DivergedError):
        failure: WorkerError = DivergedError(str(error))
    else:
        kind = StalledError if isinstance(error, StalledError) else WorkerError
        failure = kind(f"layer {layer} failed in epoch {epoch}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


Message = Finished | Failed
