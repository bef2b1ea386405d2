"""Gibbs chains in an RBM: samples of a stack, and imputation of missing values.

Samples are the visible means at the end of chains in the top RBM, decoded to the input.

Imputation leaves out a row's missing values at first, as training does. Then it draws the lowest
RBM's hidden units and missing units in turn, while the observed units keep their values (clamped);
the result is the mean of the missing units, averaged over the last of these steps. The layers above
model the code and are not used. An autoencoder reconstructs the row once, with its missing values
left out as corruption leaves them out (Vincent et al. 2010): reconstructing the reconstruction was
further from the removed values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import DataError
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.conditions import (
    Conditions,
    as_documents,
    conditions_of,
    draw_words,
    impose,
)
from syncpretrain.kernels.contrastive_divergence import draw_noise, sample
from syncpretrain.models.layer import DenseLayer, Layer, down_through, rows_at_once, up_through
from syncpretrain.units.kinds import kind_of

Layers = tuple[Layer, ...]


def sampled(
    layers: Sequence[Layer],
    units: Sequence[str],
    start: Array | None,
    *,
    count: int,
    steps: int,
    draws: np.random.Generator,
) -> Array:
    """Run chains in the top RBM, decode their ends down the layers; return prepared samples.

    Parameters
    ----------
    layers : sequence of Layer
        Layers from the lowest up.
    units : sequence of str
        Kinds of the input and of each layer.
    start : ndarray of shape (count, V) or None
        Prepared examples at which the chains start; None for noise.
    count, steps : int
    draws : Generator

    Raises
    ------
    DataError
        If the stack cannot have such chains.
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


def imputed(
    layers: Layers,
    units: tuple[str, ...],
    X: Array,
    missing: NDArray[np.bool_],
    *,
    steps: int,
    samples: int,
    draws: np.random.Generator,
) -> Array:
    """Return prepared examples with the means of their missing units.

    Parameters
    ----------
    layers : tuple of Layer
        Layers from the lowest up; if the lowest is an RBM, the others are not used.
    units : tuple of str
        Kinds of the input and of each layer, as the decoder has them.
    X : ndarray of shape (n, V)
        Prepared examples.
    missing : ndarray of shape (n, V), bool
    steps, samples : int
        Gibbs steps before the average, and steps that are averaged.
    draws : Generator

    Raises
    ------
    DataError
        If ``steps`` is below 0, or ``samples`` below 1.
    """
    if steps < 0 or samples < 1:
        raise DataError(f"steps, samples: got {steps} and {samples}, expected 0 and 1 or more")
    filled: Array = X.copy()
    for start in range(0, len(X), rows := rows_at_once(layers)):
        own = slice(start, start + rows)
        lost = missing[own].any(axis=1)
        if lost.any():
            lowest, mask = layers[0], missing[own][lost]
            if lowest.model == "rbm" and isinstance(lowest, DenseLayer):
                found = _by_gibbs(lowest, X[own][lost], mask, steps, samples, draws)
            else:
                found = _reconstructed(layers, units, X[own][lost], mask)
            filled[own][lost] = found
    return filled


def gibbs_chains(rbm: DenseLayer, visible: Array, steps: int, draws: np.random.Generator) -> Array:
    """Run chains from visible means; return the visible means at their ends.

    Each step draws hidden states, then visible states; ``visible`` has shape (chains, V). Documents
    keep their numbers of words.
    """
    states = visible.copy()
    if kind_of(rbm.visible_units).is_binary:
        np.less(draws.random(visible.shape, dtype=np.float32), visible, out=states)
    conditions = conditions_of(states, rbm.visible_units)
    for _ in range(steps):
        visible = gibbs_step(rbm, states, conditions, draws)
    return visible


def gibbs_step(
    rbm: DenseLayer, states: Array, conditions: Conditions | None, draws: np.random.Generator
) -> Array:
    """Draw hidden states, then visible states into ``states``; return the visible means."""
    hidden = np.empty((len(states), rbm.weight.shape[1]), dtype=np.float32)
    _sample(states, rbm.weight, rbm.hidden_bias, rbm.hidden_units, draws, hidden)
    units, noise = rbm.visible_units, np.empty_like(states)
    means = _sample(hidden, rbm.weight.T, rbm.visible_bias, units, draws, states, noise)
    draw_words(states, units, noise, conditions)
    return impose(means, units, conditions)


def _sample(
    x: Array,
    weight: Array,
    bias: Array,
    units: str,
    draws: np.random.Generator,
    states: Array,
    noise: Array | None = None,
) -> Array:
    """Draw states of units with input x W + b; return their means."""
    means: Array = x @ weight
    means += bias
    noise = draw_noise(draws, units, out=np.empty_like(states) if noise is None else noise)
    sample(means, units, noise, out=states)
    return means


def _top_rbm(layers: Sequence[Layer]) -> DenseLayer:
    """Return the top layer of a stack, once it is found to be a dense RBM.

    Raises
    ------
    DataError
        If the top layer is no dense RBM.
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


def _by_gibbs(
    rbm: DenseLayer,
    X: Array,
    missing: NDArray[np.bool_],
    steps: int,
    samples: int,
    draws: np.random.Generator,
) -> Array:
    conditions, states = conditions_of(X, rbm.visible_units), X.copy()
    total = np.zeros_like(X)
    for step in range(steps + samples):
        means = gibbs_step(rbm, states, conditions, draws)
        np.copyto(states, X, where=~missing)
        if step >= steps:
            total += means
    found: Array = np.where(missing, total / np.float32(samples), X)
    return found


def _reconstructed(
    layers: Layers, units: tuple[str, ...], X: Array, missing: NDArray[np.bool_]
) -> Array:
    down = down_through(layers, units[:-1], up_through(layers, X))
    found: Array = np.where(missing, as_documents(down, X, units[0]), X)
    return found
