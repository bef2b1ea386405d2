"""Likelihood of data under an RBM: free energy, pseudo-likelihood, and the partition function.

The symbols are as in Hinton 2010: v visible, h hidden, W of shape (V, H), a the visible and b
the hidden biases. The energy is E(v, h) = -v W h - a v - b h for binary units; a Gaussian visible
unit has |v - a|^2 / 2 in place of -a v, a Gaussian hidden unit |h - b|^2 / 2 in place of -b h; a
rectified unit stands for many binary units with biases b - 1/2, b - 3/2, ... (Nair and Hinton
2010). One choice in a group of softmax units, and the words of a document, have -a v. Z is the sum
of exp(-E) over all states. All sums are in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import DataError
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.conditions import is_missing
from syncpretrain.models.layer import DenseLayer, Layer
from syncpretrain.models.partition import (
    POPULATIONS,
    Doubles,
    Words,
    annealed_over_lengths,
    annealed_weights,
    summed_over_hidden,
)
from syncpretrain.rng import Purpose, generator
from syncpretrain.units.kinds import kind_of

__all__ = [
    "MAX_ENUMERATED",
    "LogZ",
    "free_energy",
    "log_z",
    "log_z_ais",
    "parameters_with_log_z",
    "pseudo_likelihood",
]

MAX_ENUMERATED = 20  # binary units: their 2**20 states are enumerated


@dataclass(frozen=True, slots=True)
class LogZ:
    """Natural logarithm of Z, with ``low`` and ``high`` 3 standard errors away (0 if exact)."""

    value: float
    low: float
    high: float


def free_energy(layer: Layer, X: Array, *, missing: bool = False) -> Doubles:
    """Return F(v) = -log sum_h exp(-E(v, h)) of each row of X, in nats.

    F(v) = -a v - sum_j log(1 + exp(b_j + (v W)_j)) for binary units (Hinton 2010, section 16).
    ``missing`` says that X may have entries marked as missing, which are left out.

    Raises
    ------
    DataError
        If the layer is no RBM, or its units have no energy.
    """
    W, a, b = _parameters(layer)
    v = np.asarray(X, dtype=np.float64)
    energy, log_sum = kind_of(layer.visible_units).energy, kind_of(layer.hidden_units).log_sum
    if energy is None or log_sum is None:
        raise DataError(
            f"layer: got {layer.visible_units} and {layer.hidden_units} units, which have no energy"
        )
    own = np.where(is_missing(v) & _is_normal(layer), a, v) if missing else v
    energies: Doubles = energy(np, own, a) - log_sum(np, v @ W + b, b).sum(axis=1)
    return energies


def pseudo_likelihood(layer: Layer, X: Array, *, seed: int = 0) -> float:
    """Return a stochastic estimate of the mean log pseudo-likelihood of the rows of X, in nats.

    For each row one unit i is drawn, and V log p(v_i | the others) stands for the sum over units
    (Besag 1975): V log sigmoid(F(v with i flipped) - F(v)). It is 0 at best.

    A value between 0 and 1 is taken as the probability of a binary unit, as in contrastive
    divergence: the other units are sampled, and unit i counts with both states in proportion, so
    that the best model of a grey value is equally unsure. Rounding, as in the Deep Learning
    Tutorials, would favour a model that is sure of 0 where v is 0.3. Binary rows stay as they are.

    Raises
    ------
    DataError
        If the layer is no RBM, or its visible units are not binary.
    """
    if not kind_of(layer.visible_units).is_binary:
        raise DataError(
            f"layer: got {layer.visible_units} visible units, expected bernoulli ones, which a"
            " pseudo-likelihood flips; use the free-energy gap instead"
        )
    draws = generator(seed, Purpose.PROBE)
    rows, units = np.arange(len(X)), draws.integers(X.shape[1], size=len(X))
    on = np.asarray(X, dtype=np.float64)[rows, units]
    v = (draws.random(X.shape) < X).astype(np.float32)
    v[rows, units] = 1
    energy_on = free_energy(layer, v)
    v[rows, units] = 0
    gain = free_energy(layer, v) - energy_on  # log of the odds that unit i is 1
    per_row = on * -_softplus(-gain) + (1 - on) * -_softplus(gain)
    return float(per_row.mean() * X.shape[1])


def log_z(
    layer: Layer,
    *,
    words: int | Sequence[int] = (),
    chains: int = 100,
    steps: int = 1000,
    seed: int = 0,
) -> LogZ:
    """Return log Z: exact if one side has at most 20 units, else estimated by annealing.

    Parameters
    ----------
    layer : Layer
        Dense layer with binary hidden units.
    words : int or sequence of int
        Number of words of a document, for each block of counts: Z depends on it.
    chains, steps, seed : int
        See :func:`log_z_ais`.

    Raises
    ------
    DataError
        If the layer is no RBM, its hidden units are not binary, or ``words`` do not fit them.
    """
    parameters, lengths = _annealed(layer, words)
    W, a, b = parameters
    if len(a) < len(b) and kind_of(layer.visible_units).is_binary:
        parameters = W.T, b, a  # Z is the same with both sides exchanged
    if len(parameters[2]) <= MAX_ENUMERATED:
        value = summed_over_hidden(parameters, layer.visible_units, lengths)
        return LogZ(value, value, value)
    return log_z_ais(layer, words=words, chains=chains, steps=steps, seed=seed)


def log_z_ais(
    layer: Layer,
    *,
    words: int | Sequence[int] = (),
    chains: int = 100,
    steps: int = 1000,
    seed: int = 0,
) -> LogZ:
    """Estimate log Z by annealed importance sampling (Salakhutdinov and Murray 2008).

    Parameters
    ----------
    layer : Layer
        Dense layer with binary hidden units and shared weights.
    words : int or sequence of int
        As for :func:`log_z`.
    chains, steps : int
        Independent chains, and temperatures between the uniform distribution and the RBM; with
        visible units that are not binary, between independent visible units and the RBM; with
        counts alone, lengths of documents from 0 on (``syncpretrain/models/partition.py``).
    seed : int
        Seed of the chains.

    Returns
    -------
    LogZ
        Estimate with 3 standard errors of the mean weight on each side; ``low`` is -inf if they
        reach below 0: more chains or steps are needed then.
    """
    (W, a, b), lengths = _annealed(layer, words)
    draws = generator(seed, Purpose.ANNEALING)
    blocks = kind_of(layer.visible_units).blocks
    if blocks is not None and not blocks.has_bias and len(lengths) == 1:
        each = max(chains // POPULATIONS, 1)
        options: dict[str, Any] = {"chains": each, "steps": steps, "draws": draws}
        found = annealed_over_lengths(Words(W, a, b), np.array(lengths), **options)
        return _with_error_bar(0.0, found[:, 0])
    betas = np.linspace(0, 1, steps + 1)
    return _with_error_bar(
        *annealed_weights((W, a, b), layer.visible_units, lengths, betas, chains, draws)
    )


def _with_error_bar(base: float, weights: Doubles) -> LogZ:
    largest = weights.max()
    relative = np.exp(weights - largest)
    mean = relative.mean()
    error = 3 * relative.std(ddof=1) / math.sqrt(len(weights)) if len(weights) > 1 else math.inf
    low = math.log(mean - error) if mean > error else -math.inf
    offset = base + largest
    return LogZ(offset + math.log(mean), offset + low, offset + math.log(mean + error))


def parameters_with_log_z(layer: Layer) -> tuple[Doubles, Doubles, Doubles]:
    """Return W, a and b of an RBM in float64, once it is found to have a log Z.

    Raises
    ------
    DataError
        If the layer is no dense RBM, or its hidden units are not binary.
    """
    parameters = _parameters(layer)
    if not kind_of(layer.hidden_units).is_binary:
        raise DataError(
            f"layer: got {layer.hidden_units} hidden units, expected bernoulli ones for log Z"
        )
    return parameters


def _annealed(
    layer: Layer, words: int | Sequence[int]
) -> tuple[tuple[Doubles, Doubles, Doubles], tuple[float, ...]]:
    """Return the parameters of a layer that has a log Z, and the lengths of documents."""
    parameters = parameters_with_log_z(layer)
    blocks = kind_of(layer.visible_units).blocks
    counts = 0 if blocks is None else len(blocks.counts)
    lengths = tuple(map(float, np.atleast_1d(words)))
    if len(lengths) != counts or any(length < 0 for length in lengths):
        raise DataError(
            f"words: got {words}, expected {counts or 'no'} lengths of documents, one for each"
            f" block of counts of {layer.visible_units}"
        )
    return parameters, lengths


def _is_normal(layer: Layer) -> NDArray[np.bool_]:
    """Return which visible units are Gaussian: their energy is not 0 at 0."""
    kind, normal = kind_of(layer.visible_units), np.zeros(layer.shape.visible, dtype=bool)
    if kind.blocks is None:
        return normal | (kind.noise == "normal")
    for part in kind.blocks.normal:
        normal[part.columns] = True
    return normal


def _parameters(layer: Layer) -> tuple[Doubles, Doubles, Doubles]:
    if layer.model != "rbm":
        raise DataError(
            "layer: is an autoencoder, or was fine-tuned, and has no energy; measure an RBM before"
            " fine-tuning"
        )
    if not isinstance(layer, DenseLayer):
        raise DataError(f"layer: got {layer.shape}, expected a dense RBM, whose energy is known")
    arrays = (layer.weight, layer.visible_bias, layer.hidden_bias)
    W, a, b = (np.asarray(array, dtype=np.float64) for array in arrays)
    return W, a, b


def _softplus(x: Doubles) -> Doubles:
    return np.logaddexp(0, x)
