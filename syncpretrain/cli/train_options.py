"""Options derived from the settings: one for each field, with its text in ``help_texts``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache, reduce
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import click
import msgspec

from syncpretrain.cli.help_texts import TEXTS
from syncpretrain.cli.options import LAYERS, epoch_counts, floats, integers, momentums, words
from syncpretrain.settings import DataSettings, FinetuneSettings, PretrainSettings, RunSettings
from syncpretrain.settings.defaults import PER_LAYER

__all__ = ["AUTO", "FINETUNE", "OPTIONS", "setting_options", "source_options"]

F = TypeVar("F", bound=Callable[..., Any])

AUTO = "auto"  # of schedule and visible_units: settled before there are settings to keep
FINETUNE = "finetune_"
STRUCTS: dict[str, type[msgspec.Struct]] = {
    "data": DataSettings,
    "pretrain": PretrainSettings,
    "finetune": FinetuneSettings,
    "run": RunSettings,
}
RENAMED = {("data", "name"): "data", ("finetune", "objective"): "finetune"}

# What a field does not say. Letters are by its name, the rest by the option's.
LETTERS = {
    "group_size": "G",
    "workers": "P",
    "replicas": "R",
    "shards": "S",
    "batch_size": "B",
    "validation": "FRACTION",
    "stall_timeout": "SECONDS",
}
OPPOSITES = {
    "persistent": "--not-persistent",
    "sample_visible": "--visible-means",
    "tied": "--untied",
}
DERIVED = {"architecture", "missing", "sparse"}  # follow from the layers, and from the examples
ALSO_OFFERED = {"schedule": (AUTO,)}
STANDING_IN = {"columns": "pretrain"}  # for what they change in another setting, by section
WRITTEN: dict[str, dict[str, Any]] = {
    "layers": {"type": str, "metavar": LAYERS},
    "columns": {"type": int, "metavar": "N"},
    "data": {"metavar": "NAME|FILE"},
    "target": {"metavar": "COLUMN"},
    "drop": {"metavar": "COLUMN[,COLUMN]"},
    "test": {"metavar": "FRACTION|FILE"},
    "unlabelled": {"metavar": "FILE"},
    "visible_units": {"metavar": "KIND[:N,...]"},
    "backend": {"metavar": "auto|numpy|cupy[:N]"},
    "finetune_precision": {"metavar": "NAME"},
    "epochs": {"type": epoch_counts, "metavar": "N|auto[:N]"},
    "refresh_when": {"type": words(()), "metavar": "always|drift:X"},
    "momentum": {"type": momentums, "metavar": "V[:EPOCHS,V...]"},
    "shuffle": {"metavar": "rows|blocks:N"},
    "corruption": {"type": words(()), "metavar": "KIND:X[,...]"},
    "checkpoint_every": {"metavar": "N|Ss"},
}


class Option(NamedTuple):
    """Where an option's value goes: a section of the settings, and a field of it."""

    section: str
    field: str


def _name(section: str, field: str) -> str:
    """Return the name of the option that sets a field."""
    usual = FINETUNE + field if section == "finetune" else field
    return RENAMED.get((section, field), usual)


OPTIONS = {
    _name(section, field): Option(section, field)
    for section, struct in STRUCTS.items()
    for field in struct.__struct_fields__
    if field not in DERIVED
} | {name: Option(section, name) for name, section in STANDING_IN.items()}


def setting_options(
    *, only: Collection[str] = tuple(STRUCTS), without: Collection[str] = ()
) -> Callable[[F], F]:
    """Return a decorator that adds the options of settings, in the order of the help.

    Parameters
    ----------
    only, without : collection of str
        Names of options, or of sections of the settings.
    """

    def among(name: str, listed: Collection[str]) -> bool:
        return name in listed or OPTIONS[name].section in listed

    names = [name for name in TEXTS if name in OPTIONS and among(name, only)]
    return _adding([_option(name) for name in names if not among(name, without)])


def source_options(command: F) -> F:
    """Add ``--preset`` and ``--config``."""
    config = click.Path(path_type=Path)
    return _adding(
        [
            click.option("--preset", metavar="NAME", help=TEXTS["preset"]),
            click.option("--config", metavar="FILE.toml", type=config, help=TEXTS["config"]),
        ]
    )(command)


def _adding(options: list[Callable[[F], F]]) -> Callable[[F], F]:
    return lambda command: reduce(lambda done, option: option(done), reversed(options), command)


def _option(name: str) -> Callable[[F], F]:
    """Return the option of a setting."""
    option = OPTIONS[name]
    if name in STANDING_IN:
        return click.option(f"--{name}", **WRITTEN[name], help=TEXTS[name])
    field = _fields(option.section)[option.field]
    kind, is_list = _unwrapped(field.type)
    default = PER_LAYER.get(name) if is_list else field.default
    flag = "--" + name.replace("_", "-")
    if kind is bool:
        opposite = OPPOSITES.get(name, "--no-" + flag.removeprefix("--"))
        return click.option(f"{flag}/{opposite}", default=None, help=TEXTS[name])
    parsed = {**_parsed(name, option.field, kind, is_list), **WRITTEN.get(name, {})}
    return click.option(flag, **parsed, help=_with_default(TEXTS[name], default))


@cache
def _fields(section: str) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.name: field for field in msgspec.structs.fields(STRUCTS[section])}


def _unwrapped(kind: Any) -> tuple[Any, bool]:
    """Return the plain type of a field's values, and whether it has one for each layer."""
    is_list = False
    while True:
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Annotated, Union, UnionType, tuple):  # of a union, the other is None
            is_list = is_list or origin is tuple
            kind = arguments[0]
        else:
            return kind, is_list


def _parsed(name: str, field: str, kind: Any, is_list: bool) -> dict[str, Any]:
    """Return how an option's text is read, and what stands for it in the help."""
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if is_list:
            return {"type": words(choices), "metavar": "KIND[,KIND...]"}
        return {"type": click.Choice([*choices, *ALSO_OFFERED.get(name, ())])}
    letter = LETTERS.get(field, "X" if kind is float else "N")
    if is_list:
        return {
            "type": floats if kind is float else integers,
            "metavar": f"{letter}[,{letter}...]",
        }
    return {"type": kind, "metavar": letter}


def _with_default(text: str, default: Any) -> str:
    """Add a default to a text that does not speak of one."""
    if default in (None, msgspec.NODEFAULT) or "default" in text.lower():
        return text
    value = f"{default:g}" if isinstance(default, float) else default
    return f"{text} Default {value}.".lstrip()
