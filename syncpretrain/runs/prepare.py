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
from syncpretrain.data.readers import KnownFile, is_mapped_file, share_of
from syncpretrain.errors import SettingsError
from syncpretrain.finetuning.options import tuning_options, tuning_precision
from syncpretrain.finetuning.prepared import Finetuning
from syncpretrain.finetuning.tasks import Form, Part
from syncpretrain.parallel.blas import blas_threads
from syncpretrain.parallel.precision_choice import resolve_precision
from syncpretrain.pretraining.build_data import with_facts_of
from syncpretrain.runs.folder import check_path_text
from syncpretrain.schedule.kinds import UNTRAINED
from syncpretrain.settings import Settings
from syncpretrain.settings.by_data import Given, finetune_by_data, in_words, pretrain_by_data
from syncpretrain.settings.devices import why_not_on_a_device, why_not_tuned_on_a_device
from syncpretrain.units.kinds import kind_of

USUAL_DATA = "mnist"  # the defaults suit this data set

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
    """Return the data that settings name, with as many labels as settings keep.

    A streamed run leaves a ``.npy`` file on the disk; a ``known`` file is not checked again. Values
    may lie outside [0, 1] if ``given`` leaves the visible units to the data. ``columns`` and
    ``meaning`` of an earlier run decide how tables and numbers are read; ``encode`` makes
    categories of text for any visible units.
    """
    streams = settings.pretrain.handoff == "minibatch"
    unread = streams and is_mapped_file(settings.data.name)
    is_open = given is not None and "visible_units" not in given.pretrain and not unread
    for option, name in (("data", "name"), ("test", "test"), ("unlabelled", "unlabelled")):
        check_path_text(option, located(getattr(settings.data, name) or ""))
    units = settings.pretrain.visible_units
    data = load_dataset(
        settings.data.name,
        **table_options(settings),
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


def completed(
    settings: Settings, given: Given | None, data: Dataset | None
) -> tuple[Settings, Dataset, str | None]:
    """Return settings completed by their data, the data, and one line about the changes.

    The data are loaded if there are none yet. Settings that were ``given`` stay as they are; with
    None, as for a preset, all of them. MNIST has the usual values, whichever of its digits are at
    hand.

    Raises
    ------
    SettingsError
        If a value that follows from the data does not fit the given settings.
    """
    data = load_data(settings, given=given) if data is None else data
    if given is None:
        return settings, data, None
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
        others = facts.rows - targets if finetune.unlabelled != "none" or not is_usual else 0
        facts = facts._replace(rows=targets, unlabelled=others)
        shapes = settings.pretrain.shapes
        finetune, chosen = finetune_by_data(finetune, given.finetune, facts, shapes)
        words += [f"fine-tuning: {in_words(facts, chosen)}"] if chosen else []
    settings = msgspec.structs.replace(settings, pretrain=pretrain, finetune=finetune)
    return settings, data, "; ".join(words) or None


def table_options(settings: Settings) -> dict[str, Any]:
    """Return the arguments of :func:`load_dataset` that say how a user's own files are read.

    Raises
    ------
    SettingsError
        If the task is not the objective of fine-tuning.
    """
    data, objective = settings.data, settings.finetune.objective
    tasks = ("classification", "regression")
    if data.task is not None and objective in tasks and data.task != objective:
        advice = f"leave it out, or take finetune={data.task}"
        raise SettingsError(f"task: got {data.task} with fine-tuning for {objective}; {advice}")
    names = ("target", "weights", "test", "unlabelled", "examples")
    own = {name: getattr(data, name) for name in names}
    task = data.task or (objective if objective in tasks else None)
    return own | {"drop": data.drop or (), "task": task}


def resolve(settings: Settings, data: Dataset | None = None) -> Settings:
    """Return settings in which nothing that decides the last bits depends on the machine.

    Without ``data`` the backend is chosen for dense examples without missing values.
    """
    threads = blas_threads(settings.pretrain.blas_threads)
    backend = resolve_backend(settings.pretrain.backend, _why_on_the_cpu(settings, data))
    fixed = {"blas_threads": threads, "backend": backend}
    fixed["precision"] = resolve_precision(settings.pretrain.precision, backend)
    pretrain = msgspec.structs.replace(settings.pretrain, **fixed)
    precision = tuning_precision(settings.finetune, backend)
    finetune = msgspec.structs.replace(settings.finetune, precision=precision)
    return msgspec.structs.replace(settings, pretrain=pretrain, finetune=finetune)


def as_begun(settings: Settings, was: dict[str, Any]) -> Settings:
    """Return the settings of a run, given those in its identity: without products the BLAS's."""
    older = [name for name in ("pretrain", "finetune") if "products" not in was.get(name, ())]
    blas = {n: msgspec.structs.replace(getattr(settings, n), products="blas") for n in older}
    return msgspec.structs.replace(settings, **blas)


def idle_gpu_notice(settings: Settings, data: Dataset) -> str | None:
    """Return a notice if a GPU is there and unused; call it before settings are resolved."""
    return why_no_gpu(settings.pretrain.backend, _why_on_the_cpu(settings, data))


def _why_on_the_cpu(settings: Settings, data: Dataset | None) -> str | None:
    parts = () if data is None else (data.train, data.validation)
    if data is not None and data.train_weights is not None:
        return "with weights of rows, which the CPU takes; take backend numpy or auto"
    lacks = why_not_on_a_device(with_facts_of(settings.pretrain, *parts))
    return lacks or why_not_tuned_on_a_device(settings.finetune)


def with_absolute_path(settings: Settings) -> Settings:
    """Return settings that name the data by absolute paths."""
    own = settings.data
    files = {
        "name": located(own.name),
        "test": own.test if share_of(own.test) else own.test and located(own.test),
        "unlabelled": own.unlabelled and located(own.unlabelled),
    }
    return msgspec.structs.replace(settings, data=msgspec.structs.replace(own, **files))


def check_finetuning(settings: Settings, data: Dataset) -> Finetuning | None:
    """Return the run's fine-tuning, ready for the pretrained stack; None without fine-tuning.

    Raises
    ------
    SettingsError, DataError
        If the settings, the data, a missing package or the memory do not permit it.
    """
    wanted, pretrain = settings.finetune, settings.pretrain
    if wanted.objective == "none":
        if pretrain.schedule == UNTRAINED:
            got = f"{UNTRAINED} without fine-tuning, which leaves random weights"
            way = "a way to fine-tune, such as --finetune classification"
            raise SettingsError(f"schedule: got {got}; expected {way}")
        return None
    options = tuning_options(
        wanted, seed=pretrain.seed, blas_threads=pretrain.blas_threads, backend=pretrain.backend
    )
    if wanted.objective != "reconstruction" and data.train_labels is None:
        raise SettingsError(
            f"finetune: got {wanted.objective}, but {data.name} has no labels; take"
            " reconstruction, name the target of a table (target), or take a file with labels"
            " beside the examples (.npz with X and y)"
        )
    few = settings.data.labels is not None  # then an option decided how many there are
    train, validation = (
        Part(getattr(data, part), _targets(data, part, wanted.objective), name, weights)
        for part, name, weights in (
            ("train", "labels" if few else "training labels", data.train_weights),
            ("validation", "labels of validation", None),
        )
    )
    form = Form(pretrain.shapes, (pretrain.visible_units, *pretrain.hidden_units))
    held_out = validation if len(data.validation) else None
    return Finetuning(form, options, train, held_out, copies=PRETRAINED_COPIES)


def _targets(data: Dataset, part: str, objective: str) -> NDArray[Any] | None:
    """Return the targets of a part of the data; None for reconstruction."""
    labels = data.targets(part)
    if objective == "reconstruction" or labels is None:
        return None
    if objective == "regression" and labels.dtype.kind != "f":
        return np.where(is_labelled(labels), labels, np.nan)
    return labels
