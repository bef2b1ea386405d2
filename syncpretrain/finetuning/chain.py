"""Affine layers of a network that is fine-tuned, and dropout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.backprop import Pair

__all__ = ["Affine", "Dropout", "views"]


@dataclass(frozen=True, slots=True)
class Affine:
    """One layer of a chain: the means of ``units`` whose input is x W + b."""

    weight: Array
    bias: Array
    units: str


@dataclass(frozen=True, slots=True)
class Dropout:
    """Shares of the inputs and of the hidden units left out of each example (Hinton et al. 2012).

    Those that stay are scaled up, so that nothing is to be scaled when all are there.
    """

    input: float = 0.0
    hidden: float = 0.0
    seed: int = 0


def views(vector: Array, chain: Sequence[Affine]) -> Iterator[Pair]:
    """Split a flat vector into a weight and a bias for each layer of a chain, as views."""
    at = 0
    for layer in chain:
        middle, end = at + layer.weight.size, at + layer.weight.size + layer.bias.size
        yield vector[at:middle].reshape(layer.weight.shape), vector[middle:end]
        at = end
