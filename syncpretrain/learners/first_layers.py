"""First parameters of layers: random weights, and biases of zero or of means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from syncpretrain.data.scaling import Scaling, column_means
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.contrastive_divergence import FixedDraws
from syncpretrain.kernels.convolution import sum_channels
from syncpretrain.kernels.precision import precision_of
from syncpretrain.models.layer import ConvolutionalLayer, DenseLayer, Layer
from syncpretrain.models.stack import Stack
from syncpretrain.rng import Address, Purpose, generator
from syncpretrain.settings.fields import LayerSettings
from syncpretrain.shapes import ConvolutionShape, LayerShape
from syncpretrain.units.kinds import kind_of


def untrained_stack(
    shapes: Sequence[LayerShape],
    hidden_units: Sequence[str],
    visible_units: str = "bernoulli",
    *,
    seed: int = 0,
    scaling: Scaling | None = None,
) -> Stack:
    """Return a stack to be trained from random weights by fine-tuning alone.

    They are normal with variance 2 / (fan in + fan out) (Glorot and Bengio 2010), or 2 / fan in
    below rectified units (He et al. 2015).

    Parameters
    ----------
    shapes : sequence of LayerShape
        The shapes of the layers, from the input up.
    hidden_units : sequence of str
        One kind a layer.
    visible_units : str
        The units of the lowest layer's input; for the others they follow from the units below.
    seed : int
    scaling : Scaling, optional
        The scaling of the input for Gaussian visible units.
    """
    layers: list[Layer] = []
    below = visible_units
    for number, (shape, units) in enumerate(zip(shapes, hidden_units, strict=True), start=1):
        variance = kind_of(units).weight_variance(shape.fan_in, shape.fan_out)
        kinds = {"hidden_units": units, "visible_units": below, "model": "autoencoder"}
        spread = math.sqrt(variance)
        layers.append(random_layer(number, shape, seed=seed, spread=spread, kinds=kinds))
        below = kind_of(units).above
    return Stack(tuple(layers), {}, scaling)


def first_layer(
    number: int, shape: LayerShape, settings: LayerSettings, model: str, **own: Any
) -> Layer:
    """Return the layer of a number in the stack before its first step, as its settings say.

    ``own`` are ``spread`` and ``tied`` of :func:`random_layer`.
    """
    own |= {"seed": settings.seed, "kinds": settings.kinds(model)}
    precision = precision_of(settings.precision, settings.products).name
    return random_layer(number, shape, **own, precision=precision)


def random_layer(
    number: int,
    shape: LayerShape,
    *,
    seed: int,
    spread: float,
    tied: bool = True,
    kinds: Mapping[str, str],
    precision: str = "float32",
) -> Layer:
    """Return a layer of random weights, with biases of zero.

    Parameters
    ----------
    number : int
        The number in the stack, which counts from 1.
    shape : LayerShape
    seed : int
    spread : float
        Standard deviation of the weights.
    tied : bool
        True if the decoder uses the same weights, a dense one the transposed ones; else it has
        weights of its own, which start as these.
    kinds : mapping of str to str
        The kinds of its units, and its model.
    precision : str
        The precision of a dense layer's products in training. With products of its ``own`` the bits
        of the weights are the same everywhere; a convolution has its precision in its shape.
    """
    hidden_bias, visible_bias = (np.zeros(n, dtype=np.float32) for n in reversed(shape.biases))
    draws: Any = generator(seed, Purpose.WEIGHTS, layer=number)
    if isinstance(shape, ConvolutionShape):
        weight = _normal(draws, (shape.size, shape.size, shape.reads, shape.filters), spread)
        decoder = None if tied else weight.copy()
        return ConvolutionalLayer(weight, hidden_bias, visible_bias, shape, decoder, **kinds)
    if precision == "own":
        draws = FixedDraws(Address(seed, Purpose.WEIGHTS, number))
    weight = _normal(draws, (shape.visible, shape.hidden), spread)
    decoder = None if tied else weight.T.copy()
    return DenseLayer(weight, hidden_bias, visible_bias, decoder, **kinds, precision=precision)


def _normal(draws: Any, shape: tuple[int, ...], spread: float) -> Array:
    weight: Array = draws.standard_normal(shape, dtype=np.float32)
    weight *= np.float32(spread)
    return weight


def channel_means(X: Any, shape: ConvolutionShape) -> Array:
    """Return the mean of each channel of images; X is what ``column_means`` takes."""
    pixels: Array = column_means(X)[None]
    sums: Array = np.empty_like(pixels, shape=(shape.channels,))
    sum_channels(pixels, shape, out=sums)
    sums /= shape.height * shape.width
    return sums
