"""Affine maps and the logistic function, in place."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["affine_sigmoid", "sigmoid"]

Array = NDArray[np.float32]


def sigmoid(x: Array) -> Array:
    """Replace x by 1 / (1 + exp(-x)) in place and return it."""
    np.negative(x, out=x)
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, 0
        np.exp(x, out=x)
    x += 1
    return np.reciprocal(x, out=x)


def affine_sigmoid(x: Array, weight: Array, bias: Array, *, out: Array | None = None) -> Array:
    """Return sigmoid(x W + b), the probabilities p(h = 1 | v) (Santara et al. 2016, eq. 4)."""
    out = np.matmul(x, weight, out=out)  # (B, V) @ (V, H) -> (B, H)
    out += bias
    return sigmoid(out)
