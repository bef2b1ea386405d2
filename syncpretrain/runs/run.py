"""One run from settings to run folder: data, pretraining, fine-tuning, evaluation, files.

A run folder holds ``config.toml`` (every setting), ``columns.json`` (of a table), ``run.json`` (the
identity), ``events.jsonl``, ``model.safetensors``, ``metrics.json``, ``README.md`` (the model card)
and ``trace.json`` (Chrome trace format), and while the run is unfinished ``checkpoints/``, from
which :func:`resume_run` resumes it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import Any

import msgspec

from syncpretrain.data.columns import read_columns, write_columns
from syncpretrain.data.dataset import Dataset
from syncpretrain.errors import DataError, SettingsError
from syncpretrain.events import Observer
from syncpretrain.models.stack import Stack
from syncpretrain.observers.loggers import check_loggers
from syncpretrain.pretraining.schedule.reads import Reads
from syncpretrain.runs.checkpoints import has_pretrained, identity_in
from syncpretrain.runs.folder import (
    COLUMNS_NAME,
    CONFIG_NAME,
    EVENTS_NAME,
    IDENTITY_NAME,
    METRICS_NAME,
    check_folder,
    check_text,
    made_folder,
    new_folder,
    not_written,
)
from syncpretrain.runs.identity import (
    RunIdentity,
    check_resumable,
    identity_of,
    read_identity,
)
from syncpretrain.runs.lock import owned
from syncpretrain.runs.prepare import (
    idle_gpu,
    load_data,
    resolve,
    settled,
    with_absolute_path,
)
from syncpretrain.runs.stages import Stages
from syncpretrain.settings import Settings, moved_elsewhere, read_settings, write_settings
from syncpretrain.settings.by_data import Given

__all__ = ["prepared_run", "resume_run", "train_run"]


def train_run(
    settings: Settings,
    *,
    out: Path | None = None,
    observers: Iterable[Observer] = (),
    replay: Reads | None = None,
    data: Dataset | None = None,
    given: Given | None = None,
    start: Stack | None = None,
    loggers: Iterable[str] = (),
    command: str | None = None,
) -> dict[str, Any]:
    """Pretrain, fine-tune and evaluate; write the run folder and return its metrics.

    Parameters
    ----------
    settings : Settings
    out : Path, optional
        A folder that is new or empty; None makes one in ``runs/``.
    observers : iterable of callable
    replay : tuple of tuple of int, optional
        The recorded reads to repeat.
    data : Dataset, optional
        What the settings name, if it is loaded already.
    given : Given, optional
        The settings that the user gave; others follow from the data. None leaves all as they are.
    start : Stack, optional
        What an earlier run pretrained; only fine-tuning is left then, with schedule ``none``.
    loggers : iterable of str
        ``tensorboard`` and ``mlflow``, which log the run.
    command : str, optional
        The command that begins the run, for its model card.

    Raises
    ------
    SettingsError, DataError
        Before any worker starts and before the folder is made.
    WorkerError, RunInterrupted
        After the model so far, and in the second case a checkpoint, was saved; the message says
        where.
    SaveError
        If the run is complete but its folder did not take a file; the message says where it is.
    """
    started = time.monotonic()
    check_folder(out)
    check_loggers(own := tuple(loggers))
    run = prepared_run(settings, data, given, observers, started, replay=replay, start=start)
    run.loggers, run.command, settings = own, command, run.settings
    out = new_folder(settings.pretrain.layers) if out is None else made_folder(out)
    with owned(out, run.report):
        try:
            run.identity.write(out / IDENTITY_NAME)
            write_settings(with_absolute_path(settings), out / CONFIG_NAME)
            if run.data.columns is not None:
                write_columns(run.data.columns, out / COLUMNS_NAME)
        except OSError as error:
            for name in (
                IDENTITY_NAME,
                CONFIG_NAME,
                COLUMNS_NAME,
            ):  # half of them would be in the way
                (out / name).unlink(missing_ok=True)
            raise not_written(out, error) from None
        return run.execute(out, resuming=False)


def prepared_run(
    settings: Settings,
    data: Dataset | None,
    given: Given | None,
    observers: Iterable[Observer],
    started: float,
    *,
    replay: Reads | None = None,
    start: Stack | None = None,
) -> Stages:
    """Return a run that is checked and ready to start, without a folder; see :func:`train_run`."""
    resolve(settings)  # refuses a device that is not there before the data are read
    data = load_data(settings, given=given) if data is None else data
    settings, notice = settled(settings, given, data)
    notices = filter(None, (notice, idle_gpu(settings, data)))
    settings = resolve(settings, data)
    run = Stages(settings, data, observers, started, replay, start)
    run.notices += notices
    return run


def resume_run(
    folder: Path,
    *,
    observers: Iterable[Observer] = (),
    inexact: bool = False,
    loggers: Iterable[str] = (),
    **elsewhere: Any,
) -> dict[str, Any]:
    """Resume a stopped run; the result is bit-identical to an uninterrupted one.

    Parameters
    ----------
    folder : Path
        Of the run. Its newest good checkpoint counts; without one the run begins again.
    observers : iterable of callable
    inexact : bool
        Continue also with kernels of another kind than those the run was begun with, which compute
        other last bits.
    loggers : iterable of str
        As of :func:`train_run`.
    **elsewhere
        ``runtime``, ``workers`` and ``backend``, if others than those of the run.

    Raises
    ------
    SettingsError
        If it is no run's folder, the run is over, or another process is at work on it; or if its
        data, settings or kernels are not those that it was begun with.
    Others
        As of :func:`train_run`.
    """
    started = time.monotonic()
    _check_unfinished(folder)
    check_loggers(own := tuple(loggers))
    settings = read_settings(folder / CONFIG_NAME)
    before = "numpy" if settings.pretrain.backend == "auto" else settings.pretrain.backend
    settings = resolve(moved_elsewhere(settings, **{"backend": before, **elsewhere}))
    notices: list[str] = []
    with owned(folder, notices.append):
        _check_unfinished(folder)  # its former owner may have ended it just now
        was = read_identity(folder / IDENTITY_NAME) or identity_in(folder, notices.append)
        replay = None if was is None else was.replay
        if was is not None and was.start is not None and not has_pretrained(folder):
            raise SettingsError(
                f"resume: the stack that the run was to fine-tune is not in {folder} any more;"
                " begin it again with syncpretrain finetune"
            )
        data = _load_data_again(settings, folder, was)
        if was is not None:  # before anything that other data might not fit
            now = identity_of(settings, data, replay)
            notices += check_resumable(folder, was, now, inexact=inexact)
        run = Stages(settings, data, observers, started, replay)
        if was is not None:
            run.identity = msgspec.structs.replace(run.identity, data=was.data, start=was.start)
        if not (folder / IDENTITY_NAME).is_file():
            (was or run.identity).write(folder / IDENTITY_NAME)
        if settings.pretrain.backend != before:
            notices.append(
                f"warning: the run was begun with backend {before} and goes on with"
                f" {settings.pretrain.backend}: its last bits differ from those of a run that was"
                " not stopped"
            )
        run.notices += notices
        run.loggers = own
        return run.execute(folder, resuming=True)


def _load_data_again(settings: Settings, folder: Path, was: RunIdentity | None) -> Dataset:
    """Return the data of a run; say where its name stands if it cannot be loaded, or is other."""
    try:
        known, meaning = (None, None) if was is None else (was.file, was.meaning)
        data = load_data(settings, known, read_columns(folder / COLUMNS_NAME), meaning)
    except DataError as error:
        raise DataError(
            f"resume: the data of the run cannot be loaded: {error}. If it was moved, correct name"
            f" under [data] in {folder / CONFIG_NAME}"
        ) from error
    width = settings.pretrain.layers[0] if was is None else was.data.width
    if data.width != width:
        raise SettingsError(
            f"resume: the run in {folder} was begun with examples of {width} values, and"
            f" {data.name} now has {data.width}; put the file back that it was begun with, or"
            f" correct name under [data] in {folder / CONFIG_NAME}"
        )
    return data


def _check_unfinished(folder: Path) -> None:
    check_text("resume", folder)
    try:
        there = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    except OSError as error:
        raise SettingsError(f"resume: cannot read {folder}: {error.strerror}") from None
    if CONFIG_NAME not in there:
        raise SettingsError(
            f"resume: got {folder}, expected the folder of a run, with {CONFIG_NAME} in it"
        )
    if not there & {IDENTITY_NAME, EVENTS_NAME}:
        raise SettingsError(
            f"resume: got {folder}, expected the folder of a run, with {IDENTITY_NAME} in it; for"
            f" its settings alone take --config {quote(str(folder / CONFIG_NAME))}"
        )
    if METRICS_NAME in there:
        raise SettingsError(f"resume: the run in {folder} is finished; nothing is left to do")
