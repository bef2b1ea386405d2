"""Conditions on the visible units of each row, and reconstructions under them.

A row may have missing entries, and a document has a number of words. A missing entry of prepared
examples is a negative zero: a product with it equals a product with 0, so that whatever only
multiplies leaves it out without knowing of it. Training and evaluation ask :func:`is_missing`. The
entry is left out of the energy: its mean is masked to 0 as well. A document is reconstructed by
words that are drawn, as many as it has; other units are reconstructed by their means.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.activations import means
from syncpretrain.kernels.arrays import LONG_BLOCK, Array, blocks_in
from syncpretrain.kernels.backprop import means_and_error, squared_error
from syncpretrain.kernels.dispatch import accelerated
from syncpretrain.rng import Address
from syncpretrain.units.kinds import kind_of, softmax

SEED_NUMBERS = 8  # of a row of noise
MOST_POINTS = 2**16  # words; longer documents are drawn faster by the binomial number of each word
MOST_WORDS = 2**53


class Conditions(NamedTuple):
    """The known values of some rows of visible units.

    Attributes
    ----------
    known : ndarray of shape (B, V) or None
        1, or 0 where an entry is missing; None where none is.
    words : tuple of ndarray of shape (B, 1)
        The number of words of each row, for each block of counts.
    """

    known: Array | None = None
    words: tuple[Array, ...] = ()

    def of(self, rows: slice | NDArray[np.intp]) -> Conditions:
        """Return the conditions of some of the rows."""
        known = None if self.known is None else self.known[rows]
        return Conditions(known, tuple(words[rows] for words in self.words))


def conditions_of(v: Array, units: str, *, missing: bool = False) -> Conditions | None:
    """Return the conditions of rows of examples; None if there are none.

    Parameters
    ----------
    v : ndarray of shape (B, V)
        Examples, marked by :func:`syncpretrain.data.examples.mark_missing` if ``missing``.
    units : str
        The visible units.
    missing : bool
        True if entries may be missing.
    """
    counts = kind_of(units).counts
    if not counts and not missing:
        return None
    words = tuple(v[:, part.columns].sum(axis=1, keepdims=True) for part in counts)
    return Conditions(np.subtract(1, is_missing(v), dtype=v.dtype) if missing else None, words)


def impose(v: Array, units: str, conditions: Conditions | None) -> Array:
    """Impose conditions on visible means, in place: shares of words become numbers of words."""
    if conditions is None:
        return v
    if conditions.words:
        for part, words in zip(kind_of(units).counts, conditions.words, strict=True):
            v[:, part.columns] *= words
    if conditions.known is not None:
        v *= conditions.known
    return v


def as_documents(v: Array, like: Array, units: str) -> Array:
    """Give the shares of words in v the numbers of words of other rows, in place."""
    at_once = max(1, LONG_BLOCK // v.shape[1])  # since rows may be kept in another form
    for own in blocks_in(slice(0, len(v)), at_once):
        impose(v[own], units, conditions_of(like[own], units))
    return v


def is_missing(X: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which entries of marked examples are missing."""
    missing: NDArray[np.bool_] = np.signbit(X) & (X == 0)
    return missing


def known_means(X: Array) -> NDArray[np.float64]:
    """Return the mean of the known entries of each column of marked examples."""
    missing = is_missing(X)
    known = len(X) - missing.sum(axis=0)
    means: NDArray[np.float64] = X.sum(axis=0, dtype=np.float64) / np.maximum(known, 1)
    return means


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
        The address of the draws.
    v1 : ndarray of shape (B, V)
        Inputs, which become reconstructions of v0.
    bias : ndarray of shape (V,)
    v0 : ndarray of shape (B, V)
    units : str
        The visible units.
    conditions : Conditions or None
        The conditions of v0.
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
    inputs: Array, bias: Array, like: Array, points: NDArray[np.float64], ends: NDArray[np.int64]
) -> float:
    """Replace inputs of words without their bias by documents as long as the rows of ``like``.

    ``points`` and ``ends`` are as for :func:`draw_documents`. Return the squared error of the
    documents' means.
    """
    inputs += bias
    softmax(np, inputs)
    words = np.diff(ends, prepend=0)[:, None] - 1
    error = float(np.square(inputs * words - like).sum(dtype=np.float64))
    draw_documents(inputs, points, ends)
    return error


def draw_words(v: Array, units: str, noise: Array, conditions: Conditions | None) -> Array:
    """Draw documents from the shares of words in v, in place, and mask missing entries.

    A document of D words is a multinomial sample, a function of the noise: its first row is the
    seed.
    """
    if conditions is None:
        return v
    for i, words in enumerate(conditions.words):
        columns = kind_of(units).counts[i].columns
        seed = np.ascontiguousarray(noise[:1, columns], dtype=np.float32).view(np.uint32).ravel()
        _draw(v[:, columns], words, np.random.default_rng(seed[:SEED_NUMBERS].tolist()))
    if conditions.known is not None:
        v *= conditions.known
    return v


def draw_words_at(address: Address, v: Array, units: str, conditions: Conditions | None) -> None:
    """Draw documents from the mean numbers of words in v, in place, at an address.

    Contrastive divergence with means would not see documents as such: a mean has a little of every
    word, and moves the hidden units less.
    """
    if conditions is None or not conditions.words:
        return
    draws = address.generator()
    for part, words in zip(kind_of(units).counts, conditions.words, strict=True):
        _draw(v[:, part.columns], words, draws)


@accelerated
def draw_documents(shares: Array, points: NDArray[np.float64], ends: NDArray[np.int64]) -> None:
    """Replace each row of shares by how often each word is drawn with these shares.

    Parameters
    ----------
    shares : ndarray of shape (B, V)
    points : ndarray of float64
        Exponential draws, for each row one more than it has words: their sums are points of a
        Poisson process, which are uniform, and in order, up to the last one (Devroye 1986, V.3).
    ends : ndarray of int64
        The end of each row's draws.
    """
    for row, own in zip(shares, np.split(points, ends[:-1]), strict=True):
        passed, reached = np.cumsum(row, dtype=np.float64), np.cumsum(own)
        limits = passed * (reached[-1] / (passed[-1] or 1.0))  # 0 for a document without words
        drawn = np.searchsorted(reached[:-1], limits, side="right")
        drawn[-1] = len(own) - 1  # whatever was lost to rounding
        row[:] = np.diff(drawn, prepend=0)


def lengths_of(words: Array) -> NDArray[np.int64]:
    """Return numbers of words, of shape (B, 1), as whole ones."""
    return np.rint(np.minimum(words[:, 0], MOST_WORDS)).astype(np.int64)


def _draw(shares: Array, words: Array, draws: np.random.Generator) -> None:
    """Draw documents of these numbers of words, in place; memory does not grow with long ones."""
    lengths = lengths_of(words)
    rows = np.flatnonzero(lengths > MOST_POINTS)
    wanted, p = lengths[rows], shares[rows].astype(np.float64)
    lengths[rows] = 0
    ends = np.cumsum(lengths + 1)
    draw_documents(shares, draws.standard_exponential(int(ends[-1])), ends)
    for row, number, own in zip(rows, wanted, p, strict=True):
        total = own.sum()
        shares[row] = draws.multinomial(number, own / total) if np.isfinite(total) else np.nan
