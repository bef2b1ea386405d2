"""Probabilistic max pooling (Lee et al. 2009): at most one unit of a block is on.

Symbols as in :mod:`syncpretrain.kernels.convolution`. With the inputs I of the units of a block,
unit k is on with probability exp(I_k) / (1 + sum_j exp(I_j)), and none with 1 over that sum. What
is pooled is on if one of them is.
"""

from __future__ import annotations

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.dispatch import accelerated
from syncpretrain.shapes import ConvolutionShape

__all__ = ["block_means", "block_sums", "draw_blocks"]


@accelerated
def block_means(maps: Array, shape: ConvolutionShape) -> Array:
    """Replace the inputs of binary units by the probabilities that they are on; return them.

    ``maps`` of shape (B, P F) holds inputs with bias.
    """
    parts = _places(maps, shape)
    largest = np.zeros_like(parts[0])  # the input of a block in which no unit is on
    for part in parts:
        np.maximum(largest, part, out=largest)
    total = np.exp(-largest)
    for part in parts:
        part -= largest
        np.exp(part, out=part)
        total += part
    for part in parts:
        part /= total
    return maps


@accelerated
def draw_blocks(maps: Array, noise: Array, shape: ConvolutionShape, *, out: Array) -> Array:
    """Draw states into ``out``, and replace inputs as :func:`block_means` does.

    ``noise`` of shape (B, Q F) holds uniform draws, one a block, and is used up: the unit is on
    whose share of [0, 1) it lies in, place after place, and none if it lies behind all.
    """
    block_means(maps, shape)
    left = noise.reshape(len(maps), shape.output.height, shape.output.width, shape.filters)
    for mean, state in zip(_places(maps, shape), _places(out, shape), strict=True):
        np.copyto(state, (left >= 0) & (left < mean))
        left -= mean
    return out


@accelerated
def block_sums(maps: Array, shape: ConvolutionShape, *, out: Array) -> Array:
    """Fill ``out`` of shape (B, Q F) with the sum of each block of ``maps`` of shape (B, P F).

    Of means, the probability that one unit is on.
    """
    sums = out.reshape(len(maps), shape.output.height, shape.output.width, shape.filters)
    sums.fill(0)
    for part in _places(maps, shape):
        sums += part
    return out


def _places(maps: Array, shape: ConvolutionShape) -> list[Array]:
    """Return for each place in a block its numbers, of shape (B, rows, columns, F), a view."""
    size, rows, columns = shape.pool, shape.output.height, shape.output.width
    blocks = maps.reshape(len(maps), rows, size, columns, size, shape.filters)
    return [blocks[:, :, i, :, j] for i in range(size) for j in range(size)]
