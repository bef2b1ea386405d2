"""The memory in which the compiled forms of convolutions compute."""

from __future__ import annotations

from syncpretrain.shapes import ConvolutionShape

__all__ = ["scratch_size"]


def scratch_size(shape: ConvolutionShape) -> int:
    """Return the numbers that the compiled forms compute in, however many examples there are."""
    return shape.positions * (shape.fan_in + shape.filters) + shape.weights
