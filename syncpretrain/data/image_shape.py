"""The own shape of examples, beside that of the images that a convolution reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from syncpretrain.errors import DataError
from syncpretrain.shapes import ImageShape

__all__ = ["COLOUR_CHANNELS", "check_image_shape"]

COLOUR_CHANNELS = (3, 4)  # channels of an image in colour


def check_image_shape(shape: Sequence[int], images: ImageShape | None, name: str) -> None:
    """Refuse examples whose own axes are not those of the images that the layers read.

    Parameters
    ----------
    shape : sequence of int
        Of one example. Axes of one value do not count, and neighbouring axes may be one: flat
        examples fit all images of as many values.
    images : ImageShape or None
        None for layers that read no images, which all examples fit.
    name : str
        What an error calls the examples.

    Raises
    ------
    DataError
        Not for flat examples: another number of values is refused with the layers.
    """
    axes = [number for number in shape if number != 1]
    if images is None or len(axes) < 2 or 0 in axes:
        return
    fits = math.prod(axes) == images.values
    if fits and _ends(axes) <= _ends((images.channels, images.height, images.width)):
        return
    anyway = ", or save X.reshape(len(X), -1) if its rows are such images all the same"
    raise DataError(
        f"{name}: got examples of {'x'.join(map(str, shape))}, expected images of {images}, as the"
        f" layers read them; {_advice(shape, axes, images)}{anyway if fits else ''}"
    )


def _advice(shape: Sequence[int], axes: Sequence[int], images: ImageShape) -> str:
    """Return what to do; ``axes`` are those of more than one value."""
    if len(axes) > 3:
        return "save one image a row"
    if len(shape) == 3:
        turned = ImageShape(shape[2], *shape[:2])
        if turned == images:
            return "save X.transpose(0, 3, 1, 2)"
        if shape[2] in COLOUR_CHANNELS and shape[0] not in (1, *COLOUR_CHANNELS):
            return f"save X.transpose(0, 3, 1, 2), for layers that begin with {turned}"
    return f"layers of these begin with {ImageShape(*(1,) * (3 - len(axes)), *axes)}"


def _ends(axes: Sequence[int]) -> set[int]:
    """Return after how many values, counted from the last one, an axis is full."""
    return set(accumulate(reversed(axes), lambda a, b: a * b, initial=1))
