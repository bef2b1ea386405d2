"""Products with rows that are mostly zeros, whose compiled forms leave these out.

The compiled forms take every sum in a fixed order. Where one number in eight or more is not 0, they
leave the work to the dense product, which is faster then.
"""

from __future__ import annotations

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.dispatch import accelerated

__all__ = ["sparse_product", "transposed_product"]


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
