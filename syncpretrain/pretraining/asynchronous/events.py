"""Events of an asynchronous run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from syncpretrain.events import (
    EpochFinished,
    EpochStarted,
    Event,
    LayerFinished,
    Progress,
    RunStarted,
)
from syncpretrain.settings.sections import PretrainSettings

__all__ = ["AsyncEvents"]

EVERY_SECONDS = 0.2


class AsyncEvents:
    """Events of an asynchronous run for its observers.

    Parameters
    ----------
    settings : PretrainSettings
    emit : callable
        Given each event.
    """

    def __init__(self, settings: PretrainSettings, emit: Callable[[Event], None]) -> None:
        self._settings, self._emit = settings, emit
        self._began: dict[int, float] = {}
        self._reported = time.monotonic()

    def start(self, now: float, slots: int, examples: int, done: Sequence[int]) -> None:
        """Report that the run starts, and what was done before a checkpoint."""
        s = self._settings
        past = tuple((self._reads(layer),) * n for layer, n in enumerate(done, start=1))
        own = (s.layers, s.epochs, s.schedule, s.pace, s.runtime)
        self._emit(RunStarted(now, *own, slots, examples, past, s.handoff, s.batch_size))
        for layer, (n, limit) in enumerate(zip(done, s.epochs, strict=True), start=1):
            if n == limit:
                self._emit(LayerFinished(now, layer))

    def begin(self, layers: Sequence[int], epoch: int) -> None:
        """Report that layers begin an epoch."""
        for layer in layers:
            self._began[layer] = now = time.monotonic()
            self._emit(EpochStarted(now, layer, epoch, self._reads(layer)))

    def progress(self, layers: Sequence[int], epoch: int, share: float) -> None:
        """Report how far an epoch is, a few times a second."""
        now = time.monotonic()
        if now - self._reported >= EVERY_SECONDS:
            self._reported = now
            for layer in layers:
                self._emit(Progress(now, layer, epoch, share))

    def end(
        self, layer: int, epoch: int, error: float, held_out: float | None, *, is_last: bool
    ) -> None:
        """Report the end of an epoch of a layer."""
        now = time.monotonic()
        self._emit(
            EpochFinished(
                time=now,
                layer=layer,
                epoch=epoch,
                reads=self._reads(layer),
                started=self._began[layer],
                transform_seconds=0.0,
                train_error=error,
                validation_error=held_out,
            )
        )
        if is_last:
            self._emit(LayerFinished(now, layer))

    def _reads(self, layer: int) -> int:
        """Return the version below that a layer reads: the last one, or with minibatches none."""
        s = self._settings
        return 0 if layer == 1 or s.handoff == "minibatch" else s.epochs[layer - 2]
