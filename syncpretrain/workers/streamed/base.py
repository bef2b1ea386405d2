"""Streamed layers as the pool and the driver use them, wherever they are trained."""

from __future__ import annotations

import faulthandler
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from syncpretrain.events import EpochFinished
from syncpretrain.kernels.program import PhaseRunner, in_turn
from syncpretrain.models.layer import Layer
from syncpretrain.parallel.step_sharing import StepSharing
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.schedule.stream import Block, StreamPlan
from syncpretrain.workers.link import STDERR
from syncpretrain.workers.state import StreamedLayerState
from syncpretrain.workers.streamed.inputs import Passes, RingSize


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochResult:
    """Result of an epoch that a layer finished, with the event for the observers."""

    event: EpochFinished
    warnings: tuple[str, ...]
    is_last: bool
    marks: Mapping[int, Layer] = field(default_factory=dict)


class BaseStreamedLayer(ABC):
    """One layer of a stream: its place there, and how it is moved on.

    Parameters
    ----------
    number : int
        Number of the layer, counted from 1.
    plan : StreamPlan
    steps : int
        Minibatches of an epoch.

    Attributes
    ----------
    progress : ndarray of shape (1,), float64
        The last minibatch that was processed. May be replaced by an array in shared memory.
    busy_seconds : float
        Time spent in :meth:`process`.
    """

    def __init__(self, number: int, plan: StreamPlan, steps: int) -> None:
        self.number, self.plan, self._steps = number, plan, steps
        self.progress = np.array([float(plan.skipped)])
        self.busy_seconds = 0.0

    @property
    def position(self) -> int:
        """The last minibatch that was processed."""
        return int(self.progress[0])

    @property
    def fraction(self) -> float:
        """How far the running epoch is, in [0, 1]."""
        # The pool's thread writes the position while others read: read once.
        return min(self.plan.at(self.position), self.plan.steps) % self._steps / self._steps

    @property
    def epoch(self) -> int:
        """The running epoch, from 1; the last one when all are done."""
        return min(self.plan.at(self.position), self.plan.steps - 1) // self._steps + 1

    @property
    def epochs_done(self) -> int:
        """How many epochs the layer has finished."""
        return max(0, min(self.plan.at(self.position), self.plan.steps)) // self._steps

    @property
    def is_trained(self) -> bool:
        """Whether the layer has finished all its epochs."""
        return self.position >= self.plan.end

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for an iterable, and looks whether to stop before it trains on."""
        return False

    def shorten(self, epochs: int) -> None:
        """Train no more than some epochs."""
        self.plan = replace(self.plan, steps=epochs * self._steps)

    def _take_steps(self, state: StreamedLayerState) -> None:
        """Go to the place in the stream that a state is of."""
        self.progress[0] = state.position
        if state.steps is not None:
            self.plan = replace(self.plan, steps=state.steps)

    def sharing(self, times: Timeouts) -> StepSharing:
        """Return what lets the pool's idle threads help with the steps."""
        return StepSharing(times)

    @abstractmethod
    def process(
        self, block: Block, stop: Callable[[], bool], run: PhaseRunner = in_turn
    ) -> list[EpochResult]:
        """Process the minibatches of a block; return the epochs that ended with one of them.

        Raises
        ------
        DivergedError
            If the layer diverges too often.
        Stopped
            Before a minibatch or a run of them, if ``stop`` turned true.
        """

    @abstractmethod
    def current(self) -> Layer:
        """Return the layer as it was at the end of its last minibatch."""

    @abstractmethod
    def state(self, above: int | None) -> StreamedLayerState:
        """Return a copy of everything that the next minibatch depends on.

        ``above`` is the position of the layer above, None at the top.
        """

    @abstractmethod
    def load_state(self, state: StreamedLayerState) -> None:
        """Continue from a state; the result is bit-identical.

        Raises
        ------
        KeyError, ValueError
            If it is the state of another layer.
        """


@dataclass(frozen=True, slots=True)
class LayerPart:
    """One layer's part in a stream: its plan, its input, and the minibatches that it hands up.

    ``below`` is None for layer 1, ``above`` for the last layer.
    """

    layer: int
    plan: StreamPlan
    passes: Passes
    below: RingSize | None
    above: RingSize | None
    handed_up: range


class Stream:
    """Layers of a streamed run, to be entered as a context; here they train in this process.

    Parameters
    ----------
    layers : sequence of BaseStreamedLayer
        From the lowest up.
    """

    def __init__(self, layers: Sequence[BaseStreamedLayer]) -> None:
        self.layers = layers

    def __enter__(self) -> Stream:
        """Start what the layers need, which is nothing."""
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        """End it; the layers keep the newest parameters."""

    def check(self) -> None:
        """Raise WorkerError if a layer was lost while it had nothing to do; here none ever is."""

    def settle(self) -> bool:
        """Return whether every layer answers, so that each can be asked for its state."""
        return True

    def abandon(self) -> None:
        """Write on stderr where every layer stands, and end what can be ended: here no thread."""
        faulthandler.dump_traceback(STDERR)
