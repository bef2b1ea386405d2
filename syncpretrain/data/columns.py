"""Columns of a table: their kinds, found from their values, and rows as float32 and back.

A model and a run keep the columns that they were trained on, as JSON. Other files are read by the
names of these columns, and refused where they hold something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncpretrain.array_files import read_record
from syncpretrain.data.meaning import origin_of
from syncpretrain.data.table import FEW_VALUES, Table, Texts, Values, check_decimals, nearest
from syncpretrain.errors import DataError

BLOCKS = {"binary": "bernoulli", "number": "gaussian", "category": "softmax"}
MOST_VALUES = 10_000  # texts of a category


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """One column of a table.

    Attributes
    ----------
    name : str
    kind : str
        ``binary`` (0 and 1), ``number``, ``category``, or ``constant``: a text that is the same in
        every row, and is left out; another one is refused.
    values : tuple of str
        Texts of a category, in the order of their units.
    """

    name: str
    kind: Literal["binary", "number", "category", "constant"]
    values: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """The number of values that stand for this column in an example."""
        if self.kind == "constant":
            return 0
        return len(self.values) if self.kind == "category" else 1


class Target(msgspec.Struct, frozen=True, omit_defaults=True):
    """Column to predict: name, task, and the texts of the classes, if the classes are texts."""

    name: str
    task: Literal["classification", "regression"]
    classes: tuple[str, ...] | None = None


class Columns(msgspec.Struct, frozen=True, omit_defaults=True):
    """The columns that an example is made of.

    Attributes
    ----------
    features : tuple of Column
    named : bool
        True if other tables are read by the names of the columns; else they are read in order.
    target : Target or None
    dropped : tuple of str
        Names of columns that were left out.
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
        """For each value of an example the number of its column; constant columns do not count."""
        widths = [column.width for column in self.features if column.width]
        return np.repeat(np.arange(len(widths)), widths)

    @property
    def owner_names(self) -> list[str]:
        """The names of the columns that have values."""
        return [column.name for column in self.features if column.width]

    @property
    def has_categories(self) -> bool:
        """True if a column holds texts."""
        return any(column.values for column in self.features)

    def visible_units(self) -> str:
        """Return the kinds of units that suit the columns, as ``--visible-units`` takes them.

        Runs of columns become blocks, such as ``bernoulli:20,gaussian:5,softmax:3x7``; one kind
        alone has its plain name.
        """
        kinds = [(column.kind, column.width) for column in self.features if column.width]
        blocks = []
        for (kind, width), run in groupby(kinds):
            block = f"{BLOCKS[kind]}:{len(list(run))}"
            blocks.append(f"{block}x{width}" if kind == "category" else block)
        names = {block.partition(":")[0] for block in blocks}
        return names.pop() if len(blocks) == 1 and "softmax" not in names else ",".join(blocks)

    def encode(self, table: Table, *, exact: bool = False) -> NDArray[Any]:
        """Return the rows of a table as numbers of shape (n, width), by the names of its columns.

        A category becomes one value for each text, 1 for the text of the row; missing values are
        NaN. The rows are float32, or float64 where ``exact`` asks for it or float32 would lose the
        differences within a column.

        Raises
        ------
        DataError
            If there is no row, or a column is missing, is one too many, or holds a text that is
            not known.
        """
        columns = self._matched(table)
        if not len(table):
            raise DataError(f"{table.name}: got no rows, expected one example or more")
        numbers = [x for x in columns if not isinstance(x, Texts) and x.dtype.kind in "iuf"]
        exact = exact or any(origin_of(values[:, None]) for values in numbers)
        X = np.empty((len(table), self.width), dtype=np.float64 if exact else np.float32)
        for column, values, part in zip(self.features, columns, self._parts(X), strict=True):
            _fill(part, column, values, table.name)
        return X

    def decode(self, X: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the columns of encoded rows by name: numbers, and the likeliest of the texts."""
        found: dict[str, NDArray[Any]] = {}
        for column, part in zip(self.features, self._parts(X), strict=True):
            if column.kind == "category":
                found[column.name] = np.array(column.values)[part.argmax(axis=1)]
            elif column.kind == "constant":
                found[column.name] = np.full(len(X), column.values[0])
            else:
                found[column.name] = part[:, 0]
        return found

    def _parts(self, X: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the view of each column in encoded rows."""
        ends = accumulate(column.width for column in self.features)
        return [X[:, end - own.width : end] for own, end in zip(self.features, ends, strict=True)]

    def _matched(self, table: Table) -> list[Values]:
        """Return the values of a table's columns in the order of ``features``."""
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
            own, out = table.option(others[0]), table.by_drop(others[0]) or " of the table"
            raise DataError(
                f"{table.name}: has the column {others[0]!r}, which was not trained on; leave it"
                f" out{out}{f', or give target={own} to predict it' if table.is_file else ''}"
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


def columns_of(
    table: Table, *, encode: bool, target: Target | None = None, dropped: Sequence[str] = ()
) -> Columns:
    """Find the kinds of a table's columns from their values.

    Parameters
    ----------
    table : Table
        Columns of the examples, without the target.
    encode : bool
        True makes categories of texts; False refuses texts.
    target : Target, optional
    dropped : sequence of str

    Raises
    ------
    DataError
        If there is no column, one holds no value at all, or text that is no category.
    """
    if not table.names:
        raise DataError(f"{table.name}: has no column to train on; drop fewer")
    if not len(table):
        raise DataError(f"{table.name}: got no rows, expected one example or more")
    features, how = [], {"encode": encode, "has_target": target is not None}
    for name in table.names:
        values = table.column(name)
        if isinstance(values, Texts):
            features.append(_category(table, name, values, **how))
        else:
            _check_present(table, name, np.isnan(values) if values.dtype.kind == "f" else None)
            features.append(Column(name, "binary" if _is_binary(values) else "number"))
    if all(column.kind == "constant" for column in features):
        raise DataError(
            f"{table.name}: all columns are constant, with one text each; expected rows that"
            " differ, of which something can be learned"
        )
    return Columns(_settled(features, table), table.named, target, tuple(dropped))


def takes_categories(units: str) -> bool:
    """Return whether visible units include softmax groups, which columns of text need."""
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


def read_columns(path: Path) -> Columns | None:
    """Return the columns in a file; None where there is no such file.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    return read_record(path, Columns, DataError)


def _settled(features: list[Column], table: Table) -> tuple[Column, ...]:
    """Return columns; if one is a number, so is every column that is always 0 or always 1."""
    if not any(column.kind == "number" for column in features):
        return tuple(features)
    return tuple(
        Column(column.name, "number")
        if column.kind == "binary" and _is_constant(values)
        else column
        for column, values in zip(features, table.columns, strict=True)
    )


def _category(table: Table, name: str, values: Texts, *, encode: bool, has_target: bool) -> Column:
    _check_present(table, name, values.codes < 0)
    if name in table.mixed:
        number, text, slip = table.mixed[name]
        if slip:
            raise DataError(
                f"{table.name}: got {text[:40]!r} in {slip}; expected numbers, as in most lines of"
                f" column {name!r}"
            )
        raise DataError(
            f"{table.name}: column {name!r} holds numbers and text, such as {number[:40]!r} and"
            f" {text[:40]!r}; write values of one type, or drop the column"
        )
    check_decimals(table.name, name, values, f", or leave the column out{table.by_drop(name)}")
    if not encode:
        raise _text_refused(table, name, values, has_target=has_target)
    most = min(MOST_VALUES, max(FEW_VALUES, len(values) // 2))
    if len(values.values) > most and not values.is_alphabet:
        raise DataError(
            f"{table.name}: column {name!r} holds {len(values.values):,} different texts in"
            f" {len(values):,} rows, such as {values.values[0][:40]!r}, too many for a category;"
            f" leave it out{table.by_drop(name)}"
        )
    return Column(name, "category" if len(values.values) > 1 else "constant", values.values)


def _text_refused(table: Table, name: str, values: Texts, *, has_target: bool) -> DataError:
    """Return the refusal of a column of text; the last one is likely to be the class."""
    text = values.values[0][:40]
    if name == table.names[-1] and not has_target and table.is_file:
        own = table.option(name)
        return DataError(
            f"target: got none for {table.name}, whose last column, {name!r}, holds text such as"
            f" {text!r}; give target={own} if it is the class, or drop={own} to leave it out"
            + ("" if table.of_run else ", or take visible units auto to train on it")
        )
    if table.of_run:
        return DataError(
            f"{table.name}: column {name!r} holds text such as {text!r}, expected numbers, as the"
            f" run was trained on; leave it out{table.by_drop(name)}, or write numbers for its"
            " texts, the same as in the training data"
        )
    return DataError(
        f"visible_units: got units of numbers for {table.name}, whose column {name!r} holds text"
        f" such as {text!r}; take auto (load_dataset: encode=True), which makes a"
        f" category of it, or leave it out{table.by_drop(name)}"
    )


def _check_present(table: Table, name: str, missing: NDArray[np.bool_] | None) -> None:
    if missing is not None and missing.all():
        how = table.by_drop(name)
        raise DataError(f"{table.name}: column {name!r} has no value in any row; leave it out{how}")


def _is_constant(values: Any) -> bool:
    return len(np.unique(values[~np.isnan(values)])) == 1


def _is_binary(values: NDArray[Any]) -> bool:
    """Return whether all values are 0, 1 or missing."""
    is_truth = values.dtype.kind == "b"
    return is_truth or bool(((values == 0) | (values == 1) | np.isnan(values)).all())


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
    out[:] = codes[:, None] == np.arange(column.width)
    out[codes == -1] = np.nan


def _as_texts(values: NDArray[Any]) -> Texts:
    """Return numbers as the texts that a file would have, such as 3 and 2.5."""
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
    known, codes = np.unique(values, return_inverse=True)
    truths = values.dtype.kind == "b"
    texts = tuple(str(bool(x)) if truths else f"{float(x):.9g}" for x in known)
    return Texts(np.where(missing, -1, codes).astype(np.int32), texts)
