"""The reconstruction error of the papers, of each layer and of the whole stack.

Squared error summed over the units of an example, averaged over examples, without sampling. For
Gaussian visible units it is that of the standardized examples. A missing value has no error.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.conditions import as_documents
from syncpretrain.kernels.losses import squared_error
from syncpretrain.models.passes import rows_at_once
from syncpretrain.models.stack import Stack

__all__ = ["layer_errors", "stack_error"]

ROWS_AT_ONCE = 1000


def layer_errors(stack: Stack, X: Array) -> tuple[float, ...] | None:
    """Return each layer's error as it is trained: up this layer and down again, from its own input.

    Parameters
    ----------
    stack : Stack
    X : ndarray of shape (n_examples, input units), float32

    Returns
    -------
    tuple of float, one a layer, or None where there are no examples
    """
    if not len(X):
        return None
    sums = [0.0] * len(stack.layers)
    for rows in _chunks(stack, X):
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

    None where there are no examples.
    """
    if not len(X):
        return None
    total = 0.0
    for rows in _chunks(stack, X):
        lost, rows = np.isnan(rows), stack.prepared(rows, missing=True)
        down = stack.down(stack.up(rows))
        as_documents(down, rows, stack.units[0])
        down[lost] = 0
        total += squared_error(rows, down, out=down)
    return total / len(X)


def _chunks(stack: Stack, X: Array) -> Iterator[Array]:
    count = rows_at_once(stack.layers, ROWS_AT_ONCE)
    for start in range(0, len(X), count):
        yield X[start : start + count]
