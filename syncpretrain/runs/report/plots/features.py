"""The values of an example by name: those of a table, or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.columns import columns_in
from syncpretrain.errors import SettingsError
from syncpretrain.models.stack import Stack
from syncpretrain.runs.report.images import image_shape
from syncpretrain.runs.report.plots.canvas import AS_WRITTEN, drawable
from syncpretrain.shapes import ImageShape
from syncpretrain.units.kinds import kind_of

__all__ = ["MOST_BARS_SHOWN", "draw_bars", "images_of", "names_of"]

MOST_BARS_SHOWN = 24
LONGEST_NAME = 26


def images_of(stack: Stack, shape: str | ImageShape | None = None) -> ImageShape | None:
    """Return the shape of a stack's examples as images, None where they are none.

    Raises
    ------
    SettingsError
        If a shape is given that does not fit.
    """
    if isinstance(shape, ImageShape):
        shape = str(shape)
    if shape is not None:
        return image_shape(stack.layers[0].shape, shape)
    columns = columns_in(stack.info)
    if (columns is not None and columns.features) or kind_of(stack.units[0]).blocks is not None:
        return None
    try:
        return image_shape(stack.layers[0].shape, None)
    except SettingsError:
        return None


def names_of(stack: Stack) -> list[str]:
    """Return the name of each value of an example."""
    columns = columns_in(stack.info)
    if columns is not None and columns.width == stack.widths[0]:
        return columns.names
    return [f"value {i}" for i in range(1, stack.widths[0] + 1)]


def draw_bars(axes: Any, names: Sequence[str], values: NDArray[Any], *, label: str) -> None:
    """Draw a bar a value, the greatest ones on top; not more than are readable."""
    order = np.argsort(-values, kind="stable")[:MOST_BARS_SHOWN]
    shown = [_short(names[i]) for i in order]
    places = np.arange(len(order))
    axes.barh(places, values[order], color="#0072b2", height=0.75)
    axes.set_yticks(places, shown, **AS_WRITTEN)
    axes.set(ylim=(len(order) - 0.4, -0.6), xlabel=label)
    axes.grid(visible=True, axis="x", alpha=0.4)
    if len(order) < len(values):
        axes.set_title(f"{len(order)} of {len(values)} values")


def _short(name: str) -> str:
    name = drawable(name)
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + "..."
