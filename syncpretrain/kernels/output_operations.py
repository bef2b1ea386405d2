"""The operations at the output of a network that is fine-tuned: its errors, and its delta."""

from __future__ import annotations

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.operations import Operation
from syncpretrain.units.kinds import kind_of

__all__ = ["output_operations"]


def output_operations(
    target: Array,
    y: Array,
    delta: Array,
    weights: Array | None,
    units: str,
    loss: str,
    *,
    examples: int,
    squared: int,
    wrong: int,
) -> list[Operation]:
    """Return the operations that compare outputs y with their targets.

    Parameters
    ----------
    target, y, delta : ndarray of shape (B, outputs)
        ``delta`` is filled with the gradient of the loss by the inputs of the output units.
    weights : ndarray of shape (B, outputs) or None
        How much each example counts.
    units, loss : str
    examples : int
        Of the whole minibatch, which the loss is the mean over.
    squared, wrong : int
        The places among the results for the squared error and, of exclusive units, for the number
        of wrong classes.
    """
    operations: list[Operation] = []
    if kind_of(units).is_exclusive:
        operations += [("wrong", target, y, wrong)]
    operations += [("squared_error", target, y, delta, squared)]
    if weights is not None:
        operations += [("multiply", delta, weights, delta)]
    if loss == "squared":
        scale = ("scale", delta, 2 / examples)
        return [*operations, scale, ("times_derivative", delta, y, units)]
    return [*operations, ("scale", delta, 1 / examples)]
