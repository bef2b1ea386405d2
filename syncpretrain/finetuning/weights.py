"""Weights of examples: how much the loss of each counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from syncpretrain.errors import DataError
from syncpretrain.finetuning.trainable import Trainable
from syncpretrain.kernels.arrays import Array

__all__ = ["ExampleWeights", "checked_weights"]


class ExampleWeights:
    """The weights of the minibatch that a network trains on; nothing where there are none.

    Parameters
    ----------
    weights : ndarray of shape (n_examples, 1) or None
    network : Trainable
        Network that gets them as its ``weights``, one for each output of an example.
    shape : tuple of int
        Shape of the targets of a minibatch.
    """

    def __init__(self, weights: Array | None, network: Trainable, shape: tuple[int, ...]) -> None:
        self._weights = weights
        if weights is None:
            return
        backend = network.backend
        self._weights, self._backend = backend.asarray(weights), backend
        self._rows = backend.empty((shape[0], 1))
        network.weights = self._all = backend.empty(shape)

    def take(self, rows: NDArray[np.intp]) -> None:
        """Take the weights of the examples of a minibatch."""
        if self._weights is not None:
            n = len(rows)
            self._all[:n] = self._backend.gather(self._weights, rows, out=self._rows[:n])


def checked_weights(
    weights: ArrayLike | None, examples: int, chosen: NDArray[np.intp] | None
) -> Array | None:
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
    mean_one: Array = (array / array.mean()).astype(np.float32)
    return mean_one.reshape(-1, 1)
