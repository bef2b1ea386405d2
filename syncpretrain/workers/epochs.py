"""Whole epochs: the messages between drivers and workers, and the runtime of workers in a place.

An order is an epoch to train; the answer is :class:`Finished` or :class:`Failed`.

Guarantees:

* A worker with nothing to do sleeps.
* A worker that dies is replaced where the place can do that; else the death is a failure of the
  worker's layer, reported within a tick of the driver.
* Leaving the context ends every worker, within a deadline.
"""

from __future__ import annotations

import faulthandler
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from syncpretrain.events import EpochFinished
from syncpretrain.models.layer import Layer
from syncpretrain.parallel.timeouts import Closing, Timeouts
from syncpretrain.schedule.schedule import Train
from syncpretrain.workers import link as links
from syncpretrain.workers.restarts import Restarts
from syncpretrain.workers.state import LayerState


def shifted(event: EpochFinished, seconds: float) -> EpochFinished:
    """Return the same event by a clock that is some seconds ahead."""
    return replace(event, time=event.time + seconds, started=event.started + seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A worker finished its epoch.

    ``event`` is for the observers. ``layer`` is the version to publish. ``warnings`` report each
    roll-back of the layer to its last epoch; ``stops`` is True if the layer has learned enough.
    ``drifts`` maps an older version to the distance between its outputs and the outputs of this
    one. ``drifts`` and ``state`` are empty unless the order asks for them. ``computed`` is True if
    the worker computed the input of the epoch in another process than the driver's. ``marks`` has
    the layer after some updates of the epoch, by their number.
    """

    command: Train
    event: EpochFinished
    layer: Layer
    warnings: tuple[str, ...] = ()
    stops: bool = False
    drifts: Mapping[int, float] = field(default_factory=dict)
    state: LayerState | None = None
    computed: bool = False
    marks: Mapping[int, Layer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker failed in an epoch, or was stopped in the middle of an epoch.

    ``warnings`` and ``computed`` are as in :class:`Finished`. ``state`` is the layer's state at
    the stop, or after a failure at the end of the last epoch; None if the worker died.
    """

    command: Train
    error: BaseException
    warnings: tuple[str, ...] = ()
    state: LayerState | None = None
    computed: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        error = links.SentError(self.error)
        return Failed, (self.command, error, self.warnings, self.state, self.computed)

    def failure(self) -> BaseException:
        """Return the error for the caller: it names layer and epoch, and has the cause."""
        return links.failure_of(self.command.layer, self.command.epoch, self.error)


Message = Finished | Failed


class LinkedEpochs(Closing):
    """A runtime, which runs epochs on one worker a layer, of workers in a place.

    Entered, it starts the workers; left, it stops, wakes and joins them, and leaves none behind.

    Parameters
    ----------
    place : Place
    times : Timeouts
        Only ``join`` is used.
    restarts : Restarts, optional
        Restarts of the place; this runtime reports them.
    """

    def __init__(
        self, place: links.Place, times: Timeouts, restarts: Restarts | None = None
    ) -> None:
        super().__init__(times)
        self._place, self._restarts = place, restarts or Restarts()
        self._links: dict[int, links.Link] = {}  # by layer
        self._commands: dict[int, Train] = {}  # the newest one of each layer
        self._busy: set[int] = set()
        self._is_stopping = False
        self._ready = deque[int]()  # layers with an answer, or with a dead worker, to be received

    @abstractmethod
    def _jobs(self) -> Sequence[links.Job]:
        """Return the job of each layer."""

    def _order(self, command: Train) -> Any:
        """Return the order that trains an epoch: the command, if the worker needs no more."""
        return command

    def _record(self, message: Message) -> None:
        """Record from a message which activations and versions a worker now has."""

    def submit(self, command: Train) -> None:
        """Send an epoch to the worker of its layer."""
        layer, order = command.layer, self._order(command)
        # The driver may read the progress before the worker wakes, and would show the last epoch's.
        self._place.progress[layer] = 0.0
        self._commands[layer] = command
        self._busy.add(layer)
        self._links[layer].send(order)

    def set_workers(self, layer: int, workers: int) -> None:
        """Set the number of workers of a layer, from the next step on."""
        self._place.set_workers(layer, workers)

    def fraction(self, layer: int) -> float:
        """Return the finished share of a layer's running epoch, in [0, 1]."""
        return float(self._place.progress[layer])

    def stop(self) -> None:
        """Ask every worker to leave after its minibatch; replace no worker from now on."""
        self._is_stopping = True
        self._place.stop()

    def dump_stacks(self) -> None:
        """Write the stacks of all threads of every worker on stderr."""
        self._place.dump_stacks()
        faulthandler.dump_traceback(links.STDERR)

    def wait(self, timeout: float) -> Message | None:
        """Return the next message of any worker, or the failure of a dead one, or None."""
        if not self._ready:
            # Several workers may be ready at once; the caller takes one message a call.
            found = links.ready(self._links.values(), timeout)
            self._ready.extend(layer for layer, link in self._links.items() if link in found)
        return self._receive(self._ready.popleft()) if self._ready else None

    def _open(self) -> None:
        self._links = dict(enumerate(self._place.start(self._jobs()), start=1))

    def _receive(self, layer: int) -> Message | None:
        link = self._links[layer]
        message: Message | links.Raised | None = link.receive()
        if message is None:
            return self._lost(layer)
        if isinstance(message, Finished):
            message = replace(message, event=shifted(message.event, link.offset))
        if isinstance(message, links.Raised):  # the worker could not be built
            message = Failed(self._commands.get(layer, Train(layer, 1, 0, 0)), message.error)
        self._busy.discard(layer)
        self._record(message)
        return message

    def _lost(self, layer: int) -> Failed | None:
        """Return the failure of a dead worker; None if a new worker takes its place."""
        command = self._commands.get(layer, Train(layer, 0, 0, 0))
        is_busy = layer in self._busy
        self._busy.discard(layer)
        running = command.epoch if is_busy else 0
        how = self._links[layer].ending()
        death = links.death_of(layer, how, running=running, done=command.epoch)
        link = None if self._is_stopping else self._place.replace(layer, death)
        self._restarts.report_all()
        if link is None:
            return Failed(command, death)
        self._links[layer] = link
        # The new worker trains the rest of the epoch, or has kept the report of the whole.
        if is_busy:
            self.submit(command)
        return None

    def _close(self) -> list[str]:
        return self._place.end()
