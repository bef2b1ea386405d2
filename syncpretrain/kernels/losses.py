"""Measures of an output against its target."""

from __future__ import annotations

import numpy as np

from syncpretrain.kernels.activations import means
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.dispatch import accelerated
from syncpretrain.units.kinds import kind_of


@accelerated
def squared_error(x: Array, y: Array, *, out: Array) -> float:
    """Return |y - x|^2, summed over units and examples, and leave y - x in ``out``.

    ``out`` may be y itself; it is contiguous.
    """
    np.subtract(y, x, out=out)
    flat = out.reshape(-1)
    return float(np.dot(flat, flat))


@accelerated
def means_and_error(y: Array, bias: Array, units: str, x: Array, *, out: Array) -> float:
    """Replace the inputs y without their bias by the units' means; return |y - x|^2 of these.

    The sum is over units and examples; y - x is left in ``out``, which may be y itself.
    """
    return squared_error(x, means(y, bias, units), out=out)


def cross_entropy(x: Array, y: Array, units: str, weights: Array | None = None) -> float:
    """Return the cross-entropy of means y and targets x, summed over units and examples, in nats.

    The units are binary, or ``softmax`` units with one choice among them; each block has its own.
    ``weights``, of the shape of y, say how much each term counts.

    Raises
    ------
    ValueError
        If it is not the loss of units of this kind.
    """
    kind = kind_of(units)
    if kind.loss != "cross-entropy":
        raise ValueError(f"got {units} units; expected units whose loss is the cross-entropy")
    if kind.blocks is not None:
        return float(kind.blocks.matching(np, x, y, weights))
    smallest = np.finfo(y.dtype).tiny
    share: Array | float = 1.0 if weights is None else weights
    total = float((share * x * np.log(np.maximum(y, smallest))).sum(dtype=np.float64))
    if not kind.is_exclusive:
        others = share * (1 - x) * np.log(np.maximum(1 - y, smallest))
        total += float(others.sum(dtype=np.float64))
    return -total


def loss_of(x: Array, y: Array, units: str, loss: str, weights: Array | None = None) -> float:
    """Return the loss of means y and targets x, summed over units and examples; use up y.

    ``weights``, as wide as y, alike for the units of an example and with rows for a larger
    minibatch, say how much each counts.
    """
    weights = None if weights is None else weights[: len(y)]
    if loss != "squared":
        return cross_entropy(x, y, units, weights)
    if weights is None:
        return squared_error(x, y, out=y)
    np.subtract(y, x, out=y)
    np.square(y, out=y)
    return float((y * weights).sum(dtype=np.float64))


@accelerated
def count_errors(x: Array, y: Array) -> float:
    """Count the rows in which argmax(x) != argmax(y), the first of equal numbers each.

    For arrays on a device: a zero-dimensional device array, not synchronized.
    """
    count: float = (x.argmax(axis=1) != y.argmax(axis=1)).sum(dtype=np.float64)
    return count
