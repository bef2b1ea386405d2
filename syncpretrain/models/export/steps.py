"""An exported network: the steps of a row of numbers, in order, and the names of both ends.

A step belongs to no library; each format turns it into its own. Rows are arrays of shape (n,
width), images have shape (n, height, width, channels) here; a format may keep them in another
order. Arrays are float32 and contiguous.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from syncpretrain.kernels.arrays import Array
from syncpretrain.shapes import ImageShape

# Functions of the kinds of units that are not linear.
FUNCTIONS = {"bernoulli": "sigmoid", "relu": "relu", "tanh": "tanh", "softmax": "softmax"}
ENDS = {  # names of the input and of the output
    "encoder": ("rows", "codes"),
    "decoder": ("codes", "rows"),
    "autoencoder": ("rows", "reconstructions"),
    "classifier": ("rows", "probabilities"),
    "regressor": ("rows", "predictions"),
}


class ColumnChoices(NamedTuple):
    """A column of a table: its name, and the texts of a category; none for a number."""

    name: str
    choices: tuple[str, ...] = ()


class BlockFunction(NamedTuple):
    """A function of the columns from ``start`` to ``stop``.

    ``function`` is a function of :class:`Activate`, or ``linear``. Softmax is applied to each of
    ``groups`` groups of the columns.
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
    """Columns of a table become values of an example: a category becomes a one among zeros.

    A missing category becomes zeros, which a product leaves out.
    """

    columns: tuple[ColumnChoices, ...]


@dataclass(frozen=True, eq=False)
class Standardize:
    """(x - shift) / scale, arrays of shape (width,); constant columns have scale infinity."""

    shift: Array
    scale: Array


@dataclass(frozen=True, eq=False)
class Restore:
    """x * scale + shift, the inverse of :class:`Standardize`."""

    shift: Array
    scale: Array


@dataclass(frozen=True, eq=False)
class FillMissing:
    """0 in place of NaN: a product leaves the value out."""


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
    """The transpose of :class:`Convolve`, with a bias for each channel; pads are cut off."""

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


@dataclass(frozen=True, eq=False)
class Network:
    """A part of a stack, ready to be exported.

    Attributes
    ----------
    part : str
    steps : tuple of Step
    width, outputs : int
        Number of values in an input row, and in an output row.
    inputs : tuple of str
        Names of the inputs: the columns of a table, else empty.
    names : tuple of str
        Names of the outputs, if they are columns of a table.
    classes : tuple of int or of str
        Labels of the outputs of a classifier.
    """

    part: str
    steps: tuple[Step, ...]
    width: int
    outputs: int
    inputs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    classes: tuple[int, ...] | tuple[str, ...] = ()

    @property
    def ends(self) -> tuple[str, str]:
        """Names of the input and of the output."""
        return ENDS[self.part]

    @property
    def table(self) -> tuple[ColumnChoices, ...]:
        """Columns of a table with categories; empty for other inputs."""
        first = self.steps[0] if self.steps else None
        return first.columns if isinstance(first, OneHot) else ()

    @property
    def about(self) -> str:
        """Everything but the arrays, as JSON."""
        try:
            made_by = f"syncpretrain {version('syncpretrain')}"
        except PackageNotFoundError:
            made_by = "syncpretrain"
        table: dict[str, Any] = {"made_by": made_by, "part": self.part}
        table |= {"inputs": self.inputs, "outputs": self.names, "classes": self.classes}
        table["categories"] = {name: choices for name, choices in self.table if choices}
        return json.dumps(table)
