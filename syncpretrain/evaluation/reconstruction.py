"""The reconstruction error of the papers, of each layer and of the whole stack."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.activations import affine_sigmoid
from syncpretrain.kernels.contrastive_divergence import squared_error
from syncpretrain.stack import Stack

__all__ = ["ReconstructionErrors", "reconstruction_errors"]

ROWS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class ReconstructionErrors:
    """Squared error summed over the units of an example, averaged over examples.

    ``layers`` has one entry a layer, for going up this layer and down again from its own input;
    ``stack`` goes up all layers and down again (Santara et al. 2016, table 2).
    """

    layers: tuple[float, ...]
    stack: float


def reconstruction_errors(stack: Stack, X: NDArray[np.float32]) -> ReconstructionErrors | None:
    """Measure a stack on examples, without sampling; None where there are no examples.

    Parameters
    ----------
    stack : Stack
    X : ndarray of shape (n_examples, input units), float32
    """
    if not len(X):
        return None
    layers, whole = [0.0] * len(stack.layers), 0.0
    for start in range(0, len(X), ROWS_AT_ONCE):
        rows = X[start : start + ROWS_AT_ONCE]
        below = rows
        for i, layer in enumerate(stack.layers):
            above = affine_sigmoid(below, layer.weight, layer.hidden_bias)
            down = affine_sigmoid(above, layer.decoding, layer.visible_bias)
            layers[i] += squared_error(below, down, scratch=down)
            below = above
        down = stack.decode(below)
        whole += squared_error(rows, down, scratch=down)
    return ReconstructionErrors(tuple(error / len(X) for error in layers), whole / len(X))
