"""The kinds of a table's columns, found from what they hold; what no column can be is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.columns import Column, Columns, Target
from syncpretrain.data.table import FEW_VALUES, Table, Texts, check_decimals
from syncpretrain.errors import DataError

__all__ = ["columns_of"]

MOST_VALUES = 10_000  # of a category


def columns_of(
    table: Table,
    *,
    encode: bool,
    target: Target | None = None,
    dropped: Sequence[str] = (),
) -> Columns:
    """Return what the columns of a table hold.

    Parameters
    ----------
    table : Table
        Of the examples, without the target.
    encode : bool
        Whether texts may be categories; otherwise they are refused.
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


def _settled(features: list[Column], table: Table) -> tuple[Column, ...]:
    """Return columns among which one that is always 0, or always 1, is a number if others are."""
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
    if len(values.values) > most:
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
        return DataError(
            f"target: got none for {table.name}, whose last column, {name!r}, holds text such as"
            f" {text!r}; give target={name} if it is the class, drop={name} to leave it out, or"
            " visible units auto to train on it"
        )
    return DataError(
        f"visible_units: got units of numbers for {table.name}, whose column {name!r} holds text"
        f" such as {text!r}; take auto, which makes a category of it, or leave it"
        f" out{table.by_drop(name)}"
    )


def _check_present(table: Table, name: str, missing: NDArray[np.bool_] | None) -> None:
    if missing is not None and missing.all():
        raise DataError(
            f"{table.name}: column {name!r} has no value in any row; leave it"
            f" out{table.by_drop(name)}"
        )


def _is_constant(values: Any) -> bool:
    return len(np.unique(values[~np.isnan(values)])) == 1


def _is_binary(values: NDArray[Any]) -> bool:
    """Return whether there are 0 and 1 alone, and missing values."""
    if values.dtype.kind == "b":
        return True
    return bool(((values == 0) | (values == 1) | np.isnan(values)).all())
