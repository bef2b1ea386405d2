"""Grids of images as PNG: examples, samples, and the weights of a layer."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import DataError, SettingsError, needed
from syncpretrain.models.stack import Stack
from syncpretrain.shapes import ConvolutionShape, ImageShape, LayerShape
from syncpretrain.storage import write_atomically
from syncpretrain.units.kinds import kind_of

COLUMNS = 10
MARGIN = 2  # pixels between images; twice as many between pairs
ENLARGE = 3
BACKGROUND = 0.25
COLOURS = 3


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
            raise SettingsError(
                f"layer: got {number}, a dense layer that reads no pixels, expected 1 or"
                " a convolution"
            )
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
    grid = np.full(
        (rows * block + MARGIN, columns * (width + MARGIN) + MARGIN, *colours),
        BACKGROUND,
        dtype=np.float32,
    )
    for i, column in enumerate(zip(*images, strict=True)):
        left = MARGIN + (i % columns) * (width + MARGIN)
        top = 2 * MARGIN + (i // columns) * block
        for image in column:
            grid[top : top + height, left : left + width] = _pixels(image, shape)
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
    text = 'a PNG needs Pillow: pip install "syncpretrain[plot]"'
    Image = needed("PIL.Image", DataError(text))
    pixels = np.round(np.nan_to_num(grid, nan=BACKGROUND).clip(0, 1) * 255).astype(np.uint8)
    image = Image.fromarray(pixels.repeat(enlarge, axis=0).repeat(enlarge, axis=1))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _pixels(image: NDArray[np.float32], shape: ImageShape) -> NDArray[np.float32]:
    channels = image.reshape(shape.channels, shape.height, shape.width)
    in_colour = shape.channels == COLOURS
    pixels: NDArray[np.float32] = (
        channels.transpose(1, 2, 0) if in_colour else channels.mean(axis=0)
    )
    return pixels


def _scaled(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scaled: NDArray[np.float32] = 0.5 + rows / (2 * np.maximum(largest, 1e-30))
    return scaled
