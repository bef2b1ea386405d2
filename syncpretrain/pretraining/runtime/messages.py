"""Messages of a layer's worker in answer to a command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from syncpretrain.errors import DivergedError, IterableError, StalledError, WorkerError
from syncpretrain.learners.cursor import Stopped
from syncpretrain.models.layer import Layer
from syncpretrain.pretraining.runtime.layer_state import LayerState
from syncpretrain.schedule.epochs import Train

__all__ = ["Failed", "Finished", "Message", "failure_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A worker finished its epoch. Times as in ``time.monotonic``.

    ``layer`` is the version to publish. ``warnings`` report each time the layer was taken back to
    its last epoch; ``stops`` says that it has learned enough. ``drifts`` is by how much its outputs
    differ from those of older versions, if that is asked for, as is ``state``.
    """

    command: Train
    started: float
    trained_from: float
    ended: float
    train_error: float
    validation_error: float | None
    layer: Layer
    warnings: tuple[str, ...] = ()
    stops: bool = False
    drifts: Mapping[int, float] = field(default_factory=dict)
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
    """Return the error that the caller of a run is to see, with that of the layer as its cause.

    The cause of one that an iterable of examples raised is what it raised.
    """
    if isinstance(error, (Stopped, KeyboardInterrupt)):
        return error
    if type(error) is WorkerError:  # a process that ended says it all itself
        return error
    if isinstance(error, DivergedError):
        failure: WorkerError = DivergedError(str(error))
    else:
        kind = StalledError if isinstance(error, StalledError) else WorkerError
        failure = kind(f"layer {layer} failed in epoch {epoch}: {type(error).__name__}: {error}")
    failure.__cause__ = error.__cause__ if isinstance(error, IterableError) else error
    return failure


Message = Finished | Failed
