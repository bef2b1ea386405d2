"""Matrix products in the precision of a run: of float32, or of factors that are rounded.

A bfloat16 has the exponent of a float32 and 8 of its 24 binary digits, a TF32 has 11. Only factors
are rounded; parameters, sums and all else stay float32, so that small steps are not lost.

On the CPU factors are rounded to bfloat16, to nearest even, as they are packed for the product. The
compiled forms take every sum in a fixed order: by pairs, or by tiles where the processor has AMX.
Each order has the same bits with the processor's instructions for it and without. Products of
float32 are the BLAS's, or have such an order too. TF32 is what tensor cores of GPUs take; it has no
compiled form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.dispatch import accelerated, multiply

SMALLEST = 2.0**-126  # that has all digits


class Precision(NamedTuple):
    """Products of matrices: a function (a, b, out=), and its operation of a program.

    ``rounds`` returns a factor as it is multiplied.
    """

    name: str
    multiply: Callable[..., Array]
    operation: str
    rounds: Callable[[Array], Array]


@accelerated
def multiply_bfloat16(a: Array, b: Array, *, out: Array | None = None) -> Array:
    """Return the product of two factors rounded to bfloat16, in ``out`` if it is given.

    Factors that are not float32 are rounded to that before.
    """
    return np.matmul(rounded(a), rounded(b), out=out)


@accelerated
def multiply_float32(a: Array, b: Array, *, out: Array | None = None) -> Array:
    """Return the product of two matrices, in ``out`` if it is given, with the same bits everywhere.

    Each sum is float32. It begins with 0 and takes the terms in the order of the inner index, each
    by a fused multiply-add. A sum of 0 has no sign, and every nan has the same bits. Factors that
    are not float32 are rounded to that before.

    As written here the product takes much longer than its compiled form, which has the same bits.

    Raises
    ------
    ValueError
        If the shapes do not match.
    """
    left, right = (np.asarray(x, np.float32).astype(np.float64) for x in (a, b))
    shape = (*left.shape[:1], *right.shape[1:])
    if left.shape[1:] != right.shape[:1] or (out is not None and out.shape != shape):
        raise ValueError(f"got a mismatch of the shapes {a.shape} and {b.shape}, or of the product")
    sums = np.zeros((len(left), right.shape[1]), np.float32)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for column, row in zip(left.T, right, strict=True):
            term = np.multiply.outer(column, row)  # exact, for float64 has twice the digits
            found = term + sums
            back = found - term
            lost = (term - (found - back)) + (sums - back)
            # with its last digit odd, where it is not exact, it rounds as the exact sum does
            digits = found.view(np.int64)
            is_even = ((lost > 0) | (lost < 0)) & (digits & 1 == 0)
            digits += np.where(is_even, np.where((lost > 0) == (found > 0), 1, -1), 0)
            sums = found.astype(np.float32)
    numbers = np.where(np.isnan(sums), np.float32(np.nan), sums)
    product: Array = np.add(numbers, np.float32(0), out=out)
    return product


@accelerated
def multiply_tf32(a: Array, b: Array, *, out: Array | None = None) -> Array:
    """Return the product of two factors rounded to TF32, in ``out`` if it is given.

    Factors that are not float32 are rounded to that before. How a device rounds numbers that lie
    between two is its own.
    """
    return np.matmul(rounded_tf32(a), rounded_tf32(b), out=out)


def rounded_tf32(x: Array) -> NDArray[np.float32]:
    """Return numbers as float32, rounded to the nearest TF32, of two as near to the larger one.

    Examples
    --------
    >>> rounded_tf32(np.float32([1, 1 + 2**-11, -1 - 2**-11, 1 + 2**-12])).tolist()
    [1.0, 1.0009765625, -1.0009765625, 1.0]
    """
    whole = np.ascontiguousarray(x, dtype=np.float32)
    nearest = (whole.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(whole), whole, nearest.view(np.float32))


def rounded(x: Array) -> NDArray[np.float32]:
    """Return numbers as float32, rounded to the nearest bfloat16, of two as near to the even one.

    Numbers below 2^-126 become 0, as for processors that multiply bfloat16.

    Examples
    --------
    >>> rounded(np.float32([1, 1.00390625, 1.01171875, 3e-39])).tolist()
    [1.0, 1.0, 1.015625, 0.0]
    """
    whole = np.ascontiguousarray(x, dtype=np.float32)
    bits = whole.view(np.uint32)
    is_odd = bits >> np.uint32(16) & np.uint32(1)
    nearest = (bits + np.uint32(0x7FFF) + is_odd) & np.uint32(0xFFFF0000)
    found = np.where(np.isnan(whole), whole, nearest.view(np.float32))
    return np.where(np.abs(whole) < SMALLEST, np.copysign(np.float32(0), whole), found)


def factors(*given: Array, precision: str) -> tuple[Array, ...]:
    """Return factors of a product as they are multiplied in a precision."""
    return tuple(map(PRECISIONS[precision].rounds, given))


def exact(x: Array) -> Array:
    """Return a factor as it is; no lambda, so that a precision can be sent to a process."""
    return x


PRECISIONS = {
    "float32": Precision("float32", multiply, "matmul", exact),
    "tf32": Precision("tf32", multiply_tf32, "matmul_tf32", rounded_tf32),
    "bfloat16": Precision("bfloat16", multiply_bfloat16, "matmul_bfloat16", rounded),
}
OWN = Precision("own", multiply_float32, "matmul_float32", exact)
# How a layer multiplies: in a precision, or by own products.
PRODUCTS = PRECISIONS | {OWN.name: OWN}


def precision_of(name: str, products: str) -> Precision:
    """Return the precision of a name, with products of ``blas`` or of its ``own``."""
    return PRODUCTS[products if products == OWN.name else name]
