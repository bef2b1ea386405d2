"""Settings with some of their values replaced, and checked again."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from syncpretrain.errors import SettingsError
from syncpretrain.schedule.kinds import ASYNC
from syncpretrain.settings.convert import checked
from syncpretrain.settings.finetuning import FinetuneSettings
from syncpretrain.settings.sections import Settings

__all__ = ["ELSEWHERE", "moved_elsewhere", "off_ranks", "replaced"]

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T", bound=FinetuneSettings)
ELSEWHERE = ("runtime", "workers", "backend", "exchange")  # settings that may differ at a resume


def replaced(settings: S, **changes: Any) -> S:
    """Return settings with other values, every one of them checked.

    ``msgspec.structs.replace`` checks how values go together, not what each of them is.

    Parameters
    ----------
    settings : Settings, or a section of them
    **changes
        Its fields: sections, or plain values, a list of one a layer where it is so.

    Raises
    ------
    SettingsError
        Naming the setting, what was got and what was expected.
    """
    plain = {
        name: msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value
        for name, value in changes.items()
    }
    return checked({**msgspec.to_builtins(settings), **plain}, type(settings))


def moved_elsewhere(settings: Settings, **elsewhere: Any) -> Settings:
    """Return the settings of a run that is resumed with another of what :data:`ELSEWHERE` has.

    Raises
    ------
    SettingsError
        If another setting is named, which the stopped run decides, or a value is wrong.
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
    """Return settings that give the same bits in threads, if these are for ranks."""
    if tuning.runtime != "mpi":
        return tuning
    split = tuning.split if tuning.schedule == ASYNC else "examples"
    return replaced(tuning, runtime="threads", split=split)
