"""State of a pretraining: all that is needed to resume it, and its checkpoint file.

A run has one of three states: that of the schedule of whole epochs, that of a stream of
minibatches, or that of an asynchronous run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from syncpretrain.array_files import StateFile
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.layer import Layer
from syncpretrain.observers.errors import ErrorCurve
from syncpretrain.schedule.kinds import ASYNC
from syncpretrain.schedule.schedule import Past
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.workers.layer_state import (
    LayerScalars,
    LayerState,
    StreamedLayerState,
    kinds_of,
    named,
    pack,
    read_layer,
    unpack,
)

__all__ = [
    "ASYNC_STATE",
    "EPOCHS_STATE",
    "STREAM_STATE",
    "AsyncState",
    "PretrainState",
    "State",
    "StreamState",
    "state_file_of",
]


@dataclass(frozen=True, slots=True)
class PretrainState:
    """The schedule's past, the versions it may still read, and every layer's state.

    ``snapshots`` are those held and those that their activations were computed through, by layer
    and version; ``computed`` are the held ones that have activations, which are computed again from
    them. The state of a layer that has not trained yet is None. What a layer did in an epoch that
    it had not finished is in its state only if it was stopped; else that epoch begins again.
    ``curves`` are the layers' errors so far; the oldest files have none.
    """

    past: Past
    snapshots: dict[tuple[int, int], Layer]
    computed: list[tuple[int, int]]
    states: tuple[LayerState | None, ...]
    curves: tuple[ErrorCurve, ...] = ()

    @property
    def done(self) -> tuple[int, ...]:
        """The epochs that each layer has finished."""
        return self.past.done

    def ancestry(self, layer: int, version: int) -> list[Layer]:
        """Return the snapshots, from layer 1 up, through which a version's activations go."""
        chain = []
        while layer >= 1:
            chain.append(self.snapshots[layer, version])
            version = self.past.reads[layer - 1][version - 1]
            layer -= 1
        return chain[::-1]


class _EpochsHeader(msgspec.Struct):
    run: dict[str, Any]
    past: Past
    computed: list[tuple[int, int]] = msgspec.field(name="made")  # as in the file
    snapshots: list[tuple[int, int]]
    states: list[LayerScalars | None]
    kinds: list[dict[str, Any]]
    curves: tuple[ErrorCurve, ...] = ()


def _pack_epochs(
    state: PretrainState, run: dict[str, Any]
) -> tuple[_EpochsHeader, dict[str, Array]]:
    arrays: dict[str, Array] = {}
    kinds: list[dict[str, Any]] = [{} for _ in state.states]
    for (number, version), layer in state.snapshots.items():
        arrays.update(named(f"snapshot.{number}.{version}", layer))
        kinds[number - 1] = kinds_of(layer)
    states: list[LayerScalars | None] = [None] * len(kinds)
    for number, own in enumerate(state.states, start=1):
        if own is not None:
            states[number - 1], packed = pack(number, own)
            arrays |= packed
            kinds[number - 1] = kinds_of(own.layer)
    header = _EpochsHeader(
        run, state.past, state.computed, list(state.snapshots), states, kinds, state.curves
    )
    return header, arrays


def _unpack_epochs(header: _EpochsHeader, arrays: dict[str, Array]) -> PretrainState:
    states = [
        None if own is None else unpack(number, own, header.kinds[number - 1], arrays)
        for number, own in enumerate(header.states, start=1)
    ]
    snapshots = {
        (number, version): read_layer(
            f"snapshot.{number}.{version}", header.kinds[number - 1], arrays
        )
        for number, version in header.snapshots
    }
    state = PretrainState(header.past, snapshots, header.computed, tuple(states), header.curves)
    # A damaged file is found now, not in the middle of the resumed run.
    held = {(i, version) for i, row in enumerate(header.past.held, start=1) for version in row}
    if not held <= snapshots.keys() or not held >= set(header.computed):
        raise ValueError("versions are held without their parameters, or computed but not held")
    for number, version in header.computed:
        state.ancestry(number, version)
    return state


@dataclass(frozen=True, slots=True)
class StreamState:
    """All layers, from the lowest up, the epochs that each has finished, and their errors."""

    layers: tuple[StreamedLayerState, ...]
    done: tuple[int, ...]
    curves: tuple[ErrorCurve, ...] = ()


class _StreamedLayer(msgspec.Struct):
    position: int
    scalars: LayerScalars
    kinds: dict[str, Any]
    examples: int
    validation_error: float | None
    warnings: tuple[str, ...]
    ring: list[int]
    passes: list[int]
    steps: int | None = None


class _StreamHeader(msgspec.Struct):
    run: dict[str, Any]
    stream: list[_StreamedLayer]
    done: tuple[int, ...]
    curves: tuple[ErrorCurve, ...] = ()


def _pack_stream(state: StreamState, run: dict[str, Any]) -> tuple[_StreamHeader, dict[str, Array]]:
    arrays: dict[str, Array] = {}
    layers = []
    for number, layer in enumerate(state.layers, start=1):
        scalars, packed = pack(number, layer.state)
        arrays |= packed
        arrays |= {f"ring.{number}.{n}": array for n, array in layer.ring.items()}
        arrays |= {f"passes.{number}.{n}": array for n, array in layer.passes.items()}
        layers.append(
            _StreamedLayer(
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
    return _StreamHeader(run, layers, state.done, state.curves), arrays


def _unpack_stream(header: _StreamHeader, arrays: dict[str, Array]) -> StreamState:
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


@dataclass(frozen=True, slots=True)
class AsyncState:
    """All that an asynchronous run depends on.

    ``done`` are the epochs that each layer has finished. ``minibatches`` is how many minibatches
    of the running epoch are trained, and ``errors`` the sums of their errors, one a layer in
    training.
    ``arrays`` are the parameters of all layers, and what the replicas remember; ``curves`` the
    errors of the epochs that each layer has finished.
    """

    done: tuple[int, ...]
    minibatches: int
    errors: tuple[float, ...]
    arrays: dict[str, Array]
    curves: tuple[ErrorCurve, ...] = ()


class _AsyncHeader(msgspec.Struct):
    run: dict[str, Any]
    done: tuple[int, ...]
    minibatches: int
    errors: tuple[float, ...]
    curves: tuple[ErrorCurve, ...] = ()


def _pack_async(state: AsyncState, run: dict[str, Any]) -> tuple[_AsyncHeader, dict[str, Array]]:
    header = _AsyncHeader(run, state.done, state.minibatches, state.errors, state.curves)
    return header, state.arrays


def _unpack_async(header: _AsyncHeader, arrays: dict[str, Array]) -> AsyncState:
    return AsyncState(header.done, header.minibatches, header.errors, arrays, header.curves)


State = PretrainState | StreamState | AsyncState
EPOCHS_STATE = StateFile(_EpochsHeader, _pack_epochs, _unpack_epochs)
STREAM_STATE = StateFile(_StreamHeader, _pack_stream, _unpack_stream)
ASYNC_STATE = StateFile(_AsyncHeader, _pack_async, _unpack_async)


def state_file_of(settings: PretrainSettings) -> StateFile[Any, Any]:
    """Return the format of a run's state: by its schedule, then by its hand-over."""
    if settings.schedule == ASYNC:
        return ASYNC_STATE
    return EPOCHS_STATE if settings.handoff == "epoch" else STREAM_STATE
