"""The columns of a table: what each of them holds, and its rows as float32 and back.

They are kept with the model that was trained on them, as JSON, so that other files are read by the
names of their columns and refused where they hold something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.meaning import origin_of
from syncpretrain.data.table import FEW_VALUES, Table, Texts, Values, nearest
from syncpretrain.errors import DataError

__all__ = ["Column", "Columns", "Target", "columns_in", "takes_categories"]

BLOCKS = {"binary": "bernoulli", "number": "gaussian", "category": "softmax"}


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """One column of a table.

    Attributes
    ----------
    name : str
    kind : str
        ``binary`` (0 and 1), ``number``, ``category``, or ``constant``: a text that is the same in
        every row, and is left out; another one is refused.
    values : tuple of str
        Of a category, in the order of their units.
    """

    name: str
    kind: Literal["binary", "number", "category", "constant"]
    values: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """The number of values of an example that stand for it."""
        if self.kind == "constant":
            return 0
        return len(self.values) if self.kind == "category" else 1


class Target(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is predicted: its name, and the texts that the numbers of classes stand for, if any."""

    name: str
    task: Literal["classification", "regression"]
    classes: tuple[str, ...] | None = None


class Columns(msgspec.Struct, frozen=True, omit_defaults=True):
    """The columns that an example is made of.

    Attributes
    ----------
    features : tuple of Column
    named : bool
        Whether they have names of their own, by which those of other tables are found.
    target : Target or None
    dropped : tuple of str
        Columns that were left out.
    """

    features: tuple[Column, ...]
    named: bool = True
    target: Target | None = None
    dropped: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """The number of values of an example."""
        return sum(column.width for column in self.features)

    @property
    def names(self) -> list[str]:
        """The name of each value of an example, such as ``color=red`` of a category."""
        return [
            f"{column.name}={value}" if value else column.name
            for column in self.features
            for value in (column.values if column.kind == "category" else ("",) * column.width)
        ]

    @property
    def owners(self) -> NDArray[np.intp]:
        """For each value of an example the number of its column among those that have any."""
        widths = [column.width for column in self.features if column.width]
        return np.repeat(np.arange(len(widths)), widths)

    @property
    def owner_names(self) -> list[str]:
        """The names of the columns that have values."""
        return [column.name for column in self.features if column.width]

    @property
    def has_categories(self) -> bool:
        """Whether a column is of texts."""
        return any(column.values for column in self.features)

    def visible_units(self) -> str:
        """Return the kinds of units that suit the columns, as ``--visible-units`` takes them.

        Runs of columns become blocks, such as ``bernoulli:20,gaussian:5,softmax:3x7``; one kind
        alone has its plain name.
        """
        kinds = [(column.kind, column.width) for column in self.features if column.width]
        blocks = []
        for (kind, width), run in groupby(kinds):
            size = len(list(run))
            name = BLOCKS[kind]
            blocks.append(f"{name}:{size}x{width}" if kind == "category" else f"{name}:{size}")
        names = {block.partition(":")[0] for block in blocks}
        return names.pop() if len(blocks) == 1 and "softmax" not in names else ",".join(blocks)

    def encode(self, table: Table, *, exact: bool = False) -> NDArray[Any]:
        """Return the rows of a table as numbers of shape (n, width), by the names of its columns.

        A category is one value for each text, 1 for the row's own; missing values are NaN. The
        rows are float32, or float64 where ``exact`` asks for it or float32 would lose the
        differences within a column.

        Raises
        ------
        DataError
            If a column is missing, is one too many, or holds a text that is not known.
        """
        columns = self._matched(table)
        numbers = [x for x in columns if not isinstance(x, Texts) and x.dtype.kind in "iuf"]
        exact = exact or any(origin_of(values[:, None]) for values in numbers)
        X = np.empty((len(table), self.width), dtype=np.float64 if exact else np.float32)
        start = 0
        for column, values in zip(self.features, columns, strict=True):
            _fill(X[:, start : start + column.width], column, values, table.name)
            start += column.width
        return X

    def decode(self, X: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the columns of encoded rows by name: numbers, and the likeliest of the texts."""
        found: dict[str, NDArray[Any]] = {}
        start = 0
        for column in self.features:
            part = X[:, start : start + column.width]
            if column.kind == "category":
                found[column.name] = np.array(column.values)[part.argmax(axis=1)]
            elif column.kind == "constant":
                found[column.name] = np.full(len(X), column.values[0])
            else:
                found[column.name] = part[:, 0]
            start += column.width
        return found

    def _matched(self, table: Table) -> list[Values]:
        """Return the columns of a table in the order of these."""
        wanted = [column.name for column in self.features]
        if not (self.named and table.named):
            return self._matched_by_place(table, wanted)
        missing = [name for name in wanted if name not in table.names]
        if missing:
            raise DataError(
                f"{table.name}: lacks the column {missing[0]!r} that was trained on;"
                f" {nearest(missing[0], table.names)}"
            )
        known = {*wanted, *self.dropped, *([self.target.name] if self.target else [])}
        others = [name for name in table.names if name not in known]
        if others:
            raise DataError(
                f"{table.name}: has the column {others[0]!r}, which was not trained on; leave it"
                " out of the file"
            )
        return [table.column(name) for name in wanted]

    def _matched_by_place(self, table: Table, wanted: list[str]) -> list[Values]:
        if len(table.names) == len(wanted):
            return [table.column(name) for name in table.names]
        others = len(self.dropped) + (self.target is not None)
        if not self.named and len(table.names) == len(wanted) + others:
            return [table.column(table.names[int(name) - 1]) for name in wanted]
        raise DataError(
            f"{table.name}: has {len(table.names)} columns, expected the {len(wanted)} that were"
            " trained on"
        )


def takes_categories(units: str) -> bool:
    """Return whether visible units are such that columns of text can be encoded for them."""
    return BLOCKS["category"] in units


def columns_in(info: Mapping[str, Any]) -> Columns | None:
    """Return the columns in the ``info`` of a model; None if it has none.

    Raises
    ------
    DataError
        If they are damaged.
    """
    try:
        return msgspec.convert(info.get("columns"), Columns | None)
    except msgspec.ValidationError as error:
        raise DataError(f"columns: those kept with the model are damaged: {error}") from error


def _fill(out: NDArray[Any], column: Column, values: Values, name: str) -> None:
    """Write the values of a column; ``out`` has shape (n, its width)."""
    if column.kind not in ("category", "constant"):
        if isinstance(values, Texts) and (values.codes < 0).all():
            out[:] = np.nan
            return
        if isinstance(values, Texts):
            known = [text for code, text in enumerate(values.values) if code in values.codes]
            raise DataError(
                f"{name}: column {column.name!r} holds text such as {known[0][:40]!r}, expected"
                " numbers, as it was trained on"
            )
        with np.errstate(over="ignore"):  # what overflows is found by the checks of values
            out[:, 0] = values
        return
    texts = values if isinstance(values, Texts) else _as_texts(values)
    places = {text: place for place, text in enumerate(column.values)}
    codes = np.array([places.get(text, -2) for text in texts.values] + [-1])[texts.codes]
    if (codes == -2).any():
        row = int(np.argmax(codes == -2))
        shown = ", ".join(column.values[:FEW_VALUES])
        more = ", ..." if len(column.values) > FEW_VALUES else ""
        raise DataError(
            f"{name}: column {column.name!r} holds {texts.values[texts.codes[row]]!r} at row {row}"
            f" (counted from 0), a category that was not trained on; expected {shown}{more}"
        )
    if column.kind == "constant":
        return
    out[:] = codes[:, None] == np.arange(column.width)
    out[codes == -1] = np.nan


def _as_texts(values: NDArray[Any]) -> Texts:
    """Return numbers as the texts that a file would have, such as 3 and 2.5."""
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
    known, codes = np.unique(values, return_inverse=True)
    truths = values.dtype.kind == "b"
    texts = tuple(str(bool(x)) if truths else f"{float(x):.9g}" for x in known)
    return Texts(np.where(missing, -1, codes).astype(np.int32), texts)
