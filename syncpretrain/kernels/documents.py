"""Reconstructions of examples: means, or of documents the words that are drawn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.activations import means
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.conditions import (
    MOST_POINTS,
    Conditions,
    draw_documents,
    draw_words_at,
    impose,
    lengths_of,
)
from syncpretrain.kernels.dispatch import accelerated
from syncpretrain.kernels.joined import means_and_error
from syncpretrain.kernels.losses import squared_error
from syncpretrain.rng import Address
from syncpretrain.units.kinds import kind_of, softmax

__all__ = ["error_of_means", "reconstruct", "reconstruct_documents"]


def error_of_means(
    y: Array, bias: Array, x: Array, units: str, conditions: Conditions | None, *, out: Array
) -> float:
    """Replace inputs y of visible units, without their bias, by means under conditions.

    Return |y - x|^2 of these, and leave y - x in ``out``, which may be y itself.
    """
    if conditions is None:
        return means_and_error(y, bias, units, x, out=out)
    impose(means(y, bias, units), units, conditions)
    return squared_error(x, y, out=out)


def reconstruct(
    address: Address,
    v1: Array,
    bias: Array,
    v0: Array,
    units: str,
    conditions: Conditions | None,
    *,
    difference: Array | None,
) -> float:
    """Replace inputs of visible units, without their bias, by means; documents are drawn.

    Parameters
    ----------
    address : Address
        Of what is drawn.
    v1 : ndarray of shape (B, V)
        Inputs, which become reconstructions of v0.
    bias : ndarray of shape (V,)
    v0 : ndarray of shape (B, V)
    units : str
        The visible units.
    conditions : Conditions or None
        What is known of v0.
    difference : ndarray of shape (B, V) or None
        Room for v1 - v0; without it there need not be an error.

    Returns
    -------
    error : float
        The squared error of the means, before anything is drawn.
    """
    blocks = kind_of(units).blocks
    if conditions is not None and conditions.known is None and len(blocks.parts) == 1:
        lengths = lengths_of(conditions.words[0])  # conditions without missing values are of counts
        if lengths.max() <= MOST_POINTS:
            ends = np.cumsum(lengths + 1)
            points = address.generator().standard_exponential(int(ends[-1]))
            return float(reconstruct_documents(v1, bias, v0, points, ends))
    error = 0.0
    if difference is None:
        impose(means(v1, bias, units), units, conditions)
    else:
        error = error_of_means(v1, bias, v0, units, conditions, out=difference)
    draw_words_at(address, v1, units, conditions)
    return error


@accelerated
def reconstruct_documents(
    inputs: Array,
    bias: Array,
    like: Array,
    points: NDArray[np.float64],
    ends: NDArray[np.int64],
) -> float:
    """Replace inputs of words without their bias by documents as long as those of ``like``.

    The points are those of :func:`draw_documents`. Return the squared error of the documents'
    means.
    """
    inputs += bias
    softmax(np, inputs)
    words = np.diff(ends, prepend=0)[:, None] - 1
    error = float(np.square(inputs * words - like).sum(dtype=np.float64))
    draw_documents(inputs, points, ends)
    return error
