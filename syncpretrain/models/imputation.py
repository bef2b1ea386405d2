"""Imputation of missing values: what the observed ones of a row make of them.

A row's missing values start left out, as in training. Then the lowest RBM's units are drawn in
turn, hidden ones and missing ones, while the observed ones stay as they are (clamped); what is
returned is the mean of the missing units, averaged over the last of these steps. The layers above
model the code and are not asked. An autoencoder reconstructs the row once, its missing values left
out as a corruption leaves them out (Vincent et al. 2010): the reconstruction of its reconstruction
was further from the removed values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import DataError
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.conditions import as_documents, conditions_of
from syncpretrain.models.gibbs import gibbs_step
from syncpretrain.models.layer import DenseLayer, Layer
from syncpretrain.models.passes import down_through, rows_at_once, up_through

__all__ = ["imputed"]

Layers = tuple[Layer, ...]


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
        From the lowest up; of an RBM only the lowest is used.
    units : tuple of str
        The kinds of the input and of each layer, as the decoder has them.
    X : ndarray of shape (n, V)
        Prepared examples.
    missing : ndarray of shape (n, V), bool
    steps, samples : int
        Gibbs steps before the means are averaged, and those of the average.
    draws : Generator

    Raises
    ------
    DataError
        If there are fewer than 0 or 1 of them.
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
