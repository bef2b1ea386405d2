"""First parameters of a convolutional layer: random weights, and biases of zero or of means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from syncpretrain.data.scaling import column_means
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.convolution import sum_channels
from syncpretrain.learners.first_dense import random_weights
from syncpretrain.models.layer import ConvolutionalLayer
from syncpretrain.shapes import ConvolutionShape

__all__ = ["channel_means", "first_convolution"]


def first_convolution(
    number: int,
    shape: ConvolutionShape,
    *,
    seed: int,
    spread: float,
    tied: bool = True,
    kinds: Mapping[str, str],
) -> ConvolutionalLayer:
    """Return the convolutional layer of a number in the stack; see ``first_dense``.

    Decoder weights of its own start as a copy, for they have the shape of the others.
    """
    filters = (shape.size, shape.size, shape.reads, shape.filters)
    weight = random_weights(number, filters, seed, spread)
    visible, hidden = shape.biases
    hidden_bias, visible_bias = (np.zeros(n, dtype=np.float32) for n in (hidden, visible))
    decoder = None if tied else weight.copy()
    return ConvolutionalLayer(weight, hidden_bias, visible_bias, shape, decoder, **kinds)


def channel_means(X: Any, shape: ConvolutionShape) -> Array:
    """Return the mean of each channel of images; X is what ``column_means`` takes."""
    pixels: Array = column_means(X)[None]
    sums: Array = np.empty_like(pixels, shape=(shape.channels,))
    sum_channels(pixels, shape, out=sums)
    sums /= shape.height * shape.width
    return sums
