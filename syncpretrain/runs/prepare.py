"""Prepare a run before its first minibatch: load its data, complete its settings."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.choice import resolve_backend, why_no_gpu
from syncpretrain.data import load_dataset, located
from syncpretrain.data.columns import Columns, takes_categories
from syncpretrain.data.dataset import Dataset, is_labelled
from syncpretrain.data.facts import facts_of
from syncpretrain.data.meaning import Meaning
from syncpretrain.data.own_data import KnownFile, is_mapped_file, share_of
from syncpretrain.errors import SettingsError
from syncpretrain.finetuning.options import tuning_options, tuning_precision
from syncpretrain.finetuning.parts import Form, Part
from syncpretrain.finetuning.prepared import Finetuning
from syncpretrain.parallel.blas import blas_threads
from syncpretrain.parallel.precision_choice import resolve_precision
from syncpretrain.pretraining.build_data import with_facts_of
from syncpretrain.pretraining.schedule.names import UNTRAINED
from syncpretrain.runs.folder import check_text
from syncpretrain.settings import Settings
from syncpretrain.settings.by_data import (
    Given,
    finetune_by_data,
    in_words,
    pretrain_by_data,
)
from syncpretrain.settings.devices import why_not_on_a_device, why_not_tuned_on_a_device
from syncpretrain.units.kinds import kind_of

__all__ = [
    "check_finetuning",
    "idle_gpu",
    "load_data",
    "of_tables",
    "resolve",
    "settled",
    "with_absolute_path",
]

USUAL_DATA = "mnist"  # that the usual values are for

PRETRAINED_COPIES = 4  # of the stack: itself, and the states of its layers, until the run is over


def load_data(
    settings: Settings,
    known: KnownFile | None = None,
    columns: Columns | None = None,
    meaning: Meaning | None = None,
    *,
    given: Given | None = None,
    encode: bool = False,
) -> Dataset:
    """Return the data that settings name, with the labels that they keep.

    A streamed run leaves a ``.npy`` file on the disk; a ``known`` one is not checked again. Values
    may lie outside [0, 1] where what was ``given`` leaves the visible units to them. Tables are
    read by the ``columns`` of an earlier run, and numbers by their ``meaning`` there, if they are
    given; ``encode`` makes categories of text for any visible units.
    """
    streams = settings.pretrain.handoff == "minibatch"
    unread = streams and is_mapped_file(settings.data.name)
    is_open = given is not None and given.leaves_units and not unread
    for option, name in (("data", "name"), ("test", "test"), ("unlabelled", "unlabelled")):
        check_text(option, located(getattr(settings.data, name) or ""))
    units = settings.pretrain.visible_units
    data = load_dataset(
        settings.data.name,
        **of_tables(settings),
        validation=settings.data.validation,
        bounded=kind_of(units).is_unit_interval and not is_open,
        mapped=streams,
        known=known,
        encode=encode or takes_categories(units),
        columns=columns,
        images=settings.pretrain.shapes[0].images,
        meaning=meaning,
    )
    if settings.data.labels is not None:
        data = data.with_labels(settings.data.labels, seed=settings.pretrain.seed)
    return data


def settled(settings: Settings, given: Given | None, data: Dataset) -> tuple[Settings, str | None]:
    """Return settings with what follows from the data, and one line about it.

    What was ``given`` stays as it is; with None, as of a preset, everything. MNIST has the usual
    values, whichever of its digits are at hand.

    Raises
    ------
    SettingsError
        If a value that follows does not go together with those that were given.
    """
    if given is None:
        return settings, None
    is_usual = data.name == USUAL_DATA
    facts = facts_of(data.train)
    pretrain, chosen = settings.pretrain, dict[str, Any]()
    if not is_usual:
        pretrain, chosen = pretrain_by_data(pretrain, given.pretrain, facts)
    words = [in_words(facts, chosen)] if chosen else []
    finetune = settings.finetune
    labels = data.train_labels if finetune.objective in ("classification", "regression") else None
    if finetune.objective != "none" and not (is_usual and settings.data.labels is None):
        targets = facts.rows if labels is None else int(is_labelled(labels).sum())
        others = 0 if is_usual else facts.rows - targets
        facts = facts._replace(rows=targets, unlabelled=others)
        shapes = settings.pretrain.shapes
        finetune, chosen = finetune_by_data(finetune, given.finetune, facts, shapes)
        words += [f"fine-tuning: {in_words(facts, chosen)}"] if chosen else []
    settings = msgspec.structs.replace(settings, pretrain=pretrain, finetune=finetune)
    return settings, "; ".join(words) or None


def of_tables(settings: Settings) -> dict[str, Any]:
    """Return how a user's own files are read, as :func:`load_dataset` takes it.

    Raises
    ------
    SettingsError
        If the task is not that of the fine-tuning.
    """
    data, objective = settings.data, settings.finetune.objective
    tasks = ("classification", "regression")
    if data.task is not None and objective in tasks and data.task != objective:
        raise SettingsError(
            f"task: got {data.task} with fine-tuning for {objective}; leave one of the two out"
        )
    return {
        "target": data.target,
        "drop": data.drop or (),
        "task": data.task or (objective if objective in tasks else None),
        "test": data.test,
        "unlabelled": data.unlabelled,
        "examples": data.examples,
    }


def resolve(settings: Settings, data: Dataset | None = None) -> Settings:
    """Fix what would else depend on the machine and decides about the last bits.

    Without ``data`` the backend is that of dense examples without missing values.
    """
    threads = blas_threads(settings.pretrain.blas_threads)
    backend = resolve_backend(settings.pretrain.backend, _why_on_the_cpu(settings, data))
    fixed = {"blas_threads": threads, "backend": backend}
    fixed["precision"] = resolve_precision(settings.pretrain.precision, backend)
    pretrain = msgspec.structs.replace(settings.pretrain, **fixed)
    precision = tuning_precision(settings.finetune, backend)
    finetune = msgspec.structs.replace(settings.finetune, precision=precision)
    return msgspec.structs.replace(settings, pretrain=pretrain, finetune=finetune)


def idle_gpu(settings: Settings, data: Dataset) -> str | None:
    """Return a notice of a GPU that is there and not taken, before settings are resolved."""
    return why_no_gpu(settings.pretrain.backend, _why_on_the_cpu(settings, data))


def _why_on_the_cpu(settings: Settings, data: Dataset | None) -> str | None:
    parts = () if data is None else (data.train, data.validation)
    lacks = why_not_on_a_device(with_facts_of(settings.pretrain, *parts))
    return lacks or why_not_tuned_on_a_device(settings.finetune)


def with_absolute_path(settings: Settings) -> Settings:
    """Name the data in a way that holds from every folder."""
    own = settings.data
    files = {
        "name": located(own.name),
        "test": own.test if share_of(own.test) else own.test and located(own.test),
        "unlabelled": own.unlabelled and located(own.unlabelled),
    }
    data = msgspec.structs.replace(own, **files)
    return msgspec.structs.replace(settings, data=data)


def check_finetuning(settings: Settings, data: Dataset) -> Finetuning | None:
    """Return the run's fine-tuning, ready for the stack that is to be pretrained; None for none.

    Raises
    ------
    SettingsError, DataError
        If the settings, the data, a missing package or the memory do not permit it.
    """
    wanted, pretrain = settings.finetune, settings.pretrain
    if wanted.objective == "none":
        if pretrain.schedule == UNTRAINED:
            raise SettingsError(
                f"schedule: got {UNTRAINED} without fine-tuning, which leaves random weights;"
                " expected a way to fine-tune, such as --finetune classification"
            )
        return None
    options = tuning_options(
        wanted, seed=pretrain.seed, blas_threads=pretrain.blas_threads, backend=pretrain.backend
    )
    supervised = wanted.objective != "reconstruction"
    if supervised and data.train_labels is None:
        raise SettingsError(
            f"finetune: got {wanted.objective}, but {data.name} has no labels; take"
            " reconstruction, name the target of a table (target), or take a file with labels"
            " beside the examples (.npz with X and y)"
        )
    few = settings.data.labels is not None  # then an option decided how many there are
    train, validation = (
        Part(getattr(data, part), _targets(data, part, wanted.objective), name)
        for part, name in (
            ("train", "labels" if few else "training labels"),
            ("validation", "labels of validation"),
        )
    )
    form = Form(pretrain.shapes, (pretrain.visible_units, *pretrain.hidden_units))
    held_out = validation if len(data.validation) else None
    return Finetuning(form, options, train, held_out, copies=PRETRAINED_COPIES)


def _targets(data: Dataset, part: str, objective: str) -> NDArray[Any] | None:
    """Return what a part is trained or judged by; None for reconstruction."""
    labels = data.targets(part)
    if objective == "reconstruction" or labels is None:
        return None
    if objective == "regression" and labels.dtype.kind != "f":
        return np.where(is_labelled(labels), labels, np.nan)
    return labels
