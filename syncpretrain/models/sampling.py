"""Samples of a stack: chains in its top RBM, decoded to the input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from syncpretrain.errors import DataError
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.conditions import as_documents
from syncpretrain.models.gibbs import gibbs_chains
from syncpretrain.models.layer import DenseLayer, Layer
from syncpretrain.models.passes import down_through, up_through
from syncpretrain.units.kinds import kind_of

__all__ = ["sampled"]


def sampled(
    layers: Sequence[Layer],
    units: Sequence[str],
    start: Array | None,
    *,
    count: int,
    steps: int,
    draws: np.random.Generator,
) -> Array:
    """Return prepared samples: chains in the top RBM, then down the layers.

    Parameters
    ----------
    layers : sequence of Layer
        From the lowest up.
    units : sequence of str
        The kinds of the input and of each layer.
    start : ndarray of shape (count, V) or None
        Prepared examples at which the chains start; None for noise.
    count, steps : int
    draws : Generator

    Raises
    ------
    DataError
        If there can be no such chains.
    """
    if count < 1 or steps < 1:
        raise DataError(f"count and steps: got {count} and {steps}, expected 1 or more")
    top, below = _top_rbm(layers), layers[:-1]
    blocks = kind_of(top.visible_units).blocks
    if start is None:
        if blocks is not None and blocks.counts:
            raise DataError(
                "start: got nothing for counts, expected documents, whose numbers of words the"
                " samples have"
            )
        visible = draws.random((count, top.weight.shape[0]), dtype=np.float32)
    elif len(start) != count:
        raise DataError(f"start: got {len(start)} examples for {count} chains; give one a chain")
    else:
        visible = up_through(below, start) if below else start
    visible = gibbs_chains(top, visible, steps, draws)
    if not below:
        return visible
    down = down_through(below, units[: len(below)], visible)
    return down if start is None else as_documents(down, start, units[0])


def _top_rbm(layers: Sequence[Layer]) -> DenseLayer:
    """Return the top layer of a stack, in which chains can run.

    Raises
    ------
    DataError
        If it is no dense RBM.
    """
    top = layers[-1]
    if top.model != "rbm":
        raise DataError(
            "the top layer is an autoencoder, or was fine-tuned, and is no RBM; sample a stack"
            " of RBMs as it was before fine-tuning"
        )
    if not isinstance(top, DenseLayer):
        raise DataError(
            f"the top layer is a convolution, {top.shape}; sample a stack with a dense RBM on"
            " top, such as 1x28x28,conv:20x5,pool:2,500"
        )
    return top
