"""Events of a streamed run, from what its layers have done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from syncpretrain.events import (
    EpochFinished,
    EpochStarted,
    Event,
    LayerFinished,
    Notice,
    RunStarted,
)
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts
from syncpretrain.pretraining.runtime.streamed.base import BaseStreamedLayer, EpochResult
from syncpretrain.pretraining.stall_watch import Watch
from syncpretrain.schedule.stream import delay_notice
from syncpretrain.settings.sections import PretrainSettings

__all__ = ["StreamEvents"]


class StreamEvents:
    """Events of a streamed run for its observers.

    Parameters
    ----------
    settings : PretrainSettings
    layers : sequence of BaseStreamedLayer
        From the lowest up.
    emit : callable
        Given each event.
    times : Timeouts
        Of which ``tick`` and ``stall`` are used.
    """

    def __init__(
        self,
        settings: PretrainSettings,
        layers: Sequence[BaseStreamedLayer],
        emit: Callable[[Event], None],
        times: Timeouts = TIMEOUTS,
    ) -> None:
        self._settings, self._layers, self._emit = settings, layers, emit
        self._watch = Watch(emit, times)
        # The newest epochs that the observers know of, by layer.
        self._begun: dict[int, int] = {}
        self._ended: dict[int, int] = {}

    def start(self, now: float, slots: int, examples: int) -> None:
        """Report that the run starts, and where its layers are."""
        s = self._settings
        past = tuple((0,) * layer.epochs_done for layer in self._layers)
        self._ended = {layer.number: layer.epochs_done for layer in self._layers}
        own = (s.layers, s.epochs, s.schedule, s.pace, s.runtime)
        self._emit(RunStarted(now, *own, slots, examples, past, s.handoff, s.batch_size))
        notice = delay_notice(s.epochs, s.delay)
        if notice is not None and not self._layers[0].position:  # not at a resume
            self._emit(Notice(now, notice))
        for layer in self._layers:
            if layer.is_trained:  # before the checkpoint
                self._emit(LayerFinished(now, layer.number))

    def finish(self, result: EpochResult) -> None:
        """Report an epoch that a layer finished."""
        self._begin(result.layer, result.epoch, result.started)
        for warning in result.warnings:
            self._emit(Notice(time.monotonic(), f"warning: {warning}"))
        self._emit(
            EpochFinished(
                time=result.ended,
                layer=result.layer,
                epoch=result.epoch,
                reads=0,
                started=result.started,
                transform_seconds=0.0,
                train_error=result.train_error,
                validation_error=result.validation_error,
            )
        )
        self._ended[result.layer] = result.epoch
        if result.is_last:
            self._emit(LayerFinished(time.monotonic(), result.layer))

    def tick(self) -> None:
        """Report how far the running epochs are, a few times a second.

        Raises
        ------
        StalledError
            If none of them has moved for long.
        """
        running = {
            layer.number: layer.epoch
            for layer in self._layers
            if layer.position > layer.plan.delay and not layer.is_trained
        }
        for layer, epoch in running.items():
            if epoch == self._ended[layer] + 1:  # else the end of the one before comes first
                self._begin(layer, epoch, time.monotonic())
        finished = sum(layer.epochs_done for layer in self._layers)
        self._watch.tick(running, finished, lambda layer: self._layers[layer - 1].fraction)

    def _begin(self, layer: int, epoch: int, started: float) -> None:
        if self._begun.get(layer, 0) < epoch:
            self._begun[layer] = epoch
            self._emit(EpochStarted(started, layer, epoch, 0))
