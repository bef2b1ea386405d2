"""Errors of a stack on examples: reconstruction, as in the papers, classification and regression.

The reconstruction error, of each layer or of the whole stack, is the squared error summed over the
units of an example and averaged over examples, without sampling. For Gaussian visible units it is
measured on the standardized examples. A missing value has no error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.dataset import PARTS, Dataset, is_labelled
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.backprop import squared_error
from syncpretrain.kernels.conditions import as_documents
from syncpretrain.models.layer import blocks_through
from syncpretrain.models.stack import Stack

Errors = dict[str, dict[str, float | None] | None]  # by part
ROWS_AT_ONCE = 1000


def layer_errors(stack: Stack, X: Array) -> tuple[float, ...] | None:
    """Return each layer's own error: up this layer and down again, from the layer's input.

    Parameters
    ----------
    stack : Stack
    X : ndarray of shape (n_examples, input units), float32

    Returns
    -------
    tuple of float, one a layer, or None without examples
    """
    if not len(X):
        return None
    sums = [0.0] * len(stack.layers)
    for rows in blocks_through(stack.layers, X, ROWS_AT_ONCE):
        below = stack.prepared(rows, missing=True)
        lost = np.isnan(rows)
        for i, layer in enumerate(stack.layers):
            above = layer.up(below)
            down = layer.reconstruct(below, above)
            if i == 0:
                down[lost] = 0
            sums[i] += squared_error(below, down, out=down)
            below = above
    return tuple(total / len(X) for total in sums)


def stack_error(stack: Stack, X: Array) -> float | None:
    """Return the error of going up all layers and down again (Santara et al. 2016, table 2).

    Return None without examples.
    """
    if not len(X):
        return None
    total = 0.0
    for rows in blocks_through(stack.layers, X, ROWS_AT_ONCE):
        lost, rows = np.isnan(rows), stack.prepared(rows, missing=True)
        down = stack.down(stack.up(rows))
        as_documents(down, rows, stack.units[0])
        down[lost] = 0
        total += squared_error(rows, down, out=down)
    return total / len(X)


def accuracies(stack: Stack, data: Dataset) -> dict[str, float | None] | None:
    """Return a classifier's share of right classes on each part's labelled rows, else None.

    A part without labelled rows has None. A class that the stack does not know counts as wrong.
    """

    def share(found: NDArray[Any], labels: NDArray[Any]) -> float:
        return float((found == labels).mean())

    return _by_part(stack, data, "classification", share)


def regression_errors(stack: Stack, data: Dataset) -> Errors | None:
    """Return a regression's error on each part's rows with a target, else None.

    ``rmse`` is the root of the mean squared error, ``r2`` the predicted share of the targets'
    variance: 0 for a constant guess, 1 at best, None if all targets are equal. A part without
    targets has None.
    """

    def errors(found: NDArray[Any], labels: NDArray[Any]) -> dict[str, float | None]:
        y = labels.astype(np.float64)
        error, spread = float(np.square(found - y).mean()), float(y.var())
        return {"rmse": math.sqrt(error), "r2": 1 - error / spread if spread else None}

    return _by_part(stack, data, "regression", errors)


def _by_part(
    stack: Stack, data: Dataset, kind: str, measured: Callable[[NDArray[Any], NDArray[Any]], Any]
) -> dict[str, Any] | None:
    """Return what is measured of the predictions and the targets of each part, if it has some."""
    if stack.head is None or stack.head.kind != kind:
        return None
    found: dict[str, Any] = {}
    for part in PARTS:
        X, labels = getattr(data, part), data.targets(part)
        found[part] = None
        if labels is not None and (rows := is_labelled(labels)).any():
            found[part] = measured(stack.predict(X[rows]), labels[rows])
    return found
