"""An exported network: the steps of a row of numbers, in order, and the names of both ends.

A step belongs to no library; each format turns it into its own. Rows are arrays of shape (n,
width), images have shape (n, height, width, channels) here; a format may keep them in another
order. Arrays are float32 and contiguous.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import msgspec

from syncpretrain import __version__
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


class Step(msgspec.Struct, frozen=True, eq=False):
    """A step of a network; its fields are arrays, sizes and names."""

    @property
    def name(self) -> str:
        """Name in files and of the functions for it, such as ``mean_pool`` for MeanPool."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()


class OneHot(Step, frozen=True):
    """Columns of a table become values of an example: a category becomes a one among zeros.

    A missing category becomes zeros, which a product leaves out.
    """

    columns: tuple[ColumnChoices, ...]


class Standardize(Step, frozen=True):
    """(x - shift) / scale, arrays of shape (width,); constant columns have scale infinity."""

    shift: Array
    scale: Array


class Restore(Step, frozen=True):
    """x * scale + shift, the inverse of :class:`Standardize`."""

    shift: Array
    scale: Array


class FillMissing(Step, frozen=True):
    """0 in place of NaN: a product leaves the value out."""


class Dense(Step, frozen=True):
    """x W + b, with W of shape (inputs, outputs) and b of shape (outputs,)."""

    weight: Array
    bias: Array


class Activate(Step, frozen=True):
    """A function of every value, ``sigmoid``, ``relu`` or ``tanh``; or ``softmax`` of each row."""

    function: str


class ActivateBlocks(Step, frozen=True):
    """Functions of blocks of columns."""

    blocks: tuple[BlockFunction, ...]


class ToImages(Step, frozen=True):
    """Rows to images; in a row they lie channel by channel, or position by position."""

    images: ImageShape
    channels_first: bool


class ToRows(ToImages, frozen=True):
    """Images to rows, the inverse of :class:`ToImages`, with the same arguments."""


class Convolve(Step, frozen=True):
    """Cross-correlation with filters of shape (size, size, channels / groups, filters), plus bias.

    ``pad`` zeros are put around an image.
    """

    weight: Array
    bias: Array
    pad: int
    groups: int


class ConvolveBack(Convolve, frozen=True):
    """The transpose of :class:`Convolve`, with a bias for each channel; pads are cut off."""


class MaxPool(Step, frozen=True):
    """The largest number of each block of ``size`` x ``size``."""

    size: int


class MeanPool(Step, frozen=True):
    """The mean of each block of ``size`` x ``size``."""

    size: int


class ProbabilisticPool(Step, frozen=True):
    """sigmoid(log(sum(exp(x)))) of each block: the probability that one of its units is on.

    ``images`` is the shape of the pooled maps (Lee et al. 2009).
    """

    size: int
    images: ImageShape


class Spread(Step, frozen=True):
    """Each number divided by size^2, in every place of a block of ``size`` x ``size``."""

    size: int


class Network(msgspec.Struct, frozen=True, eq=False):
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
        table: dict[str, Any] = {"made_by": f"syncpretrain {__version__}", "part": self.part}
        table |= {"inputs": self.inputs, "outputs": self.names, "classes": self.classes}
        table["categories"] = {name: choices for name, choices in self.table if choices}
        return json.dumps(table)
