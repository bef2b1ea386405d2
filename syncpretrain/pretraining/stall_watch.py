"""Progress of the running epochs, and the alarm when none of them moves any more."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from syncpretrain.errors import StalledError
from syncpretrain.events import Event, Progress
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts

__all__ = ["Watch"]

LONGEST_TICK_SECONDS = 1.0


class Watch:
    """Looks at the running epochs ten times a second.

    A minibatch that takes longer than the limit is a stall too, if no other layer trains one
    meanwhile, unless it is trained by the caller's own thread (the serial runtime): that looks
    between two minibatches only.

    Parameters
    ----------
    emit : callable
        Given a Progress event of each running layer.
    times : Timeouts
        Only ``tick`` and ``stall`` are used: how long no layer may finish a minibatch.
    """

    def __init__(self, emit: Callable[[Event], None], times: Timeouts = TIMEOUTS) -> None:
        self._emit, self._times = emit, times
        self._last_tick = time.monotonic()
        self._trained = -1.0  # epochs of all layers, by the last tick
        self._silent_seconds = 0.0  # since a minibatch was trained

    def tick(
        self, running: Mapping[int, int], finished: int, fraction: Callable[[int], float]
    ) -> None:
        """Report the progress of the running epochs.

        Parameters
        ----------
        running : mapping of int to int
            The epoch of each layer that trains, both counted from 1.
        finished : int
            Epochs finished, of all layers together.
        fraction : callable
            Returns how far the running epoch of a layer is, in [0, 1].

        Raises
        ------
        StalledError
            If none of them has moved for long.
        """
        now = time.monotonic()
        passed = now - self._last_tick
        if passed < self._times.tick:
            return
        self._last_tick = now
        trained = float(finished)
        for layer, epoch in sorted(running.items()):
            share = fraction(layer)
            trained += share
            self._emit(Progress(now, layer, epoch, share))
        if trained != self._trained:
            self._trained, self._silent_seconds = trained, 0.0
            return
        # A process that was suspended sees one long tick, during which no worker was stalled.
        self._silent_seconds += min(passed, LONGEST_TICK_SECONDS)
        if self._silent_seconds > self._times.stall:
            layers = ", ".join(f"layer {layer}" for layer in sorted(running))
            raise StalledError(f"no minibatch was trained for {self._times.stall:g} s, by {layers}")
