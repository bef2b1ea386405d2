"""Convolutions that are read at the places where the maxima of others were.

Symbols as in :mod:`syncpretrain.kernels.convolution`.
"""

from __future__ import annotations

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.convolution import lowered
from syncpretrain.kernels.dispatch import accelerated
from syncpretrain.shapes import ConvolutionShape

__all__ = ["convolve_at"]


@accelerated
def convolve_at(
    x: Array, weight: Array, places: Array, out: Array, scratch: Array, shape: ConvolutionShape
) -> None:
    """Fill ``out`` with x W at the places of a code: the transposed of ``convolve_back``.

    Of a decoder's delta this is the derivative of the loss with respect to the code.

    Parameters
    ----------
    x : ndarray of shape (B, visible units)
    weight : ndarray of shape (k k C, F)
    places : ndarray of shape (B, Q F)
        As :func:`syncpretrain.kernels.convolution.pool` fills them.
    out : ndarray of shape (B, Q F)
    scratch : ndarray of shape (scratch_size(shape),)
        What a compiled form computes in; overwritten.
    shape : ConvolutionShape
        With ``mean``, the means of the blocks are taken.
    """
    size, parts = shape.pool, (len(x), shape.output.height, shape.output.width, shape.filters)
    maps = np.matmul(lowered(x, shape), weight)
    blocks = maps.reshape(parts[0], parts[1], size, parts[2], size, parts[3])
    code, at = out.reshape(parts), places.reshape(parts)
    if shape.pooling == "mean":
        np.mean(blocks, axis=(2, 4), out=code)
        return
    for place in range(size**2):
        row, column = divmod(place, size)
        np.copyto(code, blocks[:, :, row, :, column], where=at == place)
