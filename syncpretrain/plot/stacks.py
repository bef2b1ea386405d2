"""Plots of a stack: grids of images, also as PNG, or else bars; codes, and activities of units."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.columns import columns_in
from syncpretrain.data.dataset import is_labelled
from syncpretrain.data.examples import evenly_spaced, scale_examples
from syncpretrain.data.table import is_null
from syncpretrain.errors import DataError, SettingsError, needed
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.couplings import positions_of
from syncpretrain.models.diagnosis import idle_units
from syncpretrain.models.inputs import names_in
from syncpretrain.models.layer import up_through
from syncpretrain.models.stack import Stack
from syncpretrain.plot import canvas
from syncpretrain.shapes import ConvolutionShape, ImageShape, LayerShape
from syncpretrain.storage import write_atomically
from syncpretrain.units.kinds import kind_of

COLUMNS = 10
MARGIN = 2  # pixels between images; twice as many between pairs
ENLARGE = 3
BACKGROUND = 0.25
COLOURS = 3
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
        axes = canvas.new_axes(axes)
        draw_bars(axes, value_names(stack), shares, label=SHARE_LABEL)
        return axes
    rows, stack = _prepared(stack, X)
    rows = evenly_spaced(rows, count)
    drawn = (shades(stack, part) for part in (rows, stack.reconstruct(rows)))
    grid = image_grid(*drawn, shape=images)
    axes = canvas.new_axes(axes)
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
    if images is None and layer == 1 and not isinstance(stack.layers[0].shape, ConvolutionShape):
        axes = canvas.new_axes(axes)
        draw_bars(axes, value_names(stack), weight_norms(stack), label="norm of the weights")
        return axes
    grid, shown, units = filter_grid(stack, layer, images, count)
    axes = canvas.new_axes(axes)
    draw_grid(axes, grid, title=f"{shown} of {units} filters of layer {layer}")
    return axes


def check_decoder(stack: Stack) -> None:
    """Refuse a classifier or a regression.

    Raises
    ------
    DataError
    """
    if stack.head is not None:
        advice = "take one without a head"
        raise DataError(f"stack: was fine-tuned to predict and has no decoder; {advice}")


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
    relative = 100 * errors / np.maximum(spread, least)
    shares: NDArray[np.float64] = np.where(spread > least, relative, 100.0 * (errors > least))
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
    width = stack.widths[0]
    return list(names_in(stack.info, width)) or [f"value {i}" for i in range(1, width + 1)]


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
    places = np.arange(len(order))
    axes.barh(places, values[order], color="#0072b2", height=0.75)
    axes.set_yticks(places, [_short(names[i]) for i in order], **canvas.AS_WRITTEN)
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
    name = canvas.drawable(name)
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + "..."


def image_shape(read: LayerShape, text: str | None) -> ImageShape:
    """Return the shape of an example's image, given the shape of the lowest layer.

    Raises
    ------
    SettingsError
        If the text is not HxW or 3xHxW with as many values as an example, or if it is None, the
        layer is dense and the values make no square.
    """
    units = read.visible
    wanted = f"expected HxW with a product of {units}, or 3xHxW in colour"
    if text is None:
        side = math.isqrt(units)
        if isinstance(read, ConvolutionShape):
            return read.images
        if side * side != units:
            raise SettingsError(f"shape: got none, and {units} values make no square; {wanted}")
        return ImageShape(1, side, side)
    found = re.fullmatch(r"(?:([13])x)?([0-9]{1,9})x([0-9]{1,9})", text.lower())
    shape = ImageShape(*(int(x or 1) for x in found.groups())) if found else None
    if shape is None or shape.values != units:
        raise SettingsError(f"shape: got {text!r}, {wanted}")
    return shape


def shades(stack: Stack, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return rows as they are drawn: scaled to [0, 1] if binary units read them so."""
    if stack.scaling is None or not kind_of(stack.units[0]).is_unit_interval:
        return rows
    return stack.scaling.apply(rows)


def filter_images(
    stack: Stack, number: int, images: ImageShape | None
) -> tuple[list[NDArray[np.float32]], ImageShape]:
    """Return the weights of a layer's hidden units as images, and their shape.

    A weight of 0 is 0.5; the largest weight of a unit is 0 or 1.

    Parameters
    ----------
    stack : Stack
    number : int
        Number of the layer, counted from 1.
    images : ImageShape or None
        Shape of the examples; only a dense layer needs it.

    Returns
    -------
    list of ndarray of shape (hidden units or filters, values of an image)
        One array; for a convolution that reads neither 1 nor 3 channels, an array a channel.
    shape : ImageShape

    Raises
    ------
    SettingsError
        If there is no such layer, or its weights make no images.
    """
    if not 1 <= number <= len(stack.layers):
        raise SettingsError(f"layer: got {number}, expected 1 to {len(stack.layers)}")
    layer = stack.layers[number - 1]
    shape, weight = layer.shape, layer.weight
    if not isinstance(shape, ConvolutionShape):
        if number > 1 or images is None:
            got = f"{number}, a dense layer that reads no pixels"
            raise SettingsError(f"layer: got {got}, expected 1 or a convolution")
        return [_scaled(weight.T)], images
    size = shape.size
    by_filter = _scaled(weight.transpose(3, 2, 0, 1).reshape(shape.filters, -1))
    if shape.reads in (1, COLOURS):
        return [by_filter], ImageShape(shape.reads, size, size)
    return np.split(by_filter, shape.reads, axis=1), ImageShape(1, size, size)


def image_grid(*images: NDArray[np.float32], shape: ImageShape) -> NDArray[np.float32]:
    """Lay images out in rows, each with its counterparts under it; values in [0, 1].

    Parameters
    ----------
    *images : ndarray of shape (n, channels * height * width)
        Arrays of one length n: the upper images, then the images under each. The mean of the
        channels is drawn unless there are 1 or 3.
    shape : ImageShape

    Returns
    -------
    ndarray of shape (height, width), or (height, width, 3) of images in colour
    """
    height, width = shape.height, shape.width
    colours = (COLOURS,) if shape.channels == COLOURS else ()
    count, deep = len(images[0]), len(images)
    columns = min(COLUMNS, count)
    rows = math.ceil(count / columns)
    block = deep * (height + MARGIN // 2) + 2 * MARGIN
    size = rows * block + MARGIN, columns * (width + MARGIN) + MARGIN
    grid = np.full((*size, *colours), BACKGROUND, dtype=np.float32)
    for i, column in enumerate(zip(*images, strict=True)):
        left = MARGIN + (i % columns) * (width + MARGIN)
        top = 2 * MARGIN + (i // columns) * block
        for image in column:
            channels = image.reshape(shape.channels, height, width)
            pixels = channels.transpose(1, 2, 0) if colours else channels.mean(axis=0)
            grid[top : top + height, left : left + width] = pixels
            top += height + MARGIN // 2
    return grid


def save_png(grid: NDArray[np.float32], path: Path, *, enlarge: int = ENLARGE) -> None:
    """Write a grid of values in [0, 1] as a PNG, grey or in colour, each pixel as a square.

    A missing value, NaN, has the colour of the background.

    Raises
    ------
    DataError
        If Pillow is not installed.
    """
    write_atomically(path, png_bytes(grid, enlarge=enlarge))


def png_bytes(grid: NDArray[np.float32], *, enlarge: int = ENLARGE) -> bytes:
    """Return a grid as the bytes of a PNG; see :func:`save_png`."""
    Image = needed("PIL.Image", DataError('a PNG needs Pillow: pip install "syncpretrain[plot]"'))
    pixels = np.round(np.nan_to_num(grid, nan=BACKGROUND).clip(0, 1) * 255).astype(np.uint8)
    image = Image.fromarray(pixels.repeat(enlarge, axis=0).repeat(enlarge, axis=1))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _scaled(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scaled: NDArray[np.float32] = 0.5 + rows / (2 * np.maximum(largest, 1e-30))
    return scaled


MOST_CLASSES = 10  # in a legend; the others share one entry
BINS = 30
OTHERS = "#999999"


class Activity(NamedTuple):
    """Mean activities of one layer's hidden units.

    ``values`` has a row for each example, or for each position of a convolution. ``dead`` and
    ``saturated`` count units that are off, or on, in every row; None for units without that limit.
    """

    layer: int
    units: str
    values: Array
    dead: int | None
    saturated: int | None


def codes(stack: Stack, X: Any, y: Any = None, *, axes: Any = None) -> Any:
    """Draw a map of the codes of X: their two principal components.

    Parameters
    ----------
    stack : Stack
    X : array-like of shape (n_examples, input units)
    y : array-like of shape (n_examples,), optional
        Classes, which get colours and markers of their own, or numbers of a float type, which get
        shades; -1, NaN and "" stand for none.
    axes : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If X or y does not fit, or Matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from syncpretrain import plot, pretrain
    >>> X = np.random.default_rng(0).random((100, 16), dtype=np.float32)
    >>> stack = pretrain(X, layers=[16, 8, 4], epochs=1)
    >>> axes = plot.codes(stack, X, np.arange(100) % 3)
    >>> [text.get_text() for text in axes.get_legend().get_texts()]
    ['0', '1', '2']
    """
    found = stack.encode(X)
    labels = None if y is None else np.asarray(y)
    if labels is not None and labels.dtype.kind == "O":  # texts among which None is no label
        labels = np.array(["" if is_null(label) else str(label) for label in labels.ravel()])
        labels = labels.reshape(np.shape(y))
    if labels is not None and labels.shape != (len(found),):
        raise DataError(f"y: got shape {labels.shape}, expected ({len(found)},), one an example")
    axes = canvas.new_axes(axes, size=(5.6, 4.6))
    draw_codes(axes, found, labels)
    return axes


def principal_components(codes: Array) -> tuple[NDArray[np.float64], float]:
    """Return the first two principal components of codes, and their share of the variance.

    The second component of codes of a single unit is 0. The greatest entry by magnitude of each
    direction is positive.
    """
    centred = codes.astype(np.float64) - codes.mean(axis=0, dtype=np.float64)
    directions, lengths = np.zeros((0, codes.shape[1])), np.zeros(0)
    if len(codes):
        _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
    first = directions[:2]
    greatest = np.abs(first).argmax(axis=1) if first.size else np.zeros(0, dtype=int)
    first = first * np.sign(first[np.arange(len(first)), greatest])[:, None]
    points = np.zeros((len(codes), 2))
    points[:, : len(first)] = centred @ first.T
    whole = float(np.square(lengths).sum())
    share = float(np.square(lengths[:2]).sum()) / whole if whole > 0 else 1.0
    return points, share


def draw_codes(axes: Any, found: Array, labels: NDArray[Any] | None) -> None:
    """Draw a map of codes."""
    points, share = principal_components(found)
    if labels is None:
        _scatter(axes, points, 0)
    elif labels.dtype.kind == "f":
        known = is_labelled(labels)
        shaded = axes.scatter(*points[known].T, c=labels[known], cmap="cividis", s=12, linewidths=0)
        axes.figure.colorbar(shaded, ax=axes)
    else:
        _draw_classes(axes, points, labels)
    axes.set(xlabel="first component", ylabel="second component")
    axes.set_title(f"{100 * share:.0f} % of the variance of {found.shape[1]} units")
    axes.xaxis.get_major_locator().set_params(nbins=6)  # more labels of small numbers overlap
    axes.ticklabel_format(scilimits=(-3, 4))
    axes.grid(visible=True, alpha=0.4)


def _draw_classes(axes: Any, points: NDArray[np.float64], labels: NDArray[Any]) -> None:
    known = is_labelled(labels)
    names, counts = np.unique(labels[known], return_counts=True)
    frequent = names if len(names) <= MOST_CLASSES else names[np.argsort(-counts)[:MOST_CLASSES]]
    others = ~np.isin(labels, frequent)
    handles, shown = [], []
    if others.any():
        shown.append("others" if known[others].any() else "no label")
        handles.append(axes.scatter(*points[others].T, c=OTHERS, marker=".", s=10))
    for number, name in enumerate(frequent):
        shown.append(str(name))
        handles.append(_scatter(axes, points[labels == name], number))
    columns = 1 + (len(frequent) > 5)
    canvas.add_legend(axes, handles, shown, fontsize="small", ncols=columns, framealpha=0.6)


def _scatter(axes: Any, points: NDArray[np.float64], number: int) -> Any:
    # The second round through the colours has open markers: shapes alone are hard to see.
    is_open = number >= len(canvas.COLOURS_OF_SERIES)
    colours: dict[str, Any] = {"facecolors": "none" if is_open else canvas.colour_of(number)}
    colours |= {"edgecolors": canvas.colour_of(number), "linewidths": 0.8 if is_open else 0}
    return axes.scatter(*points.T, s=16, marker=canvas.MARKERS[number], **colours)


def activities(stack: Stack, X: Any, *, axes: Any = None) -> NDArray[Any]:
    """Draw histograms of the mean activities of each layer's hidden units, the code's last.

    The title of a panel counts dead and saturated units, which are off, or on, for every example.

    Parameters
    ----------
    stack : Stack
    X : array-like of shape (n_examples, input units)
        A thousand examples are enough.
    axes : sequence of Axes, optional
        One a layer; default axes of a new figure.

    Returns
    -------
    ndarray of Axes

    Raises
    ------
    DataError
        If X does not fit, or Matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from syncpretrain import plot, pretrain
    >>> X = np.random.default_rng(0).random((100, 16), dtype=np.float32)
    >>> panels = plot.activities(pretrain(X, layers=[16, 8, 4], epochs=1), X)
    >>> panels[1].get_title()
    'layer 2, the code: 0 dead, 0 saturated of 4'
    """
    found = activities_of(stack, X)
    panels = canvas.new_panels(axes, len(found))
    for panel, activity in zip(panels, found, strict=True):
        draw_activity(panel, activity, is_code=activity.layer == len(found))
    return np.array(panels, dtype=object)


def activities_of(stack: Stack, X: Any) -> list[Activity]:
    """Return the activities of each layer, from the lowest up."""
    below, found = stack.prepared(X, missing=True), []
    for number, layer in enumerate(stack.layers, start=1):
        below = up_through([layer], below)
        values = below.reshape(-1, layer.shape.biases[1])
        idle = idle_units(layer.hidden_units, values)
        found.append(Activity(number, layer.hidden_units, values, *idle))
    return found


def draw_activity(axes: Any, activity: Activity, *, is_code: bool) -> None:
    """Draw the histogram of a layer."""
    values, kind = activity.values.ravel(), kind_of(activity.units)
    limits = (kind.lower, kind.upper)
    bounds = limits if all(map(math.isfinite, limits)) else None
    weights = np.full(len(values), 100 / max(1, len(values)))
    colour = canvas.colour_of(activity.layer - 1)
    axes.hist(values, bins=BINS, range=bounds, weights=weights, color=colour)
    name = f"layer {activity.layer}, the code" if is_code else f"layer {activity.layer}"
    counts = ((activity.dead, "dead"), (activity.saturated, "saturated"))
    parts = [f"{count} {word}" for count, word in counts if count is not None]
    units = activity.values.shape[1]
    text = f"{', '.join(parts)} of {units}" if parts else f"{units} units"
    axes.set(title=f"{name}: {text}", xlabel=f"activity ({activity.units})", ylabel="share, %")
    axes.grid(visible=True, axis="y", alpha=0.4)
