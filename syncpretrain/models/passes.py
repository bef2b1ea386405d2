"""Passes of examples through several layers, up or down, a few rows at a time.

The top layer may return the log-odds of its binary units in place of their probabilities.
Probabilities near 0 and 1 hide how sure a unit is. Log-odds are linear in the unit's input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from syncpretrain.data.sparse_rows import run_of
from syncpretrain.errors import DataError
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.layer import Layer
from syncpretrain.units.kinds import kind_of

__all__ = ["check_have_odds", "down_through", "rows_at_once", "up_through", "with_log_odds"]

MOST_ROWS = 2000
NUMBERS_AT_ONCE = 1 << 26  # inputs and outputs of a layer, 256 MB
Step = Callable[..., Array]  # takes rows and optionally ``out``


def rows_at_once(layers: Iterable[Layer], most: int = MOST_ROWS) -> int:
    """Return how many rows go through layers together: ``most``, or fewer if layers are wide."""
    widest = max(layer.shape.visible + layer.shape.hidden for layer in layers)
    return max(1, min(most, NUMBERS_AT_ONCE // widest))


def up_through(layers: Sequence[Layer], X: Array) -> Array:
    """Pass the rows of X up through layers, given from the lowest up; return the codes."""
    return _through([layer.up for layer in layers], X, layers, layers[-1].shape.hidden)


def down_through(layers: Sequence[Layer], units: Sequence[str], codes: Array) -> Array:
    """Pass codes down through layers; return the means of the lowest visible units.

    ``layers``, and ``units``, the kinds of their visible units, are given from the lowest up.
    """
    pairs = zip(reversed(layers), reversed(units), strict=True)
    steps: list[Step] = [partial(layer.down, units=kind) for layer, kind in pairs]
    return _through(steps, codes, layers, layers[0].shape.visible)


def _through(steps: Sequence[Step], X: Array, layers: Sequence[Layer], width: int) -> Array:
    result = np.empty((len(X), width), dtype=np.float32)
    count = rows_at_once(layers)
    for start in range(0, len(X), count):
        part = slice(start, start + count)
        rows = run_of(X, part) if layers[0].shape.name == "dense" else X[part]
        for step in steps[:-1]:
            rows = step(rows)
        steps[-1](rows, out=result[part])
    return result


def with_log_odds(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers with a top layer that returns the log-odds of its units, not their means.

    Raises
    ------
    DataError
        If the units of the top layer are not binary, or exclude each other.
    """
    *below, top = layers
    check_have_odds(top.hidden_units)
    shape: Any = top.shape
    if shape.name == "convolution" and shape.pooling == "prob":
        raise DataError(
            "log_odds: got probabilistic pooling in the layer of the codes, expected max or mean;"
            " leave log_odds out"
        )
    linear: Any = replace(top, hidden_units="gaussian")
    return (*below, linear)


def check_have_odds(units: str) -> None:
    """Refuse hidden units that are not binary.

    Raises
    ------
    DataError
    """
    if not kind_of(units).is_binary:
        raise DataError(
            f"log_odds: got {units} units in the layer of the codes, expected bernoulli; leave"
            " log_odds out"
        )
