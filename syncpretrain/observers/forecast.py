"""Forecast of a running pretraining: examples a second, share of the work, seconds left."""

from __future__ import annotations

from dataclasses import dataclass

from syncpretrain.events import (
    EpochFinished,
    EpochStarted,
    Event,
    LayerFinished,
    Progress,
    RunStarted,
)
from syncpretrain.schedule.kinds import SCHEDULES

__all__ = ["Forecast"]

ENOUGH_OF_AN_EPOCH = 0.1  # of a layer in this run; less says little about its speed


@dataclass(slots=True)
class _Layer:
    """One layer: its weights, its stipulated epochs, and what it did of them.

    ``before`` are the epochs that an earlier run, which this one resumes, had finished; ``busy`` is
    the time of those that this one finished.
    """

    weights: int
    epochs: int
    before: int
    done: int
    busy: float = 0.0
    began: float | None = None
    fraction: float = 0.0

    def trained(self) -> float:
        """Return the epochs of this run so far."""
        return self.done - self.before + self.fraction

    def left(self) -> float:
        """Return the stipulated epochs that are still to come."""
        return max(0.0, self.epochs - self.done - self.fraction)

    def epoch_seconds(self, now: float) -> float | None:
        """Return the time of an epoch, sleep excluded; None before enough of one."""
        if self.trained() < ENOUGH_OF_AN_EPOCH:
            return None
        running = 0.0 if self.began is None or not self.fraction else now - self.began
        return (self.busy + running) / self.trained()


class Forecast:
    """Predict the end of pretraining from its events; an observer.

    A layer that has not trained yet is taken to be as fast as the others, by its weights. All is
    done no sooner than the slowest layer, nor than all slots together can do the rest; by how long
    layers wait for each other it takes longer. Epochs on refreshed versions are not counted.

    Parameters
    ----------
    start : RunStarted
    """

    def __init__(self, start: RunStarted) -> None:
        kind = SCHEDULES.get(start.schedule)
        alone = kind is not None and kind.one_at_a_time
        self._slots = 1 if alone else max(1, min(start.workers, len(start.epochs)))
        self._examples, self._started, self._now = start.examples, start.time, start.time
        self._layers = {
            n: _Layer(start.layers[n - 1] * start.layers[n], epochs, start.done(n), start.done(n))
            for n, epochs in enumerate(start.epochs, start=1)
        }

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        self._now = max(self._now, event.time)
        match event:
            case EpochStarted(layer=layer):
                own = self._layers[layer]
                own.began, own.fraction = event.time, 0.0
            case Progress(layer=layer, fraction=fraction) if layer in self._layers:
                self._layers[layer].fraction = fraction
            case EpochFinished(layer=layer, epoch=epoch):
                own = self._layers[layer]
                own.done, own.fraction, own.began = epoch, 0.0, None
                own.busy += event.time - event.started
            case LayerFinished(layer=layer):
                own = self._layers[layer]
                own.epochs, own.fraction, own.began = own.done, 0.0, None

    @property
    def share(self) -> float:
        """The share of the work that is done, each epoch counted by its layer's weights."""
        layers = self._layers.values()
        left = sum(layer.weights * layer.left() for layer in layers)
        done = sum(layer.weights * (layer.done + layer.fraction) for layer in layers)
        return done / (done + left) if done + left else 1.0

    @property
    def rate(self) -> float | None:
        """Examples that all layers together train on in a second; None before there are any."""
        trained = sum(layer.trained() for layer in self._layers.values())
        elapsed = self._now - self._started
        return self._examples * trained / elapsed if trained > 0 and elapsed > 0 else None

    @property
    def elapsed(self) -> float:
        """Seconds since the start of this run."""
        return self._now - self._started

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end; None before any layer's speed is known."""
        layers = self._layers.values()
        known = {id(x): s for x in layers if (s := x.epoch_seconds(self._now)) is not None}
        weights = sum(layer.weights for layer in layers if id(layer) in known)
        if not weights:
            return None
        per_weight = sum(known.values()) / weights
        rest = [x.left() * known.get(id(x), per_weight * x.weights) for x in layers]
        return max(max(rest), sum(rest) / self._slots)
