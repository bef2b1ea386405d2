"""Steps of an exported network: what is done with a row of numbers, in order, without a library.

Rows are arrays of shape (n, width), images of shape (n, height, width, channels) here; a format
may keep them in another order. Arrays are float32 and contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from syncpretrain.kernels.arrays import Array
from syncpretrain.shapes import ImageShape

__all__ = [
    "Activate",
    "ActivateBlocks",
    "BlockFunction",
    "ColumnChoices",
    "Convolve",
    "ConvolveBack",
    "Dense",
    "FillMissing",
    "MaxPool",
    "MeanPool",
    "OneHot",
    "ProbabilisticPool",
    "Restore",
    "Spread",
    "Standardize",
    "Step",
    "ToImages",
    "ToRows",
]


class ColumnChoices(NamedTuple):
    """A column of a table: its name, and the texts of a category; a number has none."""

    name: str
    choices: tuple[str, ...] = ()


class BlockFunction(NamedTuple):
    """A function on columns ``start`` to ``stop``, of each of ``groups`` of them if it is softmax.

    ``function`` is one of those of :class:`Activate`, or ``linear``.
    """

    function: str
    start: int
    stop: int
    groups: int = 0

    @property
    def choices(self) -> int:
        """Columns of a group."""
        return (self.stop - self.start) // max(self.groups, 1)


@dataclass(frozen=True, eq=False)
class OneHot:
    """Columns of a table to values of an example: a category becomes a one among zeros.

    A missing category is zeros, which a product leaves out.
    """

    columns: tuple[ColumnChoices, ...]


@dataclass(frozen=True, eq=False)
class Standardize:
    """(x - shift) / scale, arrays of shape (width,); infinity makes 0 of what never varied."""

    shift: Array
    scale: Array


@dataclass(frozen=True, eq=False)
class Restore:
    """x * scale + shift, the inverse of :class:`Standardize`."""

    shift: Array
    scale: Array


@dataclass(frozen=True, eq=False)
class FillMissing:
    """0 in place of NaN, which a product leaves out."""


@dataclass(frozen=True, eq=False)
class Dense:
    """x W + b, with W of shape (inputs, outputs) and b of shape (outputs,)."""

    weight: Array
    bias: Array


@dataclass(frozen=True, eq=False)
class Activate:
    """A function of every value, ``sigmoid``, ``relu`` or ``tanh``; or ``softmax`` of each row."""

    function: str


@dataclass(frozen=True, eq=False)
class ActivateBlocks:
    """Functions of blocks of columns."""

    blocks: tuple[BlockFunction, ...]


@dataclass(frozen=True, eq=False)
class ToImages:
    """Rows to images; in a row they lie channel by channel, or position by position."""

    images: ImageShape
    channels_first: bool


@dataclass(frozen=True, eq=False)
class ToRows:
    """Images to rows, the inverse of :class:`ToImages`."""

    images: ImageShape
    channels_first: bool


@dataclass(frozen=True, eq=False)
class Convolve:
    """Cross-correlation with filters of shape (size, size, channels / groups, filters), plus bias.

    ``pad`` zeros are put around an image.
    """

    weight: Array
    bias: Array
    pad: int
    groups: int


@dataclass(frozen=True, eq=False)
class ConvolveBack:
    """The transposed of :class:`Convolve`, with a bias of each channel; pads are cut off."""

    weight: Array
    bias: Array
    pad: int
    groups: int


@dataclass(frozen=True, eq=False)
class MaxPool:
    """The largest number of each block of ``size`` x ``size``."""

    size: int


@dataclass(frozen=True, eq=False)
class MeanPool:
    """The mean of each block of ``size`` x ``size``."""

    size: int


@dataclass(frozen=True, eq=False)
class ProbabilisticPool:
    """sigmoid(log(sum(exp(x)))) of each block: the probability that one of its units is on.

    ``images`` is the shape of the pooled maps (Lee et al. 2009).
    """

    size: int
    images: ImageShape


@dataclass(frozen=True, eq=False)
class Spread:
    """Each number divided by size^2, in every place of a block of ``size`` x ``size``."""

    size: int


Step = (
    OneHot
    | Standardize
    | Restore
    | FillMissing
    | Dense
    | Activate
    | ActivateBlocks
    | ToImages
    | ToRows
    | Convolve
    | ConvolveBack
    | MaxPool
    | MeanPool
    | ProbabilisticPool
    | Spread
)
