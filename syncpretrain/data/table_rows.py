"""Rows of examples and their labels out of a table: the target, what is left out, the encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from syncpretrain.data.column_kinds import columns_of
from syncpretrain.data.columns import Columns, Target
from syncpretrain.data.labels import (
    label_notices,
    labels_in,
    single_numbers,
    target_of,
    whole_labels,
)
from syncpretrain.data.meaning import Meaning
from syncpretrain.data.table import Table, texts_of
from syncpretrain.errors import DataError
from syncpretrain.shapes import ImageShape

__all__ = ["Rows", "Wanted", "array_labels", "rows_of_table"]

LIKE_A_TARGET = ("class", "label", "labels", "target")  # names of a last column


class Wanted(NamedTuple):
    """How a file of examples is to be read.

    ``target`` and ``drop`` name columns, or number them from 1. ``task`` is None where the labels
    decide it. ``encode`` permits categories, ``bounded`` refuses values outside [0, 1].
    ``columns`` are those of an earlier run, by whose names the file is read. ``images`` is what the
    layers read, if it is images. ``meaning`` is that of the numbers of an earlier file, if there
    is one.
    """

    bounded: bool = True
    target: str | None = None
    drop: tuple[str, ...] = ()
    task: str | None = None
    encode: bool = False
    columns: Columns | None = None
    images: ImageShape | None = None
    meaning: Meaning | None = None

    @property
    def known_names(self) -> list[str] | None:
        """The names of the columns of an earlier run, none if they had none; None without a run."""
        if self.columns is None or not self.columns.features:
            return None
        return [x.name for x in self.columns.features] if self.columns.named else []


class Rows(NamedTuple):
    """The examples of a file, as it has them; their labels, and a test part, if there are any.

    ``meaning`` is that of its numbers, or of the earlier file by which they were prepared.
    """

    X: NDArray[Any]
    labels: NDArray[Any] | None = None
    notices: tuple[str, ...] = ()
    columns: Columns | None = None
    test: Rows | None = None
    meaning: Meaning | None = None


def rows_of_table(table: Table, wanted: Wanted) -> Rows:
    """Return the encoded rows of a table, with the labels of its target.

    Raises
    ------
    DataError
        If a column is not there, or does not hold what it should.
    """
    known = wanted.columns if wanted.columns and wanted.columns.features else None
    dropped = [table.find(name, "drop") for name in wanted.drop]
    name = None if wanted.target is None else table.find(wanted.target, "target")
    if name in dropped:
        raise DataError(f"drop: got {name!r}, the target; name a column once")
    if known is not None and name in [column.name for column in known.features]:
        raise DataError(
            f"target: got {name!r}, which is an input of the run; expected a column that it was not"
            " trained on"
        )
    target = None if name is None else target_of(table, name, wanted.task)
    if known is None:
        rest = table.without([*dropped, *([name] if name else [])])
        if name is None:
            _check_last(rest)
        columns = columns_of(rest, encode=wanted.encode, target=target, dropped=dropped)
        X = columns.encode(rest)
    else:
        exact = wanted.meaning is not None and bool(wanted.meaning.origin)
        X = known.encode(table.without(dropped), exact=exact)
        target = target or known.target
        columns = Columns(known.features, known.named, target, known.dropped)
    by_place = known is not None and not (known.named and table.named)
    without = by_place and len(table.names) == len(columns.features)
    labels, told = (None, ()) if without else _labels(table, target)
    as_array = not table.named and not columns.has_categories and target is None and not dropped
    notices = (*table.notices, *told)
    return Rows(X, labels, notices, None if as_array and known is None else columns)


def array_labels(
    labels: NDArray[Any] | None, n: int, name: str, wanted: Wanted, *, target: str = "y"
) -> tuple[NDArray[Any] | None, Columns | None, tuple[str, ...]]:
    """Return the labels beside n examples, the columns that name their classes, and notices.

    ``target`` is what new texts of classes are called.

    Raises
    ------
    DataError
        If there is not one for each example, or they do not suit the task.
    """
    known = wanted.columns
    if labels is None:
        return None, known, ()
    if labels.size != n or max(labels.shape, default=0) != n:
        raise DataError(
            f"{name}: got labels of shape {labels.shape} for {n} examples, expected one an example"
        )
    labels = labels.reshape(n)
    if labels.dtype.kind == "U":
        texts = texts_of(text or None for text in labels.tolist())
        table = Table(name, (target,), (texts,))
        aim = known.target if known is not None else None
        aim = aim or target_of(table, target, wanted.task)
        columns = known or Columns((), False, aim)
        found: NDArray[Any] = labels_in(texts, aim, name)
        return found, columns, label_notices(found, texts, f"{name}: labels")
    is_regression = wanted.task == "regression"
    found = single_numbers(labels, name) if is_regression else whole_labels(labels, name)
    return found, known, label_notices(found, labels, f"{name}: labels")


def _labels(table: Table, target: Target | None) -> tuple[NDArray[Any] | None, tuple[str, ...]]:
    """Return the labels of a table, if it has any, and notices about them."""
    if target is None or target.name not in table.names:
        return None, ()
    values = table.column(target.name)
    labels = labels_in(values, target, table.name)
    return labels, label_notices(labels, values, f"{table.name}: column {target.name!r}")


def _check_last(table: Table) -> None:
    """Refuse to train on what is likely to be the class."""
    names: Sequence[str] = table.names
    if table.named and len(names) > 1 and names[-1].lower() in LIKE_A_TARGET:
        raise DataError(
            f"target: got none for {table.name}, whose last column is named {names[-1]!r}; give"
            f" target={names[-1]} to predict it, or drop={names[-1]} to leave it out (under another"
            " name it is trained on)"
        )
