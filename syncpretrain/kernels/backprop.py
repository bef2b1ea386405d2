"""Backpropagation through a chain of sigmoid layers: the unrolled autoencoder.

A chain is a sequence of (weight, bias) pairs from the input to the reconstruction. All functions
work in buffers of the caller and take float32 or float64, one kind at a time. Symbols: x is a
minibatch of B examples, a_l = sigmoid(a_{l-1} W_l + b_l) the activations of layer l with a_0 = x,
y the last of them, delta_l the derivative of the loss with respect to a_{l-1} W_l + b_l.
Source: Rumelhart, Hinton and Williams 1986; unrolled as in Hinton and Salakhutdinov 2006.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.activations import affine_sigmoid
from syncpretrain.kernels.errors import squared_error

__all__ = ["backward", "forward", "output_delta", "times_derivative"]

Array = NDArray[np.float32]
Pair = tuple[Array, Array]


def forward(x: Array, chain: Sequence[Pair], *, out: Sequence[Array]) -> Array:
    """Fill ``out`` with the activations of each layer and return the last, the reconstruction.

    Parameters
    ----------
    x : ndarray of shape (B, inputs)
        A minibatch.
    chain : sequence of (weight, bias)
        Of shapes (fan in, fan out) and (fan out,).
    out : sequence of ndarray of shape (B, fan out)
        One a layer.
    """
    for (weight, bias), activation in zip(chain, out, strict=True):
        x = affine_sigmoid(x, weight, bias, out=activation)
    return x


def times_derivative(delta: Array, a: Array) -> None:
    """Multiply ``delta`` by the derivative a (1 - a) of the sigmoid; ``a`` is left as 1 - a."""
    delta *= a
    np.subtract(1, a, out=a)
    delta *= a


def output_delta(x: Array, y: Array, *, out: Array) -> float:
    """Fill ``out`` with delta of the last layer for the squared error; use up ``y``.

    The loss is |y - x|^2 summed over the units and averaged over the B examples, so that
    delta = 2 / B (y - x) y (1 - y).

    Returns
    -------
    float
        The squared error summed over units and examples: B times the loss.
    """
    total = squared_error(x, y, out=out)
    out *= 2 / len(x)
    times_derivative(out, y)
    return total


def backward(
    x: Array,
    chain: Sequence[Pair],
    activations: Sequence[Array],
    deltas: Sequence[Array],
    *,
    out: Sequence[Pair],
) -> None:
    """Fill ``out`` with the gradients of the loss, from the last layer back to the first.

    Parameters
    ----------
    x : ndarray of shape (B, inputs)
        The minibatch.
    chain : sequence of (weight, bias)
        What :func:`forward` was given.
    activations : sequence of ndarray of shape (B, fan out)
        What :func:`forward` filled; used up, because the derivative is taken in place.
    deltas : sequence of ndarray of shape (B, fan out)
        Buffers; the last one holds the delta of the output.
    out : sequence of (gradient of the weight, gradient of the bias)
        Of the shapes of ``chain``.
    """
    for layer in range(len(chain) - 1, -1, -1):
        below = activations[layer - 1] if layer else x
        delta, (weight_gradient, bias_gradient) = deltas[layer], out[layer]
        np.matmul(below.T, delta, out=weight_gradient)  # (I, B) @ (B, O) -> (I, O)
        np.sum(delta, axis=0, out=bias_gradient)
        if layer:
            np.matmul(delta, chain[layer][0].T, out=deltas[layer - 1])  # (B, O) @ (O, I) -> (B, I)
            times_derivative(deltas[layer - 1], below)
