"""Stacks with random parameters."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from syncpretrain import Stack
from syncpretrain.data.scaling import Scaling
from syncpretrain.models.diagnosis import baselines
from syncpretrain.models.layer import DenseLayer
from syncpretrain.units.kinds import kind_of


def normal_stack(
    widths: Sequence[int],
    *,
    units: Sequence[str] | None = None,
    tied: bool = True,
    transposed: bool = False,
    scale: float = 1.0,
    seed: int = 0,
    info: dict[str, Any] | None = None,
    scaling: Scaling | None = None,
) -> Stack:
    """Return a stack whose parameters are normal with a standard deviation of ``scale``.

    ``units`` are the kinds of units from the input up, as pretraining makes them: those of a
    layer are seen by the next as ``Kind.above``. ``transposed`` arrays are not contiguous.
    """
    draw = np.random.default_rng(seed)
    units = units or ("bernoulli",) * len(widths)

    def normal(*shape: int) -> np.ndarray:
        size = shape[::-1] if transposed else shape
        values = (scale * draw.normal(size=size)).astype(np.float32)
        return values.T if transposed else values

    layers = []
    for (v, h), (below, above) in zip(pairwise(widths), pairwise(units), strict=True):
        arrays = normal(v, h), normal(h), normal(v), None if tied else normal(h, v)
        layers.append(DenseLayer(*arrays, above, kind_of(below).above))
    return Stack(tuple(layers), info or {}, scaling)


def layer_errors(stack: Stack, X) -> tuple[float, ...]:
    """Return each layer's own error: up this layer and down again, from the layer's input."""
    return tuple(layer.error for layer in baselines(stack, X))
