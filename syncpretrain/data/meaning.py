"""The meaning of numbers: what the training rows of a stack were, and new rows prepared alike.

A stack keeps the meaning of its training rows. New rows are read by it, whatever their type, so
that the same numbers mean the same thing. If the training rows were

* ``bytes`` (uint8, one above 1), every number is divided by 255. Floats in [0, 1], some of them
  fractions, can be no bytes: they were divided before.
* ``bits`` (0 and 1 alone), bytes are taken as they are, and larger ones are refused.
* ``shares`` (all in [0, 1]), bytes are divided by 255. They are refused if the largest is 1, which
  may then mean 1 or 1/255.
* ``numbers`` (all else), every number is taken as it is.

Float32 holds 24 bits. A column that varies too little beside its mean, such as seconds since 1970
within one day, would lose its differences. So its origin, the mean, is subtracted in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import as_bits, chunks
from syncpretrain.data.byte_rows import LARGEST_BYTE
from syncpretrain.data.examples import as_examples, evenly_spaced
from syncpretrain.data.file_rows import FileRows
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.errors import DataError

__all__ = [
    "NUMBERS",
    "SHARES",
    "Meaning",
    "check_precision",
    "meaning_in",
    "origin_of",
]

# Distance of neighbouring float32 numbers at the mean of a column, as a share of its deviation.
LARGEST_LOSS = 1e-3
SAMPLED_ROWS = 10_000  # evenly spaced, to find the origin


class Meaning(msgspec.Struct, frozen=True):
    """Meaning of the numbers in training rows.

    Attributes
    ----------
    values : str
        ``bytes``, ``bits``, ``shares`` or ``numbers``; see above.
    origin : tuple of float
        Subtracted from each column before the rows become float32; empty for nothing.
    """

    values: Literal["bytes", "bits", "shares", "numbers"]
    origin: tuple[float, ...] = ()

    @classmethod
    def of(cls, X: Any, *, bounded: bool = False) -> Meaning:
        """Return the meaning of checked training rows.

        Rows in a file are not read for that: their type says it, and whether they are ``bounded``
        by [0, 1].
        """
        if isinstance(X, FileRows):
            if X.raw_dtype == np.uint8:
                return cls("bytes")
            return cls("bits") if X.raw_dtype.kind == "b" else SHARES if bounded else NUMBERS
        if isinstance(X, SparseRows):  # whose bytes are never divided
            return NUMBERS
        if X.dtype == np.uint8:
            return cls("bytes" if as_bits(X) is X else "bits")
        low, high, are_bits = (0.0, 1.0, True) if X.dtype.kind == "b" else _range(X)
        if low < 0 or high > 1:
            return cls("numbers", origin_of(X))
        return cls("bits" if are_bits else "shares")

    def prepare(self, X: Any, name: str = "X", *, bounded: bool = False) -> Any:
        """Return rows whose numbers mean what the training rows did.

        Bytes that are to be divided stay bytes, which are divided as they become float32.

        Parameters
        ----------
        X : array-like of shape (n_examples, width), or sparse matrix
            ``FileRows`` are returned as they are.
        name : str
            What an error calls them.
        bounded : bool
            Whether the visible units take values in [0, 1] alone.

        Raises
        ------
        DataError
            If X is no table of numbers, or the meaning of its numbers cannot be told.
        """
        if isinstance(X, FileRows):
            return X
        X = as_examples(X, name)
        if X.dtype.kind == "b":
            return X
        if self.values == "bytes":
            return _divided(X, name, bounded=bounded) if self.divides(X, name) else X
        if self.origin and len(self.origin) == X.shape[1]:
            return self._from_origin(X)
        if X.dtype != np.uint8:
            return X
        if self.values == "numbers":
            return X.astype(np.float32)
        bits = as_bits(X)
        if self.values == "bits" and bits is X:
            raise DataError(
                f"{name}: got the byte {X.max()}, expected 0 or 1, as all numbers are that the"
                " stack was trained on; divide by 255 what is to be trained on"
            )
        if self.values == "shares" and bits is not X and X.any():
            raise DataError(
                f"{name}: got bytes of 0 and 1 alone, and the stack was trained on numbers between"
                " 0 and 1, of which 1 is the largest; pass X.astype('float32') if 1 means 1, or"
                " X / 255 if 1 means 1/255"
            )
        return bits if self.values == "bits" else X

    def _from_origin(self, X: Any) -> NDArray[np.float32]:
        out = np.empty(X.shape, dtype=np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # infinite values are refused later
            for rows in chunks(X.shape):
                out[rows] = X[rows] - np.array(self.origin)
        return out

    def divides(self, X: Any, name: str = "X") -> bool:
        """Return whether numbers are divided by 255, as bytes of any type are.

        Raises
        ------
        DataError
            If they are floats of 0 and 1, which may have been divided.
        """
        if self.values != "bytes" or X.dtype.kind != "f":
            return self.values == "bytes" and X.dtype.kind != "b"
        low, high, are_bits = _range(X)
        if not 0 <= low <= high <= 1:
            return True
        if are_bits and high == 1:
            raise DataError(
                f"{name}: got floats of 0 and 1 alone, and the stack was trained on bytes, where 1"
                " means 1/255; pass X.astype('uint8') if 1 is the byte 1, or (X *"
                " 255).astype('uint8') if 1 is the largest value"
            )
        return False

    def restored(self, X: NDArray[np.float32]) -> NDArray[Any]:
        """Return prepared rows with their origin: float64 where there is one, else as they are."""
        return X + np.array(self.origin) if self.origin else X


NUMBERS, SHARES = Meaning("numbers"), Meaning("shares")


def meaning_in(info: Mapping[str, Any]) -> Meaning | None:
    """Return the meaning in the ``info`` of a stack; None of an old one, which has none.

    Such a stack divides bytes by 255 and takes all else as it is.

    Raises
    ------
    DataError
        If it is damaged.
    """
    if "bytes" in info and "meaning" not in info:  # as it was kept before
        return NUMBERS if info["bytes"] == "numbers" else Meaning("bits")
    try:
        return msgspec.convert(info.get("meaning"), Meaning | None)
    except msgspec.ValidationError as error:
        raise DataError(f"meaning: the one kept with the model is damaged: {error}") from error


def _divided(X: Any, name: str, *, bounded: bool) -> Any:
    """Return bytes of any type divided by 255; uint8 as it is, which is divided later."""
    if X.dtype == np.uint8:
        return X
    low, high, _ = _range(X)
    if bounded and not 0 <= low <= high <= LARGEST_BYTE:
        raise DataError(
            f"{name}: got numbers from {low:g} to {high:g}, expected 0 to 255, as the bytes that"
            " the stack was trained on, or these divided by 255"
        )
    if isinstance(X, SparseRows):
        return SparseRows(X.data / LARGEST_BYTE, X.indices, X.indptr, X.shape[1])
    out = np.empty(X.shape, dtype=np.float32)
    for rows in chunks(X.shape):
        np.divide(X[rows].astype(np.float32), LARGEST_BYTE, out=out[rows])
    return out


def _range(X: Any) -> tuple[float, float, bool]:
    """Return the smallest and the largest number, and whether all are 0 or 1; NaN is none."""
    if isinstance(X, SparseRows):
        return *X.limits, bool((X.data == 1).all())
    low, high, are_bits = np.inf, -np.inf, True
    with np.errstate(over="ignore", invalid="ignore"):
        for rows in chunks(X.shape):
            block = np.asarray(X[rows], dtype=np.float32)  # where 1 + 1e-12 is 1
            low = min(low, float(np.fmin.reduce(block, axis=None)))
            high = max(high, float(np.fmax.reduce(block, axis=None)))
            are_bits = are_bits and bool(((block == 0) | (block == 1) | np.isnan(block)).all())
    return (low, high, are_bits) if low <= high else (0.0, 0.0, are_bits)


def origin_of(X: NDArray[Any]) -> tuple[float, ...]:
    """Return what to subtract from each column before it becomes float32; empty for nothing."""
    if X.dtype.kind not in "iuf" or np.can_cast(X.dtype, np.float32):
        return ()
    rows = evenly_spaced(X, SAMPLED_ROWS)
    few = rows[:: max(len(rows) // 16, 1)].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large is refused later
        # Two of n numbers with a range of R have a deviation of R / sqrt(2 n) at least.
        deviation = np.ptp(few, axis=0) / np.sqrt(2 * len(rows))
        if (_spacing(np.abs(few).max(axis=0)) <= LARGEST_LOSS * deviation).all():
            return ()
        known = np.isfinite(rows)
        count = np.maximum(known.sum(axis=0), 1)
        mean = np.where(known, rows, 0).sum(axis=0, dtype=np.float64) / count
        away = np.where(known, rows - mean, 0)
        deviation = np.sqrt(np.square(away).sum(axis=0) / count)
        loses = (_spacing(np.abs(mean)) > LARGEST_LOSS * deviation) & (deviation > 0)
    return tuple(np.where(loses, mean, 0.0).tolist()) if loses.any() else ()


def _spacing(magnitude: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distance from each number to the next one in float32."""
    return np.spacing(magnitude.astype(np.float32)).astype(np.float64)


def check_precision(X: Any, name: str = "X") -> None:
    """Refuse a column whose differences float32 would lose, of rows that a stream reads.

    Raises
    ------
    DataError
    """
    if isinstance(X, SparseRows):
        return
    origin = origin_of(X.raw_sample(SAMPLED_ROWS) if isinstance(X, FileRows) else X)
    if any(origin):
        column = int(np.flatnonzero(origin)[0])
        raise DataError(
            f"{name}: got numbers around {origin[column]:.12g} in column {column} (counted from 0)"
            " that differ by less than float32 holds, which a stream trains on; expected numbers"
            " without such an offset: subtract the column's mean first"
        )
