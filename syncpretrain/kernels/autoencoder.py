"""Noise of denoising autoencoders and penalty of contractive ones.

x of shape (B, V) is a minibatch, z its corrupted copy, W of shape (V, H) the weights and b the
biases of the code h = f(z W + b).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from syncpretrain.kernels.activations import times_derivative
from syncpretrain.kernels.arrays import Array
from syncpretrain.units.kinds import kind_of


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
