"""Contrastive divergence for RBMs (Hinton 2002), with the symbols of Hinton 2010.

v is visible, h hidden, W of shape (V, H), a the visible and b the hidden biases. B is the number
of examples of the minibatch. The two phases lie stacked, data above reconstruction, so that one
product serves the gradient of both: <v h>_data - <v h>_recon = [v0; -v1]^T [h0; h1]. It is the
same for every kind of unit, with a variance of 1 for Gaussian ones.

Normal draws and states have forms with the same bits on every processor (*fixed*). Uniform draws
and the states of binary units have them anyway. NumPy's normal draws end in the logarithm of the C
library, and the sigmoid of rectified units is NumPy's exponential: both differ in the last bit
between processors or versions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from syncpretrain.kernels.activations import means
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.dispatch import accelerated
from syncpretrain.rng import Address
from syncpretrain.units.kinds import kind_of, sample_rectified


def draw_noise(draws: Any, units: str, *, out: Array) -> Array:
    """Fill ``out`` with what :func:`sample` needs: uniform or normal draws, or both in blocks.

    ``draws`` is a generator of NumPy, or has its methods.

    Raises
    ------
    ValueError
        If units of this kind have no states.
    """
    kind = kind_of(units)
    if kind.noise is None:
        raise ValueError(f"got {units} units; expected units that have states")
    draw = draws.random if kind.noise == "uniform" else draws.standard_normal
    if kind.are_counts:
        draw(out=out[:1], dtype=np.float32)  # a seed: see draw_words
        return out
    if out.flags.c_contiguous and out.dtype == np.float32:
        draw(out=out, dtype=np.float32)
    else:  # NumPy fills no other arrays
        out[...] = draw(out.shape, dtype=np.float32)
    for part in () if kind.blocks is None else kind.blocks.normal:
        shape = len(out), part.stop - part.start
        out[:, part.columns] = draws.standard_normal(shape, dtype=np.float32)
    return out


def sample(x: Array, units: str, noise: Array, *, out: Array) -> Array:
    """Draw states into ``out``; replace the inputs x by the units' means; use up ``noise``.

    Raises
    ------
    ValueError
        If units of this kind have no states.
    """
    draw = kind_of(units).sample
    if draw is None:
        raise ValueError(f"got {units} units; expected units that have states")
    draw(np, x, noise, out)
    return out


@accelerated
def sample_states(
    x: Array, bias: Array, units: str, address: Address, *, noise: Array, out: Array
) -> Array:
    """Draw states into ``out`` at an address; replace inputs x without their bias by means.

    The draws fill ``noise``, an array of the shape of x, in the order of its rows.
    """
    x += bias
    return sample(x, units, draw_noise(address.generator(), units, out=noise), out=out)


@accelerated
def fill_normal(out: Array, address: Address) -> None:
    """Fill a float32 array with the first normal draws at an address, row by row.

    The compiled form has the same bits everywhere; one in a million draws, far from 0, differs in
    the last bit from NumPy's, which this form takes.
    """
    address.generator().standard_normal(out=out, dtype=np.float32)


class FixedDraws:
    """The draws at an address, under the names that NumPy's generators have.

    Parameters
    ----------
    address : Address
        One array of draws is taken from it.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self.random = address.generator().random

    def standard_normal(self, size: Any = None, dtype: Any = None, out: Any = None) -> Array:
        """Return normal draws of float32 in a shape, in ``out`` if it is given."""
        drawn: Array = np.empty(size, dtype=np.float32) if out is None else out
        fill_normal(drawn, self._address)
        return drawn


def sample_fixed(
    x: Array, bias: Array, units: str, address: Address, *, noise: Array, out: Array
) -> Array:
    """Do what :func:`sample_states` does, with normal draws and a sigmoid of the same bits.

    States in blocks are drawn by :func:`sample_states`.
    """
    kind = kind_of(units)
    if kind.noise != "normal" or kind.blocks is not None:
        return sample_states(x, bias, units, address, noise=noise, out=out)
    x += bias
    draw_noise(FixedDraws(address), units, out=noise)
    if kind.name != "relu":
        return sample(x, units, noise, out=out)
    sample_rectified(np, x, noise, out, lambda np, x: means(x, np.zeros_like(bias), "bernoulli"))
    return out


def sum_rows(x: Array, *, out: Array) -> Array:
    """Fill ``out`` with the sum of the rows of x, one added after the other, as compiled.

    NumPy sums a single column by pairs. A device has sums of its own.
    """
    if isinstance(x, np.ndarray) and x.shape[1] == 1 and len(x):
        out[0] = 0 + np.cumsum(x[:, 0])[-1]  # 0, never -0
    else:
        np.sum(x, axis=0, out=out)
    return out


@accelerated
def phase_differences(v: Array, h: Array, *, da: Array, db: Array, examples: float) -> None:
    """Fill the ascent direction of both biases, and prepare [v0; v1] for the weights' direction.

    ``v`` of shape (2B, V) holds v0 above v1, ``h`` of shape (2B, H) h0 above h1. Afterwards v is
    divided by ``examples``, the size of the minibatch that the B examples are of, and v1 has the
    other sign: then v^T h is the ascent direction of the weights.
    """
    n = len(v) // 2
    v *= np.float32(1 / examples)
    np.multiply(v[n:], -1, out=v[n:])
    sum_rows(v, out=da)
    sum_rows(h[:n], out=db)
    db -= sum_rows(h[n:], out=np.empty_like(db))
    db /= np.float32(examples)


def weighted_phases(v: Array, h: Array, factors: Array, *, da: Array, db: Array) -> None:
    """Do what :func:`phase_differences` does, for rows that have factors, negative in the chains.

    They may be examples of other weights, or above any number of chains.
    """
    v *= factors[:, None]
    sum_rows(v, out=da)
    sum_rows(h * factors[:, None], out=db)


def centre(dW: Array, da: Array, db: Array, mu: Array, lam: Array) -> None:
    """Make the plain ascent direction the centred one, in place.

    With offsets mu of the visible and lam of the hidden units, the model's energy is
    -(v - mu)^T W (h - lam) - (v - mu)^T a - (h - lam)^T b. Its gradient, taken back to the biases
    of the usual energy, is (Montavon and Mueller 2012; Melchior, Fischer and Wiskott 2016)::

        dW' = <(v - mu) (h - lam)^T>_data - <(v - mu) (h - lam)^T>_model
            = dW - mu db^T - da lam^T
        da' = da - dW' lam
        db' = db - dW'^T mu

    It is linear in dW, da and db: the shards of a minibatch may be centred one by one.
    """
    dW -= np.outer(mu, db)
    dW -= np.outer(da, lam)
    da -= sum_rows(np.ascontiguousarray((dW * lam).T), out=np.empty_like(da))
    db -= sum_rows(dW * mu[:, None], out=np.empty_like(db))


@accelerated
def means_and_differences(
    v: Array, h: Array, bias: Array, units: str, *, da: Array, db: Array, examples: int
) -> None:
    """Do what :func:`phase_differences` does, where h1 are inputs of units without their bias.

    These become means.
    """
    means(h[len(h) // 2 :], bias, units)
    phase_differences(v, h, da=da, db=db, examples=examples)


def sparsity_step(
    v0: Array,
    h0: Array,
    activity: Array,
    *,
    target: float,
    cost: float,
    dW: Array,
    db: Array,
    examples: float | None = None,
) -> None:
    """Add cost (target - q) to the ascent direction; q is the decaying mean activity of each unit.

    As in Hinton 2010, section 11.1: the difference moves the bias and the incoming weights.
    ``activity`` holds q and is brought up to date with the means ``h0``. As after
    :func:`phase_differences`, ``v0`` is divided by ``examples``, the size of the minibatch that
    these are a part of.
    """
    n = len(v0)
    activity *= np.float32(0.9)
    activity += np.float32(0.1 / n) * h0.sum(axis=0)
    push = np.float32(cost) * (np.float32(target) - activity)
    db += np.float32(n / (examples or n)) * push
    dW += np.outer(v0.sum(axis=0), push)


@accelerated
def momentum_step(
    parameter: Array,
    gradient: Array,
    velocity: Array,
    *,
    momentum: float,
    learning_rate: float,
    weight_decay: float = 0.0,
    l1: float = 0.0,
) -> None:
    """Ascend: velocity = momentum velocity + rate (gradient - decay), then add it.

    The decay is ``weight_decay`` times the parameter plus ``l1`` times its sign. ``gradient`` is
    scratch afterwards. Hinton 2010, sections 9 and 10.
    """
    velocity *= np.float32(momentum)
    gradient *= np.float32(learning_rate)
    velocity += gradient
    decay, shrinkage = np.float32(learning_rate * weight_decay), np.float32(learning_rate * l1)
    if decay:  # for 0 times infinity is nan
        np.multiply(parameter, decay, out=gradient)
        velocity -= gradient
    if shrinkage:
        np.sign(parameter, out=gradient)
        gradient *= shrinkage
        velocity -= gradient
    parameter += velocity


@accelerated
def momentum_steps(
    parameters: Array, gradients: Array, velocities: Array, *, weights: int, **rates: float
) -> None:
    """Ascend with flat vectors; the first ``weights`` numbers decay and the rest do not.

    ``rates`` are the keywords of :func:`momentum_step`.
    """
    without_decay = rates | {"weight_decay": 0.0, "l1": 0.0}
    for own, how in ((slice(weights), rates), (slice(weights, None), without_decay)):
        momentum_step(parameters[own], gradients[own], velocities[own], **how)
