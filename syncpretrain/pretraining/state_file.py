"""A cut through a pretraining run as a checkpoint file, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncpretrain.array_files import read_arrays, write_arrays
from syncpretrain.errors import CheckpointError
from syncpretrain.learners.cursor import Cursor
from syncpretrain.models.layer import Layer
from syncpretrain.pretraining.runtime.messages import LayerState
from syncpretrain.pretraining.schedule.machine import Past
from syncpretrain.pretraining.state import Cut

__all__ = ["read_cut", "write_cut"]

Array = NDArray[np.float32]
KINDS = ("hidden_units", "visible_units", "model")
ARRAYS = ("weight", "hidden_bias", "visible_bias", "decoder_weight")


class _State(msgspec.Struct):
    """What of a layer's state is no array."""

    cursor: Cursor
    learning_rate: float
    rollbacks: int
    stopping: tuple[float, int] | None


class _Header(msgspec.Struct):
    run: dict[str, Any]
    past: Past
    made: list[tuple[int, int]]
    snapshots: list[tuple[int, int]]
    states: list[_State | None]
    kinds: list[dict[str, str]]


def write_cut(path: Path, cut: Cut, run: Mapping[str, Any]) -> None:
    """Write a cut, and of which run it is (JSON values).

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    arrays: dict[str, Array] = {}
    kinds: list[dict[str, str]] = [{} for _ in cut.states]
    for (number, version), layer in cut.snapshots.items():
        arrays.update(_named(f"snapshot.{number}.{version}", layer))
        kinds[number - 1] = {name: getattr(layer, name) for name in KINDS}
    states: list[_State | None] = []
    for number, state in enumerate(cut.states, start=1):
        if state is None:
            states.append(None)
            continue
        arrays.update(_named(f"layer.{number}", state.layer))
        arrays.update(_named(f"good.{number}", state.good))
        arrays.update({f"memory.{number}.{name}": x for name, x in state.memory.items()})
        kinds[number - 1] = {name: getattr(state.layer, name) for name in KINDS}
        states.append(_State(state.cursor, state.learning_rate, state.rollbacks, state.stopping))
    header = _Header(dict(run), cut.past, cut.made, list(cut.snapshots), states, kinds)
    write_arrays(path, _finite(msgspec.to_builtins(header)), arrays)


def read_cut(path: Path, check: Callable[[dict[str, Any]], Any] = lambda run: None) -> Cut:
    """Return the cut in a file.

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
        return _cut(header, arrays)
    except (msgspec.ValidationError, KeyError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise CheckpointError(f"{path}: {error}") from error
        raise CheckpointError(f"{path}: is damaged: {error}") from error


def _cut(header: _Header, arrays: dict[str, Array]) -> Cut:
    def layer(prefix: str, number: int) -> Layer:
        given = {name: arrays.get(f"{prefix}.{name}") for name in ARRAYS}
        if any(given[name] is None for name in ARRAYS[:3]):
            raise ValueError(f"{prefix} lacks an array")
        kinds = header.kinds[number - 1]
        return Layer(**given, **{name: kinds[name] for name in KINDS})  # type: ignore[arg-type]

    states: list[LayerState | None] = []
    for number, state in enumerate(header.states, start=1):
        if state is None:
            states.append(None)
            continue
        prefix = f"memory.{number}."
        memory = {n.removeprefix(prefix): x for n, x in arrays.items() if n.startswith(prefix)}
        now, good = layer(f"layer.{number}", number), layer(f"good.{number}", number)
        states.append(
            LayerState(
                now,
                memory,
                good,
                state.cursor,
                state.learning_rate,
                state.rollbacks,
                state.stopping,
            )
        )
    snapshots = {
        (number, version): layer(f"snapshot.{number}.{version}", number)
        for number, version in header.snapshots
    }
    cut = Cut(header.past, snapshots, header.made, tuple(states))
    held = {(i, version) for i, row in enumerate(cut.past.held, start=1) for version in row}
    if not held <= snapshots.keys() or not held >= set(cut.made):
        raise ValueError("versions are held without their parameters, or made but not held")
    for number, version in cut.made:
        cut.ancestry(number, version)
    return cut


def _named(prefix: str, layer: Layer) -> Iterator[tuple[str, Array]]:
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
