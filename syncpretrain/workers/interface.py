"""Interface of a runtime: the driver submits commands and waits for messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Protocol

from syncpretrain.models.layer import Layer
from syncpretrain.schedule.schedule import Train
from syncpretrain.workers.link import SentError, failure_of
from syncpretrain.workers.state import LayerState

__all__ = ["Failed", "Finished", "Message", "Runtime"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A worker finished its epoch. Times as in ``time.monotonic``.

    ``layer`` is the version to publish. ``warnings`` report each time the layer was taken back to
    its last epoch; ``stops`` says that it has learned enough. ``drifts`` has, by version, the
    distance of its outputs from the outputs of an older version. ``drifts`` and ``state`` are empty
    unless they were asked for. ``computed`` is whether the worker computed its input, in another
    process than the driver's.
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
    computed: bool = False

    def shifted(self, seconds: float) -> Finished:
        """Return the same by a clock that is some seconds ahead."""
        times = (self.started, self.trained_from, self.ended)
        started, trained_from, ended = (moment + seconds for moment in times)
        return replace(self, started=started, trained_from=trained_from, ended=ended)


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker failed in an epoch, or was stopped in it.

    ``warnings`` and ``computed`` are as in :class:`Finished`. ``state`` is what the worker has:
    where it was stopped, or else its last epoch's end; None if it died.
    """

    command: Train
    error: BaseException
    warnings: tuple[str, ...] = ()
    state: LayerState | None = None
    computed: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        error = SentError(self.error)
        return Failed, (self.command, error, self.warnings, self.state, self.computed)

    def failure(self) -> BaseException:
        """Return what the caller is to see: the layer, the epoch, and the error as its cause."""
        return failure_of(self.command.layer, self.command.epoch, self.error)


Message = Finished | Failed


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
