"""Examples as the lowest layer of a stack sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from syncpretrain.data.examples import as_examples
from syncpretrain.data.file_rows import FileRows
from syncpretrain.data.meaning import meaning_in
from syncpretrain.data.scaling import Scaling
from syncpretrain.data.visible import has_missing, marked, visible_examples
from syncpretrain.errors import DataError
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.layer import DenseLayer, Layer
from syncpretrain.units.kinds import kind_of

__all__ = ["checked_codes", "checked_width", "is_bounded", "prepared_examples"]


class _Shaped(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


S = TypeVar("S", bound=_Shaped)


def prepared_examples(
    X: Any,
    name: str,
    lowest: Layer,
    scaling: Scaling | None,
    info: Mapping[str, Any],
    *,
    missing: bool,
) -> Any:
    """Return examples checked, standardized if the stack has a scaling, and marked.

    Parameters
    ----------
    X : array-like of shape (n_examples, input units)
        ``FileRows`` are checked already.
    name : str
        What an error calls them.
    lowest : Layer
        The lowest layer.
    scaling : Scaling or None
    info : mapping
        Of the stack, with the meaning of its training rows.
    missing : bool
        Whether NaN is permitted, which no convolution can leave out.

    Raises
    ------
    DataError
        If they cannot be the layer's.
    """
    width, missing = lowest.shape.visible, missing and isinstance(lowest, DenseLayer)
    if isinstance(X, FileRows):
        checked_width(X, width, name)
        return X if scaling is None else scaling.apply(X)
    units, meaning = lowest.visible_units, meaning_in(info)
    if meaning is not None:
        X = meaning.prepare(X, name, bounded=is_bounded(units, scaling))
    if scaling is not None and kind_of(units).is_unit_interval:
        units = "gaussian"  # any number, which is scaled to [0, 1]
    examples = visible_examples(X, name, units, missing=missing)
    checked_width(examples, width, name)
    if missing and has_missing(examples):
        return marked(examples, scaling)
    return examples if scaling is None else scaling.apply(examples)


def is_bounded(units: str, scaling: Scaling | None) -> bool:
    """Return whether examples have to be in [0, 1]: visible units are, and nothing is scaled."""
    return scaling is None and kind_of(units).is_unit_interval


def checked_width(X: S, width: int, name: str) -> S:
    """Return an array as it is, once it has the right number of columns.

    Raises
    ------
    DataError
    """
    if X.shape[1] != width:
        raise DataError(f"{name}: got shape {X.shape}, expected (examples, {width})")
    return X


def checked_codes(codes: ArrayLike, width: int) -> Array:
    """Return codes as float32, once they are finite and as wide as the top layer.

    Raises
    ------
    DataError
    """
    with np.errstate(over="ignore"):  # what overflows is found below
        array = np.ascontiguousarray(as_examples(codes, "codes"), dtype=np.float32)
    if not np.isfinite(array).all():
        raise DataError("codes: holds NaN or infinite values")
    return checked_width(array, width, "codes")
