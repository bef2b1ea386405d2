"""Interface of a runtime: the driver submits commands and waits for messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from syncpretrain.errors import DivergedError, IterableError, StalledError, WorkerError
from syncpretrain.learners.epoch import Stopped
from syncpretrain.models.layer import Layer
from syncpretrain.schedule.schedule import Train
from syncpretrain.workers.state import LayerState

__all__ = ["STDERR", "Failed", "Finished", "Message", "Runtime", "failure_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A worker finished its epoch. Times as in ``time.monotonic``.

    ``layer`` is the version to publish. ``warnings`` report each time the layer was taken back to
    its last epoch; ``stops`` says that it has learned enough. ``drifts`` has, by version, the
    distance of its outputs from the outputs of an older version. ``drifts`` and ``state`` are empty
    unless they were asked for.
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
    """Return the error that the caller of a run is to see; its cause is the layer's error.

    The exception is an iterable of examples: the cause is then the error that it raised.
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


STDERR = 2  # the descriptor, whatever sys.stderr has become


class Runtime(Protocol):
    """Executes epochs on one worker a layer; a context manager that leaves no worker behind."""

    def __enter__(self) -> Runtime:
        """Start the workers."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop, wake and join the workers."""
        ...

    def submit(self, command: Train) -> None:
        """Hand an epoch to its layer's worker; returns at once."""
        ...

    def set_workers(self, layer: int, workers: int) -> None:
        """Set the number of workers of a layer from its next step on."""
        ...

    def fraction(self, layer: int) -> float:
        """Return how far the running epoch of a layer is, in [0, 1]."""
        ...

    def stop(self) -> None:
        """Ask every worker to leave after its minibatch; each will send its message."""
        ...

    def dump_stacks(self) -> None:
        """Write on stderr where every worker stands, which a stall asks for."""
        ...

    def wait(self, timeout: float) -> Message | None:
        """Return the next message of any worker, or None if none came in ``timeout`` seconds."""
        ...
