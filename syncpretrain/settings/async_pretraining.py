"""Checks of the settings of an asynchronous pretraining."""

from __future__ import annotations

from syncpretrain.errors import SettingsError
from syncpretrain.schedule.kinds import ASYNC
from syncpretrain.settings.asynchronous import check_async
from syncpretrain.settings.fields import PretrainFields
from syncpretrain.settings.kinds import MAX_WORKERS

__all__ = ["check_async_pretraining", "check_blas_threads"]

MESSAGES = "messages"
NOT_SUPPORTED: dict[str, tuple[tuple[object, ...], str]] = {  # values that are, and why not others
    "split": (("examples",), "replicas share no minibatch"),
    "shards": ((0,), "replicas share no minibatch"),
    "workers": ((None,), "replicas are its workers"),
    "early_stopping": (("none",), "every layer trains its epochs"),
    "settle": ((0,), "every layer trains its epochs"),
    "refresh_epochs": ((1, 0), "no version wakes a layer"),  # the default, and none
    "finish": (("drain",), "no version wakes a layer"),
    "shuffle": (("rows",), "its examples are in memory"),
    "delay": ((0,), "replicas train all layers of a minibatch"),
}


def check_blas_threads(schedule: str, requested: int | None) -> None:
    """Refuse a number of BLAS threads that was requested for an asynchronous pretraining alone.

    A run records a number in its settings in any case, for what else it does.

    Raises
    ------
    SettingsError
    """
    if schedule == ASYNC and requested is not None:
        raise SettingsError(
            f"blas_threads: got {requested} with schedule {ASYNC}, where each replica takes one;"
            " leave it out"
        )


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
    _check_exchange(settings)
    if settings.schedule != ASYNC:
        return
    if max(settings.replicas) > MAX_WORKERS:
        raise SettingsError(
            f"replicas: got {max(settings.replicas)}, expected at most {MAX_WORKERS}"
        )
    for name, (usual, why) in NOT_SUPPORTED.items():
        found = getattr(settings, name)
        for value in found if isinstance(found, tuple) else (found,):
            if value not in usual:
                raise SettingsError(
                    f"{name}: got {value} with schedule {ASYNC}, where {why}; leave it out"
                )
    if settings.handoff == "minibatch" and len(set(settings.replicas)) > 1:
        raise SettingsError(
            f"replicas: got {','.join(map(str, settings.replicas))} with schedule {ASYNC} and"
            " handoff minibatch, whose replicas train all layers, expected one number"
        )


def _check_exchange(settings: PretrainFields) -> None:
    """Refuse windows where replicas have no ranks, or changes are not only added."""
    if settings.exchange == MESSAGES:
        return
    if settings.schedule != ASYNC or settings.runtime != "mpi":
        name = "schedule" if settings.schedule != ASYNC else "runtime"
        raise SettingsError(
            f"exchange: got {settings.exchange} with {name} {getattr(settings, name)}, expected"
            f" {MESSAGES}; windows are memory of ranks that replicas share: take schedule {ASYNC}"
            " and runtime mpi"
        )
    if settings.delay_compensation:
        raise SettingsError(
            f"exchange: got {settings.exchange} with delay_compensation"
            f" {settings.delay_compensation:g}, expected {MESSAGES}; MPI only adds to a window, and"
            " a compensation needs the parameters at that moment"
        )
