"""The perplexity of documents under a replicated softmax (Salakhutdinov and Hinton 2009)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from syncpretrain.errors import DataError
from syncpretrain.models import likelihood
from syncpretrain.models.layer import Layer, blocks_through
from syncpretrain.models.likelihood import Doubles, Words
from syncpretrain.models.stack import Stack
from syncpretrain.rng import Purpose, generator
from syncpretrain.units.kinds import kind_of

__all__ = ["Perplexity", "perplexity"]

MOST_ENUMERATED = 12  # with at most so many hidden units, their states are enumerated
SMALLEST_POPULATION = 2


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Perplexity per word of some documents.

    Attributes
    ----------
    value : float
        exp(-mean_n log p(v_n) / D_n), where document n has D_n words, as in the paper: all
        documents have equal weight.
    low, high : float
        The value 3 standard errors of log Z away; equal to ``value`` if Z is exact.
    of_all_words : float
        exp(-sum_n log p(v_n) / sum_n D_n), as in scikit-learn's
        ``LatentDirichletAllocation``: all words have equal weight.
    documents, words : int
        Number of documents and words; documents without words are left out.
    """

    value: float
    low: float
    high: float
    of_all_words: float
    documents: int
    words: int


def perplexity(
    stack: Stack, X: ArrayLike, *, chains: int = 200, steps: int = 300, seed: int = 0
) -> Perplexity:
    """Return the perplexity per word of documents under the first layer of a stack.

    The partition function depends on the length of a document. It is exact with up to 12 hidden
    units; with more it is estimated for all lengths at once
    (``syncpretrain/models/likelihood.py``).

    Parameters
    ----------
    stack : Stack
        Stack with an RBM as first layer, with binary hidden units and counts as visible units.
    X : {array-like, sparse matrix} of shape (n_documents, words)
        Counts of each word in each document.
    chains, steps : int
        Chains of the estimate in all, in 10 independent populations, and steps from length 0 to the
        longest document.
    seed : int
        Seed of the chains.

    Raises
    ------
    DataError
        If the first layer has other units, X does not fit or has no words, or there are too few
        chains or steps.

    Examples
    --------
    >>> import numpy as np
    >>> from syncpretrain import pretrain
    >>> topic = np.random.default_rng(0).integers(2, size=300)
    >>> X = np.random.default_rng(1).poisson(np.array([[4, 4, 0.1, 0.1], [0.1, 0.1, 4, 4]])[topic])
    >>> stack = pretrain(X, hidden=[5], visible_units="counts", epochs=100)
    >>> found = perplexity(stack, X)
    >>> found.value < 3  # 4 words, 2 in each topic
    True
    """
    least = SMALLEST_POPULATION * likelihood.POPULATIONS
    if chains < least or steps < 1:
        raise DataError(f"chains, steps: got {chains} and {steps}, expected {least} and 1 or more")
    if any(int(number) != number for number in (chains, steps)) or not 0 <= seed < 2**63:
        wanted = "whole numbers, and a seed of 0 or more and below 2**63"
        got = f"{chains}, {steps} and {seed}"
        raise DataError(f"chains, steps, seed: got {got}, expected {wanted}")
    layer = stack.layers[0]
    if not kind_of(layer.visible_units).are_counts:
        wanted = "counts alone; pretrain with visible_units='counts'"
        raise DataError(f"stack: got {layer.visible_units} visible units, expected {wanted}")
    energies, lengths = _energies_and_lengths(layer, stack.prepared(X))
    if not len(lengths):
        raise DataError("X: got no document with a word, expected one or more")
    words = Words(*likelihood.parameters_with_log_z(layer))
    each, place = np.unique(lengths, return_inverse=True)
    if len(words.b) <= MOST_ENUMERATED:
        found = likelihood.enumerated_over_lengths(words, each)[None, place]
        return _perplexity_of(energies, lengths, found)
    draws, chains = generator(seed, Purpose.ANNEALING), chains // likelihood.POPULATIONS
    found = likelihood.annealed_over_lengths(words, each, chains=chains, steps=steps, draws=draws)
    return _perplexity_of(energies, lengths, found[:, place])


def _energies_and_lengths(layer: Layer, rows: Any) -> tuple[Doubles, Doubles]:
    """Return the free energy and the number of words of each row that has words."""
    found = []
    for block in blocks_through([layer], rows):  # dense, even if the rows are sparse
        lengths = block.sum(axis=1, dtype=np.float64)
        energies = likelihood.free_energy(layer, block).astype(np.float64, copy=False)
        found.append(np.stack([energies, lengths])[:, lengths > 0])
    energies, lengths = np.concatenate(found, axis=1)
    return energies, lengths


def _perplexity_of(energies: Doubles, lengths: Doubles, log_z: Doubles) -> Perplexity:
    """Return the perplexity; ``log_z`` has shape (populations, documents).

    The standard error is the jackknife's: from the values without one population each.
    """
    whole = -energies - _log_mean(log_z)
    value = -float((whole / lengths).mean())
    error, count = 0.0, len(log_z)
    if count > 1:
        without = [
            ((energies + _log_mean(np.delete(log_z, i, axis=0))) / lengths).mean()
            for i in range(count)
        ]
        error = 3 * math.sqrt((count - 1) * float(np.var(without)))
    low, high = math.exp(value - error), math.exp(value + error)
    of_all_words = math.exp(-float(whole.sum() / lengths.sum()))
    return Perplexity(math.exp(value), low, high, of_all_words, len(lengths), int(lengths.sum()))


def _log_mean(log_z: Doubles) -> Doubles:
    mean: Doubles = np.logaddexp.reduce(log_z, axis=0) - math.log(len(log_z))
    return mean
