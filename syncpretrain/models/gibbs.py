"""Gibbs chains of one RBM."""

from __future__ import annotations

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.conditions import Conditions, conditions_of, draw_words, impose
from syncpretrain.kernels.contrastive_divergence import draw_noise, sample
from syncpretrain.models.layer import DenseLayer
from syncpretrain.units.kinds import kind_of

__all__ = ["gibbs_chains", "gibbs_step"]


def gibbs_chains(rbm: DenseLayer, visible: Array, steps: int, draws: np.random.Generator) -> Array:
    """Return the visible means at the end of chains that start at visible means.

    Each step draws hidden states, then visible ones; ``visible`` has shape (chains, V). A document
    keeps its number of words.
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
    """Draw hidden states, then visible ones into ``states``; return the means of these."""
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
    """Draw states of units whose input is x W + b; return their means."""
    means: Array = x @ weight
    means += bias
    noise = draw_noise(draws, units, out=np.empty_like(states) if noise is None else noise)
    sample(means, units, noise, out=states)
    return means
