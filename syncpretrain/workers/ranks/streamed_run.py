"""Streamed layers on ranks of an MPI job, which the threads of the pool give their blocks.

Guarantees:

* A rank that dies is a failure of its layer: of the block that it was given, or found by
  :meth:`RankStream.check`.
* Minibatches go straight from the rank of a layer to that of the layer above; rank 0 sends orders,
  and gets layers and states when they are asked for.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from syncpretrain.errors import WorkerError
from syncpretrain.parallel.timeouts import TIMEOUTS, Closing, Timeouts
from syncpretrain.workers.interface import STDERR
from syncpretrain.workers.ranks.messages import StreamAssignment
from syncpretrain.workers.ranks.run import RunRanks
from syncpretrain.workers.split import Split
from syncpretrain.workers.streamed.base import BaseStreamedLayer
from syncpretrain.workers.streamed.child import (
    Answer,
    Processed,
    StreamOrder,
    TakeState,
)
from syncpretrain.workers.streamed.remote import RemoteLayer, Stopping

__all__ = ["LayerRank", "RankStream"]


def _never(death: WorkerError) -> bool:
    """Return False: a rank that was lost is never replaced."""
    return False


class LayerRank:
    """The rank that holds one layer: gets orders, gives answers.

    Parameters
    ----------
    layer : BaseStreamedLayer
        As it is used here.
    ranks : RunRanks
    """

    def __init__(self, layer: BaseStreamedLayer, ranks: RunRanks) -> None:
        self._layer, self._ranks = layer, ranks
        self._answer: tuple[int, Answer] | None = None  # with the rank that gave it
        self._failure: tuple[int, Answer] | None = None  # in a block that it had answered already
        self._is_asked, self._is_training = False, True  # by the last order
        # Once the rank is lost, a late answer would be taken for the answer to another order.
        self._is_lost = False

    @property
    def has_ended(self) -> bool:
        """True if the rank is lost, or has failed and has no order that it would answer."""
        if self._is_lost or (self._failure is not None and not self._is_asked):
            return True
        return self._ranks.lost(self._layer.number) is not None

    def fail(self, rank: int, failure: Answer) -> None:
        """Record a failure on a rank that is no answer."""
        self._failure = rank, failure

    def send(self, thing: StreamOrder) -> None:
        """Send an order."""
        self._is_asked, self._is_training = True, not isinstance(thing, TakeState)
        self._ranks.send(self._layer.number, "orders", thing)

    def poll(self, seconds: float) -> bool:
        """Wait for an answer or the loss of the rank; return whether it came."""
        if self._answer is None and not self._is_lost:
            self._answer = self._ranks.take("answers", seconds, self._layer.number)
        return self._answer is not None or self.has_ended

    def receive(self) -> Answer | None:
        """Return the next answer; None if there is none, and never will be."""
        self.poll(0.0)
        found, self._answer = self._answer, None
        if found is None and not self._is_asked:
            found, self._failure = self._failure, None
        if found is None:
            self._is_lost = True
            return None
        self._is_asked = False
        (rank, answer), number = found, self._layer.number
        if answer.error is not None and self._is_training:
            error = self._ranks.located(answer.error, number, self._layer.epoch, rank)
            return replace(answer, error=error)
        if isinstance(answer.value, Processed):
            self._layer.progress[0] = answer.value.position
            offset = self._ranks.offset(number)
            results = tuple(
                replace(own, started=own.started + offset, ended=own.ended + offset)
                for own in answer.value.results
            )
            return replace(answer, value=replace(answer.value, results=results))
        return answer

    def ending(self) -> str:
        """Return how the rank was lost."""
        how = self._ranks.lost(self._layer.number)
        return how or f"{self._ranks.name(self._layer.number)} does not answer"

    def kill(self) -> None:
        """Count the rank as lost; the job is aborted in the end."""
        self._is_lost = True
        self._ranks.give_up()


class RankStopping(Stopping):
    """A request to all ranks of a run to stop."""

    def __init__(self, ranks: RunRanks, times: Timeouts) -> None:
        super().__init__(np.zeros(1), times)
        self._ranks = ranks

    def request(self) -> None:
        """Ask every rank to stop."""
        self._ranks.stop()


class RankStream(Closing):
    """Streamed layers on other ranks.

    Parameters
    ----------
    places : sequence of StreamAssignment
        From the lowest layer up.
    layers : sequence of RemoteLayer
        The same layers, as they are used here.
    data : Split
        Input of layer 1.
    ranks : RunRanks
    times : Timeouts
    """

    def __init__(
        self,
        places: Sequence[StreamAssignment],
        layers: Sequence[RemoteLayer],
        data: Split,
        ranks: RunRanks,
        times: Timeouts = TIMEOUTS,
    ) -> None:
        super().__init__(times)
        self._places, self._remote_layers, self._data = places, layers, data
        self._ranks = ranks
        self._links: dict[int, LayerRank] = {}

    @property
    def layers(self) -> Sequence[BaseStreamedLayer]:
        """The layers, from the lowest up."""
        return self._remote_layers

    def check(self) -> None:
        """Look for a rank that was lost while it had nothing to do."""
        for layer in self._remote_layers:
            layer.check()

    def settle(self) -> bool:
        """Return whether every rank answers; one that does not in time counts as lost."""
        return all(layer.refresh() for layer in self._remote_layers)

    def abandon(self) -> None:
        """Write on stderr where every thread of every rank stands; the job will be aborted."""
        self._ranks.dump_stacks()
        faulthandler.dump_traceback(STDERR)
        self._ranks.give_up()

    def _open(self) -> None:
        self._ranks.transport.is_eager = True  # in every block a rank waits for rank 0
        self._ranks.listen("progress", self._record_progress)
        self._ranks.listen("failures", self._record_failure)
        stopping = RankStopping(self._ranks, self._times)
        for layer in self._remote_layers:
            link = self._links[layer.number] = LayerRank(layer, self._ranks)
            layer.connect(link, stopping, np.zeros(1), _never)
        self._ranks.begin(self._places, lambda layers: self._data if 1 in layers else None, 1)

    def _record_progress(self, source: int, progress: dict[int, float]) -> None:
        for layer, position in progress.items():
            self._remote_layers[layer - 1].progress[0] = position

    def _record_failure(self, source: int, failure: tuple[int, Answer]) -> None:
        layer, answer = failure
        self._links[layer].fail(source, answer)

    def _close(self) -> list[str]:
        self._ranks.transport.is_eager = False
        for layer in self._remote_layers:
            layer.disconnect()
        return self._ranks.end()
