"""Messages between a streamed run and the processes of its layers: the job, orders, answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from syncpretrain.models.layer import Layer
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining.runtime.layer_state import StreamedLayerState
from syncpretrain.pretraining.runtime.restarts.state import KeptStates
from syncpretrain.pretraining.runtime.shared_activations import SharedNumbers, SharedSplits
from syncpretrain.schedule.stream import Block

__all__ = ["Answer", "GiveLayer", "GiveState", "Processed", "StreamJob", "StreamOrder", "TakeState"]


@dataclass(frozen=True, slots=True)
class StreamJob:
    """Message to a process at its start.

    It reads what lies in the memory ``below``, and hands up through the memory ``above``, if it
    has one. Of the ``numbers``, the first is 1 once the layers are to stop; then follow the last
    minibatch that each has processed, and the threads that are lent to each, of which there are
    less than its ``replicas``. ``parent`` is a process identifier. ``kept`` is where the layer's
    states are kept for the next process, if they are; that finds the newest ``reread`` minibatches
    that were read below.
    """

    layer: int
    layer_factory: Callable[..., Any]  # a StreamedLayerFactory
    below: SharedSplits
    above: SharedSplits | None
    numbers: SharedNumbers
    replicas: int
    times: Timeouts
    parent: int
    kept: KeptStates | None = None
    reread: int = 0


@dataclass(frozen=True, slots=True)
class GiveLayer:
    """Order to answer with the layer as it is."""


@dataclass(frozen=True, slots=True)
class GiveState:
    """Order to answer with the state, given the position of the layer above."""

    above: int | None


@dataclass(frozen=True, slots=True)
class TakeState:
    """Order to continue from a state."""

    state: StreamedLayerState


StreamOrder = Block | GiveLayer | GiveState | TakeState


@dataclass(frozen=True, slots=True)
class Processed:
    """Answer to a block: the epochs that ended in it, and maybe the layer at the end of the last.

    ``results`` are instances of :class:`EpochResult`. ``busy_seconds`` are those of all blocks.
    ``position`` is the last minibatch that is done, where it is not in shared memory.
    """

    results: tuple[Any, ...]
    layer: Layer | None
    busy_seconds: float
    position: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to an order: what was asked for, or the error and its traceback."""

    value: Any = None
    error: BaseException | None = None
    trace: str = ""
