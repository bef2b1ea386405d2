"""Settings from plain values, and their TOML form."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from syncpretrain.errors import SettingsError
from syncpretrain.settings.architecture import architecture_of, in_columns
from syncpretrain.settings.checks import kept_units, settled_epochs
from syncpretrain.settings.convert import checked, plain
from syncpretrain.settings.fields import (
    HANDOFF_DEFAULTS,
    MODEL_DEFAULTS,
    PER_LAYER,
    SCHEDULE_DEFAULTS,
    names_of,
    usual_costs,
    usual_rates,
)
from syncpretrain.settings.sections import Settings
from syncpretrain.storage import write_atomically

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "checked",
    "names_in",
    "preset_names",
    "preset_path",
    "read_settings",
    "settings_from",
    "settings_text",
    "write_settings",
]

PRESETS = Path(__file__).parent / "presets"


def preset_names() -> list[str]:
    """Return the names of the presets, settings that come with the library."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def preset_path(name: str) -> Path:
    """Return the file of a preset.

    Raises
    ------
    SettingsError
        If there is no such preset; the message lists the presets.
    """
    if name not in preset_names():
        raise SettingsError(f"preset: got {name!r}, expected one of {', '.join(preset_names())}")
    return PRESETS / f"{name}.toml"


def settings_from(
    layers: str | Sequence[Any],
    *,
    data: dict[str, Any] | None = None,
    finetune: dict[str, Any] | None = None,
    run: dict[str, Any] | None = None,
    **pretrain: Any,
) -> Settings:
    """Build settings from plain values; a single value stands for all layers.

    Parameters
    ----------
    layers : str, or sequence of int, str, ImageShape, Conv and Pool
        Units of each layer, the input's first: 784, 1000, 500, 250, 30; or layers with
        convolutions, as :func:`syncpretrain.settings.architecture.architecture_of` takes them.
    data, finetune, run : dict, optional
        Fields of :class:`DataSettings`, :class:`FinetuneSettings` and :class:`RunSettings`.
    **pretrain
        Fields of :class:`PretrainSettings`; None takes the default. ``columns`` puts the
        convolutions of the layers in columns: see :mod:`syncpretrain.settings.architecture`.

    Raises
    ------
    SettingsError
        Naming the setting, the value given and the value expected.
    """
    pretrain = {name: value for name, value in pretrain.items() if value is not None}
    return _from_sections(
        {"data": data or {}, "finetune": finetune or {}, "run": run or {}}, layers, pretrain
    )


def read_settings(path: Path) -> Settings:
    """Read settings from a TOML file of :func:`write_settings`, or one with fewer settings.

    Raises
    ------
    SettingsError
        If the file cannot be read, is no TOML, or holds a wrong value; the message names the file.
    """
    try:
        with path.open("rb") as file:
            sections = tomllib.load(file)
        pretrain = sections.pop("pretrain", {})
        if not isinstance(pretrain, dict) or "layers" not in pretrain:
            raise SettingsError("layers: got nothing, expected a list of units in [pretrain]")
        return _from_sections(sections, pretrain.pop("layers"), pretrain)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingsError(f"{path}: cannot read these settings: {reason}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"{path}: these settings are no TOML: {error}") from error
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def names_in(path: Path) -> dict[str, frozenset[str]]:
    """Return the names that each section of a TOML file of settings has.

    Raises
    ------
    SettingsError
        As :func:`read_settings`.
    """
    read_settings(path)
    sections = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: frozenset(fields) for name, fields in sections.items()}


def write_settings(settings: Settings, path: Path) -> None:
    """Write every setting that is not None or empty as TOML, the file whole or not at all.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    write_atomically(path, settings_text(settings).encode())


def settings_text(settings: Settings) -> str:
    """Return every setting that is not None or empty as TOML."""
    import tomli_w  # only a run that keeps its settings needs it

    sections = {
        section: {
            name: fields[name]
            for name in names_of(type(getattr(settings, section)))
            if fields[name] not in (None, "")
        }
        for section, fields in msgspec.to_builtins(settings).items()
    }
    return tomli_w.dumps(sections)


def _from_sections(sections: dict[str, Any], layers: Any, pretrain: dict[str, Any]) -> Settings:
    pretrain = dict(pretrain)
    columns = pretrain.pop("columns", None)
    if columns is not None:
        layers = in_columns(pretrain.pop("architecture", None) or layers, columns)
    layers, architecture = architecture_of(layers)
    if architecture:
        pretrain["architecture"] = _agreed(architecture, pretrain)
    if "visible_units" in pretrain:
        pretrain["visible_units"] = kept_units(pretrain["visible_units"], layers)
    depth = max(len(layers) - 1, 1) if hasattr(layers, "__len__") else 1
    defaults = PER_LAYER | MODEL_DEFAULTS.get(str(pretrain.get("model")), {})
    defaults |= HANDOFF_DEFAULTS.get(str(pretrain.get("handoff")), {})
    defaults |= SCHEDULE_DEFAULTS.get(str(pretrain.get("schedule")), {})
    filled: dict[str, Any] = {
        name: _spread(value, depth) if name in PER_LAYER else value
        for name, value in ((name, pretrain.get(name, usual)) for name, usual in defaults.items())
    }
    settle = filled["settle"] if "settle" in pretrain else None
    filled |= settled_epochs(filled["epochs"], settle, filled["refresh_when"])
    filled["momentum"] = [str(value) for value in filled["momentum"]]
    if "learning_rate" not in pretrain:
        visible = pretrain.get("visible_units", "bernoulli")
        filled["learning_rate"] = usual_rates(visible, filled["hidden_units"])
    if "sparsity_cost" not in pretrain and pretrain.get("model", "rbm") == "rbm":
        text = pretrain.get("architecture")
        filled["sparsity_cost"] = usual_costs(text, filled["hidden_units"], depth)
    layers = list(layers) if isinstance(layers, range) else layers
    return checked({**sections, "pretrain": {"layers": layers, **pretrain, **filled}}, Settings)


def _agreed(architecture: str, pretrain: dict[str, Any]) -> str:
    """Return the text of the layers, after comparing it with the text given, if any."""
    given = pretrain.get("architecture") or architecture
    if given != architecture:
        raise SettingsError(
            f"architecture: got {given} with layers {architecture}; leave one of the two out"
        )
    return architecture


def _spread(value: Any, depth: int) -> list[Any]:
    value = plain(value)
    values = value if isinstance(value, list) else [value]
    return values * depth if len(values) == 1 else values
