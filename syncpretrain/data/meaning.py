"""The meaning of numbers: of the training rows of a stack, by which new rows are prepared.

A stack keeps the meaning of its training rows. New rows are read by this meaning, whatever their
type, so that the same numbers mean the same thing. If the training rows were

* ``bytes`` (uint8, one above 1), every whole number is divided by 255. Floats with a fraction among
  them are no bytes: they were divided before.
* ``bits`` (0 and 1 alone), bytes are taken as they are, and bytes above 1 are refused.
* ``shares`` (all in [0, 1]), bytes are divided by 255. Bytes with a maximum of 1 are refused, since
  this 1 may mean 1 or 1/255.
* ``numbers`` (any others), every number is taken as it is.

Float32 holds 24 bits. A column that varies too little compared with its mean, such as seconds since
1970 within one day, would lose its differences. So its origin, the mean, is subtracted in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import LARGEST_BYTE, as_bits, chunks
from syncpretrain.data.examples import as_examples, evenly_spaced
from syncpretrain.data.file_rows import FileRows
from syncpretrain.data.scaling import ROUNDING, SAME
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.errors import DataError

# Distance of neighbouring float32 numbers at the mean of a column, as a share of its deviation.
LARGEST_LOSS = 1e-3
SAMPLED_ROWS = 10_000  # evenly spaced, to find the origin
FAR_SHARE = 2.0  # a larger fraction is no byte divided by 255, even with noise added
ALL_ONES = (  # format with a name of the data
    "{}: its bytes are all 0 or 1, and like all bytes of a stream they were scaled by 1/255, so"
    " that no value is above 0.004; where 1 means on, save the array as bool or float32"
)


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

        Rows in a file are not read: their type decides, and whether they are ``bounded`` by [0, 1].
        """
        if isinstance(X, FileRows):
            if X.raw_dtype == np.uint8:
                return cls("bytes")
            return cls("bits") if X.raw_dtype.kind == "b" else SHARES if bounded else NUMBERS
        if isinstance(X, SparseRows):  # sparse bytes are never divided
            return NUMBERS
        if X.dtype == np.uint8:
            return cls("bytes" if as_bits(X) is X else "bits")
        if X.dtype.kind == "b":
            return cls("bits")
        found, origin = _range(X), origin_of(X)
        if found.low < 0 or found.high > 1:
            return cls("numbers", origin)
        are_bits = found.are_bits and not origin  # float32 may take fractions for a 1
        return cls("bits" if are_bits else "shares", origin)

    def prepare(self, X: Any, name: str = "X", *, bounded: bool = False) -> Any:
        """Return rows as the training rows would be read.

        Bytes to divide are returned as bytes; they are divided when they become float32.

        Parameters
        ----------
        X : array-like of shape (n_examples, width), or sparse matrix
            ``FileRows`` are returned as they are.
        name : str
            Name of the rows in errors.
        bounded : bool
            True if the visible units take only values in [0, 1].

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
            found = _range(X) if X.dtype != np.uint8 else ALL_BYTES
            return _divided(X, name, found, bounded=bounded) if _are_bytes(X, name, found) else X
        if self.origin and len(self.origin) == X.shape[1]:
            if isinstance(X, SparseRows):
                raise DataError(
                    f"{name}: got sparse rows, expected a dense array: the stack subtracts an"
                    " origin from its columns, for float32 would lose their differences"
                )
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
        divisor = 255.0 if X.dtype == np.uint8 and self.values == "shares" else 1.0
        with np.errstate(over="ignore", invalid="ignore"):  # infinite values are refused later
            for rows in chunks(X.shape):
                out[rows] = X[rows] / divisor - np.array(self.origin)
        return out

    def divides(self, X: Any) -> bool:
        """Return whether numbers, of any type, are bytes to divide by 255.

        Raises
        ------
        DataError
            If the numbers may be bytes or not.
        """
        if self.values != "bytes":
            return False
        return _are_bytes(X, "X", _range(X) if X.dtype != np.uint8 else ALL_BYTES)

    def restored(self, X: NDArray[np.float32]) -> NDArray[Any]:
        """Return prepared rows with their origin added, in float64; without one, as they are."""
        return X + np.array(self.origin) if self.origin else X


NUMBERS, SHARES = Meaning("numbers"), Meaning("shares")


def meaning_in(info: Mapping[str, Any]) -> Meaning | None:
    """Return the meaning in the ``info`` of a stack; None if an old stack has none.

    A stack without a meaning divides bytes by 255 and takes other numbers as they are.

    Raises
    ------
    DataError
        If the meaning is damaged.
    """
    try:
        return msgspec.convert(info.get("meaning"), Meaning | None)
    except msgspec.ValidationError as error:
        raise DataError(f"meaning: the one kept with the model is damaged: {error}") from error


class _Range(NamedTuple):
    """Smallest and largest number, and whether all are whole, or all 0 or 1; NaN is left out."""

    low: float
    high: float
    are_whole: bool
    are_bits: bool


ALL_BYTES = _Range(0, 255, are_whole=True, are_bits=False)


def _are_bytes(X: Any, name: str, found: _Range) -> bool:
    """Return whether numbers, of any type, are bytes and not bytes divided by 255.

    Raises
    ------
    DataError
        If the numbers can be neither, or both.
    """
    if X.dtype.kind != "f":
        return bool(X.dtype.kind != "b")
    if not found.are_whole:
        if found.low < -FAR_SHARE or found.high > FAR_SHARE:
            raise DataError(
                f"{name}: got fractions from {found.low:g} to {found.high:g}, which are neither"
                " bytes nor bytes divided by 255, on which the stack was trained; round them, or"
                " divide them by 255"
            )
        return False
    if found.are_bits and found.high == 1:
        raise DataError(
            f"{name}: got floats of 0 and 1 alone, and the stack was trained on bytes, where 1"
            " means 1/255; give them as uint8, in which 1 is the byte 1 and 255 the largest"
        )
    return not found.are_bits


def _divided(X: Any, name: str, found: _Range, *, bounded: bool) -> Any:
    """Return bytes of any type divided by 255; uint8 as it is, since it is divided later."""
    if X.dtype == np.uint8:
        return X
    if bounded and not 0 <= found.low <= found.high <= LARGEST_BYTE:
        raise DataError(
            f"{name}: got numbers from {found.low:g} to {found.high:g}, expected 0 to 255, as the"
            " bytes that the stack was trained on, or these divided by 255"
        )
    if isinstance(X, SparseRows):
        return SparseRows(X.data / LARGEST_BYTE, X.indices, X.indptr, X.shape[1])
    out = np.empty(X.shape, dtype=np.float32)
    for rows in chunks(X.shape):
        np.divide(X[rows].astype(np.float32), LARGEST_BYTE, out=out[rows])
    return out


def _range(X: Any) -> _Range:
    if isinstance(X, SparseRows):
        whole = bool((X.data == np.floor(X.data)).all())
        return _Range(*X.limits, whole, bool((X.data == 1).all()))
    low, high, are_whole, are_bits = np.inf, -np.inf, True, True
    with np.errstate(over="ignore", invalid="ignore"):
        for rows in chunks(X.shape):
            block = np.asarray(X[rows], dtype=np.float32)  # where 1 + 1e-12 is 1
            low = min(low, float(np.fmin.reduce(block, axis=None)))
            high = max(high, float(np.fmax.reduce(block, axis=None)))
            if are_whole:
                lost = np.isnan(block)
                are_whole = bool(((block == np.floor(block)) | lost).all())
                are_bits = are_bits and bool(((block == 0) | (block == 1) | lost).all())
    low, high = (low, high) if low <= high else (0.0, 0.0)
    return _Range(low, high, are_whole, are_whole and are_bits)


def origin_of(X: NDArray[Any]) -> tuple[float, ...]:
    """Return the origin to subtract from each column before it becomes float32; empty for none."""
    origin, _ = _origin_and_losses(X)
    return tuple(origin.tolist()) if origin.any() else ()


def _origin_and_losses(X: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the origin of each column, and whether float32 would lose its differences.

    A constant column has an origin if its value is a whole number so large that float32 would take
    a neighbouring number for it.
    """
    nothing = np.zeros(X.shape[1]), np.zeros(X.shape[1], dtype=bool)
    if X.dtype.kind not in "iuf" or np.can_cast(X.dtype, np.float32):
        return nothing
    rows = evenly_spaced(X, SAMPLED_ROWS)
    few = rows[:: max(len(rows) // 16, 1)].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite values are refused later
        # Two of n numbers with a range of R have a deviation of R / sqrt(2 n) at least.
        least = np.ptp(few, axis=0) / np.sqrt(2 * len(rows))
        if (_spacing(np.abs(few).max(axis=0)) <= LARGEST_LOSS * least).all():
            return nothing
        known = np.isfinite(rows)
        values = np.where(known, rows, np.nan)
        low, high = np.fmin.reduce(values, axis=0), np.fmax.reduce(values, axis=0)
        count = np.maximum(known.sum(axis=0), 1)
        mean = np.where(known, rows, 0).sum(axis=0, dtype=np.float64) / count
        deviation = np.sqrt(np.square(np.where(known, rows - mean, 0)).sum(axis=0) / count)
        largest = np.fmax(np.abs(low), np.abs(high))
        varies = high - low > ROUNDING * largest
        loses = varies & (_spacing(np.abs(mean)) > LARGEST_LOSS * deviation)
        hides = (low == high) & (low == np.floor(low)) & (SAME * largest >= 1)
    return np.where(loses, mean, np.where(hides, low, 0.0)), loses


def _spacing(magnitude: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distance from each number to the next one in float32."""
    return np.spacing(magnitude.astype(np.float32)).astype(np.float64)


def check_precision(X: Any, name: str = "X") -> None:
    """Refuse a column in a stream if float32 would lose its differences.

    Raises
    ------
    DataError
    """
    if isinstance(X, SparseRows):
        return
    origin, loses = _origin_and_losses(X.raw_sample(SAMPLED_ROWS) if isinstance(X, FileRows) else X)
    if loses.any():
        column = int(loses.argmax())
        raise DataError(
            f"{name}: got numbers around {origin[column]:.12g} in column {column} (counted from 0)"
            " that differ by less than float32 holds, which a stream trains on; expected numbers"
            " without such an offset: subtract the column's mean first"
        )
