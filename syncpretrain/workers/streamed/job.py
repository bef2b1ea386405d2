"""The process of one streamed layer: a block of minibatches an order.

Now and then the state after a block is kept together with the answer, before the answer is sent. A
process that replaces a killed one reads again what came after that state: the minibatches still lie
in the ring below. It hands up nothing until it is where the layer was. A layer that has trained
only computes hidden means, and its state after that is kept once: the ring below may be overwritten
as soon as no layer needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from syncpretrain.errors import WorkerError
from syncpretrain.kernels.program import PhaseRunner, Phases
from syncpretrain.models.layer import Layer
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.schedule.stream import BLOCK_MINIBATCHES, Block
from syncpretrain.workers.activations import Split
from syncpretrain.workers.link import Context, Obey
from syncpretrain.workers.restarts import Keeping, KeptStates
from syncpretrain.workers.shared_memory import SharedSplits
from syncpretrain.workers.state import StreamedLayerState
from syncpretrain.workers.streamed.base import BaseStreamedLayer, EpochResult
from syncpretrain.workers.streamed.layer import StreamedLayer


@dataclass(frozen=True, slots=True)
class StreamJob:
    """Job of a process that trains a layer.

    The process reads the memory ``below``, or data in a file, and hands up through the memory
    ``above``, if it has one. A step has at most ``replicas`` threads. A process that replaces
    another finds the newest ``reread`` minibatches that were read below.
    """

    layer_factory: Callable[..., Any]  # builds the layer, given its input and what is above
    below: SharedSplits | Split
    above: SharedSplits | None
    replicas: int
    reread: int = 0

    @contextmanager
    def open(self, context: Context) -> Iterator[Obey]:
        """Return the context of the worker; see :class:`syncpretrain.workers.link.Job`."""
        pool = WorkerPool(self.replicas, f"syncpretrain-layer-{context.number}", context.times)

        def run(phases: Phases, shards: int) -> None:
            pool.run(phases, shards, int(context.workers[0]))

        below = self.below if isinstance(self.below, Split) else self.below.map()[0]
        above = self.above.map(write=True)[0] if self.above is not None else None
        layer: StreamedLayer = self.layer_factory(below, above)
        obey = partial(obeyed, layer, stop=context.stop, run=run)
        if context.kept is not None:
            keeper = KeptStream(layer, context.kept, self.reread)
            keeper.go_to(int(context.progress[0]), run)
            obey = partial(keeper.obey, obey=obey)
        # Only now, since the parent reads it: until here it says how far the former process was.
        layer.progress = context.progress
        yield obey


@dataclass(frozen=True, slots=True)
class GiveLayer:
    """Order to answer with the layer as it is."""


@dataclass(frozen=True, slots=True)
class GiveState:
    """Order to answer with the state, given the position of the layer above."""

    above: int | None


@dataclass(frozen=True, slots=True)
class TakeState:
    """Order to continue from a state; the answer is its position."""

    state: StreamedLayerState


StreamOrder = Block | GiveLayer | GiveState | TakeState


@dataclass(frozen=True, slots=True)
class Processed:
    """Answer to a block: the epochs that ended in it, and maybe the layer at the end of the last.

    ``busy_seconds`` is the time of all blocks.
    ``position`` is the last minibatch that is done, where it is not in shared memory.
    """

    results: tuple[EpochResult, ...]
    layer: Layer | None
    busy_seconds: float
    position: float | None = None


@dataclass(frozen=True, slots=True)
class _Kept:
    """A layer after a block, and the answer to it; after it took a state, there is no block."""

    state: StreamedLayerState
    block: Block | None
    answer: Any


class KeptStream:
    """The kept states of a streamed layer, in its process.

    Parameters
    ----------
    layer : StreamedLayer
    kept : KeptStates
    reread : int
        Minibatches below that are not overwritten when they have been read.
    """

    def __init__(self, layer: StreamedLayer, kept: KeptStates, reread: int) -> None:
        self._layer, self._keeping, self._reread = layer, Keeping(kept), reread
        self._found: _Kept | None = kept.newest()
        self._newest, self._is_final = layer.position, False

    def go_to(self, position: int, run: PhaseRunner) -> None:
        """Take the newest state, if there is one, and go on to a minibatch.

        Raises
        ------
        WorkerError
            If the minibatches up to it are gone.
        """
        layer = self._layer
        if self._found is not None:
            layer.load_state(self._found.state)
        self._newest, self._is_final = layer.position, layer.is_trained
        # After its own steps a layer only hands up, and what it handed up is in the ring above.
        last = min(position, layer.plan.end)
        if last - self._newest > self._reread:
            raise WorkerError(
                f"its newest state is of minibatch {self._newest}, and it had processed"
                f" {position}: too many to process them again"
            )
        layer.process_again(last, run)
        layer.progress[0] = max(layer.position, position)

    def obey(self, order: StreamOrder, obey: Callable[[StreamOrder], Any]) -> Any:
        """Return the answer to an order; a block that was processed before is not again."""
        if isinstance(order, Block) and self._found is not None and self._found.block == order:
            self._layer.progress[0] = order.last
            # The former process was killed between keeping this answer and sending it. The parent
            # counts the seconds of that process itself.
            return replace(self._found.answer, busy_seconds=0.0)
        answer = obey(order)
        if isinstance(order, TakeState):
            self._keep(None, answer)
        elif isinstance(order, Block) and self._is_due():
            self._keep(order, answer)
        return answer

    def _is_due(self) -> bool:
        if self._layer.is_trained:
            return not self._is_final
        # Due by the clock, or because the next block would be more than the ring can give again.
        behind = self._layer.position - self._newest
        return self._keeping.is_due or behind + BLOCK_MINIBATCHES > self._reread

    def _keep(self, block: Block | None, answer: Any) -> None:
        self._keeping.keep(_Kept(self._layer.live_state(), block, answer))
        self._newest, self._is_final = self._layer.position, self._layer.is_trained


def obeyed(
    layer: BaseStreamedLayer, order: StreamOrder, *, stop: Callable[[], bool], run: PhaseRunner
) -> Any:
    """Do what an order says; return what is to be answered."""
    if isinstance(order, Block):
        results = tuple(layer.process(order, stop, run))
        return Processed(results, layer.current() if results else None, layer.busy_seconds)
    if isinstance(order, GiveLayer):
        return layer.current()
    if isinstance(order, GiveState):
        return layer.state(order.above)
    layer.load_state(order.state)
    return layer.position
