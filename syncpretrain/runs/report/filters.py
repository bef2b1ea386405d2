"""The weights of a layer as images."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import SettingsError
from syncpretrain.models.stack import Stack
from syncpretrain.runs.report.images import COLOURS
from syncpretrain.shapes import ConvolutionShape, ImageShape

__all__ = ["filter_images"]


def filter_images(
    stack: Stack, number: int, images: ImageShape | None
) -> tuple[list[NDArray[np.float32]], ImageShape]:
    """Return the weights of a layer's hidden units as images, and their shape.

    Half of the range is a weight of 0; the largest weight of a unit is at one of its ends.

    Parameters
    ----------
    stack : Stack
    number : int
        Of the layer, counted from 1.
    images : ImageShape or None
        Of the examples; only a dense layer needs it.

    Returns
    -------
    list of ndarray of shape (hidden units or filters, values of an image)
        Of a convolution whose filters read another number of channels than 1 and 3 an array
        a channel that they read.
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


def _scaled(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scaled: NDArray[np.float32] = 0.5 + rows / (2 * np.maximum(largest, 1e-30))
    return scaled
