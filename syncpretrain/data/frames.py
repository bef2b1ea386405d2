"""Data frames of pandas and polars, by what they have in common, and Parquet files, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.column_kinds import columns_of
from syncpretrain.data.columns import Columns, columns_in, takes_categories
from syncpretrain.data.examples import check_values
from syncpretrain.data.table import Mixed, Table, Values, texts_of
from syncpretrain.errors import DataError

__all__ = ["array_of", "encoded", "is_frame", "read_parquet", "table_of"]

CATEGORICAL = ("categor", "enum", "dictionary")  # how the names of such types begin


def is_frame(X: Any) -> bool:
    """Return whether X is a data frame: it has columns, and types of these."""
    return hasattr(X, "columns") and hasattr(X, "dtypes") and hasattr(X, "__getitem__")


def table_of(frame: Any, name: str = "X") -> Table:
    """Return the columns of a data frame as a table.

    Raises
    ------
    DataError
        If two columns have one name, or one holds neither numbers, truth values nor texts.
    """
    keys = list(frame.columns)
    names = tuple(map(str, keys))
    twice = [key for key in names if names.count(key) > 1]
    if twice:
        raise DataError(f"{name}: got two columns of the name {twice[0]!r}; rename one")
    mixed: dict[str, Mixed] = {}
    columns = []
    for key, text in zip(keys, names, strict=True):
        series = frame[key]
        categorical = str(series.dtype).lower().startswith(CATEGORICAL)
        columns.append(_values(np.asarray(series), name, text, mixed, categorical=categorical))
    return Table(name, names, tuple(columns), True, mixed)


def encoded(
    X: Any, units: str, name: str = "X", *, bounded: bool, known: Columns | None = None
) -> tuple[NDArray[np.float32], Columns]:
    """Return the rows of a data frame as float32, and what its columns hold.

    Parameters
    ----------
    X : data frame
    units : str
        The visible units; categories are encoded for those that have softmax groups.
    name : str
        What errors call it.
    bounded : bool
        Whether values outside [0, 1] are refused.
    known : Columns, optional
        Those of an earlier data frame, by whose names the columns are found.

    Raises
    ------
    DataError
        Naming the column that cannot be trained on.
    """
    table = table_of(X, name)
    columns = known or columns_of(table, encode=takes_categories(units))
    rows = columns.encode(table)
    if not len(rows):
        raise DataError(f"{name}: got no rows, expected one example or more")
    check_values(rows, name, bounded=bounded, names=columns.names, missing=True)
    return rows, columns


def array_of(X: Any, info: Mapping[str, Any], units: str, name: str = "X", *, bounded: bool) -> Any:
    """Return a data frame as the array that a model takes, and anything else as it is.

    ``info`` and ``units`` are those of the model, whose columns are found by their names.

    Raises
    ------
    DataError
        Naming a column that is missing, or holds what the model does not know.
    """
    if not is_frame(X):
        return X
    known = columns_in(info)
    known = known if known and known.features else None
    return encoded(X, units, name, bounded=bounded, known=known)[0]


def read_parquet(path: Path) -> Table:
    """Read a Parquet file as a table.

    Raises
    ------
    DataError
        If the package pyarrow is missing, or the file cannot be read.
    """
    try:
        from pyarrow import parquet
    except ImportError:
        raise DataError(
            f"{path}: a Parquet file needs the package pyarrow, which is not installed; install it,"
            " or save the table as .csv"
        ) from None
    try:
        found = parquet.read_table(path)
    except Exception as error:  # pyarrow raises many kinds over damaged files
        raise DataError(f"{path}: got no Parquet file that can be read ({error})") from error
    mixed: dict[str, Mixed] = {}
    columns = []
    for name, column in zip(found.column_names, found.columns, strict=True):
        categorical = str(column.type).lower().startswith(CATEGORICAL)
        array = np.asarray(column.to_pylist() if categorical else column.to_numpy())
        columns.append(_values(array, str(path), name, mixed, categorical=categorical))
    return Table(str(path), tuple(found.column_names), tuple(columns), True, mixed)


def _values(
    array: NDArray[Any],
    name: str,
    column: str,
    mixed: dict[str, Mixed],
    *,
    categorical: bool,
) -> Values:
    """Return a column as numbers, truth values or texts; ``mixed`` notes what is of two types."""
    if categorical:
        return texts_of(map(_text, array.tolist()))
    if array.dtype.kind in "biuf" and array.ndim == 1:
        return array
    if array.dtype.kind not in "OUT" or array.ndim != 1:
        raise DataError(
            f"{name}: column {column!r} holds values of type {array.dtype}, expected numbers, truth"
            f" values or text; leave it out with drop={column}"
        )
    cells = [None if _is_missing(cell) else cell for cell in array.tolist()]
    kinds = {_kind(cell) for cell in cells if cell is not None}
    if None in kinds:
        other = next(cell for cell in cells if cell is not None and _kind(cell) is None)
        raise DataError(
            f"{name}: column {column!r} holds values of type {type(other).__name__}, expected"
            f" numbers, truth values or text; leave it out with drop={column}"
        )
    if kinds == {"truth"} and None not in cells:
        return np.array(cells, dtype=bool)
    if kinds <= {"number", "truth"} and kinds != set():
        return np.array([np.nan if cell is None else cell for cell in cells], dtype=np.float64)
    if len(kinds) > 1:
        first = {_kind(cell): str(cell) for cell in reversed(cells) if cell is not None}
        mixed[column] = Mixed(first.get("number") or first["truth"], first["text"])
    return texts_of(map(_text, cells))


def _kind(cell: Any) -> str | None:
    if isinstance(cell, (bool, np.bool_)):
        return "truth"
    if isinstance(cell, Real):
        return "number"
    return "text" if isinstance(cell, str) else None


def _is_missing(cell: Any) -> bool:
    """Return whether a cell is None, NaN, or the missing value of pandas."""
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(cell, float) and cell != cell


def _text(cell: Any) -> str | None:
    """Return a cell as the text that a CSV file would have; None for a missing one."""
    if _is_missing(cell):
        return None
    if isinstance(cell, (str, bool)):
        return str(cell)
    return f"{float(cell):.9g}" if isinstance(cell, Real) else str(cell)
