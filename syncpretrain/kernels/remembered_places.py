"""Convolutions that are read at the places where the maxima of others were.

Symbols as in :mod:`syncpretrain.kernels.convolution`.
"""

from __future__ import annotations

import numpy as np

from syncpretrain.kernels.arrays import LONG_BLOCK, Array
from syncpretrain.kernels.convolution import convolve
from syncpretrain.kernels.dispatch import accelerated
from syncpretrain.shapes import ConvolutionShape

__all__ = ["convolve_at"]


@accelerated
def convolve_at(
    x: Array,
    weight: Array,
    places: Array,
    out: Array,
    scratch: Array,
    shape: ConvolutionShape,
    filters: slice = slice(None),
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
    scratch : ndarray of shape (n,)
        As of ``convolve``, for this shape and for that without pooling; overwritten.
    shape : ConvolutionShape
        With ``mean``, the means of the blocks are taken.
    filters : slice
        The filters that are computed; what belongs to others is left as it is.
    """
    none, no_bias = np.empty(0, dtype=x.dtype), np.zeros(shape.filters, dtype=x.dtype)
    if not shape.has_places:
        convolve(x, weight, no_bias, out, none, scratch, shape, "gaussian", filters)
        return
    whole = shape.unpooled
    step = max(1, LONG_BLOCK // whole.hidden)
    maps = np.empty((step, whole.hidden), dtype=x.dtype)
    for start in range(0, len(x), step):
        some = slice(start, start + step)
        part = maps[: len(x[some])]
        convolve(x[some], weight, no_bias, part, none, scratch, whole, "gaussian", filters)
        _choose(part, places[some], shape, filters, out=out[some])


def _choose(
    maps: Array, places: Array, shape: ConvolutionShape, filters: slice, *, out: Array
) -> None:
    """Fill ``out`` with the number at the place of each block of the maps of some filters."""
    size, parts = shape.pool, (len(out), shape.output.height, shape.output.width, shape.filters)
    blocks = maps.reshape(parts[0], parts[1], size, parts[2], size, parts[3])[..., filters]
    code, at = (array.reshape(parts)[..., filters] for array in (out, places))
    code.fill(0)
    for place in range(size**2):
        row, column = divmod(place, size)
        chosen = (at == place).astype(maps.dtype)
        chosen *= blocks[:, :, row, :, column]
        code += chosen
