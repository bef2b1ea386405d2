"""Frozen, validated settings, and their TOML form.

A setting that may differ between layers is a tuple of one value a layer here; the functions that
build settings accept a single value for all layers. Everything is checked before any work starts,
and every refusal says what was got, what was expected and where.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from syncpretrain.complaints import explained
from syncpretrain.errors import SettingsError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "DataSettings",
    "FinetuneSettings",
    "MomentumSchedule",
    "PretrainSettings",
    "Settings",
    "checked",
    "read_settings",
    "settings_from",
    "write_settings",
]

Count = Annotated[int, msgspec.Meta(ge=1)]
NonNegativeInt = Annotated[int, msgspec.Meta(ge=0)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
NonNegativeFloat = Annotated[float, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]

S = TypeVar("S", bound=msgspec.Struct)

PER_LAYER: dict[str, float] = {  # each with its default
    "epochs": 10,
    "refresh_epochs": 1,
    "learning_rate": 0.1,
    "weight_decay": 0.0002,
    "cd_steps": 1,
}
MAX_CD_STEPS = 1000  # a minibatch cannot be interrupted
MAX_UNITS = MAX_EPOCHS = 1_000_000  # of a layer; more is a slip of the keyboard


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

    def at(self, epoch: int) -> float:
        """Return the momentum of an epoch, counted from 1."""
        for value, epochs in self._stages:
            if epoch <= epochs:
                return value
            epoch -= epochs
        return self._last


class _Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the settings: immutable, keyword-only, unknown names refused."""


class DataSettings(_Frozen, frozen=True, kw_only=True):
    """Which data is trained on and how it is split.

    ``validation`` is the fraction of the training examples held out; None takes the data set's
    own split (10,000 of MNIST's 60,000), or a tenth.
    """

    name: str = "mnist"
    validation: Fraction | None = None


class PretrainSettings(_Frozen, frozen=True, kw_only=True):
    """How a stack is pretrained; see the README for what each setting means."""

    layers: tuple[Count, ...]
    schedule: Literal["synchronized", "greedy"] = "synchronized"
    pace: Literal["lockstep", "free"] = "lockstep"
    runtime: Literal["threads", "serial"] = "threads"
    workers: Count | None = None
    epochs: tuple[Count, ...]
    refresh_epochs: tuple[NonNegativeInt, ...]
    finish: Literal["drain", "first-layer"] = "drain"
    batch_size: Count = 100
    learning_rate: tuple[PositiveFloat, ...]
    momentum: str = "0.5:5,0.9"
    weight_decay: tuple[NonNegativeFloat, ...]
    cd_steps: tuple[Annotated[int, msgspec.Meta(ge=1, le=MAX_CD_STEPS)], ...]
    blas_threads: Count | None = None
    seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        _check_layers(self.layers)
        for name in PER_LAYER:
            _check_per_layer(name, getattr(self, name), len(self.layers) - 1)
        MomentumSchedule(self.momentum)
        if self.schedule == "greedy" and self.pace == "free":
            raise SettingsError(
                "pace: got free with schedule greedy, where every layer trains on the finished"
                " layer below; use pace lockstep, or schedule synchronized"
            )
        if self.seed >= 2**63:
            raise SettingsError(f"seed: got {self.seed}, expected a number below 2**63")


class FinetuneSettings(_Frozen, frozen=True, kw_only=True):
    """How the pretrained stack is fine-tuned by backpropagation."""

    objective: Literal["none", "reconstruction"] = "none"
    epochs: Count = 10
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: PositiveFloat | None = None
    batch_size: Count = 100

    def __post_init__(self) -> None:
        if self.learning_rate is not None and not math.isfinite(self.learning_rate):
            raise SettingsError(
                f"finetune_learning_rate: got {self.learning_rate}, expected a finite number"
            )


class Settings(_Frozen, frozen=True, kw_only=True):
    """Everything that determines a run; ``config.toml`` of a run folder holds it."""

    data: DataSettings = DataSettings()
    pretrain: PretrainSettings
    finetune: FinetuneSettings = FinetuneSettings()


def settings_from(
    layers: Sequence[int],
    *,
    data: dict[str, Any] | None = None,
    finetune: dict[str, Any] | None = None,
    **pretrain: Any,
) -> Settings:
    """Build settings from plain values; a single value stands for all layers.

    Parameters
    ----------
    layers : sequence of int
        Units of each layer, the input's first: 784, 1000, 500, 250, 30.
    data, finetune : dict, optional
        Fields of :class:`DataSettings` and :class:`FinetuneSettings`.
    **pretrain
        Fields of :class:`PretrainSettings`; None takes the default.

    Raises
    ------
    SettingsError
        Naming the setting, what was got and what was expected.
    """
    pretrain = {name: value for name, value in pretrain.items() if value is not None}
    return _from_sections({"data": data or {}, "finetune": finetune or {}}, layers, pretrain)


def read_settings(path: Path) -> Settings:
    """Read a TOML file that :func:`write_settings` wrote, or one with fewer settings.

    Raises
    ------
    SettingsError
        If the file cannot be read, is no TOML, or holds a wrong value; it names the file.
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


def write_settings(settings: Settings, path: Path) -> None:
    """Write every setting that is not None as TOML."""
    import tomli_w  # only a run that keeps its settings needs it

    sections = {
        section: {name: value for name, value in fields.items() if value is not None}
        for section, fields in msgspec.to_builtins(settings).items()
    }
    path.write_bytes(tomli_w.dumps(sections).encode())


def checked(values: dict[str, Any], kind: type[S]) -> S:
    """Build settings of a kind from plain values, or from NumPy's numbers and arrays.

    Raises
    ------
    SettingsError
        Naming the setting, what was got and what was expected.
    """
    values = _plain(values)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, SettingsError):
            raise error.__cause__ from None
        raise SettingsError(explained(str(error), values, kind)) from None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _from_sections(sections: dict[str, Any], layers: Any, pretrain: dict[str, Any]) -> Settings:
    depth = max(len(layers) - 1, 1) if hasattr(layers, "__len__") else 1
    filled: dict[str, Any] = {
        name: _spread(pretrain.get(name, default), depth) for name, default in PER_LAYER.items()
    }
    if "momentum" in pretrain:
        filled["momentum"] = str(pretrain["momentum"])
    layers = list(layers) if isinstance(layers, range) else layers
    return checked({**sections, "pretrain": {"layers": layers, **pretrain, **filled}}, Settings)


def _spread(value: Any, depth: int) -> list[Any]:
    value = _plain(value)
    values = value if isinstance(value, list) else [value]
    return values * depth if len(values) == 1 else values


def _check_layers(layers: tuple[int, ...]) -> None:
    if len(layers) < 2:
        raise SettingsError(
            f"layers: got {','.join(map(str, layers)) or 'nothing'}, expected two numbers or more:"
            " the input's width, then the units of each layer, such as 784,1000,500,250,30"
        )
    for units in layers:
        if units > MAX_UNITS:
            raise SettingsError(f"layers: got {units} units, expected at most {MAX_UNITS} a layer")


def _check_per_layer(name: str, values: tuple[float, ...], depth: int) -> None:
    if len(values) != depth:
        raise SettingsError(
            f"{name}: got {len(values)} values, expected one for all layers or {depth}, one a layer"
        )
    for value in values:
        if not math.isfinite(value):
            raise SettingsError(f"{name}: got {value}, expected a finite number")
        if isinstance(value, int) and value > MAX_EPOCHS:
            raise SettingsError(f"{name}: got {value}, expected at most {MAX_EPOCHS}")
