"""Stacks of convolutions with random parameters."""

from itertools import pairwise

import numpy as np

from syncpretrain import Stack
from syncpretrain.models.layer import ConvolutionalLayer, DenseLayer
from syncpretrain.settings import settings_from
from syncpretrain.shapes import ConvolutionShape
from syncpretrain.units.kinds import kind_of


def ungrouped(weight: np.ndarray, shape: ConvolutionShape) -> np.ndarray:
    """Return weights of all channels to all filters, zero where a filter's group reads none."""
    whole = np.zeros((shape.size**2, shape.channels, shape.filters), weight.dtype)
    own, reads = shape.filters // shape.groups, shape.reads
    for i, part in enumerate(np.split(weight.reshape(-1, reads, shape.filters), shape.groups, 2)):
        whole[:, i * reads : (i + 1) * reads, i * own : (i + 1) * own] = part
    return whole.reshape(*weight.shape[:-2], -1, shape.filters)


def random_layer(shape, *, tied=True, seed=0, scale=0.3, **kinds):
    """Return a layer of a shape with normal parameters."""
    draw = np.random.default_rng(seed)

    def normal(*sizes: int) -> np.ndarray:
        return (scale * draw.normal(size=sizes)).astype(np.float32)

    biases = [normal(size) for size in reversed(shape.biases)]
    if isinstance(shape, ConvolutionShape):
        sizes = (shape.size, shape.size, shape.reads, shape.filters)
        own = None if tied else normal(*sizes)
        return ConvolutionalLayer(normal(*sizes), *biases, shape, own, **kinds)
    own = None if tied else normal(shape.hidden, shape.visible)
    return DenseLayer(normal(shape.visible, shape.hidden), *biases, own, **kinds)


def convolutional_stack(text, *, units=None, tied=True, model="rbm", scaling=None, info=None):
    """Return a stack of random layers; ``units`` are the kinds from the input up."""
    shapes = settings_from(text, model="denoising").pretrain.shapes
    units = units or ("bernoulli",) * (len(shapes) + 1)
    layers = []
    for i, (shape, (below, above)) in enumerate(zip(shapes, pairwise(units), strict=True)):
        own = {"visible_units": kind_of(below).above, "hidden_units": above, "model": model}
        layers.append(random_layer(shape, tied=tied, seed=i, **own))
    return Stack(tuple(layers), info or {}, scaling)
