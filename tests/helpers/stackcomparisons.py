"""Comparison of stacks up to rounding."""

import numpy as np

from syncpretrain.models.stack import Stack


def arrays_of(stack) -> list[np.ndarray]:
    heads = [] if stack.head is None else [stack.head.weight, stack.head.bias]
    return [array for layer in stack.layers for _, array in layer.parameters()] + heads


def sound(stack: Stack | None, widths: tuple[int, ...]) -> Stack:
    """Return a stack of these widths, which must be there, and finite."""
    assert stack is not None
    assert stack.widths == widths
    assert all(np.isfinite(array).all() for array in arrays_of(stack))
    return stack


def alike(actual, expected, tolerance=3e-6):
    """Compare two stacks, of arrays on the host."""
    for ours, theirs in zip(arrays_of(actual), arrays_of(expected), strict=True):
        assert type(ours) is np.ndarray
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=tolerance)
