"""Examples through several layers, up or down, a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from syncpretrain.data.sparse_rows import run_of
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.layer import Layer

__all__ = ["down_through", "rows_at_once", "up_through"]

MOST_ROWS = 2000
NUMBERS_AT_ONCE = 1 << 26  # of what a layer reads and makes, 256 MB


class _Step(Protocol):
    def __call__(self, X: Array, *, out: Array | None = None) -> Array: ...


def rows_at_once(layers: Iterable[Layer], most: int = MOST_ROWS) -> int:
    """Return how many rows go through layers together: ``most``, or fewer of the very wide."""
    widest = max(layer.shape.visible + layer.shape.hidden for layer in layers)
    return max(1, min(most, NUMBERS_AT_ONCE // widest))


def up_through(layers: Sequence[Layer], X: Array) -> Array:
    """Return the codes that layers, from the lowest up, make of the rows of X."""
    return _through([layer.up for layer in layers], X, layers, layers[-1].shape.hidden)


def down_through(layers: Sequence[Layer], units: Sequence[str], codes: Array) -> Array:
    """Return what layers, from the highest down, make of codes.

    ``units`` are those that each layer's visible ones are, from the lowest up.
    """
    pairs = zip(reversed(layers), reversed(units), strict=True)
    steps: list[_Step] = [partial(layer.down, units=kind) for layer, kind in pairs]
    return _through(steps, codes, layers, layers[0].shape.visible)


def _through(steps: Sequence[_Step], X: Array, layers: Sequence[Layer], width: int) -> Array:
    result = np.empty((len(X), width), dtype=np.float32)
    count = rows_at_once(layers)
    for start in range(0, len(X), count):
        part = slice(start, start + count)
        rows = run_of(X, part) if layers[0].shape.name == "dense" else X[part]
        for step in steps[:-1]:
            rows = step(rows)
        steps[-1](rows, out=result[part])
    return result
