"""The start of a run that only fine-tuning trains: a stack of random weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from numpy.typing import ArrayLike

from syncpretrain import __version__
from syncpretrain.errors import SettingsError
from syncpretrain.events import Observer, RunFinished, RunStarted
from syncpretrain.learners.first_layers import untrained_stack
from syncpretrain.models.stack import Stack
from syncpretrain.observers.errors import Observed
from syncpretrain.pretraining.build_data import build_data
from syncpretrain.pretraining.schedule.reads import Reads
from syncpretrain.settings.sections import PretrainSettings

__all__ = ["Untrained"]


class Untrained(Observed):
    """A run without pretraining, by the interface of ``Pretraining``.

    Its layers have trained 0 epochs; there is nothing to save before fine-tuning, nor to resume.

    Parameters
    ----------
    settings, X, validation, observers, replay
        As of :class:`syncpretrain.pretraining.driver.Pretraining`.
    """

    slots = 1

    def __init__(
        self,
        settings: PretrainSettings,
        X: ArrayLike,
        validation: ArrayLike | None = None,
        *,
        observers: Iterable[Observer] = (),
        replay: Reads | None = None,
    ) -> None:
        if replay is not None:
            raise SettingsError(
                "replay: got one with schedule none, where there is nothing to read"
            )
        super().__init__(observers)
        self.save: Callable[..., None] | None = None
        self.resume: Any = None
        self.settings, data, self.scaling = build_data(settings, X, validation)
        self._examples = len(data.train)

    def run(self) -> Stack:
        """Return the stack."""
        s, now = self.settings, time.monotonic()
        depth = len(s.epochs)
        self.emit(
            RunStarted(
                now,
                s.layers,
                (0,) * depth,
                s.schedule,
                s.pace,
                s.runtime,
                self.slots,
                self._examples,
                ((),) * depth,
            )
        )
        stack = self.stack()
        now = time.monotonic()
        self.emit(RunFinished(now, 0.0, (0.0,) * depth))
        return stack

    def stack(self) -> Stack:
        """Return the stack of random weights; the same seed gives the same."""
        s = self.settings
        stack = untrained_stack(
            s.shapes, s.hidden_units, s.visible_units, seed=s.seed, scaling=self.scaling
        )
        stack.info.update(
            {
                "syncpretrain": __version__,
                "epochs": [0] * len(s.epochs),
                "pretrain": msgspec.json.decode(msgspec.json.encode(s)),
            }
        )
        return stack
