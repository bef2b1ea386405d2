"""Targets of the predictors: classes as numbers, weights, and the rows that have a target."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_consistent_length,
    column_or_1d,
)

from syncpretrain.data.dataset import UNLABELLED
from syncpretrain.data.labels import doubts_about
from syncpretrain.errors import DataError, PoorResultWarning

LEAST_SQUARE = 1e-305  # smaller squares lose digits


class Classes(NamedTuple):
    """Sorted labels, the rows that have a label, and the place of each row's label among them."""

    labels: NDArray[Any]
    rows: NDArray[np.intp]
    places: NDArray[np.intp]


class Numbers(NamedTuple):
    """Numbers of shape (n_targets, outputs), the rows that have them, and dimensions of y."""

    rows: NDArray[np.intp]
    values: NDArray[np.float64]
    dimensions: int


def classes_of(y: Any, X: NDArray[Any]) -> Classes:
    """Return the classes of rows: -1, None and NaN stand for no label.

    If there is only one other number, -1 is a class, as in y of -1 and 1.

    Warns
    -----
    PoorResultWarning
        If labels may have another meaning.

    Raises
    ------
    DataError
        If there is no y, or only one class.
    ValueError
        If y has another length or holds no classes.
    """
    _check_given(y, "labels")
    values = _one_column(y)
    check_consistent_length(X, values)
    missing, ones = _missing(values), 0
    if values.dtype.kind in "ifO":
        unlabelled = np.zeros(len(values), dtype=bool)
        unlabelled[~missing] = values[~missing] == UNLABELLED  # NA of pandas cannot be compared
        others = set(values[~missing & ~unlabelled].tolist())
        if len(others) > 1 or any(isinstance(label, str) for label in others):
            missing |= unlabelled
            ones = int(unlabelled.sum())
    rows = np.flatnonzero(~missing)
    known = values[rows]
    if known.dtype == object:
        known = _of_one_type(known)
    if not len(known):
        raise DataError("y: got no label, expected one for some rows")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # many classes: doubts_about warns of them
        check_classification_targets(known)
    labels, places = np.unique(known, return_inverse=True)
    if len(labels) < 2:
        raise DataError(
            f"y: got 1 class, {labels.tolist()[0]!r}, expected two or more; label rows of another"
            " class"
        )
    for doubt in doubts_about(known, ones, "y"):
        warnings.warn(doubt, PoorResultWarning, stacklevel=3)
    return Classes(labels, rows, places)


def numbers_of_rows(y: Any, X: NDArray[Any]) -> Numbers:
    """Return the numbers to predict; y has shape (n_examples,) or (n_examples, outputs).

    Rows with a NaN have no target.

    Raises
    ------
    DataError
        If there is no y, or no row has a number.
    ValueError
        If y has another length or shape, or is infinite.
    """
    _check_given(y, "numbers")
    if np.asarray(y).dtype.kind in "mM":  # which would become nanoseconds
        raise DataError(f"y: got values of type {np.asarray(y).dtype}, expected numbers")
    values = check_array(
        y, ensure_2d=False, dtype=np.float64, ensure_all_finite="allow-nan", input_name="y"
    )
    check_consistent_length(X, values)
    dimensions, values = values.ndim, values.reshape(len(values), -1)
    rows = np.flatnonzero(~np.isnan(values).any(axis=1))
    if not len(rows):
        raise DataError("y: got NaN in every row, expected a number for some")
    return Numbers(rows, values[rows], dimensions)


def weights_of(
    sample_weight: Any, X: NDArray[Any], rows: NDArray[np.intp]
) -> NDArray[np.float64] | None:
    """Return the weights of some rows, at most 1, or None without weights.

    Raises
    ------
    ValueError
        If there is not one number of at least 0 for each row, or all are 0.
    """
    if sample_weight is None:
        return None
    weights: NDArray[np.float64] = _check_sample_weight(
        sample_weight, X, dtype=np.float64, ensure_non_negative=True
    )
    return relative(weights[rows], "sample_weight")


def relative(weights: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """Return weights divided by a power of two, so that the largest is at most 1.

    Sums and products of the weights stay finite, and ratios stay the same to the last bit.

    Raises
    ------
    DataError
        If a weight is negative or not finite, or all are 0.
    """
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise DataError(f"{name}: got one that is negative or not finite, expected 0 or more")
    largest = weights.max()
    if not largest:
        raise DataError(
            f"{name}: got 0 for every row with a target, expected some above 0; leave it out to"
            " count all rows alike"
        )
    scaled: NDArray[np.float64] = np.ldexp(weights, -np.frexp(largest)[1])
    return scaled


def mean_and_spread(
    values: NDArray[np.float64], weights: NDArray[np.float64] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean and the standard deviation of each column; 1 in place of a deviation of 0.

    Raises
    ------
    DataError
        If squares of the numbers are infinite, or too small though the numbers differ.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.average(values, axis=0, weights=weights)
        squares = np.square(values - mean)
        spread = np.sqrt(np.average(squares, axis=0, weights=weights))
    if not np.isfinite(spread).all():
        raise DataError(
            f"y: got numbers up to {np.abs(values).max():g}, expected ones whose squares are"
            " finite; divide by a larger unit"
        )
    counted = slice(None) if weights is None else weights > 0
    low, high = values[counted].min(axis=0), values[counted].max(axis=0)
    lost = (low < high) & (squares[counted].max(axis=0) < LEAST_SQUARE)
    if lost.any():
        raise DataError(
            f"y: got numbers that differ by {(high - low)[lost].max():g} at most, expected ones"
            f" with differences above {np.sqrt(LEAST_SQUARE):.0e}; divide by a smaller unit"
        )
    return mean, np.where(spread > 0, spread, 1.0)


def _check_given(y: Any, expected: str) -> None:
    if y is None:
        raise DataError(
            f"y: got None, expected {expected}; this estimator requires y to be passed, but the"
            " target y is None"
        )


def _one_column(y: Any) -> NDArray[Any]:
    """Return labels as an array of one dimension; labels of a table's column keep their type."""
    if str(getattr(y, "dtype", "")) == "boolean":  # pandas' type would become 1.0, 0.0 and NaN
        y = np.asarray(y, dtype=object)
    has_others = isinstance(y, (list, tuple)) and not all(isinstance(label, str) for label in y)
    if has_others and np.asarray(y).dtype.kind == "U":  # NumPy would make texts of numbers, too
        y = np.asarray(y, dtype=object)
    values = np.asarray(column_or_1d(y, warn=True))
    if values.dtype.kind not in "biufUSO":  # dates, complex numbers
        raise DataError(f"y: got values of type {values.dtype}, expected labels")
    if values.dtype.kind == "f" and np.isinf(values).any():
        raise DataError("y: holds infinite values, expected labels")
    return values


def _missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where there is None or NaN; only NaN differs from itself."""
    if values.dtype.kind == "f":
        nan: NDArray[np.bool_] = np.isnan(values)
        return nan
    if values.dtype != object:
        return np.zeros(len(values), dtype=bool)
    flags = [v is None or type(v).__name__ == "NAType" or v != v for v in values]
    return np.array(flags, dtype=bool)


def _of_one_type(values: NDArray[Any]) -> NDArray[Any]:
    """Return labels of one type of Python as an array of this type.

    Raises
    ------
    DataError
        If there are several types, such as texts and numbers.
    """
    cells = values.tolist()
    kinds = sorted({"str" if isinstance(x, str) else type(x).__name__ for x in cells})
    if "str" in kinds and len(kinds) > 1:
        raise DataError(
            f"y: got labels of types {', '.join(kinds)}, expected one type; write all as"
            " numbers, or all as text"
        )
    return values if "str" in kinds else np.array(cells)
