"""Examples as scikit-learn's estimators take them; errors name the column of a data frame."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from syncpretrain.data.frames import is_frame
from syncpretrain.data.table import check_names
from syncpretrain.errors import DataError

__all__ = ["rows_for"]

BY_ENCODING = "encode it as numbers before, such as with OneHotEncoder, or drop the column"
FROM_DATES = "take numbers made of it before, such as years or days, or drop the column"


def rows_for(estimator: Any, X: Any, *, reset: bool) -> Any:
    """Return examples as an array, in which NaN is missing, or as a matrix in CSR format.

    Parameters
    ----------
    estimator : BaseEstimator
        Its number and names of columns are kept with ``reset``, and else compared.
    X : {array-like, sparse matrix, DataFrame} of shape (n_examples, n_features)
    reset : bool

    Raises
    ------
    DataError
        If a column of a data frame holds no numbers, or no value at all, or has the name of
        another, naming it; if an array holds dates; or if a sparse matrix holds NaN.
    ValueError
        If X is of another shape or type.
    """
    is_named = is_frame(X)
    if is_named:
        check_names("X", [str(name) for name in X.columns])
        _check_no_times(X)
    elif isinstance(X, np.ndarray) and X.dtype.kind in "mM":
        raise DataError(f"X: got values of type {X.dtype}, expected numbers; {FROM_DATES}")
    try:
        rows = validate_data(
            estimator,
            X,
            reset=reset,
            accept_sparse="csr",
            dtype=(np.float64, np.float32),
            ensure_all_finite="allow-nan",
        )
    except (TypeError, ValueError) as error:
        if is_named:
            _check_cells(X, error)
        raise
    if hasattr(rows, "toarray"):
        _check_sparse(rows)
        return rows
    array = np.asarray(rows)
    if is_named and reset:
        _check_present(array, X)
    return array


def _check_no_times(frame: Any) -> None:
    """Refuse dates, which alone would become nanoseconds."""
    for name in frame.columns:
        kind = str(frame[name].dtype)
        if kind.lower().startswith(("date", "time", "duration", "period")):
            raise DataError(f"X: column {str(name)!r} holds {kind}, expected numbers; {FROM_DATES}")


def _check_cells(frame: Any, cause: Exception) -> None:
    """Refuse the first cell that is no finite number, which was the ``cause`` of another error."""
    for name in frame.columns:
        for row, cell in enumerate(np.asarray(frame[name]).tolist()):
            found, expected = _of_cell(cell)
            if expected is not None:
                raise DataError(
                    f"X: column {str(name)!r} holds {found} at row {row} (counted from 0), expected"
                    f" {expected}"
                ) from cause


def _of_cell(cell: Any) -> tuple[str, str | None]:
    """Return a cell in words, and what was expected instead; None if it is a number or missing."""
    if cell is None or type(cell).__name__ == "NAType":
        return "nothing", None
    try:
        return "infinity", "finite numbers; drop such rows" if np.isinf(float(cell)) else None
    except (TypeError, ValueError):
        return repr(cell)[:40], f"numbers; {BY_ENCODING}"


def _check_present(rows: NDArray[Any], frame: Any) -> None:
    empty = np.isnan(rows).all(axis=0)
    if empty.any():
        name = str(list(frame.columns)[int(empty.argmax())])
        raise DataError(
            f"X: got NaN in every row of column {name!r}, expected a number in one at least; drop"
            " the column"
        )


def _check_sparse(rows: Any) -> None:
    missing = np.isnan(rows.data)
    if missing.any():
        cells, first = rows.tocoo(), missing.argmax()
        row, column = cells.row[first], cells.col[first]
        raise DataError(
            f"X: got NaN at row {row}, column {column} (counted from 0) of a sparse matrix,"
            " expected numbers; fill it in, or pass X.toarray(), in which NaN is a missing value"
        )
