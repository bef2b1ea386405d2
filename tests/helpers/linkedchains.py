"""Chains with convolutions, and ways to work the steps of their networks."""

from dataclasses import replace

import numpy as np

from syncpretrain.finetuning.chain import Affine, Convolve, Deconvolve, Dropout
from syncpretrain.kernels.program import Program, in_turn
from syncpretrain.shapes import ConvolutionShape

# Images of 2 x 9 x 7 to 3 maps of 4 x 3, to 4 maps of 2 x 1 with a border of zeros.
LOWER = ConvolutionShape(2, 9, 7, 3, 2, pool=2, channels_first=True)
UPPER = ConvolutionShape(3, 4, 3, 4, 4, pad=1, pool=1)
MEAN = ConvolutionShape(3, 4, 3, 4, 2, pad=1, pool=1, pooling="mean")
DROPOUTS = {"all": Dropout(), "dropout": Dropout(0.25, 0.4, seed=3)}


def normal(*shapes, seed=4):
    draw = np.random.default_rng(seed)
    return [0.5 * draw.normal(size=shape) for shape in shapes]


def up(shape, units, seed):
    return Convolve(*normal((shape.fan_in, shape.filters), shape.filters, seed=seed), units, shape)


def down(shape, units, seed):
    weights = (shape.fan_in, shape.filters)
    return Deconvolve(*normal(weights, shape.channels, seed=seed), units, shape)


def dense(below, above, units, seed):
    return Affine(*normal((below, above), above, seed=seed), units)


def encoder(units, upper):
    return up(LOWER, units, 1), up(upper, units, 2), dense(upper.hidden, 5, units, 3)


def classifier(units="relu", upper=UPPER):
    return [*encoder(units, upper), dense(5, 3, "softmax", 4)]


def unrolled(units="relu", visible="bernoulli", upper=UPPER):
    decoder = dense(5, upper.hidden, units, 4), down(upper, units, 5), down(LOWER, visible, 6)
    return [*encoder(units, upper), *decoder]


NETWORKS = {  # the chain, its loss
    "classifier": (classifier(), "cross-entropy"),
    "classifier, tanh, mean": (classifier("tanh", MEAN), "cross-entropy"),
    "unrolled": (unrolled(), "squared"),
    "unrolled, bernoulli, mean": (unrolled("bernoulli", upper=MEAN), "cross-entropy"),
    "unrolled, gaussian": (unrolled("tanh", "gaussian"), "squared"),
    "convolutions alone": ([up(LOWER, "tanh", 1), down(LOWER, "gaussian", 2)], "squared"),
}


def sampled(network):
    """Return the places of every bias and of one weight in 7: in each row and each column."""
    places, start = [], 0
    for weight, bias in network.chain:
        assert weight.shape[1] % 7
        end = start + weight.size
        places += [*range(start, end, 7), *range(end, end + bias.size)]
        start = end + bias.size
    assert start == len(network.parameters)
    return np.array(places)


def as_float32(chain):
    return [
        replace(link, weight=link.weight.astype("f4"), bias=link.bias.astype("f4"))
        for link in chain
    ]


def examples(chain, rows=6, dtype=np.float64, seed=5):
    draw = np.random.default_rng(seed)
    x = draw.random((rows, LOWER.visible)).astype(dtype)
    if chain[-1].units != "softmax":
        return x, x
    return x, np.eye(3, dtype=dtype)[draw.integers(3, size=rows)]


def interpreted(work, shards):
    """Work a program's equations one after another, as where there is no compiler."""
    in_turn(work.phases if isinstance(work, Program) else work, shards)


def backwards(work, shards):
    """Work the shards of a phase in the opposite order, one equation after another."""
    for phase in work.phases if isinstance(work, Program) else work:
        for shard in reversed(range(shards)):
            phase(shard)
