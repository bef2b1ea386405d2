"""Settings for checkpoints and restarts of a run; none of them changes its result."""

from __future__ import annotations

import math

from syncpretrain.errors import SettingsError
from syncpretrain.settings.kinds import Count, Frozen, NonNegativeInt, PositiveFloat

__all__ = ["RunSettings"]


class RunSettings(Frozen, frozen=True, kw_only=True):
    """Checkpoints, restarts and the stall watch.

    ``checkpoint_every`` is a number of epochs, or of seconds with an ``s`` behind it: a checkpoint
    is written at the end of an epoch once any layer, or fine-tuning, has done that many since
    the last one, or that much time has passed. The newest ``keep`` are kept. ``max_restarts`` is
    how often a process that died is replaced, or else a run whose worker failed resumes from its
    last checkpoint. ``stall_timeout`` is the
    number of seconds that may pass without a minibatch in any layer, or that a worker may wait for
    others within one.
    """

    checkpoint_every: str = "60s"
    keep: Count = 2
    max_restarts: NonNegativeInt = 0
    stall_timeout: PositiveFloat = 600.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.stall_timeout):
            raise SettingsError(f"stall_timeout: got {self.stall_timeout}, expected seconds")
        self.interval()

    def interval(self) -> tuple[int | None, float | None]:
        """Return epochs and None, or None and seconds, between two checkpoints.

        Raises
        ------
        SettingsError
            If the text is neither.
        """
        text = self.checkpoint_every
        try:
            epochs = None if text.endswith("s") else int(text)
            seconds = float(text[:-1]) if text.endswith("s") else None
        except ValueError:
            epochs = seconds = None
        if (epochs is None or epochs < 1) and not (seconds and 0 < seconds < math.inf):
            raise SettingsError(
                f"checkpoint_every: got {text!r}, expected a number of epochs, such as 5, or of"
                " seconds, such as 60s"
            )
        return epochs, seconds
