"""A part of a stack as it is exported: steps, and the names that stand beside them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from syncpretrain.models.export import steps as kinds

__all__ = ["FUNCTIONS", "Network"]

# The function of each kind of units that is not linear.
FUNCTIONS = {"bernoulli": "sigmoid", "relu": "relu", "tanh": "tanh", "softmax": "softmax"}
ENDS = {  # the names of what goes in and of what comes out
    "encoder": ("rows", "codes"),
    "decoder": ("codes", "rows"),
    "autoencoder": ("rows", "reconstructions"),
    "classifier": ("rows", "probabilities"),
    "regressor": ("rows", "predictions"),
}


@dataclass(frozen=True, eq=False)
class Network:
    """A part of a stack, ready to be exported.

    Attributes
    ----------
    part : str
    steps : tuple of Step
    width, outputs : int
        Numbers of a row that goes in, and of one that comes out.
    inputs : tuple of str
        The names of what goes in; of a table those of its columns, else empty.
    names : tuple of str
        The names of what comes out, where it is a row of a table.
    classes : tuple of int or of str
        What the outputs of a classifier stand for.
    """

    part: str
    steps: tuple[kinds.Step, ...]
    width: int
    outputs: int
    inputs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    classes: tuple[int, ...] | tuple[str, ...] = ()

    @property
    def ends(self) -> tuple[str, str]:
        """The names of what goes in and of what comes out."""
        return ENDS[self.part]

    @property
    def table(self) -> tuple[kinds.ColumnChoices, ...]:
        """The columns of a table with categories; of all else none."""
        first = self.steps[0] if self.steps else None
        return first.columns if isinstance(first, kinds.OneHot) else ()

    @property
    def about(self) -> str:
        """What the arrays do not say, as JSON."""
        try:
            made_by = f"syncpretrain {version('syncpretrain')}"
        except PackageNotFoundError:
            made_by = "syncpretrain"
        table: dict[str, Any] = {"made_by": made_by, "part": self.part}
        table |= {"inputs": self.inputs, "outputs": self.names, "classes": self.classes}
        table["categories"] = {name: choices for name, choices in self.table if choices}
        return json.dumps(table)
