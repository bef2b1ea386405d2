"""Networks as plain arrays in an ``.npz`` file; NumPy alone can read it.

``steps`` has the name of each step, in order, and ``about`` the JSON of the names. The arrays of
step 0 are ``0.weight``, ``0.bias`` and so on, sizes are whole numbers, and names are texts: no
array needs a pickle. ``docs/exports.rst`` has the steps and a reader.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.models.export import steps as kinds
from syncpretrain.models.export.steps import Network


def contents(path: Path, network: Network) -> dict[Path, bytes]:
    """Return the content of a file."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays_of(network))  # type: ignore[arg-type]
    return {path: buffer.getvalue()}


def arrays_of(network: Network) -> dict[str, NDArray[Any]]:
    """Return the arrays of a network by their names."""
    found: dict[str, NDArray[Any]] = {
        "about": np.array(network.about),
        "steps": np.array([step.name for step in network.steps]),
    }
    for place, step in enumerate(network.steps):
        found |= {f"{place}.{name}": np.asarray(value) for name, value in _values(step)}
    return found


def _values(step: kinds.Step) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a step's fields."""
    if isinstance(step, kinds.OneHot):
        yield "columns", [column.name for column in step.columns]
        yield "choices", [len(column.choices) for column in step.columns]
        return
    if isinstance(step, kinds.ActivateBlocks):
        yield "functions", [block.function for block in step.blocks]
        yield "widths", [block.stop - block.start for block in step.blocks]
        yield "groups", [block.groups for block in step.blocks]
        return
    for name in step.__struct_fields__:
        value = getattr(step, name)
        is_shape = name == "images"
        yield name, [value.height, value.width, value.channels] if is_shape else value
