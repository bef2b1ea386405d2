"""Contrastive divergence for a binary RBM (Hinton 2002), with the symbols of Hinton 2010.

v is visible, h hidden, W of shape (V, H), a the visible and b the hidden biases. B is the number
of examples of the minibatch. The two phases lie stacked, data above reconstruction, so that one
product serves the gradient of both: <v h>_data - <v h>_recon = [v0; -v1]^T [h0; h1].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.activations import affine_sigmoid

__all__ = ["gibbs_step", "momentum_step", "sample", "statistics"]

Array = NDArray[np.float32]


def sample(probabilities: Array, uniform: Array, *, out: Array) -> Array:
    """Draw binary states: 1 where a uniform draw lies below the probability."""
    return np.less(uniform, probabilities, out=out)


def gibbs_step(states: Array, weight: Array, a: Array, b: Array, *, v1: Array, h1: Array) -> None:
    """Go down from hidden states to v1 = p(v = 1 | h), and up again to h1 = p(h = 1 | v1)."""
    affine_sigmoid(states, weight.T, a, out=v1)  # (B, H) @ (H, V) -> (B, V)
    affine_sigmoid(v1, weight, b, out=h1)  # (B, V) @ (V, H) -> (B, H)


def statistics(v: Array, h: Array, *, dW: Array, da: Array, db: Array) -> None:
    """Fill the ascent direction of the log-likelihood, averaged over the examples.

    ``v`` of shape (2B, V) holds v0 above v1, ``h`` of shape (2B, H) h0 above h1. Both are scratch
    afterwards: the negative phase of v changes its sign and h is divided by B.
    """
    examples = len(v) // 2
    np.sum(v[:examples], axis=0, out=da)
    da -= v[examples:].sum(axis=0)
    da /= examples
    h /= np.float32(examples)
    np.sum(h[:examples], axis=0, out=db)
    db -= h[examples:].sum(axis=0)
    np.negative(v[examples:], out=v[examples:])
    np.matmul(v.T, h, out=dW)  # (V, 2B) @ (2B, H) -> (V, H)


def momentum_step(
    parameter: Array,
    gradient: Array,
    velocity: Array,
    *,
    momentum: float,
    learning_rate: float,
    weight_decay: float = 0.0,
) -> None:
    """Ascend: velocity = momentum velocity + rate (gradient - decay parameter), then add it.

    ``gradient`` is scratch afterwards. Hinton 2010, sections 9 and 10.
    """
    velocity *= np.float32(momentum)
    gradient *= np.float32(learning_rate)
    velocity += gradient
    if weight_decay:
        np.multiply(parameter, np.float32(learning_rate * weight_decay), out=gradient)
        velocity -= gradient
    parameter += velocity
