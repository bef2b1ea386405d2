"""Affine maps and the units behind them, in place; :mod:`syncpretrain.units` has the equations.

Products with matrices that have many zeros have compiled forms, which leave the zeros out and take
every sum in a fixed order. Of rows in which one number in eight or more is not 0, and of few rows
of states, they leave the work to the dense product, which is faster then.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.dispatch import accelerated, multiply
from syncpretrain.units.kinds import kind_of

# What is added to each variance that inputs are divided by, so that constant inputs become 0.
SMALLEST_VARIANCE = 1e-5


def activate(x: Array, units: str) -> Array:
    """Replace the inputs x of units by their means, in place, and return them."""
    kind_of(units).mean(np, x)
    return x


@accelerated
def means(x: Array, bias: Array, units: str) -> Array:
    """Replace the inputs x without their bias by the units' means, in place, and return them."""
    x += bias
    return activate(x, units)


@accelerated
def normalize(x: Array, spread: Array) -> None:
    """Standardize the inputs x of each unit over the rows, in place (Ioffe and Szegedy 2015).

    ``spread`` of shape (units,) is filled with the standard deviations that x was divided by.
    """
    share = x.dtype.type(1 / len(x))
    x -= x.sum(axis=0) * share
    np.sum(np.square(x), axis=0, out=spread)
    spread *= share
    spread += x.dtype.type(SMALLEST_VARIANCE)
    np.sqrt(spread, out=spread)
    x /= spread


@accelerated
def csr_product(
    data: Array, indices: NDArray[Any], indptr: NDArray[Any], weight: Array, *, out: Array
) -> None:
    """Fill ``out`` with the product of a matrix in CSR format and W."""
    for row, (first, last) in enumerate(pairwise(indptr)):
        np.matmul(data[first:last], weight[indices[first:last]], out=out[row])


@accelerated
def sparse_product(v: Array, weight: Array, *, out: Array) -> None:
    """Fill ``out`` with v W, of v with many zeros."""
    np.matmul(v, weight, out=out)  # (B, V) @ (V, H) -> (B, H)


@accelerated
def transposed_product(v: Array, h: Array, *, out: Array, adds: bool = False) -> None:
    """Fill ``out`` with v^T h, of v with many zeros, or add that to it."""
    if adds:
        out += v.T @ h
    else:
        np.matmul(v.T, h, out=out)  # (V, B) @ (B, H) -> (V, H)


@accelerated
def binary_product(states: Array, weight: Array, *, out: Array) -> None:
    """Fill ``out`` with h W^T, of states h that are 0 or 1.

    The compiled form takes every sum in a fixed order. It leaves the work to the dense product
    where a state is another number, or there are few rows.
    """
    np.matmul(states, weight.T, out=out)  # (B, H) @ (H, V) -> (B, V)


# For vectors of 5 numbers OpenBLAS 0.3.31 computes with memory that nobody wrote, and drops the
# result: where a NaN lay there, NumPy would warn of it.
@np.errstate(invalid="ignore")
def product(
    x: Any, weight: Array, *, out: Array | None = None, multiply: Callable[..., Any] = multiply
) -> Array:
    """Return x W of an array, or of sparse rows with arrays in CSR format as their ``csr``.

    ``multiply`` is the product of a precision, for arrays.
    """
    csr = getattr(x, "csr", None)
    if csr is None:
        found: Array = multiply(x, weight, out=out)  # (B, V) @ (V, H) -> (B, H)
        return found
    if out is None:
        out = np.empty((len(x), weight.shape[1]), dtype=weight.dtype)
    data, indices, indptr = csr
    csr_product(data, indices, indptr, weight, out=out)
    return out


def affine(
    x: Any,
    weight: Array,
    bias: Array,
    units: str = "bernoulli",
    *,
    out: Array | None = None,
    multiply: Callable[..., Any] = multiply,
) -> Array:
    """Return the means of units with the inputs x W + b (Santara et al. 2016, eq. 4)."""
    return means(product(x, weight, out=out, multiply=multiply), bias, units)


@accelerated
def times_derivative(delta: Array, a: Array, units: str = "bernoulli") -> None:
    """Multiply ``delta`` by the derivative of the units at their means ``a``.

    Raises
    ------
    ValueError
        If their derivative is part of the loss.
    """
    derivative = kind_of(units).times_derivative
    if derivative is None:
        raise ValueError(f"got {units} units; expected units whose derivative is no part of a loss")
    derivative(np, a, delta)
