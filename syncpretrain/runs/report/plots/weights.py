"""The weights of a layer as images, or as bars where examples are no images."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.models.stack import Stack
from syncpretrain.runs.report.filters import filter_images
from syncpretrain.runs.report.images import image_grid
from syncpretrain.runs.report.plots.canvas import new_axes
from syncpretrain.runs.report.plots.features import draw_bars, images_of, names_of
from syncpretrain.shapes import ConvolutionShape, ImageShape

__all__ = ["draw_grid", "filter_grid", "filters", "weight_norms"]


def filters(
    stack: Stack,
    *,
    layer: int = 1,
    count: int = 100,
    shape: str | ImageShape | None = None,
    axes: Any = None,
) -> Any:
    """Draw the weights of a layer's hidden units as images: the filters of a convolution.

    Grey is 0, and each filter has its own contrast. Where examples are no images, as those of
    a table, bars show which values the lowest layer reads most: the norms of their weights.

    Parameters
    ----------
    stack : Stack
    layer : int
        Counted from 1; of dense layers only the first can be drawn.
    count : int
        Hidden units or filters, the first ones.
    shape : str or ImageShape, optional
        Height and width of an example, such as ``28x28``; default those of the convolutions, or
        a square.
    axes : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    SettingsError
        If the layer cannot be drawn, or the shape does not fit.
    DataError
        If Matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from syncpretrain import plot, pretrain
    >>> X = np.random.default_rng(0).random((100, 16), dtype=np.float32)
    >>> axes = plot.filters(pretrain(X, layers=[16, 8, 4], epochs=1))
    >>> axes.get_title()
    '8 of 8 filters of layer 1'
    """
    images = images_of(stack, shape)
    is_convolution = isinstance(stack.layers[0].shape, ConvolutionShape)
    if images is None and layer == 1 and not is_convolution:
        axes = new_axes(axes)
        draw_bars(axes, names_of(stack), weight_norms(stack), label="norm of the weights")
        return axes
    grid, shown, units = filter_grid(stack, layer, images, count)
    axes = new_axes(axes)
    draw_grid(axes, grid, title=f"{shown} of {units} filters of layer {layer}")
    return axes


def filter_grid(
    stack: Stack, layer: int, images: ImageShape | None, count: int
) -> tuple[NDArray[np.float32], int, int]:
    """Return the filters of a layer in a grid, how many there are in it, and how many there are."""
    drawn, form = filter_images(stack, layer, images)
    grid = image_grid(*(rows[:count] for rows in drawn), shape=form)
    return grid, min(count, len(drawn[0])), len(drawn[0])


def weight_norms(stack: Stack) -> NDArray[Any]:
    """Return the norm of the weights of each value that the lowest, dense layer reads."""
    norms: NDArray[Any] = np.linalg.norm(stack.layers[0].weight, axis=1)
    return norms


def draw_grid(axes: Any, grid: NDArray[np.float32], *, title: str) -> None:
    """Draw a grid of images with values in [0, 1]."""
    axes.imshow(np.clip(grid, 0, 1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()
    axes.set_title(title)
