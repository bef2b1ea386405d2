"""Chains of dense layers of every kind, and the slopes of their loss."""

from itertools import pairwise

import numpy as np
from minibatches import place as let_be
from unitkinds import UNITS

from syncpretrain.finetuning.chain import Affine

CHAINS = {  # units of each layer, loss
    "bernoulli": (("bernoulli", "bernoulli", "bernoulli"), "squared"),
    "bernoulli-cross-entropy": (("bernoulli", "bernoulli", "bernoulli"), "cross-entropy"),
    "gaussian": (("bernoulli", "gaussian", "gaussian"), "squared"),
    "relu": (("relu", "relu", "relu"), "squared"),
    "relu-gaussian": (("relu", "gaussian", "bernoulli"), "cross-entropy"),
    "softmax": (("bernoulli", "relu", "softmax"), "cross-entropy"),
    **{f"{name} throughout": ((name, name, name), "squared") for name in UNITS},
}
WIDTHS = (5, 7, 6, 4)


def make_chain(kinds, widths=WIDTHS, dtype=np.float64):
    def normal(*shape):  # small enough that no unit saturates
        return (0.5 * draw.normal(size=shape)).astype(dtype)

    draw = np.random.default_rng(4)
    return [
        Affine(normal(v, h), normal(h), units)
        for (v, h), units in zip(pairwise(widths), kinds, strict=True)
    ]


def make_examples(units, rows=6, dtype=np.float64):
    draw = np.random.default_rng(5)
    x, target = draw.random((rows, WIDTHS[0])), draw.random((rows, WIDTHS[-1]))
    if units == "softmax":
        target = np.eye(WIDTHS[-1])[draw.integers(WIDTHS[-1], size=rows)]
    return x.astype(dtype), target.astype(dtype)


def finite_differences(network, x, target, weights=None, size=1e-6, places=None, **address):
    """Return the slopes of the loss at some parameters, by default at all."""
    let_be(network, x, target, weights, **address)
    places = np.arange(len(network.parameters)) if places is None else places
    slopes = np.empty(len(places))
    for i, (place, kept) in enumerate(zip(places, network.parameters[places], strict=True)):
        network.parameters[place] = kept + size
        above = network.loss_of_minibatch()
        network.parameters[place] = kept - size
        below = network.loss_of_minibatch()
        network.parameters[place] = kept
        slopes[i] = (above - below) / (2 * size)
    return slopes
