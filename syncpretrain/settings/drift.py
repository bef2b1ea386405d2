"""Settings of drift: changes of a layer's input that wake it, and of its output that end it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from syncpretrain.errors import SettingsError
from syncpretrain.schedule.kinds import schedule_kind
from syncpretrain.settings.fields import PretrainFields

__all__ = ["ALWAYS", "check_drift", "parsed_waking", "settled_epochs"]

ALWAYS = "always"
AUTO_EPOCHS = 100  # most epochs of a layer
SETTLE = 0.15  # relative root mean square, without another number


def parsed_waking(text: str) -> float | None:
    """Return the drift in a text such as ``drift:0.05``, None for ``always``.

    Raises
    ------
    SettingsError
        If the text has another form, or the drift is out of range.
    """
    if text == ALWAYS:
        return None
    kind, _, number = text.partition(":")
    try:
        least = float(number)
    except ValueError:
        least = math.nan
    if kind != "drift" or not 0 < least < math.inf:
        raise SettingsError(
            f"refresh_when: got {text!r}, expected always, or drift:X with a number X above 0"
        )
    return least


def settled_epochs(epochs: Sequence[Any], settle: Any, waking: Sequence[Any]) -> dict[str, Any]:
    """Return ``epochs`` and ``settle`` with numbers for ``auto`` and ``auto:N``.

    Parameters
    ----------
    epochs, settle : sequence
        One value a layer; ``settle`` is None if the user gave none.
    waking : sequence of str
        Values of ``refresh_when``; their drift is the default of ``settle``.

    Raises
    ------
    SettingsError
        If an entry begins with ``auto`` and has another form, or its layer can never settle.
    """
    limits, found = list(epochs), list(settle or [0.0] * len(epochs))
    for i, text in enumerate(limits):
        if not isinstance(text, str) or not text.startswith("auto"):
            continue
        form = re.fullmatch(r"auto(?::([0-9]{1,9}))?", text)
        if form is None or form[1] == "0":
            raise SettingsError(
                f"epochs: got {text!r}, expected a whole number, auto, or auto:N with at most N"
                " epochs"
            )
        limits[i] = int(form[1] or AUTO_EPOCHS)
        if settle is None:
            known = parsed_waking(str(waking[i])) if i < len(waking) else None
            found[i] = SETTLE if known is None else known
        elif i < len(found) and not found[i]:
            raise SettingsError(
                f"settle: got 0 with epochs {text}, expected a number above 0, by which another"
                " epoch must change a layer"
            )
    return {"epochs": limits, "settle": found}


def check_drift(settings: PretrainFields) -> None:
    """Refuse drift where no version wakes a layer, or where the result would depend on timing.

    Raises
    ------
    SettingsError
        Naming the setting.
    """
    waking = [text for text in settings.refresh_when if parsed_waking(text) is not None]
    if waking and not schedule_kind(settings.schedule).has_refreshes:
        raise SettingsError(
            f"refresh_when: got {waking[0]} with schedule {settings.schedule}, where no newer"
            " version wakes a layer; take always, or schedule synchronized"
        )
    above = zip(settings.refresh_when[1:], settings.refresh_epochs[1:], strict=True)
    if waking and not any(epochs and text in waking for text, epochs in above):
        raise SettingsError(
            f"refresh_when: got {waking[0]}, but there is no layer above the first whose"
            " refresh_epochs it could save; take always, or refresh_epochs of at least 1"
        )
    if any(settings.settle) and settings.finish == "first-layer" and settings.pace == "lockstep":
        raise SettingsError(
            "settle: got a number, or epochs auto, with finish first-layer in lockstep, where what"
            " follows would depend on timing; take finish drain, or pace free"
        )
