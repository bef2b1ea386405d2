"""The examples that a command on a finished run works on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from syncpretrain.data import DATASETS, load_dataset, located
from syncpretrain.data.dataset import Dataset, from_rows
from syncpretrain.data.examples import scale_examples
from syncpretrain.data.readers import read_file
from syncpretrain.errors import DataError, SettingsError
from syncpretrain.modelfile import MODEL_NAME
from syncpretrain.run import CONFIG_NAME
from syncpretrain.settings import DataSettings, read_settings

__all__ = ["Examples", "dataset_of", "examples_of"]


class Examples(NamedTuple):
    """Examples of shape (n, width), and what to call them."""

    rows: NDArray[np.float32]
    name: str


def dataset_of(run: Path, data: str | None, *, width: int) -> Dataset:
    """Return the data the run was trained on, divided in the same way, or another data set.

    A file that the run was not trained on has only a test part.
    """
    settings = _data_settings(run)
    name = _name(run, data, settings)
    if settings is not None and located(name) == located(settings.name):
        return _loaded(settings, width)
    return _loaded(DataSettings(name=name), width) if name in DATASETS else _test_set(name, width)


def examples_of(run: Path, data: str | None, part: str | None, *, width: int) -> Examples:
    """Return a part of a data set, or without ``part`` all rows of a file in their order."""
    name = _name(run, data, _data_settings(run))
    if part is None and name not in DATASETS:
        return Examples(scale_examples(_rows(name, width)), name)
    part = part or "test"
    rows: NDArray[np.float32] = getattr(dataset_of(run, data, width=width), part)
    if not len(rows):
        raise DataError(f"part: got {part}, but {name} has no such part; leave --part out")
    return Examples(rows, f"the {part} part of {name}")


def _data_settings(run: Path) -> DataSettings | None:
    """Return what the run was trained on, as far as it is known."""
    folder = run.parent if run.name == MODEL_NAME else run
    config = folder / CONFIG_NAME
    return read_settings(config).data if config.is_file() else None


def _name(run: Path, data: str | None, settings: DataSettings | None) -> str:
    if data is not None:
        return data
    if settings is None:
        raise SettingsError(f"data: got nothing, and {run} names no data; expected a name or file")
    return settings.name


def _loaded(settings: DataSettings, width: int) -> Dataset:
    dataset = load_dataset(settings.name, validation=settings.validation)
    for notice in dataset.notices:
        click.echo(notice, err=True)
    _check_width(settings.name, dataset.width, width)
    return dataset


def _test_set(name: str, width: int) -> Dataset:
    X = _rows(name, width)
    rows = np.arange(len(X))
    source = f"the {len(X):,} examples of {name}"
    return from_rows(name, X, None, source=source, parts=(rows[:0], rows[:0], rows))


def _rows(name: str, width: int) -> NDArray[Any]:
    if not Path(name).expanduser().exists():
        load_dataset(name)  # refuses it, and says which data sets there are
    X, _ = read_file(name)
    _check_width(name, X.shape[1], width)
    return X


def _check_width(name: str, got: int, expected: int) -> None:
    if got != expected:
        raise DataError(f"data: {name} has {got} values an example, but the stack takes {expected}")
