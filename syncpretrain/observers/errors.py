"""Errors of a run by layer and epoch, as the result keeps them."""

from __future__ import annotations

from dataclasses import dataclass, field

from syncpretrain.events import EpochFinished, Event, FinetuneEpochFinished, RunStarted

__all__ = ["ErrorCurve", "ErrorHistory"]


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

    @property
    def last(self) -> float | None:
        """The newest error, of held-out examples if there are any; None before the first epoch."""
        errors = self.validation or self.train
        return errors[-1] if errors else None


@dataclass
class ErrorHistory:
    """Errors by layer and epoch; an observer, which collects them as they come.

    Attributes
    ----------
    layers : list of ErrorCurve
        Of pretraining, one a layer: ``stack.history.layers[0].train`` are those of layer 1.
    finetune : ErrorCurve
        Of fine-tuning, empty without it.
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
