"""Record of a run, finished or not, read from its folder: its state, figures, events and model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from syncpretrain.errors import DataError, SyncpretrainError
from syncpretrain.models.model_file import MODEL_NAME
from syncpretrain.models.stack import Stack, load
from syncpretrain.runs.folder import CONFIG_NAME, EVENTS_NAME, IDENTITY_NAME, METRICS_NAME, owner_of
from syncpretrain.runs.identity import RunIdentity, read_identity
from syncpretrain.runs.timeline import Timeline, read_timeline
from syncpretrain.settings import Settings, read_settings

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


S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Content of a run folder; None in place of a file that is missing or damaged.

    Attributes
    ----------
    folder : Path
    name : str
        Name of the run in a report.
    state : RunState
    settings : Settings or None
    identity : RunIdentity or None
    metrics : dict or None
        Metrics of a finished run.
    timeline : Timeline
    stack : Stack or None
    problems : tuple of str
        Reasons why files could not be read.
    checkpoints : tuple of Path
    """

    folder: Path
    name: str
    state: RunState
    settings: Settings | None
    identity: RunIdentity | None
    metrics: dict[str, Any] | None
    timeline: Timeline
    stack: Stack | None
    problems: tuple[str, ...]
    checkpoints: tuple[Path, ...]


def read_run(run: Path, *, name: str = "") -> RunRecord:
    """Read the files of a run, from its folder or from the model file in it.

    ``name`` is the name of the run in a report, by default the name of its folder.

    Raises
    ------
    DataError
        If there is no such folder, or it has no file of a run.
    """
    folder = run.parent if run.name == MODEL_NAME else run
    own_name = name or folder.resolve().name
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    if not there & {CONFIG_NAME, EVENTS_NAME, MODEL_NAME}:
        raise DataError(f"run: got {run}, expected the folder of a run, with {CONFIG_NAME} in it")
    problems: list[str] = []

    def read(file: str, reader: Callable[[Path], S], *, is_needed: bool = False) -> S | None:
        if file not in there and not is_needed:
            return None
        try:
            return reader(folder / file)
        except (SyncpretrainError, OSError, ValueError) as error:
            problems.append(str(error))
            return None

    settings = read(CONFIG_NAME, read_settings, is_needed=IDENTITY_NAME in there)
    metrics = read(METRICS_NAME, lambda path: read_figures(path)[1])
    damage = problems[0] if problems else ""
    timeline = read(EVENTS_NAME, read_timeline) or Timeline()
    return RunRecord(
        folder=folder,
        name=own_name,
        state=state_of(folder, timeline.stopped, damage),
        settings=settings,
        identity=read(IDENTITY_NAME, read_identity),
        metrics=metrics,
        timeline=timeline,
        stack=read(MODEL_NAME, load),
        problems=tuple(problems),
        checkpoints=tuple(sorted((folder / "checkpoints").glob("*.safetensors"))),
    )
