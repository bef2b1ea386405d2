"""States of layers as named arrays and scalars, for checkpoint files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.cursor import Cursor
from syncpretrain.models.layer import ConvolutionalLayer, DenseLayer, Layer
from syncpretrain.pretraining.runtime.layer_state import LayerState
from syncpretrain.shapes import ConvolutionShape

__all__ = [
    "LayerScalars",
    "kinds_of",
    "named",
    "pack",
    "read_layer",
    "unpack",
]

LAYER_KINDS = ("hidden_units", "visible_units", "model")
ARRAYS = ("weight", "hidden_bias", "visible_bias", "decoder_weight")


class LayerScalars(msgspec.Struct):
    """Scalar part of a layer's state."""

    cursor: Cursor
    learning_rate: float
    rollbacks: int
    stopping: tuple[float, int] | None


def pack(number: int, state: LayerState) -> tuple[LayerScalars, dict[str, Array]]:
    """Return the scalars and the named arrays of the state of a layer, counted from 1."""
    arrays = dict(named(f"layer.{number}", state.layer))
    arrays |= dict(named(f"good.{number}", state.last_good))
    arrays |= {f"outputs.{number}.{version}": array for version, array in state.outputs.items()}
    arrays |= {f"memory.{number}.{name}": array for name, array in state.step_state.items()}
    scalars = LayerScalars(state.cursor, state.learning_rate, state.rollbacks, state.stopping)
    return scalars, arrays


def unpack(
    number: int, scalars: LayerScalars, kinds: Mapping[str, Any], arrays: Mapping[str, Array]
) -> LayerState:
    """Return the state that :func:`pack` took apart.

    Raises
    ------
    ValueError, KeyError
        If an array or a kind is missing.
    """
    prefix, outputs = f"memory.{number}.", f"outputs.{number}."
    return LayerState(
        layer=read_layer(f"layer.{number}", kinds, arrays),
        step_state={n.removeprefix(prefix): x for n, x in arrays.items() if n.startswith(prefix)},
        last_good=read_layer(f"good.{number}", kinds, arrays),
        cursor=scalars.cursor,
        learning_rate=scalars.learning_rate,
        rollbacks=scalars.rollbacks,
        stopping=scalars.stopping,
        outputs={
            int(n.removeprefix(outputs)): x for n, x in arrays.items() if n.startswith(outputs)
        },
    )


def kinds_of(layer: Layer) -> dict[str, Any]:
    """Return what a layer is beside its arrays, of whose shapes that of a dense one is seen."""
    kinds = {name: getattr(layer, name) for name in LAYER_KINDS}
    if isinstance(layer, ConvolutionalLayer):
        kinds["shape"] = msgspec.to_builtins(layer.shape)
    if isinstance(layer, DenseLayer) and layer.precision != "float32":
        kinds["precision"] = layer.precision
    return kinds


def named(prefix: str, layer: Layer) -> Iterator[tuple[str, Array]]:
    """Yield the parameters of a layer under names with a prefix."""
    for name, array in layer.parameters():
        yield f"{prefix}.{name}", array


def read_layer(prefix: str, kinds: Mapping[str, Any], arrays: Mapping[str, Array]) -> Layer:
    """Return the layer that :func:`named` named.

    Raises
    ------
    ValueError, KeyError
        If an array or a kind is missing.
    """
    parameters = {name: arrays.get(f"{prefix}.{name}") for name in ARRAYS}
    if any(parameters[name] is None for name in ARRAYS[:3]):
        raise ValueError(f"{prefix} lacks an array")
    own: Any = parameters | {name: kinds[name] for name in LAYER_KINDS}
    if "shape" not in kinds:
        return DenseLayer(**own, precision=kinds.get("precision", "float32"))
    return ConvolutionalLayer(**own, shape=msgspec.convert(kinds["shape"], ConvolutionShape))
