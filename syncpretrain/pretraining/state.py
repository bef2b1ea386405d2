"""State of a pretraining: all that is needed to resume it, and its checkpoint file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from syncpretrain.array_files import any_run, read_state, write_state
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.layer import Layer
from syncpretrain.observers.errors import ErrorCurve
from syncpretrain.pretraining.layer_states import (
    LayerScalars,
    kinds_of,
    named,
    pack,
    read_layer,
    unpack,
)
from syncpretrain.pretraining.runtime.layer_state import LayerState
from syncpretrain.schedule.epochs import Past

__all__ = ["PretrainState", "read_pretrain_state", "write_pretrain_state"]


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


class _Header(msgspec.Struct):
    run: dict[str, Any]
    past: Past
    computed: list[tuple[int, int]] = msgspec.field(name="made")  # as in the file
    snapshots: list[tuple[int, int]]
    states: list[LayerScalars | None]
    kinds: list[dict[str, Any]]
    curves: tuple[ErrorCurve, ...] = ()


def write_pretrain_state(path: Path, state: PretrainState, run: Mapping[str, Any]) -> None:
    """Write a state, and of which run it is (JSON values).

    Raises
    ------
    OSError
        If the file cannot be written.
    """
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
    header = _Header(
        dict(run), state.past, state.computed, list(state.snapshots), states, kinds, state.curves
    )
    write_state(path, header, arrays)


def read_pretrain_state(
    path: Path, check: Callable[[dict[str, Any]], Any] = any_run
) -> PretrainState:
    """Return the state in a file.

    ``check`` is called with the run that the header names, and raises CheckpointError on another.

    Raises
    ------
    CheckpointError
        If it is damaged, or of another run.
    """
    return read_state(path, _Header, check, _state)


def _state(header: _Header, arrays: dict[str, Array]) -> PretrainState:
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
    held = {(i, version) for i, row in enumerate(header.past.held, start=1) for version in row}
    if not held <= snapshots.keys() or not held >= set(header.computed):
        raise ValueError("versions are held without their parameters, or computed but not held")
    for number, version in header.computed:
        state.ancestry(number, version)
    return state
