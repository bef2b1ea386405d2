"""One run from settings to run folder: data, pretraining, fine-tuning, evaluation, files.

A run folder holds ``config.toml`` (every setting), ``columns.json`` (of a table), ``run.json`` (the
identity), ``events.jsonl``, ``model.safetensors``, ``metrics.json``, ``README.md`` (the model card)
and ``trace.json`` (Chrome trace format), and while the run is unfinished ``checkpoints/``, from
which :func:`resume_run` resumes it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from signal import SIGINT
from typing import Any

import msgspec

from syncpretrain.array_files import write_record
from syncpretrain.cluster.launched import launched
from syncpretrain.data.columns import read_columns
from syncpretrain.data.dataset import PARTS, Dataset
from syncpretrain.data.examples import evenly_spaced
from syncpretrain.errors import (
    CheckpointError,
    DataError,
    DivergedError,
    RunInterrupted,
    SettingsError,
    StalledError,
    WorkerError,
)
from syncpretrain.events import Event, Notice, Observer, RunStopped, all_observers
from syncpretrain.models.diagnosis import baselines, on_layers
from syncpretrain.models.inputs import constant_columns
from syncpretrain.models.model_file import MODEL_NAME
from syncpretrain.models.stack import Stack
from syncpretrain.observers.event_log import EventLog, write_trace
from syncpretrain.observers.history import History
from syncpretrain.observers.loggers import check_loggers, flat_settings, logging_to
from syncpretrain.parallel.signals import interrupted_by_ending
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining.driver import driver_for
from syncpretrain.pretraining.training import Driver
from syncpretrain.runs import prepare
from syncpretrain.runs.checkpoints import Checkpoints, checkpointed_identity, has_pretrained
from syncpretrain.runs.folder import (
    CARD_NAME,
    COLUMNS_NAME,
    CONFIG_NAME,
    EVENTS_NAME,
    IDENTITY_NAME,
    METRICS_NAME,
    TRACE_NAME,
    FinalFiles,
    check_folder,
    check_path_text,
    make_folder,
    not_a_run,
    owned,
    unwritten,
    write_refusal,
)
from syncpretrain.runs.identity import RunIdentity, check_resumable, identity_of, read_identity
from syncpretrain.runs.metrics import card_of, measure, report_of
from syncpretrain.schedule.kinds import Reads
from syncpretrain.settings import Settings, moved_elsewhere, read_settings, write_settings
from syncpretrain.settings.by_data import Given
from syncpretrain.storage import remove_temporaries, write_atomically
from syncpretrain.workers.restarts import Restarts

ROWS_TO_JUDGE = 1000  # for the verdict


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
        The data that settings name, if they are loaded already.
    given : Given, optional
        The settings that the user gave; others follow from the data. None leaves all as they are.
    start : Stack, optional
        The stack of an earlier run, which is only fine-tuned; the schedule is then ``none``.
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
    out = make_folder(out, settings.pretrain.layers)
    with owned(out, run.report):
        try:
            write_record(out / IDENTITY_NAME, run.identity)
            write_settings(prepare.with_absolute_path(settings), out / CONFIG_NAME)
            if run.data.columns is not None:
                write_record(out / COLUMNS_NAME, run.data.columns)
        except OSError as error:
            # Some of them without the others would be in the way of another run.
            for name in (IDENTITY_NAME, CONFIG_NAME, COLUMNS_NAME):
                (out / name).unlink(missing_ok=True)
            raise write_refusal(out, error) from None
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
) -> Run:
    """Return a run that is checked and ready to start, without a folder; see :func:`train_run`."""
    prepare.resolve(settings)  # before the data are read: refuses a device that is missing
    settings, data, notice = prepare.completed(settings, given, data)
    notices = filter(None, (notice, prepare.idle_gpu_notice(settings, data)))
    settings = prepare.resolve(settings, data)
    run = Run(settings, data, observers, started, replay, start)
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
        The run folder. Its newest valid checkpoint counts; without one the run begins again.
    observers : iterable of callable
    inexact : bool
        Continue even if the run was begun with kernels of another kind, which compute other last
        bits.
    loggers : iterable of str
        As in :func:`train_run`.
    **elsewhere
        ``runtime``, ``workers`` and ``backend``, if they replace settings of the run.

    Raises
    ------
    SettingsError
        If the folder holds no run, the run is finished, or another process is at work on it; or if
        data, settings or kernels have changed since the run was begun.
    Others
        As in :func:`train_run`.
    """
    started = time.monotonic()
    _check_unfinished(folder)
    check_loggers(own := tuple(loggers))
    settings = read_settings(folder / CONFIG_NAME)
    before = "numpy" if settings.pretrain.backend == "auto" else settings.pretrain.backend
    settings = prepare.resolve(moved_elsewhere(settings, **{"backend": before, **elsewhere}))
    notices: list[str] = []
    with owned(folder, notices.append):
        _check_unfinished(folder)  # its former owner may have ended it just now
        was = read_identity(folder / IDENTITY_NAME) or checkpointed_identity(folder, notices.append)
        settings = settings if was is None else prepare.as_begun(settings, was.settings)
        replay = None if was is None else was.replay
        if was is not None and was.start is not None and not has_pretrained(folder):
            raise SettingsError(_stack_is(f"not in {folder} any more"))
        data = _load_data_again(settings, folder, was)
        if was is not None:  # first, since other data might fit nothing below
            now = identity_of(settings, data, replay)
            notices += check_resumable(folder, was, now, inexact=inexact)
        run = Run(settings, data, observers, started, replay)
        if was is not None:
            run.identity = msgspec.structs.replace(run.identity, data=was.data, start=was.start)
        if not (folder / IDENTITY_NAME).is_file():
            write_record(folder / IDENTITY_NAME, was or run.identity)
        if settings.pretrain.backend != before:
            notices.append(
                f"warning: the run was begun with backend {before} and goes on with"
                f" {settings.pretrain.backend}: its last bits differ from those of a run that was"
                " not stopped"
            )
        run.notices += notices
        run.loggers = own
        return run.execute(folder, resuming=True)


def _stack_is(state: str) -> str:
    """Return the refusal to resume a run that has lost the stack to fine-tune."""
    what = f"the stack that the run was to fine-tune is {state}"
    return f"resume: {what}; begin it again with syncpretrain finetune"


def _load_data_again(settings: Settings, folder: Path, was: RunIdentity | None) -> Dataset:
    """Return the data of a run; an error about other or missing data says where to correct them."""
    correct = f"correct name under [data] in {folder / CONFIG_NAME}"
    try:
        known, meaning = (None, None) if was is None else (was.file, was.meaning)
        data = prepare.load_data(settings, known, read_columns(folder / COLUMNS_NAME), meaning)
    except DataError as error:
        reason = f"{error}. If it was moved, {correct}"
        raise DataError(f"resume: the data of the run cannot be loaded: {reason}") from error
    width = settings.pretrain.layers[0] if was is None else was.data.width
    if data.width != width:
        change = f"examples of {width} values, and {data.name} now has {data.width}"
        advice = f"put the file back that it was begun with, or {correct}"
        raise SettingsError(f"resume: the run in {folder} was begun with {change}; {advice}")
    return data


def _check_unfinished(folder: Path) -> None:
    check_path_text("resume", folder)
    try:
        there = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    except OSError as error:
        raise SettingsError(f"resume: cannot read {folder}: {error.strerror}") from None
    if CONFIG_NAME not in there:
        raise SettingsError(not_a_run("resume", folder, CONFIG_NAME))
    if not there & {IDENTITY_NAME, EVENTS_NAME}:
        alone = f"for its settings alone take --config {quote(str(folder / CONFIG_NAME))}"
        raise SettingsError(f"{not_a_run('resume', folder, IDENTITY_NAME)}; {alone}")
    if METRICS_NAME in there:
        raise SettingsError(f"resume: the run in {folder} is finished; nothing is left to do")


class Run:
    """A run in its stages: pretraining, fine-tuning, evaluation, and the files each leaves.

    Everything that can be checked or built without a folder is checked and built at once.
    """

    def __init__(
        self,
        settings: Settings,
        data: Dataset,
        observers: Iterable[Observer],
        started: float,
        replay: Reads | None,
        start: Stack | None = None,
    ) -> None:
        self.settings, self.data, self.started, self.start = settings, data, started, start
        self.identity = identity_of(settings, data, replay)
        if start is not None:
            self.identity = msgspec.structs.replace(self.identity, start=start.parameters_sha256)
        self.loaded = time.monotonic()
        self.history = History()
        self.observers: list[Observer] = [self.history, *all_observers(observers)]
        self.notices: list[str] = []
        self.loggers: tuple[str, ...] = ()
        self.command: str | None = None  # the command that began the run, if one did
        self.tuning = prepare.check_finetuning(settings, data)
        self.restarts = Restarts(settings.run.max_restarts, self.report)
        self.unsaved: Stack | None = None  # the result of pretraining, until it is saved
        self.pretraining = self.new_pretraining()
        if constant := constant_columns(self.pretraining.scaling, data.columns):
            self.notices.append(constant)

    def new_pretraining(self) -> Driver:
        """Return the pretraining, checked and ready to run."""
        return driver_for(
            self.settings.marked(),
            self.data.train,
            self.data.validation,
            replay=self.identity.replay,
            times=Timeouts(stall=self.settings.run.stall_timeout),
            restarts=self.restarts,
            weights=self.data.train_weights,
        )

    def execute(self, out: Path, *, resuming: bool) -> dict[str, Any]:
        """Train, measure and write; return the metrics."""
        remove_temporaries(out)
        files = FinalFiles(out, self.report)
        log = EventLog(out / EVENTS_NAME, append=resuming, report=self.report)
        with log, self.observed_by(log), interrupted_by_ending(), self.logging(out):
            self.report_start(out)
            saved = Checkpoints(out, self.settings, self.identity, self.report)
            with self.saving(files), _on_ranks_that_die(_onward(out)):
                try:
                    stack, metrics, seconds = self.train(files, saved, log, resuming)
                finally:
                    self.write_or_tell(out / TRACE_NAME, partial(write_trace, self.history.events))
                slots = self.pretraining.slots
                seconds["total"] = time.monotonic() - self.started
                report = report_of(self.settings, slots, metrics, self.history, stack, seconds, out)
                card = card_of(report, self.settings, self.identity, self.command).encode()
                files.write(CARD_NAME, lambda path: write_atomically(path, card))
                text = json.dumps(report, indent=2).encode()
                files.write(METRICS_NAME, lambda path: write_atomically(path, text))
                files.check()
                saved.delete()
            return report

    def train(
        self, files: FinalFiles, saved: Checkpoints, log: EventLog, resuming: bool
    ) -> tuple[Stack, dict[str, Any], dict[str, float]]:
        """Pretrain, fine-tune and measure; return the stack, its figures and the seconds taken."""
        pretrained = saved.pretrained() if resuming else None
        if pretrained is None:
            found = self.start or self.with_verdict(self.pretrain(saved, resuming))
            self.unsaved = pretrained = self.with_data_record(found)
            self.save_early(pretrained, files.folder)  # fine-tuning may fail
            self.unsaved = None
            log.flush_to_disk()  # a run that resumes from here records nothing of pretraining
            saved.save_pretrained(pretrained)
            resuming = False
        finetuning = time.monotonic()
        stack = self.finetune(pretrained, saved, resuming)
        evaluating = time.monotonic()
        files.write(MODEL_NAME, self.as_saved(stack).save)
        threads = self.settings.pretrain.blas_threads
        metrics = measure(stack, self.data, pretrained=pretrained, blas=threads)
        seconds = {
            "data": self.loaded - self.started,
            "pretrain": self.history.pretrain_seconds,
            "finetune": evaluating - finetuning,
        }
        return stack, metrics, seconds

    @contextmanager
    def observed_by(self, observer: Observer) -> Iterator[None]:
        """Send the events to one more observer, as long as the context lasts."""
        self.observers.append(observer)
        try:
            yield
        finally:
            self.observers.remove(observer)

    @contextmanager
    def logging(self, out: Path) -> Iterator[None]:
        """Log the run by its loggers, and record why it ends early."""
        settings = flat_settings(msgspec.to_builtins(self.settings))
        with logging_to(self.loggers, out, settings, self.report) as loggers, ExitStack() as stack:
            for logger in loggers:
                stack.enter_context(self.observed_by(logger))
            try:
                yield
            except BaseException as error:
                failed = not isinstance(error, KeyboardInterrupt)
                self.emit(RunStopped(time.monotonic(), failed, _reason(error)))
                raise

    def with_data_record(self, stack: Stack) -> Stack:
        """Return a stack with a record of its training data, and with the columns of a table."""
        info = stack.info | {"data": msgspec.to_builtins(self.identity.data)}
        if self.data.columns is not None:
            info["columns"] = msgspec.to_builtins(self.data.columns)
        return replace(stack, info=info)

    def as_saved(self, stack: Stack) -> Stack:
        """Return a stack as it is saved: with the meaning of numbers, so that it takes raw rows.

        The run's own rows are prepared already, so the run uses the stack without the meaning.
        """
        if self.data.meaning is None:
            return stack
        return replace(stack, info=stack.info | {"meaning": msgspec.to_builtins(self.data.meaning)})

    def with_verdict(self, stack: Stack) -> Stack:
        """Return a pretrained stack with its errors, and with the verdict in its info."""
        found = baselines(stack, evenly_spaced(self.data.train, ROWS_TO_JUDGE))
        history = self.pretraining.history
        sentences = on_layers(found, history.layers)
        info = stack.info | {"verdict": sentences} if sentences else stack.info
        return replace(stack, info=info, history=history)

    def save_mark(self, saved: Checkpoints, layer: int, update: int, stack: Stack) -> None:
        """Save a layer as it was after some updates."""
        saved.save_mark(layer, update, self.as_saved(self.with_data_record(stack)))

    def save_early(self, stack: Stack, out: Path) -> None:
        """Save a model that will be trained further; go on if that fails."""
        self.write_or_tell(out / MODEL_NAME, self.as_saved(stack).save)

    def write_or_tell(self, path: Path, write: Callable[[Path], Any]) -> None:
        """Write a file by ``write(path)``; report that it could not be written, and go on."""
        try:
            write(path)
        except OSError as error:
            self.report(f"warning: {unwritten(path, error)}")

    def pretrain(self, saved: Checkpoints, resuming: bool) -> Stack:
        """Pretrain, from the newest checkpoint if one is there; again if a worker fails."""
        if self.identity.start is not None:
            raise CheckpointError(_stack_is("damaged"))
        while True:
            self.pretraining.observers = tuple(self.observers)
            self.pretraining.save = saved.save_pretraining
            self.pretraining.take_mark = partial(self.save_mark, saved)
            self.pretraining.resume = saved.newest_pretrain_state() if resuming else None
            if resuming and self.pretraining.resume is None:
                self.report("no checkpoint of pretraining was found; it begins again")
            try:
                return self.pretraining.run()
            except (DivergedError, StalledError):
                raise
            except WorkerError as error:
                which = self.restarts.take()
                if which is None:
                    if self.restarts.most:
                        error.args = (f"{error.args[0]}; no restart is left",)
                    raise
                self.report(f"warning: {error}; going on from the last checkpoint ({which})")
                self.pretraining, resuming = self.new_pretraining(), True

    def finetune(self, stack: Stack, saved: Checkpoints, resuming: bool) -> Stack:
        """Fine-tune, if it is asked for."""
        if self.tuning is None:
            return stack
        return self.tuning.run(
            stack,
            observers=self.observers,
            save=saved.save_finetuning,
            resume=saved.newest_finetune_state() if resuming else None,
            stall_seconds=self.settings.run.stall_timeout,
        )

    def report_start(self, out: Path) -> None:
        """Report the data, the run folder and the notices."""
        data = self.data
        sizes = ", ".join(f"{len(getattr(data, part)):,} {part}" for part in PARTS)
        self.report(f"data: {data.name}, {data.source} ({sizes})")
        for message in (*data.notices, f"run folder: {out}", *self.notices):
            self.report(message)

    def report(self, message: str) -> None:
        """Send the observers a message for the user."""
        self.emit(Notice(time.monotonic(), message))

    def emit(self, event: Event) -> None:
        """Send the observers an event."""
        for observer in self.observers:
            observer(event)

    def save_newest_model(self, files: FinalFiles) -> Path:
        """Save the newest model, unless it is in the folder already; return its path."""
        for folder in filter(None, (files.elsewhere, files.folder)):
            if self.unsaved is None and (model := folder / MODEL_NAME).is_file():
                return model
        stack = self.unsaved or self.with_data_record(self.pretraining.stack())
        return files.write(MODEL_NAME, self.as_saved(stack).save)

    @contextmanager
    def saving(self, files: FinalFiles) -> Iterator[None]:
        """Save the model of a run that fails or is stopped."""
        try:
            yield
        except (WorkerError, KeyboardInterrupt) as error:
            stack = getattr(error, "stack", None)
            if stack is not None:
                model = files.write(MODEL_NAME, self.as_saved(self.with_data_record(stack)).save)
                where = _saved_in(model, files.folder, onward=not isinstance(error, DivergedError))
                error.args = (f"{error.args[0]}. {where}",)
            elif isinstance(error, KeyboardInterrupt):
                unfinished = not (files.folder / METRICS_NAME).is_file()
                where = _saved_in(self.save_newest_model(files), files.folder, onward=unfinished)
                signum = getattr(error, "signum", SIGINT)
                raise RunInterrupted(f"the run was stopped. {where}", signum=signum) from None
            raise
        except BaseException:  # whatever it is, a closed pipe say, no result is lost
            self.save_newest_model(files)
            raise


def _reason(error: BaseException) -> str:
    """Return why a run ends early."""
    if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):
        return "the program that read its output has ended"  # rich raises a status of 1
    return str(error) or type(error).__name__


def _saved_in(model: Path, folder: Path, *, onward: bool = True) -> str:
    """Return the path of the model, and the command to resume."""
    where = f"What was learned so far is in {model}"
    return where + _onward(folder) if onward else where


def _onward(folder: Path) -> str:
    """Return the command to resume, as the end of a sentence."""
    place = launched()
    start = "" if place is None else f"mpiexec -n {place.size} "
    return f"; resume with: {start}syncpretrain train --resume {quote(str(folder))}"


def _on_ranks_that_die(words: str) -> AbstractContextManager[None]:
    """Return a context in which the report of a rank that dies ends with these words."""
    if launched() is None:
        return nullcontext()
    from syncpretrain.cluster.job import reporting_deaths_with

    return reporting_deaths_with(words)
