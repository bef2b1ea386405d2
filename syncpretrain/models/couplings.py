"""Zero-sum gauge of softmax groups, and couplings between the positions that an RBM reads.

One unit of a softmax group is on. So a constant may be added to all weights of a group to a hidden
unit, and taken from the bias of that unit, and no probability changes: this is a gauge. In the
zero-sum gauge the weights of a group to each hidden unit, and the biases of the group, add up to 0;
of all gauges it has the smallest squares. A group with missing values is left out of the input
of the hidden units; in the zero-sum gauge it counts as the mean of its choices.

The hidden units couple the positions i and j by the matrix W_i W_j^T, summed over the hidden units,
in the zero-sum gauge. Its Frobenius norm says how strongly. Positions that differ much between
examples have large norms with all others, and the average-product correction takes this off: F_ij -
F_i. F_.j / F_.. (Dunn, Wahl and Gloor 2008).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from syncpretrain.errors import DataError
from syncpretrain.models.layer import NO_RBM, DenseLayer, Layer
from syncpretrain.models.likelihood import Doubles
from syncpretrain.units.kinds import kind_of

__all__ = ["couplings", "has_couplings", "outside_gauge", "positions_of", "zero_sum"]

IN_GAUGE = 0.01  # largest share of the weights' squares outside the zero-sum gauge
NOT_IN_GAUGE = (  # format with a number and a share
    "layer {}: {:.0f} % of the squares of its weights are outside the zero-sum gauge, and its decay"
    " shrinks them although they change no probability; compare weights after stack.zero_sum()"
)


def zero_sum(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return RBMs in the zero-sum gauge of their softmax groups.

    Probabilities of rows without missing groups are the same, up to the rounding of float32.

    Raises
    ------
    DataError
        If a layer with softmax groups is no RBM.
    """
    return tuple(_centred(number, layer) for number, layer in enumerate(layers, start=1))


def outside_gauge(layers: Sequence[Layer], info: Mapping[str, Any]) -> list[str]:
    """Return sentences on layers that were trained with decay and are not in the gauge."""
    settings, found = info.get("pretrain", {}), []
    for number, layer in enumerate(layers, start=1):
        if not _groups(layer) or layer.model != "rbm":
            continue
        decays = [settings.get(name) or [0.0] for name in ("weight_decay", "l1")]
        if not any(own[min(number, len(own)) - 1] for own in decays):
            continue
        weight = np.float64(layer.weight)
        removed = weight - _centred(number, layer).weight
        share = np.square(removed).sum() / max(np.square(weight).sum(), 1e-300)
        if share > IN_GAUGE:
            found.append(NOT_IN_GAUGE.format(number, 100 * share))
    return found


def couplings(layer: Layer, *, corrected: bool = True) -> Doubles:
    """Return how strongly an RBM couples each pair of positions, of shape (positions, positions).

    A position is a softmax group, or another visible unit. ``corrected`` asks for the
    average-product correction, which would leave nothing of two positions alone, and is then left
    out. The diagonal is 0.

    Raises
    ------
    DataError
        If the layer is no dense RBM.
    """
    if layer.model != "rbm" or not isinstance(layer, DenseLayer):
        raise DataError("layer: got no dense RBM, which alone has couplings")
    weight = np.float64(_centred(1, layer).weight)
    owners = positions_of(layer)
    count, hidden = int(owners[-1]) + 1, weight.shape[1]
    # |W_i W_j^T|^2 = <W_i^T W_i, W_j^T W_j>, with one (hidden, hidden) matrix a position
    squares = np.empty((count, hidden * hidden))
    ends = np.searchsorted(owners, np.arange(count + 1))
    for position in range(count):
        own = weight[ends[position] : ends[position + 1]]
        squares[position] = (own.T @ own).ravel()
    norms: Doubles = np.sqrt(np.maximum(squares @ squares.T, 0))
    np.fill_diagonal(norms, 0)
    total = norms.sum()
    if corrected and total and count > 2:
        rows = norms.sum(axis=0)
        # means without the diagonal: (rows / (n - 1))^2 / (total / (n (n - 1)))
        norms -= np.outer(rows, rows) / total * (count / max(count - 1, 1))
        np.fill_diagonal(norms, 0)
    return norms


def has_couplings(layer: Layer) -> bool:
    """Return whether a layer is an RBM with two softmax groups or more."""
    is_rbm = layer.model == "rbm" and isinstance(layer, DenseLayer)
    return is_rbm and sum(part.groups for part in _groups(layer)) > 1


def positions_of(layer: Layer) -> Any:
    """Return the number of the position of each visible unit, from 0, in ascending order."""
    owners = np.arange(layer.shape.visible)
    for part in _groups(layer):
        owners[part.columns] = part.start + np.repeat(np.arange(part.groups), part.choices)
    return np.unique(owners, return_inverse=True)[1]


def _groups(layer: Layer) -> tuple[Any, ...]:
    blocks = kind_of(layer.visible_units).blocks
    return () if blocks is None else blocks.groups


def _centred(number: int, layer: Layer) -> Layer:
    if not _groups(layer):
        return layer
    if layer.model != "rbm" or not isinstance(layer, DenseLayer):
        raise DataError(f"layer {number}: {NO_RBM} has no gauge; take an RBM before fine-tuning")
    arrays = {name: np.array(x, dtype=np.float64) for name, x in layer.parameters()}
    W, b, a = arrays.values()
    for part in _groups(layer):
        own = W[part.columns].reshape(part.groups, part.choices, -1)
        means = own.mean(axis=1, keepdims=True)
        own -= means
        b += means.sum(axis=(0, 1))
        biases = part.grouped(a)
        biases -= biases.mean(axis=1, keepdims=True)
    changed: Any = {name: x.astype(layer.weight.dtype) for name, x in arrays.items()}
    return replace(layer, **changed)
