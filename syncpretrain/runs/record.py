"""A run as its folder describes it, finished or not."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from syncpretrain.errors import DataError, SyncpretrainError
from syncpretrain.events import Notice, Observer
from syncpretrain.models.model_file import MODEL_NAME
from syncpretrain.models.stack import Stack, load
from syncpretrain.runs.folder import (
    CONFIG_NAME,
    EVENTS_NAME,
    IDENTITY_NAME,
    METRICS_NAME,
)
from syncpretrain.runs.identity import RunIdentity, read_identity
from syncpretrain.runs.lock import LOCK_NAME
from syncpretrain.runs.timeline import Timeline, read_timeline
from syncpretrain.settings import Settings, read_settings

__all__ = ["RunRecord", "RunState", "read_run", "recorded_end"]

S = TypeVar("S")
FAILED_NOTICE, STOPPED_NOTICE = "the run failed: ", "the run was stopped: "
OWNER = re.compile(r"process (\d+) on (\S+)")


class RunState(NamedTuple):
    """How a run ended: ``name`` is finished, running, stopped, failed or lost.

    ``reason`` is a sentence, empty of a finished run.
    """

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What the files of a run say; a file that is missing or damaged leaves None.

    Attributes
    ----------
    folder : Path
    name : str
        What to call the run.
    state : RunState
    settings : Settings or None
    identity : RunIdentity or None
    metrics : dict or None
        Those of a finished run.
    timeline : Timeline
    stack : Stack or None
    problems : tuple of str
        What could not be read.
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
    """Read what is left of a run: its folder, or the model file in it.

    ``name`` is what to call it, by default the name of its folder.

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

    def read(file: str, reader: Callable[[Path], S]) -> S | None:
        if file not in there:
            return None
        try:
            return reader(folder / file)
        except (SyncpretrainError, OSError, ValueError) as error:
            problems.append(str(error))
            return None

    metrics = read(METRICS_NAME, _json_object)
    timeline = read(EVENTS_NAME, read_timeline) or Timeline()
    return RunRecord(
        folder=folder,
        name=own_name,
        state=_state(folder, finished=METRICS_NAME in there, notices=timeline.notices),
        settings=read(CONFIG_NAME, read_settings),
        identity=read(IDENTITY_NAME, read_identity),
        metrics=metrics,
        timeline=timeline,
        stack=read(MODEL_NAME, load),
        problems=tuple(problems),
        checkpoints=tuple(sorted((folder / "checkpoints").glob("*.safetensors"))),
    )


def _json_object(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_bytes())
    if not isinstance(found, dict):
        raise ValueError(f"{path}: got {type(found).__name__}, expected a JSON object")
    return found


def _state(folder: Path, *, finished: bool, notices: tuple[str, ...]) -> RunState:
    if finished:
        return RunState("finished", "")
    owner = _owner(folder)
    if owner:
        return RunState("running", f"{owner} is at work on it")
    for message in reversed(notices):
        for name, prefix in (("failed", FAILED_NOTICE), ("stopped", STOPPED_NOTICE)):
            if message.startswith(prefix):
                return RunState(name, message.removeprefix(prefix))
        if message.startswith("run folder: "):
            break  # of an earlier process
    return RunState("lost", "its process left no reason: it was killed, or lost its machine")


def _owner(folder: Path) -> str:
    """Return the process that works on a run, empty if there is none any more."""
    try:
        found = OWNER.match((folder / LOCK_NAME).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    if found is None:
        return ""
    if found[2] == socket.gethostname() and not _is_alive(int(found[1])):
        return ""
    return found[0]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # of another user
    return True


@contextmanager
def recorded_end(log: Observer) -> Iterator[None]:
    """Record why a run ends, where it does so before its end, in its events alone."""
    try:
        yield
    except BaseException as error:
        was_stopped = isinstance(error, KeyboardInterrupt)
        prefix = STOPPED_NOTICE if was_stopped else FAILED_NOTICE
        log(Notice(monotonic(), f"{prefix}{error or type(error).__name__}"))
        raise
