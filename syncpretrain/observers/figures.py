"""Figures of a run by name and step, as loggers of experiments keep them."""

from __future__ import annotations

import time
from importlib import import_module
from typing import NamedTuple

from syncpretrain.errors import SettingsError
from syncpretrain.events import EpochFinished, Event, FinetuneEpochFinished, RunFinished


class Figures(NamedTuple):
    """Figures of one event.

    Attributes
    ----------
    step : int
        Epoch of the layer, or of fine-tuning.
    values : dict of str to float
        Figures by name, such as ``layer_1/train_error`` and ``finetuning/validation_error``.
    """

    step: int
    values: dict[str, float]


def figures_of(event: Event) -> Figures | None:
    """Return the figures of an event, None if it has none."""
    match event:
        case EpochFinished():
            values = {
                **errors_of(event),
                "version_below": event.reads,
                "seconds": event.time - event.started,
                "transform_seconds": event.transform_seconds,
            }
            return _figures(f"layer_{event.layer}", event.epoch, values)
        case FinetuneEpochFinished():
            values = {**errors_of(event), "seconds": event.seconds}
            return _figures("finetuning", event.epoch, values)
        case RunFinished():
            busy = {f"busy_{n}": x for n, x in enumerate(event.busy_seconds, start=1)}
            return _figures("pretraining", 0, {"seconds": event.seconds, **busy})
    return None


def errors_of(event: EpochFinished | FinetuneEpochFinished) -> dict[str, float | None]:
    """Return the errors after an epoch, and the drift of the layer if it was measured."""
    errors = {"train_error": event.train_error, "validation_error": event.validation_error}
    drift = event.drift if isinstance(event, EpochFinished) else None
    return errors if drift is None else errors | {"drift": drift}


def _figures(name: str, step: int, values: dict[str, float | None]) -> Figures:
    return Figures(step, {f"{name}/{key}": float(x) for key, x in values.items() if x is not None})


def wall_time(event: Event) -> float:
    """Return the time of an event in seconds since 1970, by the clock of this machine."""
    return event.time + (time.time() - time.monotonic())


def check_package(log: str, package: str) -> None:
    """Refuse a log if the package that writes it cannot be imported.

    Raises
    ------
    SettingsError
    """
    try:
        import_module(package)
    except ImportError as error:
        advice = f'pip install "syncpretrain[{log}]"'
        need = f"the package {package} ({error})"
        raise SettingsError(f"log: got {log}, which needs {need}; {advice}") from error
