"""Measures of an output against its target."""

from __future__ import annotations

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.dispatch import accelerated
from syncpretrain.units import kind_of

__all__ = ["cross_entropy", "squared_error", "wrong"]


@accelerated
def squared_error(x: Array, y: Array, *, out: Array) -> float:
    """Return |y - x|^2, summed over units and examples, and leave y - x in ``out``.

    ``out`` may be y itself; it is contiguous.
    """
    np.subtract(y, x, out=out)
    flat = out.reshape(-1)
    return float(np.dot(flat, flat))


def cross_entropy(x: Array, y: Array, units: str) -> float:
    """Return the cross-entropy of means y and targets x, summed over units and examples, in nats.

    That of binary units, or of one choice among ``softmax`` units.

    Raises
    ------
    ValueError
        If it is not the loss of units of this kind.
    """
    kind = kind_of(units)
    if kind.loss != "cross-entropy":
        raise ValueError(f"got {units} units; expected units whose loss is the cross-entropy")
    smallest = np.finfo(y.dtype).tiny
    total = float((x * np.log(np.maximum(y, smallest))).sum(dtype=np.float64))
    if not kind.is_exclusive:
        total += float(((1 - x) * np.log(np.maximum(1 - y, smallest))).sum(dtype=np.float64))
    return -total


def wrong(x: Array, y: Array) -> float:
    """Return how many rows of y have their largest value elsewhere than those of x.

    For arrays on a device: a zero-dimensional device array, not synchronized.
    """
    count: float = (x.argmax(axis=1) != y.argmax(axis=1)).sum(dtype=np.float64)
    return count
