"""Shelf of runs: content and state of each run folder in a folder.

Only :func:`remove_run` writes. A folder with unreadable files is a damaged run, not an error.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from syncpretrain.errors import DataError, SettingsError
from syncpretrain.runs.folder import (
    CONFIG_NAME,
    EVENTS_NAME,
    IDENTITY_NAME,
    METRICS_NAME,
    not_a_run,
    owned,
)
from syncpretrain.runs.record import Figures, Line, read_figures, state_of
from syncpretrain.settings import Settings, read_settings

TAIL_BYTES = 1 << 16
NAMED_BY_TIME = re.compile(r"(\d{8}-\d{6})-.+")


class ShelvedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run folder.

    Attributes
    ----------
    name, folder : str
        Name of the folder, and its path.
    when : str
        When the run began, in ISO format, by the folder's name or its oldest file.
    state : str
        ``finished``, ``running``, ``stopped`` (by a signal, or its process is gone), ``failed`` or
        ``damaged``.
    reason : str
        Why a run failed, stopped or is damaged, if known; the owner of a running one.
    layers, schedule, data : str
        Texts of its settings; empty if they cannot be read.
    objective : str
        Objective of fine-tuning; ``none`` without.
    validation, test : float or None
        The error of a finished run: the share of wrong classes, the root mean squared error of a
        regression, or the reconstruction error of the stack.
    seconds : float or None
        Seconds in all; of an unfinished run up to its last event.
    """

    name: str
    folder: str
    when: str
    state: str
    reason: str = ""
    layers: str = ""
    schedule: str = ""
    data: str = ""
    objective: str = ""
    validation: float | None = None
    test: float | None = None
    seconds: float | None = None

    def key(self, field: str) -> tuple[bool, Any]:
        """Return the sort key for a field; runs without the field come last."""
        value = getattr(self, field)
        return value in (None, "") or value != value, value if value is not None else 0.0


def runs_in(folder: Path) -> list[ShelvedRun]:
    """Return the runs of a folder, the newest first; other folders in it are left out.

    Raises
    ------
    SettingsError
        If the folder cannot be read.
    """
    try:
        inside = sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        reason = f"{error.strerror}; name the folder of the runs with --folder"
        raise SettingsError(f"folder: cannot read {folder}: {reason}") from None
    found = [run for run in map(_found_in, inside) if run is not None]
    return sorted(found, key=lambda run: run.when, reverse=True)


def _found_in(folder: Path) -> ShelvedRun | None:
    """Return the run in a folder, or None; a folder that cannot be read may be a run."""
    try:
        return read_run(folder) if _has_files_of_a_run(folder) else None
    except OSError as error:
        return ShelvedRun(**_place(folder), state="damaged", reason=f"{folder}: {error.strerror}")


def _place(folder: Path) -> dict[str, Any]:
    return {"name": folder.name, "folder": str(folder), "when": _began(folder)}


def read_run(folder: Path) -> ShelvedRun:
    """Return the run in a run folder."""
    common = _place(folder)
    damage, figures = "", None
    last: Line | None = None
    try:
        common.update(_described(read_settings(folder / CONFIG_NAME)))
        last = _last_event(folder / EVENTS_NAME)
        if (folder / METRICS_NAME).exists():
            figures, _ = read_figures(folder / METRICS_NAME)
    except (SettingsError, DataError) as error:
        damage = str(error)
    stopped = None
    if last is not None and last.event == "RunStopped":
        stopped = (last.failed, last.reason)
    state = state_of(folder, stopped, damage)
    seconds = None if last is None or damage else last.time
    errors: dict[str, Any] = _errors(figures) if figures is not None else {"seconds": seconds}
    return ShelvedRun(**common, **errors, state=state.name, reason=state.reason)


def check_run(folder: Path) -> ShelvedRun:
    """Return the run in a folder.

    Raises
    ------
    SettingsError
        If the folder is no run, or cannot be read.
    """
    try:
        is_run = _has_files_of_a_run(folder)
    except OSError as error:
        raise SettingsError(f"run: cannot read {folder}: {error.strerror}") from None
    if not is_run:
        raise SettingsError(not_a_run("run", folder, CONFIG_NAME, IDENTITY_NAME))
    return read_run(folder)


def remove_run(folder: Path) -> None:
    """Remove a run folder and all that is in it.

    The folder is renamed first, so that a removal that is stopped leaves no half of a run.

    Raises
    ------
    SettingsError
        If the folder is no run, a link to one, owned by another process, or cannot be removed.
    """
    check_run(folder)
    if folder.is_symlink():
        raise SettingsError(f"run: got {folder}, a link; remove the folder that it names")
    folder = folder.resolve()
    for place in (folder, folder.parent):
        if not os.access(place, os.W_OK):
            reason = f"{place} cannot be written to; make it writable"
            raise SettingsError(f"run: cannot remove {folder}: {reason}")
    with owned(folder, lambda message: None):
        doomed = folder.with_name(f".{folder.name}.removed.{secrets.token_hex(4)}")
        try:
            folder.rename(doomed)
        except OSError as error:
            raise SettingsError(f"run: cannot remove {folder}: {error.strerror}") from error
    try:
        shutil.rmtree(doomed)
    except OSError as error:
        raise SettingsError(f"run: cannot remove all of {doomed}: {error.strerror}") from error


def _has_files_of_a_run(folder: Path) -> bool:
    """Return whether a folder is a run's: settings with an identity or events, or an identity."""
    if (folder / IDENTITY_NAME).is_file():
        return (folder / CONFIG_NAME).is_file() or _is_identity(folder / IDENTITY_NAME)
    return (folder / CONFIG_NAME).is_file() and (folder / EVENTS_NAME).is_file()


def _is_identity(path: Path) -> bool:
    try:
        return b'"syncpretrain run ' in path.read_bytes()
    except OSError:
        return False


def _began(folder: Path) -> str:
    """Return when a run began: by the name of its folder, or its oldest file."""
    named = NAMED_BY_TIME.fullmatch(folder.name)
    if named is not None:
        with suppress(ValueError):  # a number that is no date: the files decide
            return datetime.strptime(named[1], "%Y%m%d-%H%M%S").isoformat()
    times = [_written(folder / name) for name in (IDENTITY_NAME, CONFIG_NAME, EVENTS_NAME)]
    oldest = min((time for time in times if time is not None), default=_written(folder) or 0.0)
    return datetime.fromtimestamp(oldest).isoformat(timespec="seconds")


def _written(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _described(settings: Settings) -> dict[str, str]:
    pretrain = settings.pretrain
    how = "streamed" if pretrain.handoff == "minibatch" else pretrain.pace
    schedule = f"{pretrain.schedule}, {how}" if how in ("streamed", "free") else pretrain.schedule
    return {
        "layers": pretrain.stack_text,
        "schedule": schedule,
        "data": settings.data.name,
        "objective": settings.finetune.objective,
    }


def _errors(figures: Figures) -> dict[str, float | None]:
    """Return the errors that a run is judged by."""
    own = figures.reconstruction_error
    if figures.accuracy is not None:
        own = {part: None if x is None else 1 - x for part, x in figures.accuracy.items()}
    elif figures.regression_error is not None:
        own = {part: None if x is None else x.rmse for part, x in figures.regression_error.items()}
    errors = {part: own.get(part) for part in ("validation", "test")}
    return errors | {"seconds": figures.seconds.get("total")}


def _last_event(path: Path) -> Line | None:
    """Return the last event of a run."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        with suppress(ValueError):  # half a line: of a process that died, or at the cut
            return msgspec.json.decode(line, type=Line)
    return None
