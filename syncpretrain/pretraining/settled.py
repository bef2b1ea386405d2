"""The settings of a call: given ones, and ones that follow from the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from syncpretrain.data.facts import Look
from syncpretrain.settings import PretrainSettings, settings_from
from syncpretrain.settings.by_data import pretrain_by_data


def settled(
    layers: Any, look: Look, settings: Mapping[str, Any]
) -> tuple[PretrainSettings, dict[str, Any]]:
    """Return the settings, and by name the values that follow from the data.

    Raises
    ------
    SettingsError
        If one is wrong, or they do not go together.
    """
    wanted = settings_from(layers, **settings).pretrain
    if look.facts is None:
        return wanted, {}
    given = [name for name, value in settings.items() if value is not None]
    return pretrain_by_data(wanted, given, look.facts)
