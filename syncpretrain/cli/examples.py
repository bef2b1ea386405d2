"""The examples that a command on a finished run works on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data import DATASETS, load_dataset
from syncpretrain.data.dataset import Dataset
from syncpretrain.data.examples import scale_examples
from syncpretrain.data.readers import read_file
from syncpretrain.errors import DataError, SettingsError
from syncpretrain.run import CONFIG_NAME
from syncpretrain.settings import DataSettings, read_settings

__all__ = ["PARTS", "dataset_of", "examples_of"]

PARTS = ("train", "validation", "test")


def dataset_of(run: Path, data: str | None, *, width: int) -> Dataset:
    """Return the data set named, or the one the run was trained on, divided in the same way."""
    settings = _data_settings(run, data)
    dataset = load_dataset(settings.name, validation=settings.validation)
    _check_width(settings.name, dataset.width, width)
    return dataset


def examples_of(run: Path, data: str | None, part: str, *, width: int) -> NDArray[np.float32]:
    """Return all rows of a file in their order, or a part of a named data set."""
    name = _data_settings(run, data).name
    if name in DATASETS:
        rows: NDArray[np.float32] = getattr(dataset_of(run, data, width=width), part)
        return rows
    X, _ = read_file(name)
    _check_width(name, X.shape[1], width)
    return scale_examples(X)


def _data_settings(run: Path, data: str | None) -> DataSettings:
    config = run / CONFIG_NAME
    recorded = read_settings(config).data if config.is_file() else None
    if data is None and recorded is None:
        raise SettingsError(
            f"data: got nothing, and {run} names no data; expected --data NAME|FILE"
        )
    if recorded is not None and data in (None, recorded.name):
        return recorded
    return DataSettings(name=str(data))


def _check_width(name: str, got: int, expected: int) -> None:
    if got != expected:
        raise DataError(f"data: {name} has {got} values an example, but the stack takes {expected}")
