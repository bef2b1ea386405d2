"""First parameters of layers: random weights, and biases of zero or of the data's means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from syncpretrain.data.scaling import column_means
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.convolution import sum_channels
from syncpretrain.models.convolution import ConvolutionalLayer
from syncpretrain.models.layer import DenseLayer
from syncpretrain.rng import Purpose, generator
from syncpretrain.shapes import ConvolutionShape

__all__ = ["channel_means", "first_convolution", "first_dense"]


def first_dense(
    number: int,
    visible: int,
    hidden: int,
    *,
    seed: int,
    spread: float,
    tied: bool = True,
    kinds: Mapping[str, str],
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
    """
    weight = _normal(number, (visible, hidden), seed, spread)
    hidden_bias, visible_bias = (np.zeros(n, dtype=np.float32) for n in (hidden, visible))
    decoder = None if tied else weight.T.copy()
    return DenseLayer(weight, hidden_bias, visible_bias, decoder, **kinds)


def first_convolution(
    number: int,
    shape: ConvolutionShape,
    *,
    seed: int,
    spread: float,
    tied: bool = True,
    kinds: Mapping[str, str],
) -> ConvolutionalLayer:
    """Return the convolutional layer of a number in the stack; see :func:`first_dense`.

    Decoder weights of its own start as a copy, for they have the shape of the others.
    """
    filters = (shape.size, shape.size, shape.channels, shape.filters)
    weight = _normal(number, filters, seed, spread)
    visible, hidden = shape.biases
    hidden_bias, visible_bias = (np.zeros(n, dtype=np.float32) for n in (hidden, visible))
    decoder = None if tied else weight.copy()
    return ConvolutionalLayer(weight, hidden_bias, visible_bias, shape, decoder, **kinds)


def channel_means(X: Any, shape: ConvolutionShape) -> Array:
    """Return the mean of each channel of images; X is what ``column_means`` takes."""
    pixels: Array = column_means(X)[None]
    sums: Array = np.empty(shape.channels, dtype=pixels.dtype)
    sum_channels(pixels, shape, out=sums)
    sums /= shape.height * shape.width
    return sums


def _normal(number: int, shape: tuple[int, ...], seed: int, spread: float) -> Array:
    start = generator(seed, Purpose.WEIGHTS, layer=number)
    weight = start.standard_normal(shape, dtype=np.float32)
    weight *= np.float32(spread)
    return weight
