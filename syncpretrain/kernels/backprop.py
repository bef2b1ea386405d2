"""Backpropagation through a chain of layers: the unrolled autoencoder, or a classifier.

A chain is a sequence of (weight, bias) pairs from the input to the output, each with its kind of
units. All functions work in buffers of the caller and take float32 or float64, one kind at a
time. Symbols: x is a minibatch of B examples, a_l = f_l(a_{l-1} W_l + b_l) the activations of layer
l with a_0 = x, y the last of them, delta_l the derivative of the loss with respect to the input of
layer l's units. With dropout, layer l reads m_{l-1} a_{l-1} with a mask m.
Source: Rumelhart, Hinton and Williams 1986; unrolled as in Hinton and Salakhutdinov 2006.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from syncpretrain.kernels.activations import affine, times_derivative
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.dispatch import accelerated, multiply
from syncpretrain.kernels.losses import squared_error

__all__ = [
    "Pair",
    "backward",
    "delta_below",
    "derivative_and_sums",
    "forward",
    "output_delta",
    "weight_gradient",
]

Pair = tuple[Array, Array]


def forward(
    x: Array,
    chain: Sequence[Pair],
    units: Sequence[str],
    *,
    out: Sequence[Array],
    masks: Sequence[Array | None] = (),
    inputs: Sequence[Array | None] = (),
    multiply: Callable[..., Any] = multiply,
) -> Array:
    """Fill ``out`` with the activations of each layer and return the last.

    Parameters
    ----------
    x : ndarray of shape (B, inputs)
        A minibatch.
    chain : sequence of (weight, bias)
        Arrays of shapes (fan in, fan out) and (fan out,).
    units : sequence of str
        The kind of each layer's units; the last may be "softmax".
    out : sequence of ndarray of shape (B, fan out)
        One a layer.
    masks, inputs : sequence of ndarray of shape (B, fan in) or None, optional
        For dropout: what each layer's input is multiplied by, and where the product goes.
    multiply : callable
        The product of matrices in a precision.
    """
    for layer, (weight, bias) in enumerate(chain):
        mask = masks[layer] if masks else None
        if mask is not None:
            x = np.multiply(x, mask, out=inputs[layer])
        x = affine(x, weight, bias, units[layer], out=out[layer], multiply=multiply)
    return x


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
    """Fill ``out`` with delta of the last layer, y being its output for the target x; use up y.

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


def backward(
    x: Array,
    chain: Sequence[Pair],
    units: Sequence[str],
    activations: Sequence[Array],
    deltas: Sequence[Array],
    *,
    out: Sequence[Pair],
    masks: Sequence[Array | None] = (),
    inputs: Sequence[Array | None] = (),
) -> None:
    """Fill ``out`` with the gradients of the loss, from the last layer back to the first.

    Parameters
    ----------
    x, chain, units, masks, inputs
        The arguments of :func:`forward`.
    activations : sequence of ndarray of shape (B, fan out)
        The arrays that :func:`forward` filled; used up, as the derivative is taken in place.
    deltas : sequence of ndarray of shape (B, fan out)
        Buffers; the last one holds the delta of the output.
    out : sequence of (gradient of the weight, gradient of the bias)
        Arrays of the shapes of ``chain``.
    """
    every = slice(None)
    for layer in range(len(chain) - 1, -1, -1):
        mask = masks[layer] if masks else None
        below = activations[layer - 1] if layer else x
        read = below if mask is None else inputs[layer]
        assert read is not None
        delta, (dW, db) = deltas[layer], out[layer]
        weight_gradient(read, delta, every, out=dW)
        np.sum(delta, axis=0, out=db)
        if layer:
            weight, kind = chain[layer][0], units[layer - 1]
            delta_below(delta, weight, every, below, kind, mask, out=deltas[layer - 1])


@accelerated
def derivative_and_sums(
    delta: Array,
    a: Array,
    units: str = "bernoulli",
    *,
    sums: Array | None = None,
    scratch: Array | None = None,
) -> None:
    """Multiply ``delta`` by the derivative of the units at their means ``a``, and add it up.

    ``sums`` of shape (units,) is filled with the sums of delta over the examples. ``a`` is used up,
    unless there is ``scratch`` of its shape instead.
    """
    if scratch is not None:
        np.copyto(scratch, a)
    times_derivative(delta, a if scratch is None else scratch, units)
    if sums is not None:
        np.sum(delta, axis=0, out=sums)


def weight_gradient(
    read: Array,
    delta: Array,
    own: slice,
    *,
    out: Array,
    multiply: Callable[..., Any] = multiply,
) -> None:
    """Fill the rows of a weight's gradient that belong to some of the units that a layer reads.

    ``read`` of shape (B, I) is the layer's input, ``delta`` of shape (B, O) its own delta.
    """
    multiply(read[:, own].T, delta, out=out[own])  # (I, B) @ (B, O) -> (I, O)


def delta_below(
    delta: Array,
    weight: Array,
    own: slice,
    a: Array,
    units: str,
    mask: Array | None = None,
    *,
    out: Array,
    sums: Array | None = None,
    multiply: Callable[..., Any] = multiply,
) -> None:
    """Fill the columns ``own`` of delta, which belong to some of the units below.

    ``a`` has the means of all units below, and its columns ``own`` are used up; ``mask`` is for
    dropout. The same part of ``sums`` is filled with the sums of delta over the examples.
    """
    mine = out[:, own]
    multiply(delta, weight[own].T, out=mine)  # (B, O) @ (O, I) -> (B, I)
    if mask is not None:
        mine *= mask[:, own]
    derivative_and_sums(mine, a[:, own], units, sums=None if sums is None else sums[own])
