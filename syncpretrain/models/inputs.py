"""Prepare examples for the lowest layer of a stack: check, standardize, mark missing values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from syncpretrain.data.columns import Columns, columns_in
from syncpretrain.data.examples import as_examples, has_missing, marked, visible_examples
from syncpretrain.data.file_rows import FileRows
from syncpretrain.data.meaning import meaning_in
from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import DataError, NovelValueWarning
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.layer import DenseLayer
from syncpretrain.models.model_file import Model
from syncpretrain.units.kinds import kind_of

FEW_NAMES = 5  # names of columns in a message


S = TypeVar("S", bound=Any)  # an array, or rows that are stored in another form


def prepared_examples(X: Any, name: str, stack: Model, *, missing: bool) -> Any:
    """Return examples checked, standardized if the stack has a scaling, and marked.

    Parameters
    ----------
    X : array-like of shape (n_examples, input units)
        ``FileRows`` are checked already.
    name : str
        Name of the examples in errors.
    stack : Model
        The parts of a stack; ``info`` has the meaning of its training rows, and names of columns.
    missing : bool
        True permits NaN, except for a convolution, which cannot leave out a value.

    Warns
    -----
    NovelValueWarning
        If a column that never varied in training holds another value.

    Raises
    ------
    DataError
        If the examples do not fit the layer.
    """
    (lowest, *_), info, scaling, _ = stack
    width, missing = lowest.shape.visible, missing and isinstance(lowest, DenseLayer)
    if isinstance(X, FileRows):
        checked_width(X, width, name)
        warn_of_novel(X, scaling, name, partial(names_in, info, width))
        return X if scaling is None else scaling.apply(X)
    units, meaning = lowest.visible_units, meaning_in(info)
    if meaning is not None:
        X = meaning.prepare(X, name, bounded=is_bounded(units, scaling))
    if scaling is not None and kind_of(units).is_unit_interval:
        units = "gaussian"  # any number is permitted: it is scaled to [0, 1]
    examples = visible_examples(X, name, units, missing=missing)
    checked_width(examples, width, name)
    warn_of_novel(examples, scaling, name, partial(names_in, info, width))
    if missing and has_missing(examples):
        return marked(examples, scaling)
    return examples if scaling is None else scaling.apply(examples)


def names_in(info: Mapping[str, Any], width: int) -> Sequence[str]:
    """Return the names of the values of an example; empty if they have none."""
    columns = columns_in(info)
    return columns.names if columns and columns.width == width else ()


def in_columns(places: Sequence[int], names: Sequence[str]) -> str:
    """Return a list of the first few columns, by name, or by number if they have no names."""
    shown = [repr(names[i]) if len(names) else str(i) for i in places[:FEW_NAMES]]
    shown += ["..."] if len(places) > FEW_NAMES else []
    return ", ".join(shown) + ("" if len(names) else "; counted from 0")


def constant_columns(scaling: Scaling | None, columns: Columns | None) -> str | None:
    """Return a notice of the columns that never varied in training; None without such columns.

    ``columns`` are the columns of a table; some may hold texts.
    """
    never = [] if scaling is None else np.flatnonzero(scaling.constant).tolist()
    features, names = ((), []) if columns is None else (columns.features, columns.names)
    texts = [column.name for column in features if column.kind == "constant"]
    if not never and not texts:
        return None
    total = len(features) or (0 if scaling is None else len(scaling.scale))
    places = [*never, *range(len(names), len(names) + len(texts))]
    return (
        f"columns that never vary: {len(places):,} of {total:,}"
        f" ({in_columns(places, [*names, *texts])}), which are left out; another value there in new"
        " rows is reported"
    )


def warn_of_novel(
    X: Any, scaling: Scaling | None, name: str, names: Callable[[], Sequence[str]]
) -> None:
    """Warn of rows with another value in a column that never varied in training.

    ``names`` returns the names of the columns; if it is empty, the message numbers them.
    """
    if scaling is None:
        return
    rows, places = scaling.novel_in(X)
    if rows:
        warnings.warn(
            f"{name}: {rows:,} of {X.shape[0]:,} rows have new values in columns that never varied"
            f" in training ({in_columns(places.tolist(), names())}), which the model leaves out; to"
            " use these columns, train on rows in which they vary",
            NovelValueWarning,
            stacklevel=5,
        )


def is_bounded(units: str, scaling: Scaling | None) -> bool:
    """Return whether examples must be in [0, 1]: for such visible units, without a scaling."""
    return scaling is None and kind_of(units).is_unit_interval


def checked_width(X: S, width: int, name: str) -> S:
    """Check the number of columns of an array; return the array.

    Raises
    ------
    DataError
    """
    if X.shape[1] != width:
        raise DataError(f"{name}: got shape {X.shape}, expected (examples, {width})")
    return X


def checked_codes(codes: ArrayLike, width: int) -> Array:
    """Check that codes are finite and as wide as the top layer; return them as float32.

    Raises
    ------
    DataError
    """
    with np.errstate(over="ignore"):  # infinite values are found below
        array = np.ascontiguousarray(as_examples(codes, "codes"), dtype=np.float32)
    if not np.isfinite(array).all():
        raise DataError("codes: holds NaN or infinite values")
    return checked_width(array, width, "codes")
