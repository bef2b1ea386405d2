"""Backpropagation through a layer of units: delta at the output, and below a layer.

All functions work in buffers of the caller and take float32 or float64, one kind at a time.
Symbols: x is a minibatch of B examples, a_l = f_l(a_{l-1} W_l + b_l) the activations of layer l,
a_0 = x, y the last of them, delta_l the derivative of the loss with respect to the input of layer
l's units. Source: Rumelhart, Hinton and Williams 1986.
"""

from __future__ import annotations

import numpy as np

from syncpretrain.kernels.activations import times_derivative
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.dispatch import accelerated
from syncpretrain.kernels.losses import squared_error

Pair = tuple[Array, Array]


@accelerated
def output_delta(
    x: Array,
    y: Array,
    units: str = "bernoulli",
    loss: str = "squared",
    *,
    out: Array,
    share: float = 1.0,
    sums: Array | None = None,
) -> float:
    """Fill ``out`` with delta of the last layer, y being its output for the target x.

    The loss is averaged over the B examples. ``squared`` is |y - x|^2 summed over the units, so
    that delta = 2 / B (y - x) f'; ``cross-entropy`` is the loss of Bernoulli or softmax units, with
    delta = (y - x) / B. Then delta is multiplied by ``share``, and ``sums`` of shape (units,) is
    filled with the sums of delta over the examples: the gradient of the bias.

    Returns
    -------
    float
        The squared error summed over units and examples, whatever the loss.
    """
    total = squared_error(x, y, out=out)
    if loss == "squared":
        out *= 2 / len(x)
        times_derivative(out, y, units)
    else:
        out *= 1 / len(x)
    if share != 1:
        out *= share
    if sums is not None:
        np.sum(out, axis=0, out=sums)
    return total


@accelerated
def derivative_and_sums(
    delta: Array, a: Array, units: str = "bernoulli", *, sums: Array | None = None
) -> None:
    """Multiply ``delta`` by the derivative of the units at their means ``a``, and add it up.

    ``sums`` of shape (units,) is filled with the sums of delta over the examples.
    """
    times_derivative(delta, a, units)
    if sums is not None:
        np.sum(delta, axis=0, out=sums)


@accelerated
def denormalize(delta: Array, normal: Array, spread: Array) -> None:
    """Take ``delta`` back through :func:`~syncpretrain.kernels.activations.normalize`, in place.

    ``delta`` is the derivative of the loss by the standardized inputs ``normal`` of the units; it
    becomes the derivative by the inputs before, which had the standard deviations ``spread``. These
    and the means depend on all rows, so that of delta goes what is constant over the rows, and what
    follows ``normal`` (Ioffe and Szegedy 2015, section 3).
    """
    share = delta.dtype.type(1 / len(delta))
    product = delta * normal
    along = product.sum(axis=0) * share
    delta -= delta.sum(axis=0) * share
    delta -= np.multiply(normal, along, out=product)
    delta /= spread
