"""Checks of the settings of an asynchronous pretraining."""

from __future__ import annotations

from syncpretrain.errors import SettingsError
from syncpretrain.pretraining.schedule.names import ASYNC
from syncpretrain.settings.asynchronous import check_async
from syncpretrain.settings.fields import PretrainFields
from syncpretrain.settings.kinds import MAX_WORKERS

__all__ = ["check_async_pretraining"]


def check_async_pretraining(settings: PretrainFields) -> None:
    """Refuse what an asynchronous run does not have, and what it alone has.

    Raises
    ------
    SettingsError
        Naming the setting.
    """
    check_async(
        settings,
        schedule=settings.schedule,
        runtime=settings.runtime,
        has_momentum=any(text.strip("0.") for text in settings.momentum),
    )
    if settings.schedule != ASYNC:
        return
    if max(settings.replicas) > MAX_WORKERS:
        raise SettingsError(
            f"replicas: got {max(settings.replicas)}, expected at most {MAX_WORKERS}"
        )
    usual: dict[str, tuple[object, str]] = {
        "split": ("examples", "replicas share no minibatch"),
        "shards": (0, "replicas share no minibatch"),
        "workers": (None, "replicas are its workers"),
        "early_stopping": ("none", "every layer trains its epochs"),
        "settle": (0, "every layer trains its epochs"),
        "finish": ("drain", "no version wakes a layer"),
        "shuffle": ("rows", "its examples are in memory"),
        "delay": (0, "replicas train all layers of a minibatch"),
    }
    for name, (expected, why) in usual.items():
        found = getattr(settings, name)
        for value in found if isinstance(found, tuple) else (found,):
            if value != expected:
                raise SettingsError(
                    f"{name}: got {value} with schedule {ASYNC}, where {why}; leave it out"
                )
    if settings.handoff == "minibatch" and len(set(settings.replicas)) > 1:
        raise SettingsError(
            f"replicas: got {','.join(map(str, settings.replicas))} with schedule {ASYNC} and"
            " handoff minibatch, whose replicas train all layers, expected one number"
        )
