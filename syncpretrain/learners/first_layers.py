"""First parameters of layers: random weights, and biases of zero or of means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from syncpretrain.data.scaling import Scaling, column_means
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.convolution import sum_channels
from syncpretrain.kernels.fixed_draws import FixedDraws
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
        first, spread = FIRST[shape.name], math.sqrt(variance)
        layers.append(first(number, shape, seed=seed, spread=spread, kinds=kinds))
        below = kind_of(units).above
    return Stack(tuple(layers), {}, scaling)


def first_layer(
    number: int, shape: LayerShape, settings: LayerSettings, model: str, **own: Any
) -> Layer:
    """Return the layer of a number in the stack before its first step, as its settings say.

    ``own`` are ``spread`` and ``tied`` of :func:`first_dense`.
    """
    own |= {"seed": settings.seed, "kinds": settings.kinds(model)}
    if shape.name == "dense":
        own["precision"] = precision_of(settings.precision, settings.products).name
    return FIRST[shape.name](number, shape, **own)


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
        True if the decoder uses the transposed weights; else it has weights of its own, which start
        as the transposed ones.
    kinds : mapping of str to str
        The kinds of its units, and its model.
    precision : str
        The precision of its products in training.
    """
    weight = random_weights(number, (visible, hidden), seed, spread, is_fixed=precision == "own")
    hidden_bias, visible_bias = (np.zeros(n, dtype=np.float32) for n in (hidden, visible))
    decoder = None if tied else weight.T.copy()
    return DenseLayer(weight, hidden_bias, visible_bias, decoder, **kinds, precision=precision)


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


# By the shape's name, a function of the layer's number and its shape.
FIRST: dict[str, Callable[..., Layer]] = {
    "dense": lambda n, shape, **own: first_dense(n, shape.visible, shape.hidden, **own),
    "convolution": first_convolution,
}


def channel_means(X: Any, shape: ConvolutionShape) -> Array:
    """Return the mean of each channel of images; X is what ``column_means`` takes."""
    pixels: Array = column_means(X)[None]
    sums: Array = np.empty_like(pixels, shape=(shape.channels,))
    sum_channels(pixels, shape, out=sums)
    sums /= shape.height * shape.width
    return sums


def random_weights(
    number: int, shape: tuple[int, ...], seed: int, spread: float, *, is_fixed: bool = False
) -> Array:
    """Return the first weights of the layer of a number, normally distributed.

    ``is_fixed`` says that their bits are the same everywhere.
    """
    draws: Any = generator(seed, Purpose.WEIGHTS, layer=number)
    if is_fixed:
        draws = FixedDraws(Address(seed, Purpose.WEIGHTS, number))
    weight: Array = draws.standard_normal(shape, dtype=np.float32)
    weight *= np.float32(spread)
    return weight
