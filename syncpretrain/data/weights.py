"""Weights of rows: check them, take means by them, find them for sequences with near relatives."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from syncpretrain.data.blocks import chunks
from syncpretrain.errors import DataError
from syncpretrain.units.kinds import SOFTMAX, kind_of

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
    if len(bad := np.flatnonzero(~((array >= 0) & np.isfinite(array)))):
        place = f"{array[bad[0]]:g} at row {bad[0]} (counted from 0)"
        raise DataError(f"weights: got {place}, expected finite numbers of 0 or more")
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
    return total / np.where(mass, mass, 1)


def sequence_weights(
    X: ArrayLike, *, units: str | None = None, within: float = 0.2
) -> NDArray[np.float64]:
    """Return 1 / (number of sequences that are near), for each of some aligned sequences.

    Data of few families have many near sequences of each, which would count too much. The sum of
    the weights is the effective number of sequences. All pairs are compared, in blocks of rows that
    take no more than some 150 MB, by products on the threads of NumPy's BLAS.

    Parameters
    ----------
    X : array-like of shape (n_sequences, sites)
        Letters of any type: numbers, bytes or texts of one letter; a gap is a letter too. Or, with
        ``units``, rows of these visible units.
    units : str, optional
        Visible units of the rows, such as ``softmax:6x20``, which
        ``dataset.columns.visible_units()`` returns for a FASTA file. Each softmax group is a site,
        with its choice as the letter; a missing choice is a letter of its own. Each other column is
        a site, too. ``bernoulli`` says that zeros and ones are letters.
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
        If X has another shape or does not fit the units, ``within`` is out of range, or X looks
        like softmax groups (zeros, and equally many ones in each row) and ``units`` is None.

    Examples
    --------
    >>> sequence_weights([[0, 1, 2, 0, 1], [0, 1, 2, 0, 0], [2, 2, 0, 1, 1]]).tolist()
    [0.5, 0.5, 1.0]
    """
    if not isinstance(within, Real):
        raise DataError(f"within: got {within!r}, expected a number")
    if not 0 <= within < 1:
        raise DataError(f"within: got {within:g}, expected at least 0 and below 1")
    array = _sites(X, units)
    n, sites = array.shape
    try:
        found = [np.unique(site, return_inverse=True) for site in array.T]
    except TypeError as error:
        raise DataError("X: got letters of several types, or None; expected one type") from error
    *starts, width = np.cumsum([0, *(len(letters) for letters, _ in found)]).tolist()
    codes = np.column_stack([numbers for _, numbers in found]) + starts  # of a letter at a site
    # Sites at which near sequences are the same; a share such as 0.29 of 100 sites is 29 of them.
    least = sites - math.floor(within * sites + 1e-9)
    size = max(1, min(MOST_ROWS, BLOCK_BYTES // (4 * width)))
    blocks = [slice(start, start + size) for start in range(0, n, size)]
    near = np.zeros(n, dtype=np.int64)
    for i, one in enumerate(blocks):
        left = _as_ones(codes[one], width)
        for other in blocks[i:]:
            right = left if other == one else _as_ones(codes[other], width)
            close = left @ right.T > least - 0.5  # whole numbers, exact in float32
            near[one] += close.sum(axis=1)
            if other != one:
                near[other] += close.sum(axis=0)
    return 1 / near


def _sites(X: ArrayLike, units: str | None) -> NDArray[Any]:
    """Return a letter for each site of each sequence, of shape (n_sequences, sites)."""
    try:
        array = np.asarray(X)
    except ValueError as error:
        raise DataError("X: got sequences of different lengths, expected aligned ones") from error
    if array.ndim != 2 or not array.size:
        raise DataError(f"X: got shape {array.shape}, expected (n_sequences, sites)")
    if units is None:
        if _looks_one_hot(array):
            raise DataError(
                "X: got zeros, and equally many ones in each row, which may be softmax groups or"
                " letters; give units, such as softmax:6x20, or bernoulli if they are letters"
            )
        return array
    try:
        blocks = kind_of(units).blocks
    except (TypeError, ValueError) as error:
        raise DataError(f"units: got {units!r}, expected kinds such as softmax:6x20") from error
    if blocks is None:
        return array
    if array.dtype.kind not in "biuf" or array.shape[1] != blocks.width:
        raise DataError(
            f"X: got {array.shape[1]} columns of {array.dtype}, expected {blocks.width} columns of"
            f" numbers, as {units} units have"
        )
    return np.column_stack([_letters(array, part) for part in blocks.parts])


def _letters(array: NDArray[Any], part: Any) -> NDArray[Any]:
    """Return the choice of each softmax group of a block, -1 if it is missing; or the columns."""
    if part.kind != SOFTMAX:
        return array[:, part.columns]
    groups = part.grouped(array)
    lost = np.isnan(groups).all(axis=2)
    if not (lost | (((groups == 0) | (groups == 1)).all(axis=2) & (groups.sum(axis=2) == 1))).all():
        raise DataError(f"X: got a group of {part} with no single choice, expected a 1 among zeros")
    return np.where(lost, -1, groups.argmax(axis=2))


def _looks_one_hot(array: NDArray[Any]) -> bool:
    """Return whether different rows hold zeros, and equally many ones; rows with NaN are left."""
    if array.dtype.kind not in "biuf":
        return False
    known = array[~np.isnan(array).any(axis=1)]
    if len(known) < 2 or not ((known == 0) | (known == 1)).all() or (known == known[0]).all():
        return False
    ones = np.count_nonzero(known, axis=1)
    return bool((ones == ones[0]).all())


def _as_ones(codes: NDArray[np.intp], width: int) -> NDArray[np.float32]:
    """Return rows with a one for each of their codes, and zeros."""
    ones = np.zeros((len(codes), width), dtype=np.float32)
    np.put_along_axis(ones, codes, 1, axis=1)
    return ones
