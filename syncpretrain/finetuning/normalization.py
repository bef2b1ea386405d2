"""Batch normalization: into a network ahead of its training, and out of it behind.

A normalized unit reads (x W - mean) / spread + b, with the mean and the spread over the rows of a
minibatch (Ioffe and Szegedy 2015). It has no factor of its own: a rectified unit c times as large
means the same to the layer above with weights that are c times smaller.

Minibatches normalize in training alone. The stack that training starts from and the one that it
makes are plain layers: mean and spread over the rows of the data go into their weights and biases.
So a model file, an export or another program needs to know nothing of normalization, and an example
gets the same outputs alone as among others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from syncpretrain.data.examples import evenly_spaced
from syncpretrain.errors import SettingsError
from syncpretrain.finetuning.chain import Affine, Link
from syncpretrain.kernels.activations import SMALLEST_VARIANCE, means, product
from syncpretrain.kernels.backprop import Pair
from syncpretrain.shapes import ConvolutionShape, LayerShape

# Rows that mean and spread are taken over: so many that these are known to a hundredth of a spread.
MOST_ROWS = 10_000


def check_normalized(units: Sequence[str], shapes: Sequence[LayerShape]) -> None:
    """Refuse layers that are not normalized, by the kind of each layer's units, and its shape.

    Raises
    ------
    SettingsError
    """
    others = sorted(set(units) - {"relu"})
    are_dense = not any(isinstance(shape, ConvolutionShape) for shape in shapes)
    if others or not are_dense:
        got = f"{', '.join(others)} units" if are_dense else "convolutions"
        raise SettingsError(
            f"finetune_normalization: got batch for layers with {got}, expected dense layers of"
            " relu units (--hidden-units relu); or take none"
        )


def check_rows(batch_size: int, parts: int) -> None:
    """Refuse minibatches with parts of a single row: its standardized inputs would all be 0.

    Raises
    ------
    SettingsError
    """
    if batch_size // parts < 2:
        raise SettingsError(
            f"finetune_batch_size: got {batch_size} in {parts} parts with normalization batch,"
            " expected 2 rows or more in each part, better 10; or take normalization none"
        )


def normalized(chain: Sequence[Link], X: Any) -> list[Link]:
    """Return a chain with its hidden links normalized, which computes the same on the rows of X.

    Parameters
    ----------
    chain : sequence of Affine
        Hidden layers of relu units, and a last layer.
    X : array-like of shape (n_examples, inputs)
    """
    found: list[Link] = []
    below: Any = 1.0  # what the units below are divided by
    pairs = [(link.weight, link.bias) for link in chain]
    for link, (mean, spread) in zip(chain, _moments(pairs, X), strict=False):
        assert isinstance(link, Affine)
        weight, bias = link.weight * below, (link.bias + mean) / spread
        found.append(replace(link, weight=weight, bias=bias, is_normalized=True))
        below = spread[:, None]
    return [*found, replace(chain[-1], weight=chain[-1].weight * below)]


def settled(pairs: Sequence[Pair], X: Any) -> list[Pair]:
    """Return parameters of plain links that compute what normalized ones do on the rows of X.

    Parameters
    ----------
    pairs : sequence of (weight, bias)
        Parameters of a chain with its hidden links normalized.
    X : array-like of shape (n_examples, inputs)
    """
    links = zip(pairs, _moments(pairs, X, settles=True), strict=False)
    plain = [(weight / spread, bias - mean / spread) for (weight, bias), (mean, spread) in links]
    return [*plain, pairs[-1]]


def _moments(pairs: Sequence[Pair], X: Any, *, settles: bool = False) -> Iterator[Pair]:
    """Yield mean and spread of the inputs of each hidden layer's units over rows of X.

    They go through the layers as plain ones, or with ``settles`` as normalized ones.
    """
    a = evenly_spaced(X, MOST_ROWS)
    for weight, bias in pairs[:-1]:
        inputs = product(a, weight)
        mean = inputs.mean(axis=0, dtype=np.float64)
        spread = np.sqrt(inputs.var(axis=0, dtype=np.float64) + SMALLEST_VARIANCE)
        mean, spread = (x.astype(weight.dtype) for x in (mean, spread))
        yield mean, spread
        if settles:
            inputs -= mean
            inputs /= spread
        a = means(inputs, bias, "relu")
