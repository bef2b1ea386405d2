"""The columns of what is passed to ``pretrain``: data frames, and visible units by column."""

from __future__ import annotations

from typing import Any, NamedTuple

from syncpretrain.data.array_columns import units_of_array
from syncpretrain.data.columns import Columns
from syncpretrain.data.examples import as_examples, check_values
from syncpretrain.data.frames import check_bernoulli, encoded, is_frame
from syncpretrain.data.minibatches import is_iterable_of_arrays
from syncpretrain.errors import SettingsError
from syncpretrain.units.blocks import visible_kind

__all__ = ["Taken", "rows_by_columns"]

AUTO_UNITS = "auto"


class Taken(NamedTuple):
    """Examples and validation examples to train on, their visible units, and their columns."""

    X: Any
    validation: Any
    units: str | None
    columns: Columns | None = None


def rows_by_columns(X: Any, validation: Any, units: str | None) -> Taken:
    """Return data frames as arrays, and for the units ``auto`` those that suit the columns.

    Raises
    ------
    DataError
        Naming the column that cannot be trained on.
    SettingsError
        For the units ``auto`` with an iterable.
    """
    if not is_frame(X):
        if units == AUTO_UNITS and is_iterable_of_arrays(X):
            raise SettingsError(
                "visible_units: got auto with an iterable, whose columns are not known beforehand,"
                " expected bernoulli or gaussian, or kinds by columns, such as gaussian:5,softmax:3"
            )
        if units == AUTO_UNITS:
            units = units_of_array(as_examples(X, "X"))
        return Taken(X, validation, units)
    rows, columns = encoded(X, "softmax" if units == AUTO_UNITS else units or "", bounded=False)
    if units == AUTO_UNITS:
        units = units_of_array(rows, columns)
    # Without units they follow from the values; others are refused with the settings.
    kind = None if units is None else visible_kind(units)
    bounded = kind is not None and kind.is_unit_interval
    check_values(rows, "X", bounded=bounded, names=columns.names, missing=True)
    if kind is not None:
        check_bernoulli(rows, str(units), columns)
    if is_frame(validation):
        validation, _ = encoded(validation, "", "validation", bounded=bounded, known=columns)
    return Taken(rows, validation, units, columns)
