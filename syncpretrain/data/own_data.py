"""A data set of a user's own files: training examples, others without labels, and a test part."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.dataset import UNLABELLED, Dataset
from syncpretrain.data.examples import scale_examples
from syncpretrain.data.readers import divided, read_rows
from syncpretrain.data.sparse_rows import SparseRows, joined
from syncpretrain.data.table_rows import Rows, Wanted
from syncpretrain.errors import DataError

__all__ = ["load_own", "share_of"]


def share_of(test: str | float | os.PathLike[str] | None) -> float | None:
    """Return the fraction that a test part is to be; None if it is a file, or there is none.

    Raises
    ------
    DataError
        If it is a number that is not above 0 and below 1.
    """
    try:
        share = None if test is None else float(test)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    if share is not None and not 0 < share < 1:
        raise DataError(
            f"test: got {test}, expected a fraction above 0 and below 1, or the path of a file"
        )
    return share


def load_own(
    path: str | os.PathLike[str],
    wanted: Wanted,
    *,
    validation: float | None = None,
    seed: int = 0,
    test: str | float | os.PathLike[str] | None = None,
    unlabelled: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Read files and divide their examples into train, validation and test.

    Parameters
    ----------
    path : str or path
    wanted : Wanted
        How the files are read.
    validation : float, optional
        The fraction held out; None takes a tenth.
    seed : int
        Which examples are held out.
    test : float, str or path, optional
        The fraction to test with, stratified where there are labels, or a file.
    unlabelled : str or path, optional
        More examples to train on, without labels.

    Raises
    ------
    DataError
        If a file cannot be read, or does not fit the others.
    """
    share = share_of(test)
    rows = read_rows(path, wanted)
    again = wanted._replace(columns=rows.columns, target=None, drop=())
    apart = None if test is None or share is not None else read_rows(os.fspath(test), again)  # type: ignore[arg-type]
    if rows.test is not None:
        if test is not None:
            raise DataError(
                f"test: got {test}, but {path} has a test part of its own, X_test; leave one out"
            )
        apart = rows.test
    if apart is not None:
        apart = _alike(apart, rows)
        _check_width("test", test or path, apart, rows, path)
    count = len(rows.X)
    if unlabelled is not None:
        rows = _joined(rows, _alike(read_rows(unlabelled, again), rows), path, unlabelled)
    data = divided(
        path,
        rows.X,
        rows.labels,
        validation=validation,
        test=share,
        seed=seed,
        notices=rows.notices,
        columns=rows.columns,
    )
    if unlabelled is not None:
        others = f"{len(rows.X) - count:,} without labels of {unlabelled}"
        data = replace(data, source=f"the {count:,} examples of {path}, {others}")
    if apart is None:
        return data
    labels = apart.labels
    if labels is None and data.train_labels is not None:
        labels = np.full(len(apart.X), _none(data.train_labels), dtype=data.train_labels.dtype)
    notices = tuple(dict.fromkeys((*data.notices, *apart.notices)))
    return replace(data, test=scale_examples(apart.X), test_labels=labels, notices=notices)


def _alike(other: Rows, rows: Rows) -> Rows:
    """Return rows whose bytes mean what those of others do: bits only if these are bits too."""
    if rows.X.dtype == np.uint8 and other.X.dtype.kind == "b":
        return other._replace(X=other.X.view(np.uint8))
    return other


def _joined(rows: Rows, others: Rows, path: Any, unlabelled: Any) -> Rows:
    """Return rows with others without labels behind them."""
    if rows.labels is None:
        raise DataError(
            f"unlabelled: got {unlabelled}, but {path} has no labels either; name its target, or"
            " give one file alone"
        )
    _check_width("unlabelled", unlabelled, others, rows, path)
    both: list[Any] = [scale_examples(rows.X), scale_examples(others.X)]
    if isinstance(both[0], SparseRows) != isinstance(both[1], SparseRows):
        forms = ["sparse" if isinstance(X, SparseRows) else "dense" for X in both]
        raise DataError(
            f"unlabelled: got {unlabelled}, which is {forms[1]}, but {path} is {forms[0]}; save"
            " both in one form"
        )
    X: Any = joined(both) if isinstance(both[0], SparseRows) else np.concatenate(both)
    none = np.full(len(others.X), _none(rows.labels), dtype=rows.labels.dtype)
    return rows._replace(X=X, labels=np.concatenate([rows.labels, none]))


def _none(labels: NDArray[Any]) -> float:
    """Return what stands for no label."""
    return math.nan if labels.dtype.kind == "f" else UNLABELLED


def _check_width(option: str, name: Any, other: Rows, rows: Rows, path: Any) -> None:
    got, expected = other.X.shape[1], rows.X.shape[1]
    if got != expected:
        raise DataError(
            f"{option}: {name} has {got} values an example, expected {expected}, as {path} has"
        )
