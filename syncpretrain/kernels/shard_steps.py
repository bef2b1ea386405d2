"""The end of a step whose shards lie on several devices: their gradients added up, and the move."""

from __future__ import annotations

from collections.abc import Sequence

from syncpretrain.kernels.arrays import Array, ordered_sum
from syncpretrain.kernels.averaging import add_tree
from syncpretrain.kernels.contrastive_divergence import momentum_steps
from syncpretrain.kernels.dispatch import accelerated

__all__ = ["sum_in_order", "tree_steps"]


@accelerated
def tree_steps(
    parameters: Array,
    gradients: Sequence[Array],
    velocities: Array,
    *,
    part: slice,
    weights: int,
    momentum: float,
    learning_rate: float,
    weight_decay: float = 0.0,
    l1: float = 0.0,
) -> None:
    """Ascend with a part of flat vectors, along the sum of the gradients of several shards.

    They are added as by :func:`syncpretrain.kernels.averaging.add_tree`, and left as they are. Of
    the whole vectors the first ``weights`` numbers decay; see
    :func:`syncpretrain.kernels.contrastive_divergence.momentum_steps`.
    """
    total = add_tree([gradient[part].copy() for gradient in gradients])
    momentum_steps(
        parameters[part],
        total,
        velocities[part],
        weights=max(0, min(weights, part.stop) - part.start),
        momentum=momentum,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        l1=l1,
    )


@accelerated
def sum_in_order(numbers: Array) -> float:
    """Return the sum of a vector of float64, added from its first number on."""
    return float(ordered_sum(numbers.tolist(), 0.0))
