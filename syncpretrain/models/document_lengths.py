"""The partition function of a replicated softmax for documents of many lengths at once.

Summed over the words, Z of documents of D words is sum_h exp(b h + D f(h)), where f(h) = log sum_k
exp(a_k + (W h)_k) is the log of the unnormalized probability of one word: the length is an inverse
temperature. So one pass of annealed importance sampling from length 0, where the hidden units are
independent and Z is known, up to the longest document gives log Z of every length on its way
(Salakhutdinov and Hinton 2009 anneal anew for each length). The states between are hidden units
alone, drawn one after the other with the words summed out: chains of words and hidden units hardly
move where documents are long, since many words determine the hidden units.

Chains are weighted by exp(dD f(h)) for each step dD of the length (Neal 2001). They are in
populations; where the weights of one have become uneven, its chains are resampled by them (Del
Moral, Doucet and Jasra 2006), so that the mean weight stays an unbiased estimate of Z. The
populations are independent, and how far apart they end is the error bar.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from syncpretrain.models.partition import Doubles, binary_states

__all__ = ["POPULATIONS", "Words", "annealed_over_lengths", "enumerated_over_lengths"]

POPULATIONS = 10
EVEN_SHARE = 0.5  # of the chains that count; below it they are resampled
CERTAIN = 500.0  # log-odds whose exponential is still a number


class Words(NamedTuple):
    """The parameters of a replicated softmax: W of shape (V, H), a (V,), b (H,)."""

    W: Doubles
    a: Doubles
    b: Doubles

    def log_sums(self, h: Doubles) -> Doubles:
        """Return f(h) of each row of hidden states."""
        x = h @ self.W.T + self.a
        top = x.max(axis=1)
        x -= top[:, None]
        sums: Doubles = top + np.log(np.exp(x, out=x).sum(axis=1))
        return sums


def enumerated_over_lengths(words: Words, lengths: Doubles) -> Doubles:
    """Return log Z for each length by enumeration of the hidden units."""
    total = np.full(len(lengths), -np.inf)
    for h in binary_states(len(words.b)):
        terms = (h @ words.b)[:, None] + words.log_sums(h)[:, None] * lengths
        total = np.logaddexp(total, np.logaddexp.reduce(terms, axis=0))
    return total


def annealed_over_lengths(
    words: Words, lengths: Doubles, *, chains: int, steps: int, draws: np.random.Generator
) -> Doubles:
    """Estimate log Z for each length by annealed importance sampling over the length.

    Parameters
    ----------
    words : Words
    lengths : ndarray of shape (n,)
        Not negative.
    chains, steps : int
        Chains of each population, and steps from length 0 to the longest; they grow with the
        length.
    draws : Generator

    Returns
    -------
    ndarray of shape (POPULATIONS, n)
        The logarithm of each population's estimate of Z, unbiased and independent of the others.
    """
    uniform = draws.random((POPULATIONS * chains, len(words.b)))
    h = (uniform < 1 / (1 + np.exp(-words.b))).astype(np.float64)
    weights = np.full((POPULATIONS, chains), np.logaddexp(0, words.b).sum())
    found = np.tile(weights[:, :1], len(lengths))  # right for length 0
    sums = words.log_sums(h)
    grid = np.expm1(np.linspace(0, np.log1p(lengths.max()), steps + 1))
    grid[-1] = lengths.max()
    for length, longer in pairwise(grid):
        sums = sums.reshape(weights.shape)
        own = np.flatnonzero((lengths > length) & (lengths <= longer))
        ahead = weights[..., None] + (lengths[own] - length) * sums[..., None]
        found[:, own] = _log_mean(ahead, axis=1)
        weights += (longer - length) * sums
        _resample(h, weights, draws)
        sums = _sweep(words, h, longer, draws)
    return found


def _resample(h: Doubles, weights: Doubles, draws: np.random.Generator) -> None:
    """Give each population whose weights are uneven chains of even weights, in place."""
    chains = weights.shape[1]
    for number, own in enumerate(weights):
        share = np.exp(own - own.max())
        share /= share.sum()
        if 1 / np.square(share).sum() >= EVEN_SHARE * chains:
            continue
        points = (draws.random() + np.arange(chains)) / chains  # systematic resampling
        parents = np.minimum(np.searchsorted(np.cumsum(share), points), chains - 1)
        rows = slice(number * chains, (number + 1) * chains)
        h[rows] = h[rows][parents]
        own[:] = _log_mean(own, axis=0)


def _sweep(words: Words, h: Doubles, length: float, draws: np.random.Generator) -> Doubles:
    """Draw each hidden unit given the others, in place, for documents of a length; return f(h).

    p is proportional to the probability of each word. A unit that goes on multiplies it by exp(W)
    of that unit, one that goes off divides it, so that no sweep takes more than one exponential of
    all the words.
    """
    p = h @ words.W.T + words.a  # (chains, V)
    top = p.max(axis=1)
    p -= top[:, None]
    total = np.exp(p, out=p).sum(axis=1)
    uniform = draws.random(h.shape)
    for j, column in enumerate(words.W.T):
        on, off = np.exp(column), np.exp(-column)
        was_on = h[:, j] > 0
        flipped = np.where(was_on, p @ off, p @ on)
        gain = np.where(was_on, total / flipped, flipped / total)  # of on over off
        odds = np.clip(words.b[j] + length * np.log(gain), -CERTAIN, CERTAIN)
        is_on = uniform[:, j] < 1 / (1 + np.exp(-odds))
        h[:, j] = is_on
        p[is_on & ~was_on] *= on
        p[was_on & ~is_on] *= off
        total = np.where(is_on == was_on, total, flipped)
    sums: Doubles = top + np.log(total)
    return sums


def _log_mean(x: Doubles, axis: int) -> Doubles:
    top = x.max(axis=axis, keepdims=True)
    mean: Doubles = np.log(np.exp(x - top).mean(axis=axis)) + np.squeeze(top, axis)
    return mean
