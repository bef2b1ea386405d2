"""Examples for a command on a finished run: the data of the run, or another file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from syncpretrain.cli.program import as_options
from syncpretrain.data import DATASETS, check_whole, load_dataset, located
from syncpretrain.data.columns import columns_in, takes_categories
from syncpretrain.data.dataset import Dataset, Rows, divided, from_rows, record_in, record_of
from syncpretrain.data.examples import scale_examples
from syncpretrain.data.frames import check_bernoulli
from syncpretrain.data.readers import Wanted, is_mapped_file, read_rows
from syncpretrain.errors import CheckpointError, DataError, SettingsError
from syncpretrain.models.inputs import is_bounded
from syncpretrain.models.model_file import MODEL_NAME
from syncpretrain.models.stack import Stack
from syncpretrain.runs.folder import CONFIG_NAME, IDENTITY_NAME
from syncpretrain.runs.identity import read_identity
from syncpretrain.runs.prepare import table_options
from syncpretrain.settings import Settings, read_settings
from syncpretrain.storage import expanded


class Examples(NamedTuple):
    """Examples of shape (n, width), and their name in messages."""

    rows: NDArray[np.float32]
    name: str


def dataset_of(run: Path, data: str | None, *, stack: Stack) -> Dataset:
    """Return the data the run was trained on, divided in the same way, or another data set.

    Values are checked for the stack's visible units, and prepared by the stack's meaning of
    numbers: use them with ``stack.for_prepared_rows()``. A file that the run was not trained on has
    only a test part.
    """
    name, own = _asked(run, data)
    if own is not None:
        return _own_dataset(run, own, stack)
    if name not in DATASETS:
        return _test_set(name, stack)
    check_whole(name)
    return _loaded(name, stack)


def examples_of(run: Path, data: str | None, part: str | None, *, stack: Stack) -> Examples:
    """Return a part of a data set, or without ``part`` all rows of a file in their order.

    Use them with ``stack.for_prepared_rows()``, as in :func:`dataset_of`.
    """
    name, own = _asked(run, data)
    if part is None and name not in DATASETS:
        if own is not None and _stays_in_file(own):
            whole: Any = _own_dataset(run, own, stack).train
            return Examples(whole.whole(), name)
        rows = _rows(name, stack)
        if own is not None and any(table_options(own).values()):
            _own_dataset(run, own, stack)  # prints the notices
        else:
            _print_notices(rows.notices)
            if own is not None:
                _warn_of_other_data(run, stack, divided(name, rows, validation=own.data.validation))
        return Examples(scale_examples(rows.X), name)
    part = part or "test"
    found: NDArray[np.float32] = getattr(dataset_of(run, data, stack=stack), part)
    if not len(found):
        raise DataError(f"part: got {part}, but {name} has no such part; leave --part out")
    return Examples(found, f"the {part} part of {name}")


def check_names_data(run: Path) -> None:
    """Refuse a model file alone, since it does not name its training data.

    Raises
    ------
    SettingsError
    """
    if _settings(run) is None:
        raise SettingsError(
            f"run: got {run}, which names no training examples, whose scores are the threshold;"
            " expected the folder of a run, or from Python take syncpretrain.models.scores.scores"
        )


def is_weighted(run: Path) -> bool:
    """Return whether the rows of the run had weights."""
    settings = _settings(run)
    return settings is not None and settings.data.weights is not None


def data_files(run: Path | str | None) -> tuple[str | None, ...]:
    """Return the files that a run read; none of what is no run."""
    settings = _settings(run) if isinstance(run, Path) else None
    if settings is None:
        return ()
    return settings.data.name, settings.data.test, settings.data.unlabelled


def _settings(run: Path) -> Settings | None:
    config = _folder(run) / CONFIG_NAME
    return read_settings(config) if config.is_file() else None


def _folder(run: Path) -> Path:
    return run.parent if run.name == MODEL_NAME else run


def _asked(run: Path, data: str | None) -> tuple[str, Settings | None]:
    """Return the name of the data, and the run's settings if it was trained on them."""
    settings = _settings(run)
    if data is None:
        if settings is None:
            raise SettingsError(
                f"data: got nothing, and {run} names no data; expected a name or file"
            )
        data = settings.data.name
    is_own = settings is not None and located(data) == located(settings.data.name)
    return data, settings if is_own else None


def _stays_in_file(settings: Settings) -> bool:
    """Return whether the run left its examples in their file."""
    return settings.pretrain.handoff == "minibatch" and is_mapped_file(settings.data.name)


def _own_dataset(run: Path, settings: Settings, stack: Stack) -> Dataset:
    """Load the data that a run was trained on, and warn if they are others now."""
    mapped, known = _stays_in_file(settings), None
    if mapped:
        with suppress(CheckpointError):  # the file is then read again
            identity = read_identity(_folder(run) / IDENTITY_NAME)
            known = None if identity is None else identity.file
    how: dict[str, Any] = {"validation": settings.data.validation, "mapped": mapped, "known": known}
    dataset = _loaded(settings.data.name, stack, **table_options(settings), **how)
    _warn_of_other_data(run, stack, dataset)
    return dataset


def _loaded(name: str, stack: Stack, **how: Any) -> Dataset:
    dataset = load_dataset(name, **_read_by(stack), **how)
    _print_notices(dataset.notices)
    _check_width(name, dataset.width, stack.widths[0])
    return dataset


def _print_notices(notices: Sequence[str]) -> None:
    """Print notices, each once although a command may read a file twice."""
    context = click.get_current_context()
    said = context.meta.setdefault("notices", [])
    for notice in notices:
        if notice not in said:
            click.echo(as_options(notice, context), err=True)
            said.append(notice)


def _warn_of_other_data(run: Path, stack: Stack, dataset: Dataset) -> None:
    """Warn if the data under this name are not the data that the run was trained on."""
    before = record_in(stack.info)
    if before is not None and before.sha256 != dataset.sha256:
        click.echo(
            f"warning: {run} was trained on other data: {before}. {dataset.name} is now"
            f" {record_of(dataset)}, whose parts may hold examples of any part of the former",
            err=True,
        )


def _test_set(name: str, stack: Stack) -> Dataset:
    found = _rows(name, stack)
    _print_notices(found.notices)
    rows = np.arange(len(found.X))
    return from_rows(name, found, parts=(rows[:0], rows[:0], rows))


def _rows(name: str, stack: Stack) -> Rows:
    """Return all examples of a file, read by the columns that the stack was trained on."""
    if not (name and expanded(name).exists()):
        load_dataset(name)  # refuses the name, and lists the data sets
    rows = read_rows(name, Wanted(drop=None, **_read_by(stack)))
    _check_width(name, rows.X.shape[1], stack.widths[0])
    if (columns := columns_in(stack.info)) is not None:
        check_bernoulli(rows.X, stack.units[0], columns, name)
    return rows


def _read_by(stack: Stack) -> dict[str, Any]:
    """Return the options by which files are read as the stack's training data was."""
    return {
        "bounded": is_bounded(stack.units[0], stack.scaling),
        "encode": takes_categories(stack.units[0]),
        "columns": columns_in(stack.info),
        "images": stack.layers[0].shape.images,
        "meaning": stack.meaning,
    }


def _check_width(name: str, got: int, expected: int) -> None:
    if got != expected:
        raise DataError(f"data: {name} has {got} values an example, but the stack takes {expected}")
