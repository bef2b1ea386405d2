"""Events of a run, as frozen dataclasses, in the order in which they happen.

Events flow one way, from the driver to its observers (``syncpretrain.observers``), always in
the thread that called :func:`syncpretrain.pretrain` and never under a lock. Layers count from 1,
epochs from 1, and a version is the number of epochs behind it. Times are seconds of
``time.monotonic()``; errors are squared errors summed over the units of an example and averaged
over examples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from syncpretrain.errors import SettingsError

__all__ = [
    "DriftJudged",
    "EpochFinished",
    "EpochStarted",
    "Event",
    "FinetuneEpochFinished",
    "FinetuneStarted",
    "LayerFinished",
    "Notice",
    "Observer",
    "Progress",
    "RunFinished",
    "RunStarted",
    "RunStopped",
    "all_observers",
]


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events; ``time`` is when it happened."""

    time: float


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """Something the user should read, such as which data was used."""

    message: str


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """Pretraining starts, or is resumed from a checkpoint.

    ``epochs`` are the stipulated ones of each layer. ``past_reads`` are, for each layer, the
    upstream versions of its epochs before the checkpoint; events of later ones, sent before, are
    void. With ``handoff`` "minibatch" there are no versions: all events say 0. An epoch has
    ``examples`` in minibatches of ``batch_size``, 0 where it is not known.
    """

    layers: tuple[int, ...]
    epochs: tuple[int, ...]
    schedule: str
    pace: str
    runtime: str
    workers: int
    examples: int
    past_reads: tuple[tuple[int, ...], ...] = ()
    handoff: str = "epoch"
    batch_size: int = 0

    def done(self, layer: int) -> int:
        """Return how many epochs a layer had finished before the checkpoint."""
        return len(self.past_reads[layer - 1]) if self.past_reads else 0


@dataclass(frozen=True, slots=True)
class EpochStarted(Event):
    """A layer was given a slot and trains ``epoch`` on version ``reads`` of the layer below."""

    layer: int
    epoch: int
    reads: int


@dataclass(frozen=True, slots=True)
class Progress(Event):
    """How far the running epoch of a layer is, in [0, 1]; sent a few times a second."""

    layer: int
    epoch: int
    fraction: float


@dataclass(frozen=True, slots=True)
class EpochFinished(Event):
    """A layer finished an epoch and published its version ``epoch``.

    ``started`` is when its worker began; ``transform_seconds`` is the part of the time since spent
    on making its input from the version below. ``train_error`` is the running reconstruction
    error of the epoch's contrastive divergence, ``validation_error`` that of a fixed sample of
    the validation data (None where there is none). ``drift`` is by how much the epoch changed the
    layer's outputs, relative to them, if anything depends on drift.
    """

    layer: int
    epoch: int
    reads: int
    started: float
    transform_seconds: float
    train_error: float
    validation_error: float | None
    drift: float | None = None


@dataclass(frozen=True, slots=True)
class DriftJudged(Event):
    """A layer that has trained its own epochs is woken by a version below, or sleeps on.

    It ``wakes`` if the version differs from version ``since``, which it last trained on, by a
    ``drift`` above ``least``.
    """

    layer: int
    version: int
    since: int
    drift: float
    least: float
    wakes: bool

    def __str__(self) -> str:
        outcome = f"above {self.least:g}: wakes" if self.wakes else f"up to {self.least:g}: sleeps"
        return f"drift {self.drift:.3g} of version {self.version}, {outcome}"


@dataclass(frozen=True, slots=True)
class LayerFinished(Event):
    """A layer has trained all its epochs and nothing can wake it any more."""

    layer: int


@dataclass(frozen=True, slots=True)
class RunFinished(Event):
    """Pretraining is over; ``busy_seconds`` has one entry a layer."""

    seconds: float
    busy_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RunStopped(Event):
    """A run with a folder ends early: it ``failed``, or a signal stopped it.

    ``reason`` is the message of its error. The event is the last one of a run, until it is resumed.
    """

    failed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class FinetuneStarted(Event):
    """Fine-tuning by backpropagation starts."""

    objective: str
    optimizer: str
    epochs: int


@dataclass(frozen=True, slots=True)
class FinetuneEpochFinished(Event):
    """Fine-tuning finished an epoch; its errors are errors of the whole unrolled stack."""

    epoch: int
    epochs: int
    seconds: float
    train_error: float
    validation_error: float | None


Observer = Callable[[Event], None]


def all_observers(observers: Iterable[Observer], *own: Observer) -> list[Observer]:
    """Return the observers that a caller gave, and others.

    Raises
    ------
    SettingsError
        If an observer cannot be called, or there is no list of them.
    """
    if not isinstance(observers, Iterable):
        raise SettingsError(f"observers: got {observers!r}, expected a list of functions")
    given = list(observers)
    for observer in given:
        if not callable(observer):
            raise SettingsError(f"observers: got {observer!r}, expected functions of an event")
    return [*given, *own]


def tell(observers: Iterable[Observer], message: str) -> None:
    """Send a message for the user to observers."""
    for observer in observers:
        observer(Notice(time.monotonic(), message))
