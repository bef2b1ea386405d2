"""A streamed layer that the next process goes on with, if this one is killed.

Now and then the state after a block is kept, with the answer to it, before that is sent. The next
process reads what came after it again: the minibatches still lie in the ring below. It hands up
nothing until it is where the layer was. A layer that has trained only computes hidden means, and
its state after that is kept once: its input may be overwritten as soon as no layer needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from syncpretrain.errors import WorkerError
from syncpretrain.kernels.program import PhaseRunner
from syncpretrain.pretraining.runtime.layer_state import StreamedLayerState
from syncpretrain.pretraining.runtime.restarts.keeping import Keeping
from syncpretrain.pretraining.runtime.restarts.state import KeptStates
from syncpretrain.pretraining.runtime.streamed.layer import StreamedLayer
from syncpretrain.pretraining.runtime.streamed.messages import StreamOrder, TakeState
from syncpretrain.schedule.stream import BLOCK_MINIBATCHES, Block

__all__ = ["KeptStream"]


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
        last = min(position, layer.plan.delay + layer.plan.steps)
        if last - self._newest > self._reread:
            raise WorkerError(
                f"layer {layer.number} cannot go on: its newest state is of minibatch"
                f" {self._newest}, and it had processed {position}"
            )
        layer.process_again(last, run)
        layer.progress[0] = max(layer.position, position)

    def obey(self, order: StreamOrder, obey: Callable[[StreamOrder], Any]) -> Any:
        """Return the answer to an order; a block that was processed before is not again."""
        if isinstance(order, Block) and self._found is not None and self._found.block == order:
            self._layer.progress[0] = order.last
            return replace(self._found.answer, busy_seconds=0.0)  # those of the former process
        answer = obey(order)
        if isinstance(order, TakeState):
            self._keep(None, answer)
        elif isinstance(order, Block) and self._is_due():
            self._keep(order, answer)
        return answer

    def _is_due(self) -> bool:
        if self._layer.is_trained:
            return not self._is_final
        behind = self._layer.position - self._newest
        return self._keeping.is_due or behind + BLOCK_MINIBATCHES > self._reread

    def _keep(self, block: Block | None, answer: Any) -> None:
        self._keeping.keep(_Kept(self._layer.live_state(), block, answer))
        self._newest, self._is_final = self._layer.position, self._layer.is_trained
