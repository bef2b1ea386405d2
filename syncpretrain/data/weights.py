"""Weights of rows: checked ones, means by them, and those of sequences that have many relatives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from syncpretrain.data.blocks import chunks
from syncpretrain.errors import DataError

BLOCK_BYTES = 1 << 26  # of the letters of a block, each a one among zeros
MOST_ROWS = 2048  # of a block

__all__ = ["checked_weights", "sequence_weights", "weighted_means"]


def checked_weights(
    weights: ArrayLike | None, examples: int, chosen: NDArray[np.intp] | None
) -> NDArray[np.float32] | None:
    """Return weights of shape (n_chosen, 1) with mean 1, so that rates keep their meaning.

    Parameters
    ----------
    weights : array-like of shape (n_examples,) or None
        None if all examples count alike.
    examples : int
        Number of weights that there must be.
    chosen : ndarray of int, or None
        The rows that are trained on, if these are not all.

    Raises
    ------
    DataError
        If they are not one number of at least 0 a row, or the chosen ones are all 0.
    """
    if weights is None:
        return None
    try:
        array: NDArray[Any] = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"weights: got no numbers ({error}), expected one a row") from error
    if array.shape != (examples,):
        raise DataError(f"weights: got shape {array.shape}, expected ({examples},), one a row")
    if not np.isfinite(array).all() or (array < 0).any():
        raise DataError("weights: got one that is negative or not finite, expected 0 or more")
    array = array if chosen is None else array[chosen]
    largest = array.max()
    if largest == 0:
        raise DataError(
            "weights: got 0 for every row to train on, expected some above 0; leave them out to"
            " count all rows alike"
        )
    array = array / largest  # so that the sum is finite
    mean_one: NDArray[np.float32] = (array / array.mean()).astype(np.float32)
    return mean_one.reshape(-1, 1)


def weighted_means(X: Any, weights: NDArray[Any], *, missing: bool) -> NDArray[np.float64]:
    """Return the mean of the known entries of each column of marked examples, by weights of rows.

    Parameters
    ----------
    X : array of shape (n_examples, width), or what stands for one
    weights : ndarray of shape (n_examples,)
    missing : bool
        True if entries may be missing.
    """
    total, mass = (np.zeros(X.shape[1]) for _ in range(2))
    for rows in chunks(X.shape):
        block, own = X[rows], np.float64(weights[rows])
        total += own @ block
        lost = np.signbit(block) & (block == 0)  # the mark of a missing value
        mass += own @ ~lost if missing else own.sum()
    means: NDArray[np.float64] = total / np.where(mass, mass, 1)
    return means


def sequence_weights(X: ArrayLike, *, within: float = 0.2) -> NDArray[np.float64]:
    """Return 1 / (number of sequences that are near), for each of some aligned sequences.

    Data of few families have many near sequences of each, which would count too much. The sum of
    the weights is the effective number of sequences. All pairs are compared, in blocks of rows that
    take no more than some 150 MB, by products on the threads of NumPy's BLAS.

    Parameters
    ----------
    X : array-like of shape (n_sequences, sites)
        Letters of any type: numbers, bytes or texts of one letter; a gap is a letter too.
    within : float
        Largest share of the sites at which near sequences differ, at least 0 and below 1; 0.2 is
        an identity of 80 %. A sequence is near itself.

    Returns
    -------
    ndarray of shape (n_sequences,), float64
        In (0, 1]; ``pretrain(X, weights=...)`` takes them.

    Raises
    ------
    DataError
        If X has another shape, or ``within`` is out of range.

    Examples
    --------
    >>> sequence_weights([[0, 1, 2, 0, 1], [0, 1, 2, 0, 0], [2, 2, 0, 1, 1]]).tolist()
    [0.5, 0.5, 1.0]
    """
    array = np.asarray(X)
    if array.ndim != 2 or not array.size:
        raise DataError(f"X: got shape {array.shape}, expected (n_sequences, sites)")
    if not 0 <= within < 1:
        raise DataError(f"within: got {within:g}, expected at least 0 and below 1")
    n, sites = array.shape
    letters, numbers = np.unique(array, return_inverse=True)
    codes = numbers.reshape(n, sites) + len(letters) * np.arange(sites)  # of a letter at a site
    # Sites at which near sequences are the same; a share such as 0.29 of 100 sites is 29 of them.
    least = sites - math.floor(within * sites + 1e-9)
    size = max(1, min(MOST_ROWS, BLOCK_BYTES // (4 * sites * len(letters))))
    blocks = [slice(start, start + size) for start in range(0, n, size)]
    near = np.zeros(n, dtype=np.int64)
    for i, one in enumerate(blocks):
        left = _as_ones(codes[one], sites * len(letters))
        for other in blocks[i:]:
            right = left if other == one else _as_ones(codes[other], sites * len(letters))
            close = left @ right.T > least - 0.5  # whole numbers, exact in float32
            near[one] += close.sum(axis=1)
            if other != one:
                near[other] += close.sum(axis=0)
    weights: NDArray[np.float64] = 1 / near
    return weights


def _as_ones(codes: NDArray[np.intp], width: int) -> NDArray[np.float32]:
    """Return rows with a one for each of their codes, and zeros."""
    ones = np.zeros((len(codes), width), dtype=np.float32)
    np.put_along_axis(ones, codes, 1, axis=1)
    return ones
