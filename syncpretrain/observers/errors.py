"""Errors of a run by layer and epoch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from syncpretrain.events import EpochFinished, Event, FinetuneEpochFinished, RunStarted


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

    def add(self, event: EpochFinished | FinetuneEpochFinished) -> None:
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

    def __call__(self, event: Event) -> None:
        """Record an event."""
        match event:
            case RunStarted():
                self.layers = [ErrorCurve() for _ in event.epochs]
            case EpochFinished():
                self.layers[event.layer - 1].add(event)
            case FinetuneEpochFinished():
                self.finetune.add(event)

    def curves(self) -> tuple[ErrorCurve, ...]:
        """Return copies of the layers' curves, for the state of a run."""
        return tuple(curve.copy() for curve in self.layers)

    def resume(self, curves: Iterable[ErrorCurve]) -> None:
        """Begin with the layers' curves up to a checkpoint; the oldest checkpoints have none."""
        self.layers = [curve.copy() for curve in curves] or self.layers
