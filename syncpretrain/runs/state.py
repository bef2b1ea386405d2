"""State and figures of a run, by the files in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from syncpretrain.errors import DataError
from syncpretrain.runs.folder import METRICS_NAME
from syncpretrain.runs.lock import owner_of

__all__ = ["Figures", "RunState", "read_figures", "state_of"]

KILLED = "its process left no reason: it was killed, or lost its machine"
ByPart = dict[str, float | None]


class RunState(NamedTuple):
    """State of a run: whether and how it ended.

    Attributes
    ----------
    name : str
        ``finished``, ``running``, ``stopped`` (by a signal, or its process is gone), ``failed`` or
        ``damaged``.
    reason : str
        Why a run failed, stopped or is damaged; the owner of a running one; empty if finished.
    """

    name: str
    reason: str = ""


def state_of(folder: Path, stopped: tuple[bool, str] | None, damage: str = "") -> RunState:
    """Return the state of a run.

    Parameters
    ----------
    folder : Path
    stopped : tuple of bool and str, or None
        Content of the last event, if the run ended early: whether it failed, and the reason.
    damage : str
        Why the settings, or the figures of a finished run, cannot be read.
    """
    if not damage and (folder / METRICS_NAME).exists():
        return RunState("finished")
    owner = owner_of(folder)
    if owner is not None:  # it may be writing the settings that seem damaged
        return RunState("running", owner)
    if damage:
        return RunState("damaged", damage)
    if stopped is None:
        return RunState("stopped", KILLED)
    failed, reason = stopped
    return RunState("failed" if failed else "stopped", reason)


class Figures(msgspec.Struct):
    """The fields of ``metrics.json`` that the shelf and the report show; others are ignored."""

    reconstruction_error: ByPart
    seconds: dict[str, float]
    mean_error: ByPart | None = None
    accuracy: ByPart | None = None
    majority: ByPart | None = None
    regression_error: dict[str, _Regression | None] | None = None
    layers: list[_Layer] = []
    verdict: list[str] | None = None
    data: _Data | None = None
    parameters_sha256: str | None = None


def read_figures(path: Path) -> tuple[Figures, dict[str, Any]]:
    """Return the figures in ``metrics.json``, and its whole content.

    Raises
    ------
    DataError
        If the file cannot be read, or has another form.
    """
    try:
        content = path.read_bytes()
        everything: dict[str, Any] = msgspec.json.decode(content, type=dict[str, Any])
        return msgspec.convert(everything, Figures), everything
    except OSError as error:
        raise DataError(f"{path}: cannot read it: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: {error}") from None


class _Layer(msgspec.Struct):
    layer: int
    shape: str
    reconstruction_error: ByPart
    mean_error: ByPart | None = None


class _Regression(msgspec.Struct):
    rmse: float
    r2: float | None = None


class _Data(msgspec.Struct):
    name: str
    train: int | None = None
    validation: int | None = None
    test: int | None = None
