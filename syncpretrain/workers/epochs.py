"""Whole epochs: what drivers and workers tell each other, and the runtime of workers in a place.

An order is an epoch; the answer says what became of it.

Guarantees:

* A worker with nothing to do sleeps.
* A worker that dies is replaced where its place can do that; else it is a failure of its layer,
  reported within a tick of the driver.
* Leaving the context ends every worker, within a deadline.
"""

from __future__ import annotations

import faulthandler
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Protocol

from syncpretrain.models.layer import Layer
from syncpretrain.parallel.timeouts import Closing, Timeouts
from syncpretrain.schedule.schedule import Train
from syncpretrain.workers.link import (
    STDERR,
    Job,
    Link,
    Place,
    Raised,
    SentError,
    death_of,
    failure_of,
    ready,
)
from syncpretrain.workers.restarts import Restarts
from syncpretrain.workers.state import LayerState

__all__ = ["Failed", "Finished", "LinkedEpochs", "Message", "Runtime"]


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


class LinkedEpochs(Closing):
    """A :class:`Runtime` of workers in a place.

    Parameters
    ----------
    place : Place
    times : Timeouts
        Only ``join`` is used.
    restarts : Restarts, optional
        Restarts that the place uses, to be reported.
    """

    def __init__(self, place: Place, times: Timeouts, restarts: Restarts | None = None) -> None:
        super().__init__(times)
        self._place, self._restarts = place, restarts or Restarts()
        self._links: dict[int, Link] = {}  # by layer
        self._commands: dict[int, Train] = {}  # the newest of each layer
        self._busy: set[int] = set()
        self._is_stopping = False
        self._ready = deque[int]()  # layers with an answer, or lost, that were not looked at yet

    @abstractmethod
    def _jobs(self) -> Sequence[Job]:
        """Return the job of each layer."""

    @abstractmethod
    def _order(self, command: Train) -> Any:
        """Return what a worker is sent for an epoch."""

    def _record(self, message: Message) -> None:
        """Record what a worker has computed beside its epoch."""

    def submit(self, command: Train) -> None:
        """Send the layer's worker an epoch."""
        layer, order = command.layer, self._order(command)
        # The driver may read the progress before the worker wakes: the last epoch's would be shown.
        self._place.progress[layer] = 0.0
        self._commands[layer] = command
        self._busy.add(layer)
        self._links[layer].send(order)

    def set_workers(self, layer: int, workers: int) -> None:
        """Set the number of workers of a layer from its next step on."""
        self._place.set_workers(layer, workers)

    def fraction(self, layer: int) -> float:
        """Return how far the running epoch of a layer is, in [0, 1]."""
        return float(self._place.progress[layer])

    def stop(self) -> None:
        """Ask every worker to leave after its minibatch; none is replaced from now on."""
        self._is_stopping = True
        self._place.stop()

    def dump_stacks(self) -> None:
        """Write on stderr where every thread of every worker stands."""
        self._place.dump_stacks()
        faulthandler.dump_traceback(STDERR)

    def wait(self, timeout: float) -> Message | None:
        """Return the next message of any worker, or how one was lost, or None."""
        if not self._ready:
            found = ready(self._links.values(), timeout)
            self._ready.extend(layer for layer, link in self._links.items() if link in found)
        return self._receive(self._ready.popleft()) if self._ready else None

    def _open(self) -> None:
        self._links = dict(enumerate(self._place.start(self._jobs()), start=1))

    def _receive(self, layer: int) -> Message | None:
        link = self._links[layer]
        message: Message | Raised | None = link.receive()
        if message is None:
            return self._lost(layer)
        if isinstance(message, Finished):
            message = message.shifted(link.offset)
        if isinstance(message, Raised):  # it could not even begin
            command = self._commands.get(layer, Train(layer, 1, 0, 0))
            message = Failed(command, message.error)
        self._busy.discard(layer)
        self._record(message)
        return message

    def _lost(self, layer: int) -> Failed | None:
        """Return the failure of a worker that ended, None if another one goes on in its place."""
        command = self._commands.get(layer, Train(layer, 0, 0, 0))
        is_busy = layer in self._busy
        self._busy.discard(layer)
        running = command.epoch if is_busy else 0
        death = death_of(layer, self._links[layer].ending(), running=running, done=command.epoch)
        link = None if self._is_stopping else self._place.replace(layer, death)
        self._restarts.report_all()
        if link is None:
            return Failed(command, death)
        self._links[layer] = link
        if is_busy:
            self.submit(command)
        return None

    def _close(self) -> list[str]:
        return self._place.end()
