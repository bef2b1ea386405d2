"""The settings of a run: its sections, checked as a whole, and their forms.

They are made from plain values or read from TOML, replaced value by value, and written as TOML.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from syncpretrain.errors import SettingsError
from syncpretrain.schedule.kinds import ASYNC
from syncpretrain.settings import checks, fields
from syncpretrain.settings.architecture import architecture_of, check_architecture, in_columns
from syncpretrain.settings.convert import checked, plain
from syncpretrain.settings.devices import check_tuning_backend
from syncpretrain.settings.finetuning import FinetuneSettings
from syncpretrain.storage import write_atomically

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T", bound=FinetuneSettings)
ELSEWHERE = ("runtime", "workers", "backend", "exchange")  # a resumed run may change these


class PretrainSettings(fields.PretrainFields, frozen=True, kw_only=True):
    """Pretraining: the fields of :class:`syncpretrain.settings.fields.PretrainFields`, checked."""

    def __post_init__(self) -> None:
        checks.check_layers(self.layers)
        check_architecture(self.layers, self.architecture)
        for name in fields.PER_LAYER:
            checks.check_per_layer(name, getattr(self, name), len(self.layers) - 1)
        fields.check_finite(self)
        for momentum in self.momentum:
            fields.MomentumSchedule(momentum)
        checks.check_pretraining(self)
        checks.check_schedule(self)
        if self.seed >= 2**63:
            raise SettingsError(f"seed: got {self.seed}, expected a number below 2**63")


class RunSettings(fields.Frozen, frozen=True, kw_only=True):
    """Checkpoints, restarts and the stall watch; none of them changes the result of a run.

    ``checkpoint_every`` is a number of epochs, or of seconds with an ``s`` behind it: a checkpoint
    is written at the end of an epoch once any layer, or fine-tuning, has done so many epochs since
    the last one, or so much time has passed. ``log:50`` does so every 60 s, and also keeps each
    layer after up to 50 of its updates, spaced by their logarithm, in a model of its own. The
    newest ``keep`` checkpoints are kept. ``max_restarts`` limits how often a process that died is
    replaced, or else how often the run resumes from its last checkpoint after a worker failed.
    ``stall_timeout`` is the number of seconds that may pass without a minibatch in any layer, or
    that a worker may wait for others within a minibatch.
    """

    checkpoint_every: Annotated[
        str,
        fields.OUTPUT(metavar="N|Ss|log:N"),
        "Checkpoint after N epochs, or S seconds; log:N: also N models a layer, by updates.",
    ] = "60s"
    keep: Annotated[fields.Count, fields.OUTPUT, "Checkpoints to keep."] = 2
    max_restarts: Annotated[
        fields.NonNegativeInt,
        fields.OUTPUT,
        "Replace a process that dies, or else resume from the last checkpoint if a worker fails,"
        " at most N times in all.",
    ] = 0
    stall_timeout: Annotated[
        fields.PositiveFloat,
        fields.OUTPUT(metavar="SECONDS"),
        "End a run that trains no minibatch for so long.",
    ] = 600.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.stall_timeout):
            raise SettingsError(f"stall_timeout: got {self.stall_timeout}, expected seconds")
        self.interval()

    @property
    def marks(self) -> int:
        """Models of each layer that are kept by its updates."""
        found = re.fullmatch(r"log:([1-9][0-9]{0,4})", self.checkpoint_every)
        return int(found[1]) if found else 0

    def interval(self) -> tuple[int | None, float | None]:
        """Return epochs and None, or None and seconds, between two checkpoints.

        Raises
        ------
        SettingsError
            If the text is neither epochs nor seconds.
        """
        text = "60s" if self.marks else self.checkpoint_every
        try:
            epochs = None if text.endswith("s") else int(text)
            seconds = float(text[:-1]) if text.endswith("s") else None
        except ValueError:
            epochs = seconds = None
        if (epochs is None or epochs < 1) and not (seconds and 0 < seconds < math.inf):
            raise SettingsError(
                f"checkpoint_every: got {text!r}, expected a number of epochs, such as 5, of"
                " seconds, such as 60s, or log:50 for 50 models by updates"
            )
        return epochs, seconds


class Settings(fields.Frozen, frozen=True, kw_only=True):
    """Everything that determines a run; ``config.toml`` of a run folder holds it."""

    data: fields.DataSettings = fields.DataSettings()
    pretrain: PretrainSettings
    finetune: FinetuneSettings = FinetuneSettings()
    run: RunSettings = RunSettings()

    def __post_init__(self) -> None:
        check_tuning_backend(self.pretrain.backend, self.finetune)
        self.marked()

    def marked(self) -> PretrainSettings:
        """Return the settings of pretraining, with the models that it keeps by updates.

        Raises
        ------
        SettingsError
            If it cannot keep them.
        """
        if not self.run.marks:
            return self.pretrain
        try:
            return msgspec.structs.replace(self.pretrain, marks=self.run.marks)
        except SettingsError as error:
            given = f"checkpoint_every: got {self.run.checkpoint_every}"
            raise SettingsError(str(error).replace(f"marks: got {self.run.marks}", given)) from None


def replaced(settings: S, **changes: Any) -> S:
    """Return settings with other values, and check every value.

    ``msgspec.structs.replace`` checks only combinations of values, not the single values.

    Parameters
    ----------
    settings : Settings, or a section of them
    **changes
        Fields: sections, or plain values; a field with one value a layer takes a list.

    Raises
    ------
    SettingsError
        Naming the setting, the value given and the value expected.
    """
    plain = {
        name: msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value
        for name, value in changes.items()
    }
    return checked({**msgspec.to_builtins(settings), **plain}, type(settings))


def moved_elsewhere(settings: Settings, **elsewhere: Any) -> Settings:
    """Return the settings of a run that is resumed with other values of :data:`ELSEWHERE`.

    Raises
    ------
    SettingsError
        If a setting is named that the stopped run decides, or a value is wrong.
    """
    for name in elsewhere:
        if name not in ELSEWHERE:
            raise SettingsError(
                f"{name}: got a value for a run that goes on, which decides it; only"
                f" {', '.join(ELSEWHERE)} can be others"
            )
    pretrain_changes, tuning = dict(elsewhere), settings.finetune
    if elsewhere.get("runtime", "mpi") != "mpi":
        pretrain_changes.setdefault("exchange", "messages")  # other exchanges need ranks
        tuning = off_ranks(tuning)
    pretrain = replaced(settings.pretrain, **pretrain_changes)
    return replaced(settings, pretrain=pretrain, finetune=tuning)


def off_ranks(tuning: T) -> T:
    """Return settings for threads that give the same bits as settings for ranks."""
    if tuning.runtime != "mpi":
        return tuning
    split = tuning.split if tuning.schedule == ASYNC else "examples"
    return replaced(tuning, runtime="threads", split=split)


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
    sections = {"data": data or {}, "finetune": finetune or {}, "run": run or {}}
    return _from_sections(sections, layers, pretrain)


def read_settings(path: Path) -> Settings:
    """Read settings from a TOML file of :func:`write_settings`, or one with fewer settings.

    Raises
    ------
    SettingsError
        If the file cannot be read, is no TOML, or holds a wrong value; the message names the file.
    """
    try:
        sections: dict[str, Any] = msgspec.toml.decode(path.read_bytes())
        pretrain = sections.pop("pretrain", {})
        if not isinstance(pretrain, dict) or "layers" not in pretrain:
            raise SettingsError("layers: got nothing, expected a list of units in [pretrain]")
        return _from_sections(sections, pretrain.pop("layers"), pretrain)
    except OSError as error:
        reason = error.strerror or str(error)
        reason += "; expected a file, such as config.toml of a run" if path.is_dir() else ""
        raise SettingsError(f"{path}: cannot read these settings: {reason}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
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
    sections: dict[str, Any] = msgspec.toml.decode(path.read_bytes())
    return {name: frozenset(given) for name, given in sections.items()}


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
    sections = {}
    for section, values in msgspec.to_builtins(settings).items():
        names = fields.names_of(type(getattr(settings, section)))
        sections[section] = {name: values[name] for name in names if values[name] not in (None, "")}
    return msgspec.toml.encode(sections).decode()


def _from_sections(sections: dict[str, Any], layers: Any, pretrain: dict[str, Any]) -> Settings:
    """Build settings; ``pretrain`` is changed."""
    columns = pretrain.pop("columns", None)
    if columns is not None:
        layers = in_columns(pretrain.pop("architecture", None) or layers, columns)
    layers, architecture = architecture_of(layers)
    if architecture:
        given = pretrain.get("architecture") or architecture
        if given != architecture:
            raise SettingsError(
                f"architecture: got {given} with layers {architecture}; leave one of the two out"
            )
        pretrain["architecture"] = architecture
    if "visible_units" in pretrain:
        pretrain["visible_units"] = checks.kept_units(pretrain["visible_units"], layers)
    depth = max(len(layers) - 1, 1) if hasattr(layers, "__len__") else 1
    defaults = fields.PER_LAYER | fields.MODEL_DEFAULTS.get(str(pretrain.get("model")), {})
    defaults |= fields.HANDOFF_DEFAULTS.get(str(pretrain.get("handoff")), {})
    defaults |= fields.SCHEDULE_DEFAULTS.get(str(pretrain.get("schedule")), {})
    filled = {name: pretrain.get(name, usual) for name, usual in defaults.items()}
    filled |= {name: _spread(filled[name], depth) for name in fields.PER_LAYER}
    settle = filled["settle"] if "settle" in pretrain else None
    filled |= checks.settled_epochs(filled["epochs"], settle, filled["refresh_when"])
    filled["momentum"] = [str(value) for value in filled["momentum"]]
    if "learning_rate" not in pretrain:
        visible = pretrain.get("visible_units", "bernoulli")
        filled["learning_rate"] = fields.usual_rates(visible, filled["hidden_units"])
    if "sparsity_cost" not in pretrain and pretrain.get("model", "rbm") == "rbm":
        text = pretrain.get("architecture")
        filled["sparsity_cost"] = fields.usual_costs(text, filled["hidden_units"], depth)
    layers = list(layers) if isinstance(layers, range) else layers
    return checked({**sections, "pretrain": {"layers": layers, **pretrain, **filled}}, Settings)


def _spread(value: Any, depth: int) -> list[Any]:
    value = plain(value)
    values = value if isinstance(value, list) else [value]
    return values * depth if len(values) == 1 else values
