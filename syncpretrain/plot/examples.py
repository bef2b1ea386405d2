"""Plots of reconstructions and filters: as images, or as bars where examples are no images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.columns import columns_in
from syncpretrain.data.examples import evenly_spaced, scale_examples
from syncpretrain.errors import DataError, SettingsError
from syncpretrain.models.couplings import positions_of
from syncpretrain.models.stack import Stack
from syncpretrain.plot.canvas import AS_WRITTEN, drawable, new_axes
from syncpretrain.plot.images import filter_images, image_grid, image_shape, shades
from syncpretrain.shapes import ConvolutionShape, ImageShape
from syncpretrain.units.kinds import kind_of

SHARE_LABEL = "error, % of the mean's"
MOST_BARS_SHOWN = 24
LONGEST_NAME = 26


def reconstructions(
    stack: Stack,
    X: Any,
    *,
    count: int = 20,
    shape: str | ImageShape | None = None,
    axes: Any = None,
) -> Any:
    """Draw examples, and below each its reconstruction by the whole stack.

    If examples are no images, such as rows of a table, a bar for each value shows the error of its
    reconstructions in percent of its mean's error: 0 is perfect, and 100 says nothing.

    Parameters
    ----------
    stack : Stack
    X : array-like of shape (n_examples, input units)
    count : int
        Number of examples, evenly spaced in X; bars show all examples.
    shape : str or ImageShape, optional
        Height and width of an example, such as ``28x28``; default the images of the convolutions,
        or a square.
    axes : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If the stack has no decoder, X does not fit, or Matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from syncpretrain import plot, pretrain
    >>> X = np.random.default_rng(0).random((100, 16), dtype=np.float32)
    >>> axes = plot.reconstructions(pretrain(X, layers=[16, 8, 4], epochs=1), X, count=5)
    >>> axes.get_title()
    '5 examples above their reconstructions'
    """
    check_decoder(stack)
    images = image_shape_of(stack, shape)
    if images is None:
        shares = error_shares(stack, X)
        axes = new_axes(axes)
        draw_bars(axes, value_names(stack), shares, label=SHARE_LABEL)
        return axes
    rows, stack = _prepared(stack, X)
    rows = evenly_spaced(rows, count)
    drawn = (shades(stack, part) for part in (rows, stack.reconstruct(rows)))
    grid = image_grid(*drawn, shape=images)
    axes = new_axes(axes)
    draw_grid(axes, grid, title=f"{len(rows)} examples above their reconstructions")
    return axes


def filters(
    stack: Stack,
    *,
    layer: int = 1,
    count: int = 100,
    shape: str | ImageShape | None = None,
    axes: Any = None,
) -> Any:
    """Draw the weights of a layer's hidden units as images: the filters of a convolution.

    Grey is 0, and each filter has its own contrast. If examples are no images, such as rows of a
    table, bars show which values the lowest layer reads most: the norms of their weights.

    Parameters
    ----------
    stack : Stack
    layer : int
        Number of the layer, from 1; among dense layers only the first can be drawn.
    count : int
        Number of hidden units or filters, the first ones.
    shape : str or ImageShape, optional
        Height and width of an example, such as ``28x28``; default the images of the convolutions,
        or a square.
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
    images = image_shape_of(stack, shape)
    is_convolution = isinstance(stack.layers[0].shape, ConvolutionShape)
    if images is None and layer == 1 and not is_convolution:
        axes = new_axes(axes)
        draw_bars(axes, value_names(stack), weight_norms(stack), label="norm of the weights")
        return axes
    grid, shown, units = filter_grid(stack, layer, images, count)
    axes = new_axes(axes)
    draw_grid(axes, grid, title=f"{shown} of {units} filters of layer {layer}")
    return axes


def check_decoder(stack: Stack) -> None:
    """Refuse a classifier or a regression.

    Raises
    ------
    DataError
    """
    if stack.head is not None:
        raise DataError(
            "stack: was fine-tuned to predict and has no decoder; take one without a head"
        )


def error_shares(stack: Stack, X: Any) -> NDArray[np.float64]:
    """Return the error of each value's reconstructions in percent of its mean's error.

    Missing values are left out. A constant value has 0, or 100 if its reconstructions differ.
    """
    rows, stack = _prepared(stack, X)
    lost = np.isnan(rows)
    known = np.maximum((~lost).sum(axis=0), 1)
    mean = np.where(lost, 0, rows).sum(axis=0, dtype=np.float64) / known
    off = np.where(lost, 0, rows - stack.reconstruct(rows))
    errors = np.square(off, dtype=np.float64).sum(axis=0)
    spread = np.square(np.where(lost, 0, rows - mean)).sum(axis=0)
    least = 1e-9 * known
    shares: NDArray[np.float64] = np.where(
        spread > least, 100 * errors / np.maximum(spread, least), 100.0 * (errors > least)
    )
    return shares


def filter_grid(
    stack: Stack, layer: int, images: ImageShape | None, count: int
) -> tuple[NDArray[np.float32], int, int]:
    """Return a grid of a layer's first filters, their number, and the number of all filters."""
    drawn, form = filter_images(stack, layer, images)
    grid = image_grid(*(rows[:count] for rows in drawn), shape=form)
    return grid, min(count, len(drawn[0])), len(drawn[0])


def weight_norms(stack: Stack) -> NDArray[Any]:
    """Return the norm of the weights of each value that the lowest, dense layer reads."""
    norms: NDArray[Any] = np.linalg.norm(stack.layers[0].weight, axis=1)
    return norms


def image_shape_of(stack: Stack, shape: str | ImageShape | None = None) -> ImageShape | None:
    """Return the shape of a stack's examples as images, None if they are no images.

    Raises
    ------
    SettingsError
        If the given shape does not fit.
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


def value_names(stack: Stack) -> list[str]:
    """Return the name of each value of an example."""
    columns = columns_in(stack.info)
    if columns is not None and columns.width == stack.widths[0]:
        return columns.names
    return [f"value {i}" for i in range(1, stack.widths[0] + 1)]


def position_names(stack: Stack) -> list[str]:
    """Return the name of each position: of a softmax group, or of another value, of an example."""
    columns = columns_in(stack.info)
    if columns is not None and columns.width == stack.widths[0]:
        return columns.owner_names
    return [str(i + 1) for i in range(int(positions_of(stack.layers[0])[-1]) + 1)]


def draw_grid(axes: Any, grid: NDArray[np.float32], *, title: str) -> None:
    """Draw a grid of images with values in [0, 1]."""
    axes.imshow(np.clip(grid, 0, 1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()
    axes.set_title(title)


def draw_bars(axes: Any, names: Sequence[str], values: NDArray[Any], *, label: str) -> None:
    """Draw a bar for each value, the greatest on top, and no more than are readable."""
    order = np.argsort(-values, kind="stable")[:MOST_BARS_SHOWN]
    shown = [_short(names[i]) for i in order]
    places = np.arange(len(order))
    axes.barh(places, values[order], color="#0072b2", height=0.75)
    axes.set_yticks(places, shown, **AS_WRITTEN)
    axes.set(ylim=(len(order) - 0.4, -0.6), xlabel=label)
    axes.grid(visible=True, axis="x", alpha=0.4)
    if len(order) < len(values):
        axes.set_title(f"{len(order)} of {len(values)} values")


def _prepared(stack: Stack, X: Any) -> tuple[NDArray[np.float32], Stack]:
    """Return examples in the form of their reconstructions, and the stack that takes them."""
    rows: Any = np.asarray(stack.rows_of(X))
    rows = rows if stack.meaning is None else stack.meaning.prepare(rows)
    return scale_examples(rows), stack.for_prepared_rows()


def _short(name: str) -> str:
    name = drawable(name)
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + "..."
