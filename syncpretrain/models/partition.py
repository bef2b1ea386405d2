"""The partition function of an RBM with binary hidden units and visible units of any kind.

Summed over the hidden units' states, Z is sum_h exp(b h) prod_i sum_v exp(-E_i(v; x_i)), where the
visible unit i has the input x = h W^T + a; the record of its kind has the inner sum. Of counts the
sum is over the documents of D words, in their order, so that Z depends on D. Annealing leaves the
visible biases as they are, but those of binary units: at the highest temperature the hidden units
say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.conditions import Conditions, draw_words
from syncpretrain.kernels.contrastive_divergence import draw_noise, sample
from syncpretrain.units.kinds import kind_of

__all__ = ["STATES_AT_ONCE", "Doubles", "annealed_weights", "binary_states", "summed_over_hidden"]

Doubles = NDArray[np.float64]
RBMParameters = tuple[Doubles, Doubles, Doubles]
STATES_AT_ONCE = 1 << 12


def binary_states(units: int) -> Iterator[Doubles]:
    """Yield all states of binary units, a few thousand rows at a time."""
    states = product((0.0, 1.0), repeat=units)
    while chunk := [state for state, _ in zip(states, range(STATES_AT_ONCE), strict=False)]:
        yield np.array(chunk).reshape(len(chunk), units)


def summed_over_hidden(parameters: RBMParameters, units: str, words: tuple[float, ...]) -> float:
    """Return log Z by enumeration of the hidden units.

    ``words`` has the number D for each block of counts.
    """
    W, a, b = parameters
    total = -math.inf
    for h in binary_states(len(b)):
        terms = h @ b + _log_sums(h @ W.T + a, a, units, words)
        total = float(np.logaddexp(total, np.logaddexp.reduce(terms)))
    return total


def annealed_weights(
    parameters: RBMParameters,
    units: str,
    words: tuple[float, ...],
    betas: Doubles,
    chains: int,
    draws: np.random.Generator,
) -> tuple[float, Doubles]:
    """Return log Z at the highest temperature, and each chain's logarithm of the ratio to it.

    Annealed importance sampling (Salakhutdinov and Murray 2008; of counts Salakhutdinov and Hinton
    2009, section 4.1).
    """
    W, a, b = parameters
    if kind_of(units).is_binary:
        return _annealed_binary(parameters, betas, chains, draws)
    conditions = Conditions(words=tuple(np.full((chains, 1), float(count)) for count in words))
    weights = np.zeros(chains)
    v = _drawn(np.tile(a, (chains, 1)), units, conditions, draws)
    for beta, hotter in zip(betas[1:], betas[:-1], strict=True):
        upward = v @ W + b
        weights += _gained(upward, beta, hotter)
        h = _drawn(beta * upward, "bernoulli", None, draws)
        v = _drawn(beta * (h @ W.T) + a, units, conditions, draws)
    base = len(b) * math.log(2) + float(_log_sums(a[None], a, units, words)[0])
    return base, weights


def _annealed_binary(
    parameters: RBMParameters, betas: Doubles, chains: int, draws: np.random.Generator
) -> tuple[float, Doubles]:
    """Return the same for binary visible units, which begin uniform: their biases are annealed."""
    W, a, b = parameters
    v = _draw(np.full((chains, len(a)), 0.5), draws)
    weights = np.zeros(chains)
    for beta, hotter in zip(betas[1:], betas[:-1], strict=True):
        upward = v @ W + b
        # log p*_beta(v) of the visible units, the hidden ones summed out
        weights += (beta - hotter) * (v @ a)
        weights += _gained(upward, beta, hotter)
        h = _draw(_sigmoid(beta * upward), draws)
        v = _draw(_sigmoid(beta * (h @ W.T + a)), draws)
    return (len(a) + len(b)) * math.log(2), weights


def _gained(upward: Doubles, beta: float, hotter: float) -> Doubles:
    """Return the change of the sum of log(1 + exp) over hidden units from one to the next beta."""
    gained: Doubles = (np.logaddexp(0, beta * upward) - np.logaddexp(0, hotter * upward)).sum(1)
    return gained


def _draw(probabilities: Doubles, draws: np.random.Generator) -> Doubles:
    return (draws.random(probabilities.shape) < probabilities).astype(np.float64)


def _sigmoid(x: Doubles) -> Doubles:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def _log_sums(x: Doubles, a: Doubles, units: str, words: tuple[float, ...]) -> Doubles:
    kind = kind_of(units)
    more = () if kind.blocks is None else (words,)
    assert kind.log_sum is not None
    sums: Doubles = kind.log_sum(np, x, a, *more).sum(axis=1)
    return sums


def _drawn(
    x: Any, units: str, conditions: Conditions | None, draws: np.random.Generator
) -> Doubles:
    """Return states of units with inputs x, which are overwritten."""
    noise: Any = draw_noise(draws, units, out=np.empty(x.shape, dtype=np.float32))
    states: Any = sample(x, units, noise, out=np.empty_like(x))
    drawn: Any = draw_words(states, units, noise, conditions)
    return drawn  # type: ignore[no-any-return]
