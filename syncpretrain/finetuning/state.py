"""State of a fine-tuning: all that is needed to resume it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from syncpretrain.array_files import any_run, read_state, write_state
from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.cursor import Cursor
from syncpretrain.observers.errors import ErrorCurve

__all__ = ["FinetuneSaver", "FinetuneState", "read_finetune_state", "write_finetune_state"]


@dataclass(frozen=True, slots=True)
class FinetuneState:
    """The epoch that is next or was left at ``cursor``, and what was learned by then.

    ``arrays`` are the parameters, those of the last good epoch and of the best one, and what the
    optimizer remembers. ``best_error`` and ``first_error`` are None before there is one; ``curve``
    are the errors of the epochs before, None in the oldest files.
    """

    epoch: int
    cursor: Cursor
    first_error: float | None
    best_error: float | None
    best_epoch: int
    arrays: dict[str, Array]
    curve: ErrorCurve | None = None


class FinetuneSaver(Protocol):
    """Writes the state of fine-tuning where it is due."""

    def __call__(self, state: Callable[[], FinetuneState], *, done: int, final: bool) -> None:
        """Take a function that returns the state, the epochs done, and whether it is the last."""
        ...


class _Header(msgspec.Struct):
    run: dict[str, Any]
    epoch: int
    cursor: Cursor
    first_error: float | None
    best_error: float | None
    best_epoch: int
    curve: ErrorCurve | None = None


def write_finetune_state(path: Path, state: FinetuneState, run: Mapping[str, Any]) -> None:
    """Write a state, and of which run it is (JSON values).

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    header = _Header(
        dict(run),
        state.epoch,
        state.cursor,
        state.first_error,
        state.best_error,
        state.best_epoch,
        state.curve,
    )
    write_state(path, header, state.arrays)


def read_finetune_state(
    path: Path, check: Callable[[dict[str, Any]], Any] = any_run
) -> FinetuneState:
    """Return the state in a file.

    ``check`` is called with the run that the header names, and raises CheckpointError on another.

    Raises
    ------
    CheckpointError
        If it is damaged, or of another run.
    """
    return read_state(path, _Header, check, _state)


def _state(header: _Header, arrays: dict[str, Array]) -> FinetuneState:
    return FinetuneState(
        header.epoch,
        header.cursor,
        header.first_error,
        header.best_error,
        header.best_epoch,
        arrays,
        header.curve,
    )
