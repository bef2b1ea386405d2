"""One run from settings to run folder: data, pretraining, fine-tuning, evaluation, files.

A run folder holds ``config.toml`` (every setting), ``events.jsonl`` (what happened),
``model.safetensors``, ``metrics.json`` and ``trace.json`` (Chrome trace format).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from syncpretrain.atomic import write_atomically
from syncpretrain.data import load_dataset, located
from syncpretrain.data.dataset import PARTS, UNLABELLED, Dataset
from syncpretrain.driver import Pretraining
from syncpretrain.errors import RunInterrupted, SettingsError, WorkerError
from syncpretrain.evaluation.prediction import accuracies
from syncpretrain.evaluation.reconstruction import layer_errors, stack_error
from syncpretrain.events import Event, Notice, Observer
from syncpretrain.finetuning import finetune
from syncpretrain.modelfile import MODEL_NAME
from syncpretrain.observers.eventlog import EventLog
from syncpretrain.observers.history import History
from syncpretrain.observers.trace import write_trace
from syncpretrain.runfolder import (
    CONFIG_NAME,
    EVENTS_NAME,
    METRICS_NAME,
    TRACE_NAME,
    check_folder,
    made_folder,
    new_folder,
)
from syncpretrain.runtime.blas import blas_limit, blas_threads
from syncpretrain.schedule.plan import Reads
from syncpretrain.settings import Settings, write_settings
from syncpretrain.stack import Stack

__all__ = ["CONFIG_NAME", "EVENTS_NAME", "METRICS_NAME", "PARTS", "measure", "train_run"]


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
        After the model so far was saved; the message says where.
    """
    started = time.monotonic()
    check_folder(out)
    settings = _resolved(settings)
    history = History()
    data = load_dataset(
        settings.data.name,
        validation=settings.data.validation,
        bounded=settings.pretrain.visible_units == "bernoulli",
    )
    if settings.data.labels is not None:
        data = data.with_labels(settings.data.labels, seed=settings.pretrain.seed)
    loaded = time.monotonic()
    _check_finetuning(settings, data)
    watching: list[Observer] = [history, *observers]
    pretraining = Pretraining(settings.pretrain, data.train, data.validation, replay=replay)
    out = new_folder(settings.pretrain.layers) if out is None else made_folder(out)
    write_settings(_found_again(settings), out / CONFIG_NAME)
    with EventLog(out / EVENTS_NAME) as log, _saving(out, history, pretraining.stack):
        watching.append(log)
        _announce(data, out, watching)
        pretraining.observers = tuple(watching)
        pretrained = pretraining.run()
        pretrained.save(out / MODEL_NAME)  # whatever becomes of fine-tuning
        finetuning = time.monotonic()
        stack = _finetuned(pretrained, settings, data, watching)
        evaluating = time.monotonic()
        stack.save(out / MODEL_NAME)
        threads = settings.pretrain.blas_threads
        metrics = measure(stack, data, pretrained=pretrained, blas=threads)
    seconds = {
        "data": loaded - started,
        "pretrain": history.pretrain_seconds,
        "finetune": evaluating - finetuning,
        "total": time.monotonic() - started,
    }
    report = _report(settings, pretraining.slots, metrics, history, stack, seconds, out)
    write_atomically(out / METRICS_NAME, json.dumps(report, indent=2).encode())
    return report


def measure(
    stack: Stack,
    data: Dataset,
    *,
    pretrained: Stack | None = None,
    layer_parts: Sequence[str] = ("train", "validation"),
    blas: int | None = None,
) -> dict[str, Any]:
    """Return the data's size, the reconstruction errors on its parts and a classifier's accuracy.

    The layers' own errors, on ``layer_parts``, are those of ``pretrained``, since fine-tuning gives
    the layers up for the whole; default the stack itself. So is the whole stack's if it became a
    classifier, whose way down was left behind; without ``pretrained`` it is None.
    """
    with blas_limit(blas_threads(blas)):
        unrolled = stack if stack.head is None else pretrained
        whole = {part: unrolled and stack_error(unrolled, getattr(data, part)) for part in PARTS}
        right = accuracies(stack, data) if stack.head is not None else None
        by_part = {
            part: layer_errors(pretrained or stack, getattr(data, part)) for part in layer_parts
        }
    layers = [
        {
            "layer": i + 1,
            "visible": stack.widths[i],
            "hidden": stack.widths[i + 1],
            "reconstruction_error": {
                part: errors[i] if errors else None for part, errors in by_part.items()
            },
        }
        for i in range(len(stack.layers))
    ]
    sizes = {part: len(getattr(data, part)) for part in PARTS}
    return {
        "data": {"name": data.name, "source": data.source, **sizes},
        "layers": layers,
        "reconstruction_error": whole,
        "accuracy": right,
    }


def _resolved(settings: Settings) -> Settings:
    """Fix what would else depend on the machine and decides about the last bits."""
    threads = blas_threads(settings.pretrain.blas_threads)
    pretrain = msgspec.structs.replace(settings.pretrain, blas_threads=threads)
    return msgspec.structs.replace(settings, pretrain=pretrain)


def _found_again(settings: Settings) -> Settings:
    """Name the data in a way that holds from every folder."""
    data = msgspec.structs.replace(settings.data, name=located(settings.data.name))
    return msgspec.structs.replace(settings, data=data)


def _check_finetuning(settings: Settings, data: Dataset) -> None:
    wanted = settings.finetune
    if wanted.objective == "none":
        return
    examples = len(data.train)
    if wanted.objective != "reconstruction":
        if data.train_labels is None:
            raise SettingsError(
                f"finetune: got {wanted.objective}, but {data.name} has no labels; take"
                " reconstruction, or a file with labels beside the examples (.npz with X and y)"
            )
        examples = int((data.train_labels != UNLABELLED).sum())
    if wanted.batch_size > examples:
        raise SettingsError(
            f"finetune_batch_size: got {wanted.batch_size}, expected at most {examples}, the"
            " examples to train on"
        )
    if wanted.patience is not None and not len(data.validation):
        raise SettingsError(
            "finetune_patience: got a number without validation examples, expected some to judge"
            " by; give --validation a fraction above 0"
        )


def _announce(data: Dataset, out: Path, observers: Iterable[Observer]) -> None:
    sizes = ", ".join(f"{len(getattr(data, part)):,} {part}" for part in PARTS)
    about = f"data: {data.name}, {data.source} ({sizes})"
    for message in (about, *data.notices, f"run folder: {out}"):
        event: Event = Notice(time.monotonic(), message)
        for observer in observers:
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
            error.args = (f"{error.args[0]}. {kept}",)
        raise
    except BaseException as error:  # nothing is lost, whatever it was: a closed pipe, say
        if not model.is_file():
            current().save(model)
        elif isinstance(error, KeyboardInterrupt):  # after pretraining, which had been saved
            raise RunInterrupted(f"the run was stopped after pretraining. {kept}") from None
        raise
    finally:
        write_trace(history.events, out / TRACE_NAME)


def _finetuned(stack: Stack, settings: Settings, data: Dataset, observers: list[Observer]) -> Stack:
    wanted = settings.finetune
    if wanted.objective == "none":
        return stack
    supervised = wanted.objective != "reconstruction"
    return finetune(
        stack,
        data.train,
        data.train_labels if supervised else None,
        validation=data.validation if len(data.validation) else None,
        validation_y=data.validation_labels if supervised else None,
        seed=settings.pretrain.seed,
        blas_threads=settings.pretrain.blas_threads,
        observers=observers,
        **msgspec.to_builtins(wanted),
    )


def _report(
    settings: Settings,
    workers: int,
    metrics: dict[str, Any],
    history: History,
    stack: Stack,
    seconds: dict[str, float],
    out: Path,
) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    pretrain = settings.pretrain
    columns = zip(history.epochs, history.busy_seconds, history.idle_seconds, strict=True)
    layers = [
        row | {"epochs": epochs, "busy_seconds": busy, "idle_seconds": idle}
        for row, (epochs, busy, idle) in zip(metrics["layers"], columns, strict=True)
    ]
    return {
        "schedule": pretrain.schedule,
        "pace": pretrain.pace,
        "runtime": pretrain.runtime,
        "backend": "numpy",
        "workers": workers,
        "seed": pretrain.seed,
        "data": metrics["data"],
        "layers": layers,
        "reconstruction_error": metrics["reconstruction_error"],
        "accuracy": metrics["accuracy"],
        "seconds": seconds,
        "parameters_sha256": stack.parameters_sha256,
        "out": str(out),
    }
