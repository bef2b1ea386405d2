"""Affine maps and the units behind them, in place; :mod:`syncpretrain.units` has the equations."""

from __future__ import annotations

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.dispatch import accelerated
from syncpretrain.kernels.sparse_products import product
from syncpretrain.units.kinds import kind_of

__all__ = ["activate", "affine", "means", "times_derivative"]


def activate(x: Array, units: str) -> Array:
    """Replace the inputs x of units by their means, in place, and return them."""
    kind_of(units).mean(np, x)
    return x


@accelerated
def means(x: Array, bias: Array, units: str) -> Array:
    """Replace the inputs x without their bias by the units' means, in place, and return them."""
    x += bias
    return activate(x, units)


def affine(
    x: Array, weight: Array, bias: Array, units: str = "bernoulli", *, out: Array | None = None
) -> Array:
    """Return the means of units whose input is x W + b (Santara et al. 2016, eq. 4)."""
    return means(product(x, weight, out=out), bias, units)


@accelerated
def times_derivative(delta: Array, a: Array, units: str = "bernoulli") -> None:
    """Multiply ``delta`` by the derivative of the units at their means ``a``; use up ``a``.

    Raises
    ------
    ValueError
        If their derivative is part of the loss.
    """
    derivative = kind_of(units).times_derivative
    if derivative is None:
        raise ValueError(f"got {units} units; expected units whose derivative is no part of a loss")
    derivative(np, a, delta)
