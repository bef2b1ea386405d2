"""The layers of a stack, convolutions and dense ones, and the text that stands for them.

``1x28x28,conv:20x5,pool:2,500`` is of images of 1 channel, 28 rows and 28 columns: 20 filters of
5 x 5, whose maps are pooled by the maximum of 2 x 2, then 500 dense units. A convolution and
the pooling behind it are one layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from syncpretrain.errors import SettingsError
from syncpretrain.settings.architecture_text import layer_text, read_architecture
from syncpretrain.shapes import ConvolutionShape, DenseShape, ImageShape, LayerShape

__all__ = [
    "Conv",
    "Pool",
    "architecture_of",
    "check_architecture",
    "check_width",
    "shapes_of",
    "text_of",
]


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution, as ``layers=`` takes it: ``Conv(20, 5)`` stands for ``conv:20x5``.

    Attributes
    ----------
    filters, size : int
        Number of filters, and their height and width.
    pad : int or "same"
        Zeros around each image; "same" for as many as keep its height and width.
    groups : int
        Groups of filters, each of which reads its own part of the channels.
    """

    filters: int
    size: int
    pad: int | str = 0
    groups: int = 1

    def __str__(self) -> str:
        pad = "" if self.pad == 0 else f":{self.pad}"
        groups = "" if self.groups == 1 else f"/{self.groups}"
        return f"conv:{self.filters}x{self.size}{pad}{groups}"


@dataclass(frozen=True, slots=True)
class Pool:
    """Pooling of the convolution before it, as ``layers=`` takes it: ``Pool(2)`` is ``pool:2``.

    Attributes
    ----------
    size : int
        Height and width of the blocks, which do not overlap.
    pooling : str
        "max" or "mean", or of RBMs "prob".
    """

    size: int
    pooling: str = "max"

    def __str__(self) -> str:
        return f"pool:{self.size}" + ("" if self.pooling == "max" else f":{self.pooling}")


def architecture_of(layers: Any) -> tuple[Any, str]:
    """Return the widths of a stack's layers, and the text of its convolutions.

    Parameters
    ----------
    layers : str, or sequence of int, str, ImageShape, Conv and Pool
        Anything else is returned as it is, for others to refuse.

    Returns
    -------
    layers : tuple of int
        Numbers of an example, then of what each layer hands up.
    architecture : str
        The text in the one form that is kept; empty for dense layers alone.

    Raises
    ------
    SettingsError
        If the text has another form, or a size does not fit what is below.
    """
    if isinstance(layers, str):
        return _parsed(layers)
    if isinstance(layers, (list, tuple)) and any(map(_is_text, layers)):
        return _parsed(",".join(map(str, layers)))
    return layers, ""


@lru_cache(maxsize=64)
def shapes_of(layers: tuple[int, ...], architecture: str) -> tuple[LayerShape, ...]:
    """Return the shape of each layer of checked settings."""
    if architecture:
        return read_architecture(architecture)[1]
    return tuple(DenseShape(below, above) for below, above in pairwise(layers))


def text_of(shapes: Sequence[LayerShape]) -> str:
    """Return the text of layers, in the one form that is kept."""
    first = shapes[0]
    width = first.images if isinstance(first, ConvolutionShape) else first.visible
    return ",".join([str(width), *map(layer_text, shapes)])


def check_architecture(layers: tuple[int, ...], architecture: str) -> None:
    """Refuse a text that is not of these widths, or not in the form that is kept.

    Raises
    ------
    SettingsError
    """
    if not architecture:
        return
    widths, text = _parsed(architecture)
    if widths != layers:
        raise SettingsError(
            f"architecture: got {architecture}, whose layers are {_listed(widths)}, with layers"
            f" {_listed(layers)}; leave one of the two out"
        )
    if text != architecture:
        raise SettingsError(
            f"architecture: got {architecture}, expected {text or 'nothing'}, the form that is"
            " kept; or name it layers"
        )


def check_width(shapes: Sequence[LayerShape], values: int) -> None:
    """Refuse examples of another number of values than the lowest layer reads.

    Raises
    ------
    SettingsError
        Saying both, and what to begin with.
    """
    first = shapes[0]
    if values == first.visible:
        return
    if isinstance(first, DenseShape):
        raise SettingsError(
            f"layers: the first number is {first.visible}, but an example has {values} values;"
            f" begin with {values}"
        )
    side, rest = math.isqrt(values // first.channels), values % first.channels
    fits = not rest and side**2 * first.channels == values
    raise SettingsError(
        f"layers: images of {first.images} have {first.visible} values, but an example has"
        f" {values}; begin with"
        + (f" {ImageShape(first.channels, side, side)}" if fits else f" images of {values} values")
    )


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _is_text(item: Any) -> bool:
    return isinstance(item, (str, ImageShape, Conv, Pool))


def _parsed(text: str) -> tuple[tuple[int, ...], str]:
    """Return the widths of a text, and the form of it that is kept."""
    width, shapes = read_architecture(text)
    has_convolutions = any(isinstance(shape, ConvolutionShape) for shape in shapes)
    return (width, *(shape.hidden for shape in shapes)), text_of(shapes) if has_convolutions else ""
