"""State of a fine-tuning: all that is needed to resume it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from syncpretrain.array_files import StateFile
from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.epoch import Cursor
from syncpretrain.observers.errors import ErrorCurve

__all__ = ["FINETUNE_STATE", "FinetuneSaver", "FinetuneState"]


@dataclass(frozen=True, slots=True)
class FinetuneState:
    """The epoch that is next or was left at ``cursor``, and what was learned by then.

    ``arrays`` holds the parameters, the parameters after the last good epoch and after the best
    one, and the optimizer's memory. ``best_error`` and ``first_error`` are None before there is
    one; ``curve`` holds the errors of the epochs before, None in the oldest files.
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


def _pack(state: FinetuneState, run: dict[str, Any]) -> tuple[_Header, dict[str, Array]]:
    names = (name for name in _Header.__struct_fields__ if name != "run")
    return _Header(run, **{name: getattr(state, name) for name in names}), state.arrays


def _unpack(header: _Header, arrays: dict[str, Array]) -> FinetuneState:
    names = (name for name in _Header.__struct_fields__ if name != "run")
    return FinetuneState(**{name: getattr(header, name) for name in names}, arrays=arrays)


FINETUNE_STATE = StateFile(_Header, _pack, _unpack)
