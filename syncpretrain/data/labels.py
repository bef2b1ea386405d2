"""Labels: classes as whole numbers, with the texts that they stand for, or numbers to predict."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.columns import Columns, Target
from syncpretrain.data.dataset import UNLABELLED, Rows, is_labelled
from syncpretrain.data.table import Table, Texts, Values, check_decimals, is_null, texts_of
from syncpretrain.errors import DataError

Classes = tuple[int, ...] | tuple[str, ...]
# Different whole numbers of a float type up to which they are classes: files and frames often turn
# class numbers into floats. More of them are rather counts or prices, to be predicted as numbers.
MOST_WHOLE = 50
LARGEST_CLASS = 2**53  # above it floats are no longer all whole numbers
MOST_ROUNDING = 0.01  # largest rounding error, in standard deviations of the numbers
AS_FREQUENT = 2  # -1 in at most this many times the rows of the largest class may be a class
FEW_ROWS = 20  # so few rows may all have different classes


def target_of(table: Table, name: str, task: str | None) -> Target:
    """Return a column as the target of a task; without one, of the task that suits its values.

    Texts, truth values and whole numbers are classes unless ``task`` is regression.

    Raises
    ------
    DataError
        If the column does not suit the task, holds classes of two types, or no value.
    """
    values = table.column(name)
    if name in table.mixed:
        number, text, _ = table.mixed[name]
        raise DataError(
            f"target: got column {name!r} of {table.name}, whose classes are of two types, such as"
            f" the number {number[:40]} and the text {text[:40]!r}; write all as numbers, or all as"
            " text"
        )
    if isinstance(values, Texts):
        check_decimals(table.name, name, values)
    if isinstance(values, Texts) or values.dtype.kind == "b":
        if task == "regression":
            raise DataError(
                f"task: got regression, but column {name!r} of {table.name} holds text; take"
                " classification"
            )
        classes = values.values if isinstance(values, Texts) else ("False", "True")
        if not classes:
            raise _no_label(table.name, name)
        return Target(name, "classification", classes)
    present = values if values.dtype.kind in "iu" else values[~np.isnan(values)]
    if not len(present):
        raise _no_label(table.name, name)
    if task is None:
        task = "regression" if np.mod(present, 1).any() else "classification"
    return Target(name, "regression" if task == "regression" else "classification")


def _labels_in(values: Values, target: Target, name: str) -> NDArray[Any]:
    """Return the labels of a column: int64 with -1 for none; for a regression float32 with NaN.

    Raises
    ------
    DataError
        If the column's values do not suit the target; the message names the file.
    """
    column = f"{name}: column {target.name!r}"
    if target.task == "regression":
        if isinstance(values, Texts):
            raise DataError(f"{column} holds text, expected numbers")
        return single_numbers(values, column)
    if target.classes is not None:
        return _numbered(values, target.classes, column)
    if isinstance(values, Texts):
        raise DataError(f"{column} holds text, expected classes as whole numbers")
    return _whole_labels(values, column)


def labels_of(table: Table, target: Target | None) -> tuple[NDArray[Any] | None, tuple[str, ...]]:
    """Return the labels of a table, if it has any, and notices about them."""
    if target is None or target.name not in table.names:
        return None, ()
    values = table.column(target.name)
    labels = _labels_in(values, target, table.name)
    return labels, _label_notices(labels, values, f"{table.name}: column {target.name!r}")


def labelled(
    X: NDArray[Any],
    labels: NDArray[Any] | None,
    name: str,
    known: Columns | None,
    task: str | None,
    *,
    target: str = "y",
) -> Rows:
    """Return examples with their labels, the columns that name their classes, and notices.

    ``known`` are the columns of an earlier run. ``target`` is the name of the target if the labels
    are texts that no earlier run knows.

    Raises
    ------
    DataError
        If there is not one label for each example, or the labels do not suit the task.
    """
    n = len(X)
    if labels is None:
        return Rows(X, columns=known)
    if labels.size != n or max(labels.shape, default=0) != n:
        raise DataError(
            f"{name}: got labels of shape {labels.shape} for {n} examples, expected one an example"
        )
    labels = labels.reshape(n)
    if labels.dtype.kind == "U":
        texts = texts_of(text or None for text in labels.tolist())
        table = Table(name, (target,), (texts,))
        aim = known.target if known is not None else None
        aim = aim or target_of(table, target, task)
        columns = known or Columns((), False, aim)
        found: NDArray[Any] = _labels_in(texts, aim, name)
        return Rows(X, found, _label_notices(found, texts, f"{name}: labels"), columns)
    found = single_numbers(labels, name) if task == "regression" else _whole_labels(labels, name)
    return Rows(X, found, _label_notices(found, labels, f"{name}: labels"), known)


def single_numbers(values: Any, name: str, *, may_be_alike: bool = False) -> NDArray[np.float32]:
    """Return numbers to predict, of shape (n,) or (n, outputs), as float32.

    Numbers that are too large become infinite, which fine-tuning refuses.

    Raises
    ------
    DataError
        If there are other values, or the numbers are so much alike, or so small, that rounding
        would make them constant, and may not be.
    """
    try:
        exact = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: got no numbers ({error})") from error
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    if may_be_alike or not exact.ndim or not exact.size:
        return rounded
    columns = [array.reshape(len(exact), -1).T for array in (exact, rounded)]
    for given, found in zip(*columns, strict=True):
        known = np.isfinite(found)
        if not known.any():
            continue
        given, found = given[known], found[known]
        lost, largest = (np.abs(x).max() for x in (found - given, given))
        # Squares of small numbers would be 0.
        if largest and lost > MOST_ROUNDING * (given / largest).std() * largest > 0:
            is_small = largest < np.finfo(np.float32).tiny
            remedy = "divide by a smaller unit" if is_small else "subtract their mean"
            raise DataError(
                f"{name}: got numbers such as {given[0]:.17g} that are nearly alike in"
                f" float32, in which they are trained on; {remedy}"
            )
    return rounded


def _whole_labels(values: NDArray[Any], name: str) -> NDArray[np.int64]:
    """Return classes as int64, with -1 in place of NaN.

    Raises
    ------
    DataError
        If the classes are not whole numbers, or -1 seems to be a class.
    """
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, dtype=bool)
    check_size(values, name)
    with np.errstate(invalid="ignore"):
        labels = np.where(missing, UNLABELLED, values).astype(np.int64)
    if not np.array_equal(labels[~missing], values[~missing]):
        raise DataError(
            f"{name}: got labels that are not whole numbers, expected classes such as 0, 1, 2;"
            " number the classes, or take regression as the task and for fine-tuning"
        )
    known = np.unique(labels)
    if len(known) == 2 and not missing.any() and known[0] == UNLABELLED:
        raise DataError(
            f"{name}: got the labels -1 and {known[1]}, where -1 stands for no label, so that one"
            " class is left; write the classes as 0 and 1, or as text"
        )
    return labels


def _label_notices(labels: NDArray[Any], values: Values, name: str) -> tuple[str, ...]:
    """Return notices about the labels of a file: the rows without a label, and doubts."""
    known = labels[is_labelled(labels)]
    notices = rows_without(len(labels) - len(known), len(labels), name)
    if labels.dtype.kind == "f":
        return notices
    ones = 0 if isinstance(values, Texts) else int(np.count_nonzero(values == UNLABELLED))
    names = np.array([str(x) for x in known]) if isinstance(values, Texts) else known
    return (*notices, *(f"warning: {doubt}" for doubt in doubts_about(names, ones, name)))


def rows_without(count: int, rows: int, name: str) -> tuple[str, ...]:
    """Return a notice of the rows without a label; no notice if all rows have one."""
    return (f"{name}: {count:,} of {rows:,} rows have no label",) if count else ()


def doubts_about(known: NDArray[Any], ones: int, name: str) -> list[str]:
    """Return sentences about labels that may have another meaning.

    Parameters
    ----------
    known : array of shape (n_labelled,)
        Whole numbers or texts.
    ones : int
        Number of other rows, with the label -1.
    name : str
        Name of the labels in the sentences.
    """
    found, are_texts = [], known.dtype.kind in "OU"
    classes, counts = np.unique(known, return_counts=True)
    if ones and len(classes) > 1 and not are_texts:
        is_negative = classes[0] < UNLABELLED
        why = f"{classes[0]} is a class" if is_negative else "it is as frequent as a class"
        as_frequent = counts.min() <= AS_FREQUENT * ones <= AS_FREQUENT**2 * counts.max()
        if is_negative or as_frequent:
            left_out = f"{ones:,} {'rows are' if ones > 1 else 'row is'} left out"
            found.append(
                f"{name}: {left_out}, since the label -1 stands for no label, though {why}; if -1"
                " is a class, number the classes from 0, and if not, write NaN"
            )
    if len(known) > FEW_ROWS and len(classes) > len(known) / 2:
        remedy = (
            "name another target"
            if are_texts
            else 'to predict numbers take regression (objective="regression", --task regression, or'
            " DBNRegressor)"
        )
        found.append(
            f"{name}: got {len(classes):,} classes in {len(known):,} rows, so that nearly every row"
            f" is a class of its own; {remedy}"
        )
    return found


def check_size(values: NDArray[Any], name: str) -> None:
    """Refuse classes that are too large to differ from their neighbours as floats.

    Raises
    ------
    DataError
    """
    if values.dtype.kind == "f":
        values = values.astype(np.float64)  # float16 cannot be compared with the limit
    large = np.isfinite(values) & (np.abs(values) > LARGEST_CLASS)
    if large.any():
        raise DataError(
            f"{name}: got the class {values[large][0]:g}, expected whole numbers up to 2**53;"
            " write such classes as text, or take regression"
        )


def _numbered(values: Values, classes: tuple[str, ...], column: str) -> NDArray[np.int64]:
    """Return classes that are texts as numbers."""
    if not isinstance(values, Texts):
        if values.dtype.kind == "f" and np.isnan(values).all():
            return np.full(len(values), UNLABELLED, dtype=np.int64)
        if values.dtype.kind != "b" or classes != ("False", "True"):
            raise DataError(f"{column} holds numbers, expected the classes {', '.join(classes)}")
        return values.astype(np.int64)
    places = {text: place for place, text in enumerate(classes)}
    for code in np.unique(values.codes[values.codes >= 0]):
        if values.values[code] not in places:
            raise DataError(
                f"{column} holds {values.values[code]!r}, a class that was not trained on; expected"
                f" {', '.join(classes)}"
            )
    codes = np.array([places.get(text, UNLABELLED) for text in values.values] + [UNLABELLED])
    return codes[values.codes].astype(np.int64)


def _no_label(file: str, name: str) -> DataError:
    return DataError(f"target: got column {name!r} of {file}, which has no value in any row")


def objective_of(y: Any) -> str:
    """Return what targets are for: numbers of a float type are a regression's.

    Unless they are whole and few: then they are classes that were read as such.
    """
    array = _as_array(y, "y")
    if array.dtype.kind != "f":
        return "classification"
    present = array[~np.isnan(array)]
    is_whole = array.ndim == 1 and np.isfinite(present).all() and not np.mod(present, 1).any()
    few = is_whole and 0 < len(np.unique(present)) <= MOST_WHOLE
    return "classification" if few else "regression"


def are_shares(y: Any) -> bool:
    """Return whether targets have a row of numbers each: as classes their probabilities."""
    shape = _as_array(y, "y").shape
    return len(shape) == 2 and shape[1] > 1


def as_classes(y: Any, name: str) -> NDArray[Any]:
    """Return classes as int64 with -1 for none, or as texts with "" for none.

    None and NaN stand for no label, and so does -1 among numbers.

    Raises
    ------
    DataError
        If they are neither whole numbers nor texts, or some of each.
    """
    # A list of numbers and texts would become texts.
    array = _as_array(y, name, dtype=object if isinstance(y, (list, tuple)) else None)
    if array.dtype.kind in "OT":
        array = _of_one_type(array, name)
    if array.dtype.kind == "U":
        return array
    if array.dtype.kind in "uf":
        check_size(array, name)
    if array.dtype.kind == "f" and not np.isinf(array).any():
        missing = np.isnan(array)
        if not np.mod(array[~missing], 1).any():
            array = np.where(missing, UNLABELLED, array).astype(np.int64)
    if array.dtype.kind not in "biu":
        raise DataError(
            f"{name}: got {array.dtype} values, expected classes as whole numbers or texts, -1 or"
            " None for no label"
        )
    return array.astype(np.int64)


def minus_ones(y: Any) -> int:
    """Return how many classes are given as the number -1, which stands for no label."""
    array = _as_array(y, "y", dtype=object if isinstance(y, (list, tuple)) else None)
    if array.dtype.kind == "O":
        return sum(isinstance(x, Real) and x == UNLABELLED for x in array.ravel().tolist())
    return int(np.count_nonzero(array == UNLABELLED)) if array.dtype.kind in "if" else 0


def _as_array(y: Any, name: str, dtype: Any = None) -> NDArray[Any]:
    try:
        return np.asarray(y, dtype=dtype)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{name}: got no array ({error}), expected a class or a number for each row"
        ) from error


def _of_one_type(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Return an array of objects as texts, or as numbers with NaN for what is missing."""
    cells = [None if is_null(cell) else cell for cell in array.ravel().tolist()]
    texts = [cell for cell in cells if isinstance(cell, str)]
    others = [cell for cell in cells if cell is not None and not isinstance(cell, str)]
    if not all(isinstance(cell, Real) for cell in others):
        return array  # which is refused
    if texts and others:
        if set(others) == {UNLABELLED}:  # as in scikit-learn's semi-supervised module
            return _texts([cell if isinstance(cell, str) else "" for cell in cells], array.shape)
        other = next(cell for cell in others if cell != UNLABELLED)
        raise DataError(
            f"{name}: got classes of two types, such as {other!r} and {texts[0]!r}; write all"
            " as whole numbers, or all as text"
        )
    if texts:
        return _texts([cell or "" for cell in cells], array.shape)
    numbers = [np.nan if cell is None else float(cell) for cell in cells]
    return np.array(numbers, dtype=np.float64).reshape(array.shape)


def _texts(cells: list[str], shape: tuple[int, ...]) -> NDArray[np.str_]:
    return np.array(cells, dtype=np.str_).reshape(shape)
