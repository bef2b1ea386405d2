"""The shapes of layers: dense ones, and convolutions with pooling, as numbers alone.

Images are rows of numbers: the input of the lowest layer channel by channel, each of them row by
row, as in an array of shape (channels, height, width); what convolutions hand up position by
position, as in an array of shape (height, width, channels), which is the faster order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

__all__ = [
    "POOLINGS",
    "ConvolutionShape",
    "DenseShape",
    "ImageShape",
    "LayerShape",
    "common_groups",
]

POOLINGS = ("max", "mean", "prob")


@dataclass(frozen=True, slots=True)
class ImageShape:
    """The shape of an image."""

    channels: int
    height: int
    width: int

    @property
    def values(self) -> int:
        """Numbers of an image."""
        return self.channels * self.height * self.width

    def __str__(self) -> str:
        return f"{self.channels}x{self.height}x{self.width}"


@dataclass(frozen=True, slots=True)
class DenseShape:
    """A layer in which each hidden unit reads all visible units."""

    name: ClassVar[str] = "dense"
    positions: ClassVar[int] = 1
    lowered: ClassVar[int] = 0
    groups: ClassVar[int] = 1
    images: ClassVar[None] = None

    visible: int
    hidden: int

    @property
    def fan_in(self) -> int:
        """Visible units that a hidden unit reads."""
        return self.visible

    @property
    def fan_out(self) -> int:
        """Hidden units that read a visible unit."""
        return self.hidden

    @property
    def weights(self) -> int:
        """Numbers of the weights."""
        return self.visible * self.hidden

    @property
    def biases(self) -> tuple[int, int]:
        """Numbers of the visible and of the hidden biases."""
        return self.visible, self.hidden

    @property
    def units(self) -> int:
        """Hidden units."""
        return self.hidden

    @property
    def products(self) -> int:
        """Multiplications of one example by the weights."""
        return self.weights

    def __str__(self) -> str:
        return f"{self.visible}-{self.hidden}"


@dataclass(frozen=True, slots=True)
class ConvolutionShape:
    """A convolution, and the pooling of its maps.

    Attributes
    ----------
    channels, height, width : int
        Shape of the images that the layer reads.
    filters, size : int
        Number of filters, and their height and width.
    pad : int
        Zeros around each image.
    pool : int
        Height and width of the blocks of a map that are pooled, which do not overlap; 1 for none.
    pooling : str
        ``max`` or ``mean``; or, of RBMs, ``prob`` for probabilistic max pooling: at most one of
        the units of a block is on.
    channels_first : bool
        Whether the images that the layer reads lie channel by channel in memory.
    groups : int
        Number of groups of filters; each group reads its own part of the channels, in order
        (grouped convolution). It divides filters and channels.
    rounded : bool
        True if factors of its products are rounded to bfloat16, where ``rounds`` says so: while
        the layer is trained.
    tf32 : bool
        True if factors of its products are rounded to TF32 while the layer trains on a GPU.
    """

    name: ClassVar[str] = "convolution"

    channels: int
    height: int
    width: int
    filters: int
    size: int
    pad: int = 0
    pool: int = 1
    pooling: str = "max"
    channels_first: bool = False
    groups: int = 1
    rounded: bool = field(default=False, compare=False)
    tf32: bool = field(default=False, compare=False)

    @property
    def map_height(self) -> int:
        """Height of a map."""
        return self.height + 2 * self.pad - self.size + 1

    @property
    def map_width(self) -> int:
        """Width of a map."""
        return self.width + 2 * self.pad - self.size + 1

    @property
    def positions(self) -> int:
        """Positions of a filter on an image."""
        return self.map_height * self.map_width

    @property
    def images(self) -> ImageShape:
        """The shape of the images that the layer reads."""
        return ImageShape(self.channels, self.height, self.width)

    @property
    def reads(self) -> int:
        """Channels that a filter reads."""
        return self.channels // self.groups

    @property
    def lowered(self) -> int:
        """Numbers of all that the filters see of an image."""
        return self.positions * self.channels * self.size**2

    @property
    def units(self) -> int:
        """Hidden units before pooling: the numbers of the maps."""
        return self.positions * self.filters

    @property
    def output(self) -> ImageShape:
        """The shape of what the layer hands up."""
        return ImageShape(self.filters, self.map_height // self.pool, self.map_width // self.pool)

    @property
    def unpooled(self) -> ConvolutionShape:
        """The same convolution without pooling: its hidden units are the units of the maps."""
        return replace(self, pool=1, pooling="max")

    @property
    def has_places(self) -> bool:
        """True if each number handed up has a place, its maximum's in the block."""
        return self.pool > 1 and self.pooling == "max"

    @property
    def rounds(self) -> bool:
        """Whether images and filters are rounded for their product: filters that no mean pools."""
        return self.rounded and (self.pool == 1 or self.pooling == "max")

    @property
    def precision(self) -> str:
        """Precision of the product of images and filters."""
        return "bfloat16" if self.rounds else "tf32" if self.tf32 else "float32"

    @property
    def precision_back(self) -> str:
        """Precision of the products on the way back; with pooling factors are not rounded there."""
        return "bfloat16" if self.rounded and self.pool == 1 else "tf32" if self.tf32 else "float32"

    @property
    def visible(self) -> int:
        """Numbers of an image that the layer reads."""
        return self.images.values

    @property
    def hidden(self) -> int:
        """Numbers that the layer hands up."""
        return self.output.values

    @property
    def fan_in(self) -> int:
        """Visible units that a hidden unit reads."""
        return self.reads * self.size**2

    @property
    def fan_out(self) -> int:
        """Hidden units, before pooling, that read a visible unit."""
        return self.filters // self.groups * self.size**2

    @property
    def weights(self) -> int:
        """Numbers of the weights."""
        return self.fan_in * self.filters

    @property
    def biases(self) -> tuple[int, int]:
        """Numbers of the visible and of the hidden biases."""
        return self.channels, self.filters

    @property
    def products(self) -> int:
        """Multiplications of one example by the weights."""
        return self.positions * self.weights

    def in_precision(self, name: str) -> ConvolutionShape:
        """Return the same with products in a precision."""
        return replace(self, rounded=name == "bfloat16", tf32=name == "tf32")

    def __str__(self) -> str:
        pad = f" pad {self.pad}" if self.pad else ""
        kind = "" if self.pooling == "max" else f" {self.pooling}"
        pool = f" pool {self.pool}{kind}" if self.pool > 1 else ""
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        return f"{self.images} conv {self.filters}x{self.size}{pad}{groups}{pool} -> {self.output}"


LayerShape = DenseShape | ConvolutionShape


def common_groups(groups: Iterable[int]) -> int:
    """Return how many columns layers with these numbers of groups have; 1 if none has any."""
    return math.gcd(*(number for number in groups if number > 1)) or 1
