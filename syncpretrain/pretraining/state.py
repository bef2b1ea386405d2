"""State of a pretraining: all that is needed to resume it, and its checkpoint file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from syncpretrain.array_files import read_arrays, write_arrays
from syncpretrain.errors import CheckpointError
from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.cursor import Cursor
from syncpretrain.models.layer import DenseLayer
from syncpretrain.pretraining.runtime.messages import LayerState
from syncpretrain.pretraining.schedule.machine import Past

__all__ = ["PretrainState", "read_pretrain_state", "write_pretrain_state"]

LAYER_KINDS = ("hidden_units", "visible_units", "model")
ARRAYS = ("weight", "hidden_bias", "visible_bias", "decoder_weight")


@dataclass(frozen=True, slots=True)
class PretrainState:
    """The schedule's past, the versions it may still read, and every layer's state.

    ``snapshots`` are those held and those that their activations were computed through, by layer
    and version; ``computed`` are the held ones that have activations, which are computed again from
    them. The state of a layer that has not trained yet is None. What a layer did in an epoch that
    it had not finished is in its state only if it was stopped; else that epoch begins again.
    """

    past: Past
    snapshots: dict[tuple[int, int], DenseLayer]
    computed: list[tuple[int, int]]
    states: tuple[LayerState | None, ...]

    def ancestry(self, layer: int, version: int) -> list[DenseLayer]:
        """Return the snapshots, from layer 1 up, through which a version's activations go."""
        chain = []
        while layer >= 1:
            chain.append(self.snapshots[layer, version])
            version = self.past.reads[layer - 1][version - 1]
            layer -= 1
        return chain[::-1]


class _State(msgspec.Struct):
    """Scalar part of a layer's state."""

    cursor: Cursor
    learning_rate: float
    rollbacks: int
    stopping: tuple[float, int] | None


class _Header(msgspec.Struct):
    run: dict[str, Any]
    past: Past
    computed: list[tuple[int, int]] = msgspec.field(name="made")  # as in the file
    snapshots: list[tuple[int, int]]
    states: list[_State | None]
    kinds: list[dict[str, str]]


def write_pretrain_state(path: Path, state: PretrainState, run: Mapping[str, Any]) -> None:
    """Write a state, and of which run it is (JSON values).

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    arrays: dict[str, Array] = {}
    kinds: list[dict[str, str]] = [{} for _ in state.states]
    for (number, version), layer in state.snapshots.items():
        arrays.update(_named(f"snapshot.{number}.{version}", layer))
        kinds[number - 1] = {name: getattr(layer, name) for name in LAYER_KINDS}
    states: list[_State | None] = []
    for number, own in enumerate(state.states, start=1):
        if own is None:
            states.append(None)
            continue
        arrays.update(_named(f"layer.{number}", own.layer))
        arrays.update(_named(f"good.{number}", own.last_good))
        arrays.update({f"memory.{number}.{name}": x for name, x in own.step_state.items()})
        kinds[number - 1] = {name: getattr(own.layer, name) for name in LAYER_KINDS}
        states.append(_State(own.cursor, own.learning_rate, own.rollbacks, own.stopping))
    header = _Header(dict(run), state.past, state.computed, list(state.snapshots), states, kinds)
    write_arrays(path, _finite(msgspec.to_builtins(header)), arrays)


def read_pretrain_state(
    path: Path, check: Callable[[dict[str, Any]], Any] = lambda run: None
) -> PretrainState:
    """Return the state in a file.

    ``check`` is called with the run that the header names, and raises CheckpointError on another.

    Raises
    ------
    CheckpointError
        If it is damaged, or of another run.
    """
    values, arrays = read_arrays(path)
    try:
        header = msgspec.convert(_infinite(values), _Header)
        check(header.run)
        return _state(header, arrays)
    except (msgspec.ValidationError, KeyError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise CheckpointError(f"{path}: {error}") from error
        raise CheckpointError(f"{path}: is damaged: {error}") from error


def _state(header: _Header, arrays: dict[str, Array]) -> PretrainState:
    def layer(prefix: str, number: int) -> DenseLayer:
        parameters = {name: arrays.get(f"{prefix}.{name}") for name in ARRAYS}
        if any(parameters[name] is None for name in ARRAYS[:3]):
            raise ValueError(f"{prefix} lacks an array")
        kinds = header.kinds[number - 1]
        return DenseLayer(**parameters, **{name: kinds[name] for name in LAYER_KINDS})  # type: ignore[arg-type]

    states: list[LayerState | None] = []
    for number, own in enumerate(header.states, start=1):
        if own is None:
            states.append(None)
            continue
        prefix = f"memory.{number}."
        step_state = {n.removeprefix(prefix): x for n, x in arrays.items() if n.startswith(prefix)}
        now, last_good = layer(f"layer.{number}", number), layer(f"good.{number}", number)
        states.append(
            LayerState(
                layer=now,
                step_state=step_state,
                last_good=last_good,
                cursor=own.cursor,
                learning_rate=own.learning_rate,
                rollbacks=own.rollbacks,
                stopping=own.stopping,
            )
        )
    snapshots = {
        (number, version): layer(f"snapshot.{number}.{version}", number)
        for number, version in header.snapshots
    }
    state = PretrainState(header.past, snapshots, header.computed, tuple(states))
    held = {(i, version) for i, row in enumerate(header.past.held, start=1) for version in row}
    if not held <= snapshots.keys() or not held >= set(header.computed):
        raise ValueError("versions are held without their parameters, or computed but not held")
    for number, version in header.computed:
        state.ancestry(number, version)
    return state


def _named(prefix: str, layer: DenseLayer) -> Iterator[tuple[str, Array]]:
    for name, array in layer.parameters():
        yield f"{prefix}.{name}", array


def _finite(value: Any) -> Any:
    """Write infinity, which JSON lacks and an early stopping's best begins with, as text."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return "inf" if value == float("inf") else value


def _infinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _infinite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_infinite(item) for item in value]
    return float("inf") if value == "inf" else value
