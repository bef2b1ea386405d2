"""Comparison of stacks up to rounding."""

from __future__ import annotations

import numpy as np


def arrays_of(stack) -> list[np.ndarray]:
    heads = [] if stack.head is None else [stack.head.weight, stack.head.bias]
    return [array for layer in stack.layers for _, array in layer.parameters()] + heads


def alike(actual, expected, tolerance=3e-6):
    """Compare two stacks, of arrays on the host."""
    for ours, theirs in zip(arrays_of(actual), arrays_of(expected), strict=True):
        assert type(ours) is np.ndarray
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=tolerance)
