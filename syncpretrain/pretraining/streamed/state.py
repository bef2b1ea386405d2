"""State of a streamed pretraining: all that is needed to resume it, and its checkpoint file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from syncpretrain.array_files import any_run, read_state, write_state
from syncpretrain.kernels.arrays import Array
from syncpretrain.observers.errors import ErrorCurve
from syncpretrain.pretraining.layer_states import (
    LayerScalars,
    kinds_of,
    pack,
    unpack,
)
from syncpretrain.pretraining.runtime.layer_state import StreamedLayerState

__all__ = ["StreamState", "read_stream_state", "write_stream_state"]


@dataclass(frozen=True, slots=True)
class StreamState:
    """All layers, from the lowest up, the epochs that each has finished, and their errors."""

    layers: tuple[StreamedLayerState, ...]
    done: tuple[int, ...]
    curves: tuple[ErrorCurve, ...] = ()


class _Layer(msgspec.Struct):
    position: int
    scalars: LayerScalars
    kinds: dict[str, Any]
    examples: int
    validation_error: float | None
    warnings: tuple[str, ...]
    ring: list[int]
    passes: list[int]
    steps: int | None = None


class _Header(msgspec.Struct):
    run: dict[str, Any]
    stream: list[_Layer]
    done: tuple[int, ...]
    curves: tuple[ErrorCurve, ...] = ()


def write_stream_state(path: Path, state: StreamState, run: Mapping[str, Any]) -> None:
    """Write a state, and of which run it is (JSON values).

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    arrays: dict[str, Array] = {}
    layers = []
    for number, layer in enumerate(state.layers, start=1):
        scalars, packed = pack(number, layer.state)
        arrays |= packed
        arrays |= {f"ring.{number}.{n}": array for n, array in layer.ring.items()}
        arrays |= {f"passes.{number}.{n}": array for n, array in layer.passes.items()}
        layers.append(
            _Layer(
                layer.position,
                scalars,
                kinds_of(layer.state.layer),
                layer.examples,
                layer.validation_error,
                layer.warnings,
                list(layer.ring),
                list(layer.passes),
                layer.steps,
            )
        )
    header = _Header(dict(run), layers, state.done, state.curves)
    write_state(path, header, arrays)


def read_stream_state(path: Path, check: Callable[[dict[str, Any]], Any] = any_run) -> StreamState:
    """Return the state in a file.

    ``check`` is called with the run that the header names, and raises CheckpointError on another.

    Raises
    ------
    CheckpointError
        If it is damaged, or of another run.
    """
    return read_state(path, _Header, check, _state)


def _state(header: _Header, arrays: dict[str, Array]) -> StreamState:
    layers = tuple(
        StreamedLayerState(
            position=layer.position,
            state=unpack(number, layer.scalars, layer.kinds, arrays),
            examples=layer.examples,
            validation_error=layer.validation_error,
            warnings=layer.warnings,
            ring={n: arrays[f"ring.{number}.{n}"] for n in layer.ring},
            passes={n: arrays[f"passes.{number}.{n}"] for n in layer.passes},
            steps=layer.steps,
        )
        for number, layer in enumerate(header.stream, start=1)
    )
    return StreamState(layers, header.done, header.curves)
