"""Gibbs chains of one RBM."""

from __future__ import annotations

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.contrastive_divergence import draw_noise, sample
from syncpretrain.models.layer import DenseLayer
from syncpretrain.units import kind_of

__all__ = ["gibbs_chains"]


def gibbs_chains(rbm: DenseLayer, visible: Array, steps: int, draws: np.random.Generator) -> Array:
    """Return the visible means at the end of chains that start at visible means.

    Each step draws hidden states, then visible ones; ``visible`` has shape (chains, V).
    """
    states = visible.copy()
    if kind_of(rbm.visible_units).is_binary:
        np.less(draws.random(visible.shape, dtype=np.float32), visible, out=states)
    hidden = np.empty((len(visible), rbm.weight.shape[1]), dtype=np.float32)
    for _ in range(steps):
        _sample(states, rbm.weight, rbm.hidden_bias, rbm.hidden_units, draws, hidden)
        visible = _sample(hidden, rbm.weight.T, rbm.visible_bias, rbm.visible_units, draws, states)
    return visible


def _sample(
    x: Array, weight: Array, bias: Array, units: str, draws: np.random.Generator, states: Array
) -> Array:
    """Draw states of units whose input is x W + b; return their means."""
    means: Array = x @ weight
    means += bias
    sample(means, units, draw_noise(draws, units, out=np.empty_like(states)), out=states)
    return means
