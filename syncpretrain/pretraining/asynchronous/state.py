"""State of an asynchronous pretraining, and its checkpoint file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from syncpretrain.array_files import any_run, read_state, write_state
from syncpretrain.kernels.arrays import Array
from syncpretrain.observers.errors import ErrorCurve

__all__ = ["AsyncState", "read_async_state", "write_async_state"]


@dataclass(frozen=True, slots=True)
class AsyncState:
    """Where an asynchronous run stands.

    ``done`` are the epochs that each layer has finished, ``minibatches`` those of the running
    epoch that are trained, and ``errors`` the sums of their errors, one a layer in training.
    ``arrays`` are the parameters of all layers, and what the replicas remember; ``curves`` the
    errors of the epochs that each layer has finished.
    """

    done: tuple[int, ...]
    minibatches: int
    errors: tuple[float, ...]
    arrays: dict[str, Array]
    curves: tuple[ErrorCurve, ...] = ()


class _Header(msgspec.Struct):
    run: dict[str, Any]
    done: tuple[int, ...]
    minibatches: int
    errors: tuple[float, ...]
    curves: tuple[ErrorCurve, ...] = ()


def write_async_state(path: Path, state: AsyncState, run: Mapping[str, Any]) -> None:
    """Write a state, and of which run it is (JSON values).

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    header = _Header(dict(run), state.done, state.minibatches, state.errors, state.curves)
    write_state(path, header, state.arrays)


def read_async_state(path: Path, check: Callable[[dict[str, Any]], Any] = any_run) -> AsyncState:
    """Return the state in a file.

    ``check`` is called with the run that the header names, and raises CheckpointError on another.

    Raises
    ------
    CheckpointError
        If it is damaged, or of another run.
    """
    return read_state(path, _Header, check, _state)


def _state(header: _Header, arrays: dict[str, Array]) -> AsyncState:
    return AsyncState(header.done, header.minibatches, header.errors, arrays, header.curves)
