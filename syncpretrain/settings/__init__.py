"""Frozen, validated settings, and their TOML form.

A setting that may differ between layers is a tuple of one value a layer here; the functions that
build settings accept a single value for all layers. Everything is checked before any work starts,
and every refusal names the place, the value given and the value expected.
"""

from syncpretrain.settings.convert import checked
from syncpretrain.settings.fields import (
    AsyncFields,
    DataSettings,
    LayerSettings,
    MomentumSchedule,
    PretrainFields,
)
from syncpretrain.settings.finetuning import FinetuneSettings
from syncpretrain.settings.sections import (
    ELSEWHERE,
    PretrainSettings,
    RunSettings,
    Settings,
    moved_elsewhere,
    names_in,
    off_ranks,
    preset_names,
    preset_path,
    read_settings,
    replaced,
    settings_from,
    write_settings,
)

__all__ = [
    "ELSEWHERE",
    "AsyncFields",
    "DataSettings",
    "FinetuneSettings",
    "LayerSettings",
    "MomentumSchedule",
    "PretrainFields",
    "PretrainSettings",
    "RunSettings",
    "Settings",
    "checked",
    "moved_elsewhere",
    "names_in",
    "off_ranks",
    "preset_names",
    "preset_path",
    "read_settings",
    "replaced",
    "settings_from",
    "write_settings",
]
