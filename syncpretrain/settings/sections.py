"""The settings of a run: its sections, checked as a whole, and replacement of their values."""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeVar

import msgspec

from syncpretrain.errors import SettingsError
from syncpretrain.schedule.kinds import ASYNC
from syncpretrain.settings.architecture import check_architecture
from syncpretrain.settings.checks import (
    check_layers,
    check_per_layer,
    check_pretraining,
    check_schedule,
)
from syncpretrain.settings.convert import checked
from syncpretrain.settings.devices import check_tuning_backend
from syncpretrain.settings.fields import (
    OUTPUT,
    PER_LAYER,
    Count,
    DataSettings,
    Frozen,
    MomentumSchedule,
    NonNegativeInt,
    PositiveFloat,
    PretrainFields,
    check_finite,
)
from syncpretrain.settings.finetuning import FinetuneSettings

__all__ = [
    "ELSEWHERE",
    "DataSettings",
    "PretrainSettings",
    "RunSettings",
    "Settings",
    "moved_elsewhere",
    "off_ranks",
    "replaced",
]

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T", bound=FinetuneSettings)
ELSEWHERE = ("runtime", "workers", "backend", "exchange")  # a resumed run may change these


class PretrainSettings(PretrainFields, frozen=True, kw_only=True):
    """Pretraining: the fields of :class:`syncpretrain.settings.fields.PretrainFields`, checked."""

    def __post_init__(self) -> None:
        check_layers(self.layers)
        check_architecture(self.layers, self.architecture)
        for name in PER_LAYER:
            check_per_layer(name, getattr(self, name), len(self.layers) - 1)
        check_finite(self)
        for momentum in self.momentum:
            MomentumSchedule(momentum)
        check_pretraining(self)
        check_schedule(self)
        if self.seed >= 2**63:
            raise SettingsError(f"seed: got {self.seed}, expected a number below 2**63")


class RunSettings(Frozen, frozen=True, kw_only=True):
    """Checkpoints, restarts and the stall watch; none of them changes the result of a run.

    ``checkpoint_every`` is a number of epochs, or of seconds with an ``s`` behind it: a checkpoint
    is written at the end of an epoch once any layer, or fine-tuning, has done so many epochs since
    the last one, or so much time has passed. The newest ``keep`` checkpoints are kept.
    ``max_restarts`` limits how often a process that died is replaced, or else how often the run
    resumes from its last checkpoint after a worker failed. ``stall_timeout`` is the number of
    seconds that may pass without a minibatch in any layer, or that a worker may wait for others
    within a minibatch.
    """

    checkpoint_every: Annotated[
        str,
        OUTPUT(metavar="N|Ss"),
        "Write a checkpoint once any layer, or fine-tuning, has done N epochs since the last one,"
        " or S seconds have passed.",
    ] = "60s"
    keep: Annotated[Count, OUTPUT, "Checkpoints to keep."] = 2
    max_restarts: Annotated[
        NonNegativeInt,
        OUTPUT,
        "Replace a process that dies, or else resume from the last checkpoint if a worker fails,"
        " at most N times in all.",
    ] = 0
    stall_timeout: Annotated[
        PositiveFloat, OUTPUT(metavar="SECONDS"), "End a run that trains no minibatch for so long."
    ] = 600.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.stall_timeout):
            raise SettingsError(f"stall_timeout: got {self.stall_timeout}, expected seconds")
        self.interval()

    def interval(self) -> tuple[int | None, float | None]:
        """Return epochs and None, or None and seconds, between two checkpoints.

        Raises
        ------
        SettingsError
            If the text is neither epochs nor seconds.
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


class Settings(Frozen, frozen=True, kw_only=True):
    """Everything that determines a run; ``config.toml`` of a run folder holds it."""

    data: DataSettings = DataSettings()
    pretrain: PretrainSettings
    finetune: FinetuneSettings = FinetuneSettings()
    run: RunSettings = RunSettings()

    def __post_init__(self) -> None:
        check_tuning_backend(self.pretrain.backend, self.finetune)


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
