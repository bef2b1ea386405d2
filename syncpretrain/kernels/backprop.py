"""Losses of an output, and backpropagation: delta at the output, and below a layer of units.

All functions work in buffers of the caller and take float32 or float64, one kind at a time.
Symbols: x is a minibatch of B examples, a_l = f_l(a_{l-1} W_l + b_l) the activations of layer l,
a_0 = x, y the last of them, delta_l the derivative of the loss with respect to the input of layer
l's units. Source: Rumelhart, Hinton and Williams 1986.

The noise of denoising autoencoders and the penalty of contractive ones come last: z is a corrupted
copy of x, W of shape (V, H) has the weights and b the biases of the code h = f(z W + b).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from syncpretrain.kernels.activations import means, times_derivative
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.dispatch import accelerated
from syncpretrain.units.kinds import kind_of

Pair = tuple[Array, Array]


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


def corrupt(
    x: Array, kind: str, amount: float, draws: Any, limits: tuple[float, float] = (0, 1)
) -> None:
    """Replace examples by noisy copies, in place (Vincent et al. 2010).

    ``masking`` sets a share ``amount`` of the values to 0, ``salt-and-pepper`` to one of two
    ``limits`` with equal chances, and ``gaussian`` adds noise of standard deviation ``amount``.
    ``draws`` is a generator of NumPy, or has its methods.
    """
    if kind == "gaussian":
        x += np.float32(amount) * draws.standard_normal(x.shape, dtype=np.float32)
        return
    uniform = draws.random(x.shape, dtype=np.float32)
    if kind == "salt-and-pepper":
        # Not x[mask] = value: CuPy copies the mask to the host, which a recording refuses.
        np.copyto(x, limits[1], where=uniform < amount / 2)
        np.copyto(x, limits[0], where=(uniform >= amount / 2) & (uniform < amount))
    else:
        x *= uniform >= amount


def contraction(h: Array, weight: Array, units: str, amount: float) -> tuple[Array, Array]:
    """Return the gradient of the penalty ``amount`` * |dh/dz|^2 of a code h of shape (B, H).

    The squared Frobenius norm of the Jacobian of the code, averaged over the examples: with
    s = dh/d(z W + b) it is the mean of sum_j s_j^2 |W_j|^2 (Rifai et al. 2011, section 5.3).

    Returns
    -------
    ndarray of shape (B, H), ndarray of shape (V, H)
        By the code's input, and by the weights where they stand in the penalty itself.
    """
    scale = np.float32(2 * amount / len(h))
    s = np.ones_like(h)
    times_derivative(s, h, units)
    squared = np.square(s)
    by_weight = weight * (scale * squared.sum(axis=0))
    curvature = kind_of(units).curvature
    if curvature is None:  # s is constant
        return np.zeros_like(h), by_weight
    return scale * np.square(weight).sum(axis=0) * squared * curvature(np, h), by_weight
