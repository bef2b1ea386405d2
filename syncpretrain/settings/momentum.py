"""Momentum by epoch."""

from __future__ import annotations

from syncpretrain.errors import SettingsError

__all__ = ["MomentumSchedule"]


class MomentumSchedule:
    """Momentum by epoch, written ``0.5:5,0.9``: 0.5 for 5 epochs, then 0.9.

    Parameters
    ----------
    text : str
        Stages separated by commas; every stage but the last ends with ``:EPOCHS``.

    Raises
    ------
    SettingsError
        If the text has another form, or a momentum is not in [0, 1).
    """

    def __init__(self, text: str) -> None:
        *stages, last = text.split(",")
        try:
            pairs = [stage.split(":") for stage in stages]
            self._stages = [(float(value), int(epochs)) for value, epochs in pairs]
            self._last = float(last)
        except ValueError:
            raise SettingsError(
                f"momentum: got {text!r}, expected a number, or stages such as 0.5:5,0.9"
                " (0.5 for 5 epochs, then 0.9)"
            ) from None
        for value in (*(value for value, _ in self._stages), self._last):
            if not 0 <= value < 1:
                raise SettingsError(f"momentum: got {value:g}, expected at least 0 and below 1")
        if any(epochs < 1 for _, epochs in self._stages):
            raise SettingsError(f"momentum: got {text!r}, every stage needs 1 epoch or more")

    @property
    def last_begins(self) -> int:
        """The first epoch with the last momentum."""
        return 1 + sum(epochs for _, epochs in self._stages)

    def at(self, epoch: int) -> float:
        """Return the momentum of an epoch, counted from 1."""
        for value, epochs in self._stages:
            if epoch <= epochs:
                return value
            epoch -= epochs
        return self._last
