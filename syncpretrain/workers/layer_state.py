"""State of a layer between two minibatches, and its form in a checkpoint: arrays and scalars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.epoch import Cursor
from syncpretrain.models.layer import ConvolutionalLayer, DenseLayer, Layer
from syncpretrain.shapes import ConvolutionShape

__all__ = [
    "LayerScalars",
    "LayerState",
    "StateKeeper",
    "StreamedLayerState",
    "kinds_of",
    "named",
    "pack",
    "read_layer",
    "unpack",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """Everything that a layer's next minibatch depends on: what a checkpoint keeps of it.

    ``step_state`` is the state of its :class:`~syncpretrain.learners.steps.Step`. ``last_good`` is
    the layer at the end of its last epoch, to which a roll-back returns. ``cursor`` is its place in
    the epoch after that. ``stopping`` is the state of early stopping. ``outputs``, on the host, has
    the outputs of the versions by which its drift is measured.
    """

    layer: Layer
    step_state: dict[str, NDArray[np.float32]]
    last_good: Layer
    cursor: Cursor
    learning_rate: float
    rollbacks: int
    stopping: tuple[float, int] | None
    outputs: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)

    def to(self, device: Callable[[Any], Any]) -> LayerState:
        """Return the state with every array moved by ``device``."""
        return replace(
            self,
            layer=self.layer.to(device),
            step_state={name: device(array) for name, array in self.step_state.items()},
            last_good=self.last_good.to(device),
        )


class StateKeeper(Protocol):
    """Keeps states in the middle of an epoch, for another process to go on from."""

    @property
    def is_due(self) -> bool:
        """True if a state is due to be kept."""
        ...

    def keep(self, state: LayerState, warnings: tuple[str, ...]) -> None:
        """Keep a copy of a state, and the warnings of the epoch so far."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedLayerState:
    """One layer between two minibatches.

    ``position`` is the last minibatch that it processed. ``examples`` is the number of examples
    of the running epoch over which its errors are summed. ``steps`` is the number of minibatches on
    which it trains: fewer than planned after an early stop, None for all. ``ring`` and ``passes``
    hold, by number, the minibatches and the validation examples that it handed up and that the
    layer above has not processed.
    """

    position: int
    state: LayerState
    examples: int
    validation_error: float | None
    warnings: tuple[str, ...]
    ring: dict[int, NDArray[np.float32]]
    passes: dict[int, NDArray[np.float32]]
    steps: int | None = None


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
    """Return what a layer is apart from its arrays; a dense layer's shape is seen from those."""
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
