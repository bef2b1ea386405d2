"""The stages of one run: pretraining, fine-tuning and evaluation, and the files each leaves."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote
from signal import SIGINT
from typing import Any

import msgspec
from msgspec import to_builtins

from syncpretrain.data.dataset import PARTS, Dataset
from syncpretrain.data.examples import evenly_spaced
from syncpretrain.errors import (
    CheckpointError,
    DivergedError,
    RunInterrupted,
    StalledError,
    WorkerError,
)
from syncpretrain.events import Event, Notice, Observer, RunStopped
from syncpretrain.models.diagnosis import baselines, on_layers
from syncpretrain.models.inputs import constant_columns
from syncpretrain.models.model_file import MODEL_NAME
from syncpretrain.models.stack import Stack
from syncpretrain.observers.event_log import EventLog
from syncpretrain.observers.figures import flat
from syncpretrain.observers.history import History
from syncpretrain.observers.loggers import logging_to
from syncpretrain.observers.trace import write_trace
from syncpretrain.parallel.signals import interrupted_by_sigterm
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining.runtime.restarts.restarts import Restarts
from syncpretrain.pretraining.schedule.reads import Reads
from syncpretrain.pretraining.start import Driver, driver_for
from syncpretrain.runs.card import card_of
from syncpretrain.runs.checkpoints import Checkpoints
from syncpretrain.runs.final_files import FinalFiles
from syncpretrain.runs.folder import CARD_NAME, EVENTS_NAME, METRICS_NAME, TRACE_NAME
from syncpretrain.runs.identity import identity_of
from syncpretrain.runs.metrics import measure, report_of
from syncpretrain.runs.prepare import check_finetuning
from syncpretrain.settings import Settings
from syncpretrain.storage import remove_temporaries, write_atomically

__all__ = ["Stages"]

ROWS_TO_JUDGE = 1000  # for the verdict


class Stages:
    """Settings at work on data in a folder.

    Everything that can be checked or built before there is a folder is, here.
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
        self.observers: list[Observer] = [self.history, *observers]
        self.notices: list[str] = []
        self.loggers: tuple[str, ...] = ()
        self.command: str | None = None  # by which the run was begun, if by one
        self.tuning = check_finetuning(settings, data)
        self.restarts = Restarts(settings.run.max_restarts, self.report)
        self.unsaved: Stack | None = None  # the result of pretraining, until it is saved
        self.pretraining = self.new_pretraining()
        if constant := constant_columns(self.pretraining.scaling, data.columns):
            self.notices.append(constant)

    def new_pretraining(self) -> Driver:
        """Return the pretraining, checked and ready to run."""
        return driver_for(
            self.settings.pretrain,
            self.data.train,
            self.data.validation,
            replay=self.identity.replay,
            times=Timeouts(stall=self.settings.run.stall_timeout),
            restarts=self.restarts,
        )

    def execute(self, out: Path, *, resuming: bool) -> dict[str, Any]:
        """Train, measure and write; return the metrics."""
        remove_temporaries(out)
        files = FinalFiles(out, self.report)
        log = EventLog(out / EVENTS_NAME, append=resuming, report=self.report)
        with log, self.observed_by(log), interrupted_by_sigterm(), self.logged(out):
            self.announce(out)
            saved = Checkpoints(out, self.settings, self.data, self.identity, self.report)
            with self.saving(files):
                stack, metrics, seconds = self.trained(files, saved, log, resuming)
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

    def trained(
        self, files: FinalFiles, saved: Checkpoints, log: EventLog, resuming: bool
    ) -> tuple[Stack, dict[str, Any], dict[str, float]]:
        """Pretrain, fine-tune and measure; return the stack, its figures and the seconds taken."""
        pretrained = saved.pretrained() if resuming else None
        if pretrained is None:
            found = self.start or self.judged(self.pretrained(saved, resuming))
            self.unsaved = pretrained = self.marked(found)
            self.save_early(pretrained, files.folder)  # whatever becomes of fine-tuning
            self.unsaved = None
            log.flush_to_disk()  # a run that resumes from here records nothing of pretraining
            saved.save_pretrained(pretrained)
            resuming = False
        finetuning = time.monotonic()
        stack = self.finetuned(pretrained, saved, resuming)
        evaluating = time.monotonic()
        files.write(MODEL_NAME, self.model(stack).save)
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
    def logged(self, out: Path) -> Iterator[None]:
        """Log the run where it is asked for, and record why it ends early."""
        settings = flat(msgspec.to_builtins(self.settings))
        with logging_to(self.loggers, out, settings, self.report) as loggers, ExitStack() as stack:
            for logger in loggers:
                stack.enter_context(self.observed_by(logger))
            try:
                yield
            except BaseException as error:
                failed = not isinstance(error, KeyboardInterrupt)
                reason = _reason(error)
                self.emit(RunStopped(time.monotonic(), failed, reason))
                raise

    def marked(self, stack: Stack) -> Stack:
        """Return the stack with a record of the data that it was trained on, and its columns."""
        info = stack.info | {"data": msgspec.to_builtins(self.identity.data)}
        if self.data.columns is not None:
            info["columns"] = msgspec.to_builtins(self.data.columns)
        return replace(stack, info=info)

    def model(self, stack: Stack) -> Stack:
        """Return a stack as it is saved: with the meaning of numbers, for rows as a user has them.

        The run's own rows are prepared already, so that its stack is used without.
        """
        if self.data.meaning is None:
            return stack
        return replace(stack, info=stack.info | {"meaning": to_builtins(self.data.meaning)})

    def judged(self, stack: Stack) -> Stack:
        """Return the result of pretraining with its errors, and the verdict on it in its info."""
        found = baselines(stack, evenly_spaced(self.data.train, ROWS_TO_JUDGE))
        history = self.pretraining.history
        sentences = on_layers(found, history.layers)
        info = stack.info | {"verdict": sentences} if sentences else stack.info
        return replace(stack, info=info, history=history)

    def save_early(self, stack: Stack, out: Path) -> None:
        """Save a model that is to be trained further; training goes on where that fails."""
        try:
            self.model(stack).save(out / MODEL_NAME)
        except OSError as error:
            reason = error.strerror or error
            self.report(f"warning: {out / MODEL_NAME} could not be written: {reason}")

    def pretrained(self, saved: Checkpoints, resuming: bool) -> Stack:
        """Pretrain, from the newest checkpoint if one is there; again if a worker fails."""
        if self.identity.start is not None:
            raise CheckpointError(
                "resume: the stack that the run was to fine-tune is damaged; begin it again with"
                " syncpretrain finetune"
            )
        while True:
            self.pretraining.observers = tuple(self.observers)
            self.pretraining.save = saved.save_pretraining
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

    def finetuned(self, stack: Stack, saved: Checkpoints, resuming: bool) -> Stack:
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

    def announce(self, out: Path) -> None:
        """Say which data and which folder it is."""
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

    def interrupted(self, files: FinalFiles, signum: int) -> RunInterrupted:
        """Save the model of a run that is stopped outside its training; return how it ends."""
        where = _saved_in(self.save_saved_in(files), files.folder)
        return RunInterrupted(f"the run was stopped. {where}", signum=signum)

    def save_saved_in(self, files: FinalFiles) -> Path:
        """Save the model, unless a later one than that of pretraining is there; return where."""
        model = files.folder / MODEL_NAME
        if self.unsaved is None and model.is_file():
            return model
        stack = self.unsaved or self.marked(self.pretraining.stack())
        return files.write(MODEL_NAME, self.model(stack).save)

    @contextmanager
    def saving(self, files: FinalFiles) -> Iterator[None]:
        """Save the model that a failed or stopped run leaves behind, and its trace in any case."""
        try:
            yield
        except (WorkerError, RunInterrupted) as error:
            if error.stack is not None:
                model = files.write(MODEL_NAME, self.model(self.marked(error.stack)).save)
                where = _saved_in(model, files.folder, onward=not isinstance(error, DivergedError))
                error.args = (f"{error.args[0]}. {where}",)
            elif isinstance(error, RunInterrupted):
                raise self.interrupted(files, error.signum) from None
            raise
        except KeyboardInterrupt:
            raise self.interrupted(files, SIGINT) from None
        except BaseException:  # nothing is lost, whatever it was: a closed pipe, say
            self.save_saved_in(files)
            raise
        finally:
            try:
                write_trace(self.history.events, files.folder / TRACE_NAME)
            except OSError as error:
                reason = error.strerror or error
                self.report(f"warning: {files.folder / TRACE_NAME} could not be written: {reason}")


def _reason(error: BaseException) -> str:
    """Return why a run ends early."""
    if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):
        return "the program that read its output has ended"  # rich raises a status of 1
    return str(error) or type(error).__name__


def _saved_in(model: Path, folder: Path, *, onward: bool = True) -> str:
    """Return the path of the model, and the command to resume."""
    where = f"What was learned so far is in {model}"
    command = f"; resume with: syncpretrain train --resume {quote(str(folder))}"
    return where + command if onward else where
