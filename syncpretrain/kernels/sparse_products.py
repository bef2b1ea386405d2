"""Products with matrices that have many zeros; the compiled forms leave the zeros out.

The compiled forms take every sum in a fixed order. Of rows in which one number in eight or more is
not 0, and of few rows of states, they leave the work to the dense product, which is faster then.
"""

from __future__ import annotations

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.dispatch import accelerated


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
