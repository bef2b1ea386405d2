"""Reader and writer of the state of a run, by its schedule and hand-over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from syncpretrain.pretraining.asynchronous.state import (
    AsyncState,
    read_async_state,
    write_async_state,
)
from syncpretrain.pretraining.state import (
    PretrainState,
    read_pretrain_state,
    write_pretrain_state,
)
from syncpretrain.pretraining.streamed.state import (
    StreamState,
    read_stream_state,
    write_stream_state,
)
from syncpretrain.schedule.kinds import ASYNC
from syncpretrain.settings.sections import PretrainSettings

__all__ = ["State", "StateFile", "state_file_of"]

State = PretrainState | StreamState | AsyncState


class StateFile(NamedTuple):
    """How the state of a run is read from a checkpoint, and written into one."""

    read: Callable[..., Any]
    write: Callable[..., None]


STATE_FILES = {
    ASYNC: StateFile(read_async_state, write_async_state),
    "epoch": StateFile(read_pretrain_state, write_pretrain_state),
    "minibatch": StateFile(read_stream_state, write_stream_state),
}


def state_file_of(settings: PretrainSettings) -> StateFile:
    """Return the kind of state of a run."""
    return STATE_FILES[ASYNC if settings.schedule == ASYNC else settings.handoff]
