"""Reader and writer of the state of a run, by its hand-over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from syncpretrain.pretraining.state import (
    PretrainState,
    read_pretrain_state,
    write_pretrain_state,
)
from syncpretrain.pretraining.stream_state import (
    StreamState,
    read_stream_state,
    write_stream_state,
)

__all__ = ["STATE_FILES", "State", "StateFile"]

State = PretrainState | StreamState


class StateFile(NamedTuple):
    """How the state of a run is read from a checkpoint, and written into one."""

    read: Callable[..., Any]
    write: Callable[..., None]


STATE_FILES = {
    "epoch": StateFile(read_pretrain_state, write_pretrain_state),
    "minibatch": StateFile(read_stream_state, write_stream_state),
}
