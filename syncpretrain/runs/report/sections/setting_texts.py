"""Settings as texts, by section and name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from syncpretrain.settings import Settings

__all__ = ["is_tuned", "setting_text", "settings_of"]


def settings_of(settings: Settings | None) -> dict[str, dict[str, str]]:
    """Return settings by section and name, as texts; those not given are left out."""
    if settings is None:
        return {}
    sections: dict[str, dict[str, Any]] = msgspec.to_builtins(settings)
    return {
        section: {
            name: setting_text(value) for name, value in fields.items() if value not in (None, "")
        }
        for section, fields in sections.items()
    }


def is_tuned(fields: Mapping[str, str]) -> bool:
    """Return whether settings of fine-tuning were used."""
    return fields.get("objective", "none") != "none"


def setting_text(value: Any) -> str:
    """Return a setting as the command line has it; equal values of all layers as one."""
    if isinstance(value, (list, tuple)):
        texts = [setting_text(part) for part in value]
        return texts[0] if len(texts) > 1 and len(set(texts)) == 1 else ",".join(texts)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
