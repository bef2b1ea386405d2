"""Products with rows that are mostly zeros, whose compiled forms leave these out.

The compiled forms take every sum in a fixed order. Where one number in eight or more is not 0, they
leave the work to the dense product, which is faster then.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.dispatch import accelerated

__all__ = ["csr_product", "product", "sparse_product", "transposed_product"]


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
def csr_product(
    data: Array, indices: NDArray[Any], indptr: NDArray[Any], weight: Array, *, out: Array
) -> None:
    """Fill ``out`` with the product of a matrix in CSR format and W."""
    for row, (first, last) in enumerate(pairwise(indptr)):
        np.matmul(data[first:last], weight[indices[first:last]], out=out[row])


def product(x: Any, weight: Array, *, out: Array | None = None) -> Array:
    """Return x W, of an array or of sparse rows."""
    if not isinstance(x, SparseRows):
        found: Array = np.matmul(x, weight, out=out)  # (B, V) @ (V, H) -> (B, H)
        return found
    if out is None:
        out = np.empty((len(x), weight.shape[1]), dtype=weight.dtype)
    csr_product(x.data, x.indices, x.indptr, weight, out=out)
    return out
