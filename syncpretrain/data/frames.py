"""Tables from data frames (by the interface that pandas and polars share) and Parquet files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.columns import Columns, columns_in, columns_of, takes_categories
from syncpretrain.data.examples import Floats, check_values
from syncpretrain.data.meaning import meaning_in
from syncpretrain.data.table import Mixed, Table, Values, check_distinct_names, is_null, texts_of
from syncpretrain.errors import DataError, needed
from syncpretrain.units.kinds import KINDS, kind_of

CATEGORICAL = ("categor", "enum", "dictionary")  # how the names of such types begin


def is_frame(X: Any) -> bool:
    """Return whether X is a data frame: it has columns, and a type for each.

    Raises
    ------
    DataError
        If X is the plan of a data frame.
    """
    if hasattr(X, "collect_schema") and hasattr(X, "collect"):
        raise DataError("X: got a LazyFrame, expected a DataFrame; pass X.collect()")
    return hasattr(X, "columns") and hasattr(X, "dtypes") and hasattr(X, "__getitem__")


def table_of(frame: Any, name: str = "X") -> Table:
    """Return the columns of a data frame as a table.

    Raises
    ------
    DataError
        If two columns have one name.
    """
    keys = list(frame.columns)
    names = tuple(map(str, keys))
    check_distinct_names(name, names)
    found = _Columns()
    for key, text in zip(keys, names, strict=True):
        series = frame[key]
        found.add(text, np.asarray(series), is_category=_is_category(series.dtype))
    return found.table(name, names, is_file=False)


def encoded(
    X: Any,
    units: str,
    name: str = "X",
    *,
    bounded: bool,
    known: Columns | None = None,
    exact: bool = False,
) -> tuple[NDArray[Any], Columns]:
    """Return the rows of a data frame as numbers, and its columns.

    Parameters
    ----------
    X : data frame
    units : str
        Visible units; categories are encoded if they have softmax groups.
    name : str
        Name of the data frame in errors.
    bounded : bool
        True refuses values outside [0, 1].
    known : Columns, optional
        Columns of an earlier data frame; the columns of this one are found by their names.
    exact : bool
        True makes float64 rows; see :meth:`Columns.encode`.

    Raises
    ------
    DataError
        If a column cannot be trained on; the message names it.
    """
    table = table_of(X, name)
    columns = known or columns_of(table, encode=takes_categories(units))
    rows = columns.encode(table, exact=exact)
    check_values(rows, name, bounded=bounded, names=columns.names, missing=True)
    return rows, columns


def array_of(X: Any, info: Mapping[str, Any], units: str, name: str = "X", *, bounded: bool) -> Any:
    """Return a data frame as the array that a model takes, and anything else as it is.

    ``info`` and ``units`` are the model's; its columns are found in the data frame by their names.

    Raises
    ------
    DataError
        If a column is missing, or holds a value that the model does not know.
    """
    if not is_frame(X):
        return X
    known = columns_in(info)
    known, meaning = known if known and known.features else None, meaning_in(info)
    # Whole bytes are divided, and origins subtracted, before the range is checked again.
    bounded = bounded and not (meaning is not None and meaning.values == "bytes")
    exact = meaning is not None and bool(meaning.origin)
    rows, columns = encoded(X, units, name, bounded=bounded, known=known, exact=exact)
    check_bernoulli(rows, units, columns, name)
    return rows


def check_bernoulli(rows: Floats, units: str, columns: Columns, name: str = "X") -> None:
    """Refuse values outside [0, 1] in blocks of binary units.

    Raises
    ------
    DataError
        Naming the column.
    """
    blocks = kind_of(units).blocks
    if blocks is None or blocks.width != columns.width:  # which is refused elsewhere
        return
    for part in blocks.parts:
        if part.kind in KINDS and kind_of(part.kind).is_unit_interval:
            names = columns.names[part.columns]
            check_values(rows[:, part.columns], name, names=names, missing=True)


def read_parquet(path: Path) -> Table:
    """Read a Parquet file as a table.

    Raises
    ------
    DataError
        If the package pyarrow is missing, or the file cannot be read.
    """
    text = "a Parquet file needs the package pyarrow, which is not installed; install it, or"
    parquet = needed("pyarrow.parquet", DataError(f"{path}: {text} save the table as .csv"))
    try:
        with parquet.ParquetFile(path) as file:
            names = list(file.schema_arrow.names)
            written = file.read() if len(set(names)) == len(names) else None
    except Exception as error:  # pyarrow raises many kinds over damaged files
        raise DataError(f"{path}: got no Parquet file that can be read ({error})") from error
    check_distinct_names(str(path), names)
    assert written is not None
    index = _index_of(written.schema)
    notices = tuple(f"{path}: left out {name!r}, the index of a data frame" for name in index)
    written, found = written.drop_columns(index), _Columns()
    for name, column in zip(written.column_names, written.columns, strict=True):
        is_category = _is_category(column.type)
        array = np.asarray(column.to_pylist() if is_category else column.to_numpy())
        found.add(name, array, is_category=is_category)
    return found.table(str(path), tuple(written.column_names), notices=notices)


def _index_of(schema: Any) -> list[str]:
    """Return the columns that pandas wrote for the index, which are no columns of the frame."""
    written = (schema.pandas_metadata or {}).get("index_columns", ())
    return [name for name in written if name in schema.names]


def _is_category(kind: Any) -> bool:
    return str(kind).lower().startswith(CATEGORICAL)


@dataclass
class _Columns:
    """Columns collected for a table: values, and by name the mixed and the refused ones."""

    values: list[Values] = field(default_factory=list)
    mixed: dict[str, Mixed] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, array: NDArray[Any], *, is_category: bool) -> None:
        """Add a column; a column of another type becomes NaN, and its type is noted."""
        if is_category:
            self.values.append(replace(texts_of(map(_text, array.tolist())), are_categories=True))
        elif array.dtype.kind in "biuf" and array.ndim == 1:
            self.values.append(array)
        elif array.dtype.kind in "OUT" and array.ndim == 1:
            self.values.append(self._of_cells(name, array.tolist()))
        else:
            self.values.append(self._refuse(name, str(array.dtype), len(array)))

    def table(self, name: str, names: tuple[str, ...], **more: Any) -> Table:
        """Return the columns as a table with a name; ``more`` are other fields of the table."""
        columns = tuple(self.values)
        return Table(name, names, columns, mixed=self.mixed, refused=self.refused, **more)

    def _refuse(self, name: str, kind: str, rows: int) -> Values:
        self.refused[name] = kind
        return np.full(rows, np.nan)

    def _of_cells(self, name: str, cells: list[Any]) -> Values:
        cells = [None if is_null(cell) else cell for cell in cells]
        kinds = {_kind(cell) for cell in cells if cell is not None}
        if None in kinds:
            other = next(cell for cell in cells if cell is not None and _kind(cell) is None)
            return self._refuse(name, type(other).__name__, len(cells))
        if not kinds:  # no value at all
            return np.full(len(cells), np.nan)
        if kinds == {"truth"} and None not in cells:
            return np.array(cells, dtype=bool)
        if kinds <= {"number", "truth"}:
            return np.array([np.nan if cell is None else cell for cell in cells], dtype=np.float64)
        if len(kinds) > 1:
            first = {_kind(cell): str(cell) for cell in reversed(cells) if cell is not None}
            self.mixed[name] = Mixed(first.get("number") or first["truth"], first["text"])
        return texts_of(map(_text, cells))


def _kind(cell: Any) -> str | None:
    if isinstance(cell, (bool, np.bool_)):
        return "truth"
    if isinstance(cell, (Real, Decimal)):
        return "number"
    return "text" if isinstance(cell, str) else None


def _text(cell: Any) -> str | None:
    """Return a cell as the text that a CSV file would have; None for a missing one."""
    if is_null(cell):
        return None
    if isinstance(cell, (str, bool)):
        return str(cell)
    return f"{float(cell):.9g}" if isinstance(cell, (Real, Decimal)) else str(cell)
