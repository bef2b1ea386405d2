"""Products with states that are 0 or 1, whose compiled form looks up sums of several weights."""

from __future__ import annotations

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.dispatch import accelerated

__all__ = ["binary_product"]


@accelerated
def binary_product(states: Array, weight: Array, *, out: Array) -> None:
    """Fill ``out`` with h W^T, of states h that are 0 or 1.

    The compiled form takes every sum in a fixed order. It leaves the work to the dense product
    where a state is another number, or there are few rows.
    """
    np.matmul(states, weight.T, out=out)  # (B, H) @ (H, V) -> (B, V)
