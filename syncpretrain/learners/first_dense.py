"""First parameters of a dense layer: random weights, and biases of zero."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.models.layer import DenseLayer
from syncpretrain.rng import Purpose, generator

__all__ = ["first_dense", "random_weights"]


def first_dense(
    number: int,
    visible: int,
    hidden: int,
    *,
    seed: int,
    spread: float,
    tied: bool = True,
    kinds: Mapping[str, str],
    precision: str = "float32",
) -> DenseLayer:
    """Return the dense layer of a number in the stack, before its first step.

    Parameters
    ----------
    number, visible, hidden : int
        The number counts from 1.
    seed : int
    spread : float
        Standard deviation of the weights.
    tied : bool
        Whether the decoder uses the transposed weights, or weights of its own, which start as
        the transposed ones.
    kinds : mapping of str to str
        What its units are, and its model.
    precision : str
        Of its products in training.
    """
    weight = random_weights(number, (visible, hidden), seed, spread)
    hidden_bias, visible_bias = (np.zeros(n, dtype=np.float32) for n in (hidden, visible))
    decoder = None if tied else weight.T.copy()
    return DenseLayer(weight, hidden_bias, visible_bias, decoder, **kinds, precision=precision)


def random_weights(number: int, shape: tuple[int, ...], seed: int, spread: float) -> Array:
    """Return the first weights of the layer of a number, normally distributed."""
    start = generator(seed, Purpose.WEIGHTS, layer=number)
    weight = start.standard_normal(shape, dtype=np.float32)
    weight *= np.float32(spread)
    return weight
