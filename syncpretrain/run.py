"""One run from settings to run folder: data, pretraining, fine-tuning, evaluation, files.

A run folder holds ``config.toml`` (every setting), ``events.jsonl`` (what happened),
``model.safetensors``, ``metrics.json`` and ``trace.json`` (Chrome trace format), and while the run
goes on, or was stopped, ``checkpoints/``, from which :func:`resume_run` goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

import msgspec

from syncpretrain.atomic import write_atomically
from syncpretrain.data.dataset import PARTS, Dataset
from syncpretrain.driver import Pretraining
from syncpretrain.errors import (
    DivergedError,
    RunInterrupted,
    SettingsError,
    StalledError,
    WorkerError,
)
from syncpretrain.events import Event, Notice, Observer
from syncpretrain.finetuning import finetune
from syncpretrain.metrics import measure, report_of
from syncpretrain.modelfile import MODEL_NAME
from syncpretrain.observers.eventlog import EventLog
from syncpretrain.observers.history import History
from syncpretrain.observers.trace import write_trace
from syncpretrain.preparing import check_finetuning, found_again, loaded, resolved
from syncpretrain.runfolder import (
    CONFIG_NAME,
    EVENTS_NAME,
    METRICS_NAME,
    TRACE_NAME,
    check_folder,
    made_folder,
    new_folder,
)
from syncpretrain.saving import Checkpoints
from syncpretrain.schedule.plan import Reads
from syncpretrain.settings import Settings, read_settings, write_settings
from syncpretrain.stack import Stack

__all__ = ["resume_run", "train_run"]


def train_run(
    settings: Settings,
    *,
    out: Path | None = None,
    observers: Iterable[Observer] = (),
    replay: Reads | None = None,
) -> dict[str, Any]:
    """Pretrain, fine-tune and evaluate; write the run folder and return its metrics.

    ``out`` is a folder that is new or empty; None makes one in ``runs/``.

    Raises
    ------
    SettingsError, DataError
        Before any worker starts and before the folder is made.
    WorkerError, RunInterrupted
        After the model so far, and in the second case a checkpoint, was saved; the message says
        where.
    """
    started = time.monotonic()
    check_folder(out)
    settings = resolved(settings)
    data = loaded(settings)
    run = _Run(settings, data, observers, started)
    run.prepare(replay)
    out = new_folder(settings.pretrain.layers) if out is None else made_folder(out)
    write_settings(found_again(settings), out / CONFIG_NAME)
    return run.execute(out, resuming=False)


def resume_run(
    folder: Path, *, observers: Iterable[Observer] = (), **elsewhere: Any
) -> dict[str, Any]:
    """Go on with a run that was stopped, to the bits that it would have come to.

    Parameters
    ----------
    folder : Path
        Of the run. Its newest good checkpoint counts; without one the run begins again.
    observers : iterable of callable
    **elsewhere
        ``runtime``, ``workers`` and ``backend``, if others than those of the run.

    Raises
    ------
    SettingsError
        If it is no run's folder, or the run is over.
    Others
        As of :func:`train_run`.
    """
    started = time.monotonic()
    if not (folder / CONFIG_NAME).is_file():
        raise SettingsError(
            f"resume: got {folder}, expected the folder of a run, with {CONFIG_NAME} in it"
        )
    if (folder / METRICS_NAME).is_file():
        raise SettingsError(f"resume: the run in {folder} is over; nothing is left to do")
    settings = read_settings(folder / CONFIG_NAME)
    before = "numpy" if settings.pretrain.backend == "auto" else settings.pretrain.backend
    pretrain = msgspec.structs.replace(settings.pretrain, **{"backend": before, **elsewhere})
    settings = resolved(msgspec.structs.replace(settings, pretrain=pretrain))
    run = _Run(settings, loaded(settings), observers, started)
    run.prepare(None)
    if settings.pretrain.backend != before:
        run.notices.append(
            f"warning: the run was begun with backend {before} and goes on with"
            f" {settings.pretrain.backend}: its last bits differ from those of a run that was not"
            " stopped"
        )
    return run.execute(folder, resuming=True)


class _Run:
    """Settings at work on data in a folder."""

    def __init__(
        self, settings: Settings, data: Dataset, observers: Iterable[Observer], started: float
    ) -> None:
        self.settings, self.data, self.started = settings, data, started
        self.loaded = time.monotonic()
        self.history = History()
        self.observers: list[Observer] = [self.history, *observers]
        self.replay: Reads | None = None
        self.notices: list[str] = []
        check_finetuning(settings, data)

    def prepare(self, replay: Reads | None) -> None:
        """Check everything that can be before there is a folder."""
        self.replay = replay
        self.pretraining = self.new_pretraining()

    def new_pretraining(self) -> Pretraining:
        return Pretraining(
            self.settings.pretrain,
            self.data.train,
            self.data.validation,
            replay=self.replay,
            stall_seconds=self.settings.run.stall_timeout,
        )

    def execute(self, out: Path, *, resuming: bool) -> dict[str, Any]:
        """Train, measure and write; return the metrics."""
        log = EventLog(out / EVENTS_NAME, append=resuming)
        with log, _saving(out, self.history, lambda: self.pretraining.stack()):
            self.observers.append(log)
            self.announce(out)
            saved = Checkpoints(out, self.settings, self.data, self.tell)
            pretrained = saved.pretrained() if resuming else None
            if pretrained is None:
                pretrained = self.pretrained(saved, resuming)
                pretrained.save(out / MODEL_NAME)  # whatever becomes of fine-tuning
                saved.save_pretrained(pretrained)
                resuming = False
            finetuning = time.monotonic()
            stack = self.finetuned(pretrained, saved, resuming)
            evaluating = time.monotonic()
            stack.save(out / MODEL_NAME)
            threads = self.settings.pretrain.blas_threads
            metrics = measure(stack, self.data, pretrained=pretrained, blas=threads)
        seconds = {
            "data": self.loaded - self.started,
            "pretrain": self.history.pretrain_seconds,
            "finetune": evaluating - finetuning,
            "total": time.monotonic() - self.started,
        }
        slots = self.pretraining.slots
        report = report_of(self.settings, slots, metrics, self.history, stack, seconds, out)
        write_atomically(out / METRICS_NAME, json.dumps(report, indent=2).encode())
        saved.forget()
        return report

    def pretrained(self, saved: Checkpoints, resuming: bool) -> Stack:
        """Pretrain, from the newest checkpoint if one is there; again if a worker dies."""
        restarts = self.settings.run.max_restarts
        while True:
            self.pretraining.observers = tuple(self.observers)
            self.pretraining.save = saved.save_cut
            self.pretraining.resume = saved.newest_cut() if resuming else None
            if resuming and self.pretraining.resume is None:
                self.tell("no checkpoint of pretraining was found; it begins again")
            try:
                return self.pretraining.run()
            except (DivergedError, StalledError):
                raise
            except WorkerError as error:
                if not restarts:
                    raise
                restarts -= 1
                self.tell(f"warning: {error}; going on from the last checkpoint")
                self.pretraining, resuming = self.new_pretraining(), True

    def finetuned(self, stack: Stack, saved: Checkpoints, resuming: bool) -> Stack:
        """Fine-tune, if it is asked for."""
        wanted, data = self.settings.finetune, self.data
        if wanted.objective == "none":
            return stack
        supervised = wanted.objective != "reconstruction"
        return finetune(
            stack,
            data.train,
            data.train_labels if supervised else None,
            validation=data.validation if len(data.validation) else None,
            validation_y=data.validation_labels if supervised else None,
            seed=self.settings.pretrain.seed,
            blas_threads=self.settings.pretrain.blas_threads,
            backend=self.settings.pretrain.backend,
            observers=self.observers,
            save=saved.save_finetuning,
            stall_seconds=self.settings.run.stall_timeout,
            resume=saved.newest_finetuning() if resuming else None,
            **msgspec.to_builtins(wanted),
        )

    def announce(self, out: Path) -> None:
        """Say which data and which folder it is."""
        data = self.data
        sizes = ", ".join(f"{len(getattr(data, part)):,} {part}" for part in PARTS)
        self.tell(f"data: {data.name}, {data.source} ({sizes})")
        for message in (*data.notices, f"run folder: {out}", *self.notices):
            self.tell(message)

    def tell(self, message: str) -> None:
        """Give the observers something that the user should read."""
        event: Event = Notice(time.monotonic(), message)
        for observer in self.observers:
            observer(event)


@contextmanager
def _saving(out: Path, history: History, current: Callable[[], Stack]) -> Iterator[None]:
    """Save the model that a failed or stopped run leaves behind, and its trace in any case."""
    model = out / MODEL_NAME
    kept = f"What was learned so far is in {model}"
    try:
        yield
    except (WorkerError, RunInterrupted) as error:
        if error.stack is not None:
            error.stack.save(model)
            onward = ""
            if not isinstance(error, DivergedError):
                onward = f"; go on with: syncpretrain train --resume {quote(str(out))}"
            error.args = (f"{error.args[0]}. {kept}{onward}",)
        raise
    except BaseException as error:  # nothing is lost, whatever it was: a closed pipe, say
        if not model.is_file():
            current().save(model)
        elif isinstance(error, KeyboardInterrupt):  # after pretraining, which had been saved
            raise RunInterrupted(f"the run was stopped after pretraining. {kept}") from None
        raise
    finally:
        write_trace(history.events, out / TRACE_NAME)
