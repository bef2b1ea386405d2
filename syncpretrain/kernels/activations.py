"""Affine maps and the units behind them, in place.

A kind of unit is a mean as a function of its input x, and a way to draw states (in
:mod:`syncpretrain.kernels.contrastive_divergence`):

* ``bernoulli``: mean sigmoid(x); the units of a binary RBM, and the sigmoid of a network;
* ``gaussian``: mean x, variance 1; the linear units of a network (Hinton and Salakhutdinov 2006);
* ``relu``: mean max(0, x); rectified linear units (Nair and Hinton 2010).

``softmax`` units, of which one is on, are only the last ones of a classifier.
"""

from __future__ import annotations

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.dispatch import accelerated

__all__ = ["UNITS", "activate", "affine", "means", "sigmoid", "softmax", "times_derivative"]

UNITS = ("bernoulli", "gaussian", "relu")


def sigmoid(x: Array) -> Array:
    """Replace x by 1 / (1 + exp(-x)) in place and return it."""
    np.negative(x, out=x)
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, 0
        np.exp(x, out=x)
    x += 1
    return np.reciprocal(x, out=x)


def softmax(x: Array) -> Array:
    """Replace each row of x by exp(x) / sum(exp(x)) in place and return it."""
    x -= x.max(axis=1, keepdims=True)
    np.exp(x, out=x)
    x /= x.sum(axis=1, keepdims=True)
    return x


def activate(x: Array, units: str) -> Array:
    """Replace the inputs x of units by their means, in place, and return them."""
    if units == "bernoulli":
        return sigmoid(x)
    if units == "relu":
        return np.maximum(x, 0, out=x)
    return softmax(x) if units == "softmax" else x


@accelerated
def means(x: Array, bias: Array, units: str) -> Array:
    """Replace the inputs x without their bias by the units' means, in place, and return them."""
    x += bias
    return activate(x, units)


def affine(
    x: Array, weight: Array, bias: Array, units: str = "bernoulli", *, out: Array | None = None
) -> Array:
    """Return the means of units whose input is x W + b (Santara et al. 2016, eq. 4)."""
    out = np.matmul(x, weight, out=out)  # (B, V) @ (V, H) -> (B, H)
    return means(out, bias, units)


@accelerated
def times_derivative(delta: Array, a: Array, units: str = "bernoulli") -> None:
    """Multiply ``delta`` by the derivative of the units at their means ``a``; use up ``a``.

    The derivative with respect to the input is a (1 - a), 1, or 1 where a > 0.
    """
    if units == "bernoulli":
        delta *= a
        np.subtract(1, a, out=a)
        delta *= a
    elif units == "relu":
        delta *= np.sign(a, out=a)  # a >= 0
