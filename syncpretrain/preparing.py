"""What is settled before a run's first minibatch: its data, and the settings in full."""

from __future__ import annotations

import msgspec

from syncpretrain.data import load_dataset, located
from syncpretrain.data.dataset import UNLABELLED, Dataset
from syncpretrain.errors import SettingsError
from syncpretrain.placing import resolved_backend
from syncpretrain.runtime.blas import blas_threads
from syncpretrain.settings import Settings

__all__ = ["check_finetuning", "found_again", "loaded", "resolved"]


def loaded(settings: Settings) -> Dataset:
    """Return the data that settings name, with the labels that they keep."""
    data = load_dataset(
        settings.data.name,
        validation=settings.data.validation,
        bounded=settings.pretrain.visible_units == "bernoulli",
    )
    if settings.data.labels is not None:
        data = data.with_labels(settings.data.labels, seed=settings.pretrain.seed)
    return data


def resolved(settings: Settings) -> Settings:
    """Fix what would else depend on the machine and decides about the last bits."""
    threads = blas_threads(settings.pretrain.blas_threads)
    backend = resolved_backend(settings.pretrain, settings.finetune)
    pretrain = msgspec.structs.replace(settings.pretrain, blas_threads=threads, backend=backend)
    return msgspec.structs.replace(settings, pretrain=pretrain)


def found_again(settings: Settings) -> Settings:
    """Name the data in a way that holds from every folder."""
    data = msgspec.structs.replace(settings.data, name=located(settings.data.name))
    return msgspec.structs.replace(settings, data=data)


def check_finetuning(settings: Settings, data: Dataset) -> None:
    """Refuse a fine-tuning that the data does not permit.

    Raises
    ------
    SettingsError
    """
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
