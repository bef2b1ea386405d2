"""Record of a run, finished or not, read from its folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from syncpretrain.errors import DataError, SyncpretrainError
from syncpretrain.models.model_file import MODEL_NAME
from syncpretrain.models.stack import Stack, load
from syncpretrain.runs.folder import (
    CONFIG_NAME,
    EVENTS_NAME,
    IDENTITY_NAME,
    METRICS_NAME,
)
from syncpretrain.runs.identity import RunIdentity, read_identity
from syncpretrain.runs.state import RunState, read_figures, state_of
from syncpretrain.runs.timeline import Timeline, read_timeline
from syncpretrain.settings import Settings, read_settings

__all__ = ["RunRecord", "read_run"]

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
    metrics = read(METRICS_NAME, _everything)
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


def _everything(path: Path) -> dict[str, Any]:
    return read_figures(path)[1]
