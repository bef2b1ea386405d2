"""Does pretraining help me? Several starts, several seeds, the same fine-tuning for all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from syncpretrain.data.dataset import Dataset, is_labelled
from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import SettingsError
from syncpretrain.finetuning.options import tuning_options
from syncpretrain.finetuning.parts import Form, Part
from syncpretrain.finetuning.prepared import Finetuning
from syncpretrain.learners.first_layers import untrained_stack
from syncpretrain.models.prediction import accuracies
from syncpretrain.models.reconstruction import stack_error
from syncpretrain.models.stack import Stack
from syncpretrain.pretraining.schedule.kinds import SCHEDULES
from syncpretrain.pretraining.start import driver_for
from syncpretrain.runs.outcomes import RANDOM, START_FORMS, STARTS, Outcome, is_start
from syncpretrain.settings import PretrainSettings, Settings, replaced
from syncpretrain.settings.drift import ALWAYS
from syncpretrain.units.kinds import kind_of

__all__ = ["STARTS", "USUAL_STARTS", "compare", "random_stack"]

USUAL_STARTS = ("greedy", "synchronized", RANDOM)
FEWEST_STEPS = 2000  # of fine-tuning, however few labels there are
SMALLEST_BATCH = 10

Report = Callable[[Outcome], Any]


def compare(
    settings: Settings,
    data: Dataset,
    *,
    starts: Sequence[str] = USUAL_STARTS,
    seeds: Sequence[int] = (0, 1, 2),
    labels: Sequence[int | None] = (None,),
    begin: Callable[[], Any] = lambda: None,
    report: Report = lambda outcome: None,
) -> list[Outcome]:
    """Fine-tune from every start with every seed and number of labels; return the results.

    Each stack is pretrained on all training examples, whatever the labels. A classifier with few
    labels takes smaller minibatches and more epochs, the same ones for every start, so that none
    takes fewer than 2,000 steps.

    Parameters
    ----------
    settings : Settings
        With an ``objective`` of fine-tuning; the schedule and the seed are those compared.
    data : Dataset
        With a test part, and labels for classification.
    starts : sequence of str
        Names of schedules to pretrain by, such as "greedy" and "synchronized", or "random"
        weights. "synchronized:drift:0.2" is that schedule with another ``refresh_when``.
    seeds : sequence of int
        Of weights, minibatches, and of which labels are kept.
    labels : sequence of int or None
        How many of the training labels are kept; None for all. Ignored for reconstruction.
    begin : callable
        Called once all is checked, before any work starts.
    report : callable
        Called with each outcome as soon as it is known.

    Raises
    ------
    SettingsError, DataError
        Before any work starts, if something is missing, or one of the fine-tunings is not possible.
    """
    _check(settings, data, starts, labels)
    pretrains = [
        (start, _pretrain_settings(start, settings.pretrain, seed))
        for seed in seeds
        for start in starts
    ]
    supervised = settings.finetune.objective == "classification"
    tunings = {
        seed: [_tuning(settings, data, seed, n) for n in (labels if supervised else (None,))]
        for seed in seeds
    }
    for start, pretrain in pretrains[: len(starts)]:
        if start != "random":
            driver_for(pretrain, data.train, data.validation)  # refuses what it cannot train
    begin()
    outcomes = []
    for start, pretrain in pretrains:
        began = time.monotonic()
        stack = _started(start, pretrain, data)
        seconds = time.monotonic() - began
        for tuning in tunings[pretrain.seed]:
            outcomes.append(_fine_tuned(stack, tuning, data, start, seconds))
            report(outcomes[-1])
    return outcomes


def random_stack(settings: PretrainSettings, data: Dataset, *, seed: int) -> Stack:
    """Return a stack whose weights are random and whose biases are 0.

    See :func:`syncpretrain.learners.first_layers.untrained_stack`.
    """
    bounded = kind_of(settings.visible_units).is_unit_interval
    scaling = None if bounded else Scaling.of(data.train)
    units = settings.hidden_units, settings.visible_units
    return untrained_stack(settings.shapes, *units, seed=seed, scaling=scaling)


def _pretrain_settings(start: str, settings: PretrainSettings, seed: int) -> PretrainSettings:
    """Return the settings of a start with a seed."""
    settings = replaced(settings, seed=seed)
    if start == RANDOM:
        return settings
    name, _, waking = start.partition(":")
    kind, depth = SCHEDULES[name], len(settings.epochs)
    lacks: dict[str, Any] = {} if kind.free else {"pace": "lockstep"}
    if waking or not kind.has_refreshes:
        lacks["refresh_when"] = [waking or ALWAYS] * depth
    lacks |= {} if kind.has_groups else {"group_size": None}
    lacks |= {} if kind.can_stream else {"handoff": "epoch", "delay": 0.0}
    return replaced(settings, schedule=name, **lacks)


def _started(start: str, settings: PretrainSettings, data: Dataset) -> Stack:
    if start == RANDOM:
        return random_stack(settings, data, seed=settings.seed)
    return driver_for(settings, data.train, data.validation).run()


def _tuning(settings: Settings, data: Dataset, seed: int, count: int | None) -> Finetuning:
    """Return the fine-tuning with ``count`` labels, ready for a stack."""
    pretrain = settings.pretrain
    options = msgspec.to_builtins(settings.finetune)
    y = None
    if options["objective"] == "classification":
        chosen = data if count is None else data.with_labels(count, seed=seed)
        y = chosen.targets("train")
        assert y is not None
        labelled = int(is_labelled(y).sum())
        options |= _budget(labelled, options["batch_size"], options["epochs"])
    options |= {"seed": seed, "blas_threads": pretrain.blas_threads, "backend": pretrain.backend}
    form = Form(pretrain.shapes, (pretrain.visible_units, *pretrain.hidden_units))
    part = Part(data.train, y, "training labels" if count is None else "labels")
    return Finetuning(form, tuning_options(options), part, copies=1)


def _fine_tuned(
    stack: Stack, tuning: Finetuning, data: Dataset, start: str, pretrain_seconds: float
) -> Outcome:
    supervised = tuning.options.objective == "classification"
    began = time.monotonic()
    tuned = tuning.run(stack)
    seconds = time.monotonic() - began
    if supervised:
        right = accuracies(tuned, data) or {}
        errors = {part: None if share is None else 1 - share for part, share in right.items()}
    else:
        errors = {part: stack_error(tuned, getattr(data, part)) for part in ("validation", "test")}
    epochs = tuple(stack.info.get("epochs", ()))
    return Outcome(
        start,
        tuning.options.seed,
        tuning.examples if supervised else None,
        errors["validation"],
        errors["test"],
        pretrain_seconds,
        seconds,
        epochs,
        _passes(stack, epochs),
    )


def _passes(stack: Stack, epochs: Sequence[int]) -> float:
    """Return the work of pretraining, in epochs of the whole stack."""
    products = [layer.shape.products for layer in stack.layers]
    done = sum(n * size for n, size in zip(epochs, products, strict=False))
    return done / sum(products)


def _budget(labelled: int, batch_size: int, epochs: int) -> dict[str, int]:
    """Return the minibatch size and the epochs for a number of labels."""
    batch = min(batch_size, max(SMALLEST_BATCH, labelled // 10), labelled)
    steps = math.ceil(labelled / batch)
    return {"batch_size": batch, "epochs": max(epochs, math.ceil(FEWEST_STEPS / steps))}


def _check(
    settings: Settings, data: Dataset, starts: Sequence[str], labels: Sequence[int | None]
) -> None:
    objective = settings.finetune.objective
    if objective not in ("reconstruction", "classification"):
        raise SettingsError(
            f"finetune: got {objective}, expected reconstruction or classification to compare by"
        )
    for start in starts:
        if not is_start(start):
            raise SettingsError(f"starts: got {start!r}, expected {START_FORMS}")
    for name, values in (("starts", starts), ("labels", labels)):
        if len(set(values)) < len(values):
            raise SettingsError(f"{name}: got one of them twice, expected each once")
    if not len(data.test):
        raise SettingsError(
            f"data: {data.name} has no test examples to compare by; give test=0.2, say"
        )
    if settings.finetune.patience is not None:
        raise SettingsError(
            "finetune_patience: got a number, expected none; all starts are trained alike"
        )
    if objective != "classification":
        return
    if data.train_labels is None or data.test_labels is None:
        raise SettingsError(f"data: {data.name} has no labels to classify by")
    if not is_labelled(data.test_labels).any():
        raise SettingsError(f"data: {data.name} has no labelled test examples to compare by")
    for count in labels:
        if count is not None:
            data.with_labels(count)  # refuses what there is not
