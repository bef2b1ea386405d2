"""Convolutions as their compiled forms take them: a shape in numbers, and the memory it needs."""

from __future__ import annotations

from syncpretrain.shapes import ConvolutionShape

__all__ = ["scratch_size", "shape_numbers"]

# As in _convolution.h.
VECTOR = 16  # floats read or written at once, also behind the end of an array
BAND_SIZE = 2**18  # floats of a lowered matrix and its product
IMAGES_SIZE = 2**13  # floats of images


def shape_numbers(shape: ConvolutionShape) -> tuple[int, ...]:
    """Return a shape as the numbers that the extension takes."""
    return (
        *(shape.channels, shape.height, shape.width, shape.filters, shape.size, shape.pad),
        *(shape.pool, int(shape.pooling == "max"), int(shape.channels_first)),
    )


def scratch_size(shape: ConvolutionShape) -> int:
    """Return the numbers that the compiled forms compute in, however many examples there are."""
    padded = (shape.height + 2 * shape.pad) * (shape.width + 2 * shape.pad)
    image = padded * shape.channels + VECTOR
    output = shape.output
    mean = _band(shape, output.width, (shape.size + shape.pool - 1) ** 2 * shape.channels)
    mean += (shape.size + shape.pool - 1) ** 2 * shape.channels * shape.filters
    if shape.pooling == "mean" or shape.pool == 1:
        return image + mean
    whole = _band(shape, shape.pool * shape.map_width, shape.fan_in)
    block, images = shape.pool**2, max(IMAGES_SIZE // image, 1)
    vectors = shape.size * -(-shape.size * shape.channels // VECTOR)
    patches = vectors + block + shape.filters * vectors * VECTOR
    up = images * (image + 2 * output.height * output.width)
    down = image + output.width * block * (2 * shape.filters + 1)
    return max(image + mean, image + whole, patches + up, patches + down)


def _band(shape: ConvolutionShape, windows: int, fan: int) -> int:
    """Return the numbers of a lowered matrix and its product, some rows of blocks at a time."""
    row = windows * (fan + shape.filters)
    return max(BAND_SIZE // row, 1) * row + VECTOR
