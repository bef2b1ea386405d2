"""History of a run: errors by layer and epoch, and events for its metrics, trace and replay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from syncpretrain import events


@dataclass(slots=True)
class ErrorCurve:
    """Errors of one layer, or of the whole stack, after each epoch.

    Attributes
    ----------
    train : list of float
        Running error of each epoch's minibatches.
    validation : list of float
        Error of the held-out examples; empty without any.
    """

    train: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)

    def add(self, event: events.EpochFinished | events.FinetuneEpochFinished) -> None:
        """Add an epoch."""
        self.train.append(event.train_error)
        if event.validation_error is not None:
            self.validation.append(event.validation_error)

    def copy(self) -> ErrorCurve:
        """Return a copy that later epochs do not change."""
        return ErrorCurve(list(self.train), list(self.validation))

    @property
    def last(self) -> float | None:
        """The newest error, of held-out examples if there are any; None before the first epoch."""
        errors = self.validation or self.train
        return errors[-1] if errors else None


@dataclass
class ErrorHistory:
    """Observer that collects errors by layer and epoch.

    Attributes
    ----------
    layers : list of ErrorCurve
        Errors of pretraining, one curve a layer: layer 1 has ``stack.history.layers[0].train``.
    finetune : ErrorCurve
        Errors of fine-tuning; empty without fine-tuning.
    """

    layers: list[ErrorCurve] = field(default_factory=list)
    finetune: ErrorCurve = field(default_factory=ErrorCurve)

    def __call__(self, event: events.Event) -> None:
        """Record an event."""
        match event:
            case events.RunStarted():
                self.layers = [ErrorCurve() for _ in event.epochs]
            case events.EpochFinished():
                self.layers[event.layer - 1].add(event)
            case events.FinetuneEpochFinished():
                self.finetune.add(event)

    def curves(self) -> tuple[ErrorCurve, ...]:
        """Return copies of the layers' curves, for the state of a run."""
        return tuple(curve.copy() for curve in self.layers)

    def resume(self, curves: Iterable[ErrorCurve]) -> None:
        """Begin with the layers' curves up to a checkpoint; the oldest checkpoints have none."""
        self.layers = [curve.copy() for curve in curves] or self.layers


class History:
    """Observer that collects the events of one run; each figure has one entry a layer.

    The figures may be asked for at any time, also of a run that failed halfway; before the run
    started they are empty.

    Attributes
    ----------
    events : list of Event
        All but the Progress events, in the order they happened.
    """

    def __init__(self) -> None:
        self.events: list[events.Event] = []
        self._started: events.RunStarted | None = None
        self._run_finished: events.RunFinished | None = None
        self._finished: list[list[events.EpochFinished]] = []
        self._last_time = 0.0

    def __call__(self, event: events.Event) -> None:
        """Record an event."""
        self._last_time = max(self._last_time, event.time)
        if isinstance(event, events.Progress):
            return
        self.events.append(event)
        if isinstance(event, events.RunStarted):
            self._started = event
            self._finished = [[] for _ in event.epochs]
        elif isinstance(event, events.EpochFinished):
            self._finished[event.layer - 1].append(event)
        elif isinstance(event, events.RunFinished):
            self._run_finished = event

    @property
    def epochs(self) -> tuple[int, ...]:
        """Epochs done, including epochs before this run was resumed."""
        return tuple(epochs[-1].epoch if epochs else 0 for epochs in self._finished)

    @property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """Version of the layer below that each finished epoch read, for a replay."""
        past = self._started.past_reads if self._started is not None else ()
        own = [tuple(epoch.reads for epoch in epochs) for epochs in self._finished]
        return tuple(a + b for a, b in zip(past or ((),) * len(own), own, strict=True))

    @property
    def pretrain_seconds(self) -> float:
        """Seconds from the start of pretraining to its end, or to the last event so far."""
        if self._run_finished is not None:
            return self._run_finished.seconds
        return self._last_time - self._started.time if self._started is not None else 0.0

    @property
    def busy_seconds(self) -> tuple[float, ...]:
        """Seconds that each layer trained; in an unfinished run, seconds of its finished epochs."""
        if self._run_finished is not None:
            return self._run_finished.busy_seconds
        return tuple(sum(x.time - x.started for x in epochs) for epochs in self._finished)

    @property
    def idle_seconds(self) -> tuple[float, ...]:
        """Seconds of pretraining that each layer did not train."""
        return tuple(max(0.0, self.pretrain_seconds - busy) for busy in self.busy_seconds)
