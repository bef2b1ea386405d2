"""Does pretraining help me? Several starts, several seeds, the same fine-tuning for all.

Classifiers of scikit-learn may be measured too: what users would try first. Each has scikit-learn's
own defaults, on the columns as they are where all values are in [0, 1], else standardized; a
missing value is replaced by the mean of its column. Label spreading learns from the rows without
labels too (Zhou et al. 2004), by the 7 nearest neighbours of each row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import StoredRows
from syncpretrain.data.dataset import Dataset, is_labelled
from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import SettingsError, needed
from syncpretrain.finetuning.options import tuning_options
from syncpretrain.finetuning.prepared import Finetuning
from syncpretrain.finetuning.tasks import Form, Part
from syncpretrain.learners.first_layers import untrained_stack
from syncpretrain.models.diagnosis import accuracies, stack_error
from syncpretrain.models.stack import Stack
from syncpretrain.pretraining.driver import driver_for
from syncpretrain.pretraining.training import Driver
from syncpretrain.schedule.kinds import SCHEDULES
from syncpretrain.settings import PretrainSettings, Settings, replaced
from syncpretrain.settings.checks import ALWAYS
from syncpretrain.settings.fields import HANDOFF_DEFAULTS, refuse
from syncpretrain.units.kinds import kind_of

RANDOM = "random"  # the start without pretraining
STARTS = (*SCHEDULES, RANDOM)
START_FORMS = f"{' or '.join(STARTS)}, or a schedule with :always or :drift:X"
USUAL_STARTS = ("greedy", "synchronized", RANDOM)
FEWEST_STEPS = 2000  # of fine-tuning, however few labels there are
SMALLEST_BATCH = 10


def compare(
    settings: Settings,
    data: Dataset,
    *,
    starts: Sequence[str] = USUAL_STARTS,
    seeds: Sequence[int] = (0, 1, 2),
    labels: Sequence[int | None] = (None,),
    baselines: tuple[str, ...] = (),
    begin: Callable[[], Any] = lambda: None,
    report: Callable[[Outcome], Any] = lambda outcome: None,
) -> list[Outcome]:
    """Fine-tune from every start with every seed and number of labels; return the results.

    Each stack is pretrained on all training examples, whatever the labels. A classifier with few
    labels takes smaller minibatches and more epochs, the same for every start, so that each takes
    at least 2,000 steps; one that trains on rows without a label too takes the settings' numbers.

    Parameters
    ----------
    settings : Settings
        Settings with an ``objective`` of fine-tuning; ``starts`` and ``seeds`` replace their
        schedule and seed.
    data : Dataset
        Data with a test part, and with labels for classification.
    starts : sequence of str
        Names of schedules to pretrain by, such as "greedy" and "synchronized", or "random"
        weights. "synchronized:drift:0.2" is that schedule with another ``refresh_when``.
    seeds : sequence of int
        Seeds of the weights, of the minibatches, and of the choice of labels.
    labels : sequence of int or None
        Numbers of training labels to keep; None for all. Ignored for reconstruction.
    baselines : tuple of str
        Classifiers of scikit-learn to measure beside the starts, with the same labels: names in
        :data:`syncpretrain.runs.compare.BASELINES`.
    begin : callable
        Called once all is checked, before any work starts.
    report : callable
        Called with each outcome as soon as it is known.

    Raises
    ------
    SettingsError, DataError
        Before any work starts, if something is missing, or a fine-tuning is not possible.
    """
    _check(settings, data, starts, labels)
    check_baselines(baselines, data, settings.finetune.objective)
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
        if start != RANDOM:
            _driver_for(pretrain, data)  # refuses settings that it cannot train
    begin()
    outcomes = []
    for start, pretrain in pretrains:
        began = time.monotonic()
        stack = _stack_of_start(start, pretrain, data)
        seconds = time.monotonic() - began
        for tuning in tunings[pretrain.seed]:
            outcomes.append(_fine_tuned(stack, tuning, data, start, seconds))
            report(outcomes[-1])
    for seed, count, name in product(seeds, labels, baselines):
        outcomes.append(_baseline(name, data, seed, count))
        report(outcomes[-1])
    return outcomes


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one fine-tuned stack, or of a baseline; the fit of that counts as fine-tuning.

    ``start`` names the start or the baseline. ``labels`` is the number of labelled examples, None
    if none were used. ``test`` and ``validation`` are the shares of wrong classes, or the
    reconstruction errors, on test and on validation examples. ``epochs`` counts the epochs of
    pretraining of each layer, and ``passes`` their work in passes of the whole stack: each epoch
    counts by its layer's weights.
    """

    start: str
    seed: int
    labels: int | None
    validation: float | None
    test: float | None
    pretrain_seconds: float
    finetune_seconds: float
    epochs: tuple[int, ...] = ()
    passes: float = 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """Means over the seeds of one start with one number of labels.

    ``spread`` is the sample standard deviation of ``test``, None for a single seed. ``gain`` is the
    mean of the random start minus this mean, None for the random start, or without one. ``passes``
    is the work of pretraining.
    """

    start: str
    labels: int | None
    seeds: int
    test: float
    spread: float | None
    gain: float | None
    pretrain_seconds: float
    finetune_seconds: float
    passes: float


def summarized(outcomes: Iterable[Outcome]) -> list[Summary]:
    """Return one row for each number of labels and start, fewest labels first."""
    groups: dict[tuple[int | None, str], list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.labels or 0):
        groups.setdefault((outcome.labels, outcome.start), []).append(outcome)
    rows = []
    for (labels, start), group in groups.items():
        errors, random = _test_errors(group), groups.get((labels, RANDOM))
        mean = float(errors.mean())
        spread = float(errors.std(ddof=1)) if len(group) > 1 else None
        gain = None
        if start != RANDOM and random is not None:
            gain = float(_test_errors(random).mean()) - mean
        names = ("pretrain_seconds", "finetune_seconds", "passes")
        others = {name: float(np.mean([getattr(x, name) for x in group])) for name in names}
        rows.append(Summary(start, labels, len(group), mean, spread, gain, **others))
    return rows


def random_stack(settings: PretrainSettings, data: Dataset, *, seed: int) -> Stack:
    """Return a stack with random weights, and biases of 0.

    See :func:`syncpretrain.learners.first_layers.untrained_stack`.
    """
    scaling = None if kind_of(settings.visible_units).is_unit_interval else Scaling.of(data.train)
    units = settings.hidden_units, settings.visible_units
    return untrained_stack(settings.shapes, *units, seed=seed, scaling=scaling)


def is_start(text: str) -> bool:
    """Return whether a text names a start: a schedule, or random weights."""
    name, colon, _ = text.partition(":")
    return name in SCHEDULES or (name == RANDOM and not colon)


def _test_errors(outcomes: Sequence[Outcome]) -> NDArray[np.float64]:
    """Return the test errors of outcomes; NaN for none."""
    return np.array([outcome.test for outcome in outcomes], dtype=np.float64)


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
    lacks |= {} if kind.can_stream else {"handoff": "epoch", **HANDOFF_DEFAULTS["epoch"]}
    return replaced(settings, schedule=name, **lacks)


def _stack_of_start(start: str, settings: PretrainSettings, data: Dataset) -> Stack:
    """Return the stack of a start: pretrained, or with random weights."""
    if start == RANDOM:
        return random_stack(settings, data, seed=settings.seed)
    return _driver_for(settings, data).run()


def _driver_for(settings: PretrainSettings, data: Dataset) -> Driver:
    return driver_for(settings, data.train, data.validation, weights=data.train_weights)


def _tuning(settings: Settings, data: Dataset, seed: int, count: int | None) -> Finetuning:
    """Return the fine-tuning with ``count`` labels, ready for a stack."""
    pretrain = settings.pretrain
    options = msgspec.to_builtins(settings.finetune)
    y = None
    if options["objective"] == "classification":
        chosen = data if count is None else data.with_labels(count, seed=seed)
        y = chosen.targets("train")
        assert y is not None
        if options["unlabelled"] == "none":  # else minibatches are mostly of rows without a label
            options |= _budget(int(is_labelled(y).sum()), options["batch_size"], options["epochs"])
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
    labels = tuning.examples if supervised else None
    own = labels, errors["validation"], errors["test"], pretrain_seconds, seconds
    return Outcome(start, tuning.options.seed, *own, epochs, _passes(stack, epochs))


def _baseline(name: str, data: Dataset, seed: int, count: int | None) -> Outcome:
    """Return the outcome of a baseline with ``count`` labels, the labels of the starts."""
    chosen = data if count is None else data.with_labels(count, seed=seed)
    errors, seconds = measured(name, chosen, seed=seed)
    y = chosen.targets("train")
    labelled = None if y is None else int(is_labelled(y).sum())
    return Outcome(name, seed, labelled, errors["validation"], errors["test"], 0.0, seconds)


def _passes(stack: Stack, epochs: Sequence[int]) -> float:
    """Return the work of pretraining, in epochs of the whole stack."""
    products = [layer.shape.products for layer in stack.layers]
    return sum(n * size for n, size in zip(epochs, products, strict=False)) / sum(products)


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
        wanted = "reconstruction or classification to compare by"
        raise SettingsError(f"finetune: got {objective}, expected {wanted}")
    for start in starts:
        if not is_start(start):
            raise SettingsError(f"starts: got {start!r}, expected {START_FORMS}")
    for name, values in (("starts", starts), ("labels", labels)):
        if len(set(values)) < len(values):
            raise SettingsError(f"{name}: got one of them twice, expected each once")
    classifies, labelled = objective == "classification", data.test_labels
    lacks_labels = data.train_labels is None or labelled is None
    lacks_test = labelled is None or not is_labelled(labelled).any()
    is_patient = settings.finetune.patience is not None
    lacks = f"data: {data.name} has no"
    refused = {
        f"{lacks} test examples to compare by; give test=0.2, say": not len(data.test),
        "finetune_patience: got a number, expected none; all starts are trained alike": is_patient,
        f"{lacks} labels to classify by": classifies and lacks_labels,
        f"{lacks} labelled test examples to compare by": classifies and lacks_test,
    }
    refuse(refused)
    for count in labels if classifies else ():
        if count is not None:
            data.with_labels(count)  # refuses more labels than there are


BASELINES: dict[str, Callable[[int], Any]] = {  # classifiers of scikit-learn, by the seed
    "svc": lambda seed: import_module("sklearn.svm").SVC(),
    "extra-trees": lambda seed: import_module("sklearn.ensemble").ExtraTreesClassifier(
        random_state=seed, n_jobs=-1
    ),
    "spreading": lambda seed: import_module("sklearn.semi_supervised").LabelSpreading(kernel="knn"),
}
UNLABELLED_TOO = ("spreading",)


def check_baselines(names: tuple[str, ...], data: Dataset, objective: str) -> None:
    """Refuse baselines that cannot be measured.

    Raises
    ------
    SettingsError
        If a name is unknown, scikit-learn is missing, the comparison is not by classification, or
        the rows are not all in memory.
    """
    if not names:
        return
    for name in names:
        if name not in BASELINES:
            raise SettingsError(f"baselines: got {name!r}, expected some of {', '.join(BASELINES)}")
    if objective != "classification":
        got = f"{', '.join(names)} with {objective}"
        raise SettingsError(f"baselines: got {got}, expected classification")
    if isinstance(data.train, StoredRows):
        wanted = "rows in memory, as scikit-learn's classifiers read them; leave the baselines out"
        got = "rows that are sparse or in a file"
        raise SettingsError(f"baselines: got {got}, expected {wanted}")
    text = "baselines: scikit-learn is missing; pip install 'syncpretrain[sklearn]'"
    needed("sklearn", SettingsError(text))


def measured(name: str, data: Dataset, *, seed: int) -> tuple[dict[str, float | None], float]:
    """Return a baseline's shares of wrong classes on each part, and the seconds of its fit.

    ``data`` has -1, None or NaN for a training row without a label.
    """
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    y = data.targets("train")
    assert y is not None
    X, labelled = np.asarray(data.train), is_labelled(y)
    is_scaled = bool(np.nanmin(X) >= 0 and np.nanmax(X) <= 1)
    scaler = "passthrough" if is_scaled else StandardScaler()
    model = make_pipeline(SimpleImputer(), scaler, BASELINES[name](seed))
    classes, codes = np.unique(y[labelled], return_inverse=True)
    targets = np.full(len(y), -1)
    targets[labelled] = codes
    began = time.monotonic()
    # Label spreading divides by 0 at rows whose neighbours reach no label; it guesses there.
    with np.errstate(invalid="ignore"):
        if name in UNLABELLED_TOO:
            model.fit(X, targets)
        else:
            model.fit(X[labelled], codes)
        seconds = time.monotonic() - began
        errors = {part: _wrong_share(model, classes, data, part) for part in ("validation", "test")}
    return errors, seconds


def _wrong_share(model: Any, classes: NDArray[Any], data: Dataset, part: str) -> float | None:
    """Return the share of wrong classes on a part's labelled rows; None if it has none."""
    labels = data.targets(part)
    if labels is None or not is_labelled(labels).any():
        return None
    rows = is_labelled(labels)
    found = classes[model.predict(np.asarray(getattr(data, part))[rows])]
    return float((found != labels[rows]).mean())
