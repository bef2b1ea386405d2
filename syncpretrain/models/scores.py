"""Anomaly scores: how unlike the training data an example is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from syncpretrain.data.columns import columns_in
from syncpretrain.data.examples import has_missing
from syncpretrain.data.scaling import without_novel
from syncpretrain.errors import DataError
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.conditions import as_documents, is_missing
from syncpretrain.models.layer import NO_RBM, blocks_through
from syncpretrain.models.likelihood import free_energy
from syncpretrain.models.stack import Stack

SCORED_BY = ("reconstruction", "free-energy")


def check_scores(stack: Stack, by: str) -> None:
    """Refuse scores that a stack does not have.

    Raises
    ------
    DataError
        If ``by`` is unknown, the stack has no decoder that fits, or its first layer no energy.
    """
    if by not in SCORED_BY:
        raise DataError(f"by: got {by!r}, expected {' or '.join(SCORED_BY)}")
    if by == "reconstruction" and stack.head is not None:
        raise DataError(
            "by: got reconstruction, but the stack was fine-tuned to predict and its decoder does"
            " not fit any more; score the run as it was before, or one tuned for reconstruction"
        )
    if by == "free-energy":
        layer = stack.layers[0]
        if layer.model != "rbm":
            advice = "take reconstruction, or score RBMs before fine-tuning"
            raise DataError(f"by: got free-energy, but layer 1 {NO_RBM} has no energy; {advice}")
        free_energy(layer, np.zeros((1, layer.shape.visible), dtype=np.float32))


def scores(stack: Stack, X: ArrayLike, *, by: str = "reconstruction") -> NDArray[np.float64]:
    """Return a score for each row of X; a higher one is less like the training data.

    Parameters
    ----------
    stack : Stack
    X : array-like of shape (n_examples, input units), or data frame
    by : str
        ``reconstruction``: the squared error of going up all layers and down again, summed over
        the values of an example (standardized, for Gaussian units). ``free-energy``: the free
        energy of the first layer, an RBM, in nats. Both leave out missing values, NaN. A new value
        in a column that never varied in training counts as 10 deviations, in any unit.

    Raises
    ------
    DataError
        If the stack has no such score, or X does not fit.
    """
    check_scores(stack, by)
    if by == "free-energy":
        return _by_rows(stack, X, row_energies)
    return _by_rows(stack, X, lambda own, rows, **given: _squares(own, rows, **given).sum(axis=1))


def feature_scores(stack: Stack, X: ArrayLike) -> NDArray[np.float64]:
    """Return each column's part of the reconstruction score, of shape (n_examples, columns).

    The values of a category count together, and a missing value counts 0.

    Raises
    ------
    DataError
        If the stack has no decoder that fits, or X does not fit.
    """
    check_scores(stack, "reconstruction")
    columns, width = columns_in(stack.info), stack.widths[0]
    owners = columns.owners if columns and columns.width == width else np.arange(width)
    starts = np.flatnonzero(np.diff(owners, prepend=-1))

    def parts(own: Stack, rows: Array, **given: bool) -> Any:
        return np.add.reduceat(_squares(own, rows, **given), starts, axis=1)

    return _by_rows(stack, X, parts)


def feature_names(stack: Stack) -> list[str]:
    """Return the names of the columns of :func:`feature_scores`, or their numbers from 0."""
    columns, width = columns_in(stack.info), stack.widths[0]
    if columns and columns.width == width:
        return columns.owner_names
    return [str(number) for number in range(width)]


def row_energies(stack: Stack, rows: Array, *, missing: bool) -> NDArray[np.float64]:
    """Return the free energies of prepared rows, with new values of constant columns marked."""
    seen = without_novel(rows, stack.scaling)
    energies: NDArray[np.float64] = free_energy(stack.layers[0], seen, missing=missing)
    energies += 0.5 * np.square(rows - seen).sum(axis=1, dtype=np.float64)
    return energies


def _squares(stack: Stack, rows: Array, *, missing: bool) -> NDArray[np.float64]:
    seen = without_novel(rows, stack.scaling)
    down = as_documents(stack.down(stack.up(seen)), seen, stack.units[0])
    squares: NDArray[np.float64] = np.square(rows.astype(np.float64) - down)
    if missing:
        squares[is_missing(rows)] = 0
    return squares


def _by_rows(stack: Stack, X: ArrayLike, score: Callable[..., Any]) -> NDArray[np.float64]:
    """Apply ``score`` to prepared rows, a few at a time, with new values of columns marked."""
    if stack.scaling is not None:
        stack = replace(stack, scaling=stack.scaling.marking())
    rows = stack.rows_of(X)
    prepared = stack.prepared(rows, missing=True)
    given = {"missing": has_missing(rows if hasattr(rows, "shape") else np.asarray(rows))}
    blocks = blocks_through(stack.layers, prepared)
    return np.concatenate([score(stack, block, **given) for block in blocks])
