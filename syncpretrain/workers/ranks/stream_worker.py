"""A layer of a stream on a rank: a block an order, a minibatch at a time from the rank below.

The rank of the layer below sends what it hands up straight to this one, as soon as it is computed,
and the communication thread puts it into the ring while the layer computes. Its slot is free: the
schedule lets the layer below process a minibatch only after this layer has answered for the one
that lay there.

A block is answered before its last minibatch, unless an epoch ends there: the next order comes
while that is computed, and the layer goes on without a pause. Rings have room for
:data:`AHEAD_MINIBATCHES` more than the schedule knows of.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from syncpretrain.cluster.transport import Transport
from syncpretrain.errors import StalledError
from syncpretrain.kernels.program import Phases
from syncpretrain.learners.epoch import Stopped
from syncpretrain.models.layer import Layer
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.schedule.stream import Block
from syncpretrain.workers.child_start import sendable
from syncpretrain.workers.ranks.messages import HandedUp, RunJob, StreamAssignment, port
from syncpretrain.workers.ranks.worker import RankWorker
from syncpretrain.workers.split import Split
from syncpretrain.workers.streamed.base import BaseStreamedLayer, EpochResult
from syncpretrain.workers.streamed.child import (
    Answer,
    GiveLayer,
    GiveState,
    Processed,
    StreamOrder,
    TakeState,
)
from syncpretrain.workers.streamed.inputs import Passes, Rings

__all__ = ["AHEAD_MINIBATCHES", "Inlet", "Outlet", "StreamWorker"]

AHEAD_MINIBATCHES = 1  # minibatches of a block that are not computed yet when it is answered
# Parameters are sent to rank 0 at the end of an epoch, at most that often: if this rank is lost,
# the error carries a stack with them.
KNOWN_SECONDS = 10.0


class Inlet:
    """Ring of a layer's input; the communication thread fills it.

    Parameters
    ----------
    rings : Rings
    passes : Passes
    times : Timeouts
        Only ``tick`` and ``stall`` are used: how long a minibatch is waited for.
    """

    def __init__(self, rings: Rings, passes: Passes, times: Timeouts) -> None:
        self._rings, self._passes, self._times = rings, passes, times
        self._changed = threading.Condition()  # guards the newest number
        self._newest = 0

    def put(self, source: int, handed: HandedUp) -> None:
        """Take in a minibatch."""
        self._rings.minibatches.put(handed.number, handed.minibatch)
        if handed.validation is not None:
            self._rings.validation.put(handed.number // self._passes.steps, handed.validation)
        # The data first, then the number: a layer that sees the number finds the minibatch whole.
        with self._changed:
            self._newest = handed.number
            self._changed.notify_all()

    @property
    def newest(self) -> int:
        """The newest minibatch that has come."""
        return self._newest

    def wait_for(self, number: int, stop: Callable[[], bool]) -> None:
        """Wait for a minibatch.

        Raises
        ------
        Stopped
            If ``stop`` turned true.
        StalledError
            If it does not come.
        """
        deadline = time.monotonic() + self._times.stall
        with self._changed:
            while self._newest < number:
                self._changed.wait(self._times.tick)
                if stop():
                    raise Stopped
                if time.monotonic() > deadline:
                    raise StalledError(
                        f"minibatch {number} of the layer below did not come within"
                        f" {self._times.stall:g} s"
                    )


class Outlet:
    """Sends the hidden means of a layer to the ranks of the layer above.

    All ranks of a group have the same means; each sends them to some of the ranks above.

    Parameters
    ----------
    transport : Transport
    run : int
    assignment : StreamAssignment
    rings : Rings
        The rings into which the layer computes.
    """

    def __init__(
        self, transport: Transport, run: int, assignment: StreamAssignment, rings: Rings
    ) -> None:
        self._transport, self._assignment, self._rings = transport, assignment, rings
        self._port = port(run, "minibatches", assignment.layer + 1)
        group = assignment.group or (transport.rank,)
        self._above = assignment.ranks_above[group.index(transport.rank) :: len(group)]

    def send(self, number: int) -> None:
        """Send a minibatch, if it is one that is handed up."""
        if number not in self._assignment.handed_up:
            return
        passes, validation = self._assignment.passes, None
        if number % passes.steps == 0 and passes.held_out:
            validation = self._rings.validation.array(number // passes.steps, passes.held_out)
        minibatch = self._rings.minibatches.array(number, passes.size(number))
        handed = HandedUp(number, minibatch, validation)
        for rank in self._above:
            self._transport.send(rank, self._port, handed)


class StreamWorker(RankWorker[StreamAssignment]):
    """Trains a layer of a stream; for the parameters see :class:`RankWorker`."""

    def __init__(
        self,
        transport: Transport,
        job: RunJob,
        assignment: StreamAssignment,
        should_stop: Callable[[], bool],
    ) -> None:
        super().__init__(transport, job, assignment, should_stop)
        name = f"syncpretrain-layer-{self.number}"
        self._pool = WorkerPool(assignment.replicas, name, self._times)
        self.worker_count[0] = assignment.replicas
        self._inlet: Inlet | None = None
        self._outlet: Outlet | None = None
        self._failure: Answer | None = None  # in a minibatch that was answered for before
        self._known = time.monotonic()  # when rank 0 got to know the layer

    _common = 0  # the newest minibatch that every rank of the group has

    def work(self) -> None:
        """Obey orders until there are no more; report every failure."""
        try:
            layer = self._built()
            layer.progress = self.progress
            while (order := self.next_order()) is not None:
                self._obey(layer, order)
        except BaseException as error:  # construction failed; rank 0 reports it
            if self.is_to_answer(error):
                self.send("answers", self._failed(error, 1), self.number)
        finally:
            self._pool.close()

    def _built(self) -> BaseStreamedLayer:
        assignment, job = self._assignment, self._job
        below = job.data if assignment.below is None else assignment.below.memory()
        assert isinstance(below, Split)
        above: Split | None = None
        if assignment.above is not None:
            above = assignment.above.memory()
            self._outlet = Outlet(
                self._transport, job.run, assignment, assignment.above.rings(above)
            )
        layer: BaseStreamedLayer = assignment.layer_factory(below, above, *self.sharing)
        self.progress[0] = layer.progress[0]
        if assignment.below is not None:
            self._inlet = Inlet(assignment.below.rings(below), assignment.passes, self._times)
            self._transport.listen(port(job.run, "minibatches", self.number), self._inlet.put)
        return layer

    def _obey(self, layer: BaseStreamedLayer, order: StreamOrder) -> None:
        """Do what an order says, and answer it."""
        if self._failure is not None and not isinstance(order, GiveLayer):
            self.send("answers", self._failure, self.number)
            return
        try:
            if isinstance(order, Block):
                self._process(layer, order)
                return
            answer = Answer(self._obeyed(layer, order))
        except BaseException as error:  # rank 0 raises it
            answer = self._failed(error, layer.epoch)
        if self.is_to_answer(answer.error):
            self._send_progress()
            self.send("answers", answer, self.number)

    def _process(self, layer: BaseStreamedLayer, block: Block) -> None:
        """Process the minibatches of a block, and answer."""
        results: list[EpochResult] = []
        for number in range(block.first, block.last):
            results += self._minibatch(layer, number)
        # Answer before the last minibatch: the next order travels while that is computed. Not at
        # the end of an epoch, since the answer has its result; nor in a group, since all of it has
        # to be through with a slot before rank 0 lets the layer below fill it.
        is_ahead = self.group is None and not self._ends_pass(layer, block.last)
        if is_ahead:
            self._answer(layer, results)
        try:
            results += self._minibatch(layer, block.last)
        except BaseException as error:
            if not is_ahead:
                raise
            # The answer is gone. A stop will be the answer to the next block; a failure is told to
            # rank 0 at once, since no other block may come.
            if not isinstance(error, Stopped):
                self._failure = self._failed(error, layer.epoch)
                self.send("failures", (self.number, self._failure))
            return
        if self.group is not None:
            self.group.gather(None)  # all have read their input; then it may be overwritten
        if not is_ahead and self.is_to_answer():
            self._answer(layer, results)

    def _ends_pass(self, layer: BaseStreamedLayer, number: int) -> bool:
        """Return whether an epoch of the layer may end with a minibatch, or the stream."""
        steps, last = self._assignment.passes.steps, self._assignment.handed_up.stop - 1
        return layer.plan.at(number) % steps == 0 or number >= last > 0

    def _minibatch(self, layer: BaseStreamedLayer, number: int) -> list[EpochResult]:
        if self._inlet is not None:
            self._wait_for(self._inlet, number)
        results = layer.process(Block(self.number, number, number), self.stop, self._run)
        if self._outlet is not None:
            self._outlet.send(number)
        return results

    def _run(self, phases: Phases, shards: int) -> None:
        self._pool.run(phases, shards, int(self.worker_count[0]))

    def _answer(self, layer: BaseStreamedLayer, results: list[EpochResult]) -> None:
        """Answer a block; with the layer if it is trained, or rank 0 knew one for some time."""
        newest: Layer | None = None
        is_old = time.monotonic() > self._known + KNOWN_SECONDS
        if results and (is_old or results[-1].is_last):
            newest, self._known = layer.current(), time.monotonic()
        position = float(self.progress[0])
        value = Processed(tuple(results), newest, layer.busy_seconds, position)
        self.send("answers", Answer(value), self.number)

    def _send_progress(self) -> None:
        self.send("progress", {self.number: float(self.progress[0])})

    def _obeyed(self, layer: BaseStreamedLayer, order: GiveLayer | GiveState | TakeState) -> Any:
        """Do what an order says that is no block; return what is to be answered."""
        if isinstance(order, GiveLayer):
            return layer.current()
        if isinstance(order, GiveState):
            return layer.state(order.above)
        layer.load_state(order.state)
        for number in sorted(order.state.ring):
            if self._outlet is not None:
                self._outlet.send(number)
        return None

    def _wait_for(self, inlet: Inlet, number: int) -> None:
        """Wait for a minibatch, in a group until each rank has it; or raise Stopped on all."""
        if self.group is None:
            inlet.wait_for(number, self._should_stop)
            return
        if number <= self._common:
            return
        stops = False
        try:
            inlet.wait_for(number, self._should_stop)
        except Stopped:
            stops = True
        # The ranks of a group get their minibatches by different ways. They agree on the newest
        # that all have, and so run the same steps; most minibatches need no exchange.
        found: list[tuple[int, bool]] = self.group.all_gather((inlet.newest, stops))
        if any(own for _, own in found):
            raise Stopped
        self._common = min(newest for newest, _ in found)

    def _failed(self, error: BaseException, epoch: int) -> Answer:
        error, trace = sendable(error, self.number, epoch)
        return Answer(None, error, trace)
