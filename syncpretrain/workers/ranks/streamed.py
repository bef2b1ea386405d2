"""A layer of a stream on a rank: a block an order, a minibatch at a time from the rank below.

The rank of the layer below sends what it hands up straight to this one, as soon as it is computed,
and the communication thread puts it into the ring while the layer computes. The slot is free: the
layer below is sent to a minibatch only when this one has answered for that which lay there.

A block is answered before its last minibatch, unless an epoch ends there: the next order comes
while that is computed, and the layer goes on without a pause. Rings have room for
:data:`AHEAD_MINIBATCHES` more than the schedule knows of.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from syncpretrain.cluster.transport import Transport
from syncpretrain.errors import StalledError
from syncpretrain.kernels.program import Phases
from syncpretrain.learners.cursor import Stopped
from syncpretrain.models.layer import Layer
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.schedule.stream import Block
from syncpretrain.workers.child_loop import sendable
from syncpretrain.workers.ranks.layers import HeldLayer
from syncpretrain.workers.ranks.messages import HandedUp, RunJob, StreamLayer, port
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

__all__ = ["AHEAD_MINIBATCHES", "HeldStream", "Inlet", "Outlet"]

AHEAD_MINIBATCHES = 1  # that are not computed yet when a block is answered
KNOWN_SECONDS = 10.0  # how old the layer may be that rank 0 knows, should this rank be lost


class Inlet:
    """The ring of a layer's input, which another thread fills.

    Parameters
    ----------
    rings : Rings
    passes : Passes
    times : Timeouts
        Of which ``stall`` is how long a minibatch is waited for.
    """

    def __init__(self, rings: Rings, passes: Passes, times: Timeouts) -> None:
        self._rings, self._passes, self._times = rings, passes, times
        self._changed = threading.Condition()  # guards the newest number
        self._newest = 0

    def put(self, source: int, handed: HandedUp) -> None:
        """Take in a minibatch."""
        own = handed.minibatch
        np.copyto(self._rings.minibatches.array(handed.number, len(own)), own)
        if handed.validation is not None:
            count, rows = handed.number // self._passes.steps, len(handed.validation)
            np.copyto(self._rings.validation.array(count, rows), handed.validation)
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
    """What a layer hands up, sent to the rank of the layer above.

    Of a group, each rank sends it to some of the ranks above.

    Parameters
    ----------
    transport : Transport
    run : int
    place : StreamLayer
    rings : Rings
        In which the layer has computed it.
    """

    def __init__(self, transport: Transport, run: int, place: StreamLayer, rings: Rings) -> None:
        self._transport, self._place, self._rings = transport, place, rings
        self._port = port(run, "minibatches", place.layer + 1)
        group = place.group or (transport.rank,)
        self._above = place.ranks_above[group.index(transport.rank) :: len(group)]

    def send(self, number: int) -> None:
        """Send a minibatch, if it is one that is handed up."""
        if number not in self._place.handed_up:
            return
        passes, validation = self._place.passes, None
        if number % passes.steps == 0 and passes.held_out:
            validation = self._rings.validation.array(number // passes.steps, passes.held_out)
        minibatch = self._rings.minibatches.array(number, passes.size(number))
        handed = HandedUp(number, minibatch, validation)
        for rank in self._above:
            self._transport.send(rank, self._port, handed)


class HeldStream(HeldLayer[StreamLayer]):
    """A layer of a stream; parameters as of :class:`HeldLayer`."""

    def __init__(
        self,
        transport: Transport,
        job: RunJob,
        place: StreamLayer,
        should_stop: Callable[[], bool],
    ) -> None:
        super().__init__(transport, job, place, should_stop)
        name = f"syncpretrain-layer-{self.number}"
        self._pool = WorkerPool(place.replicas, name, self._times)
        self.worker_count[0] = place.replicas
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
        place, job = self._place, self._job
        below = job.data if place.below is None else place.below.memory()
        assert isinstance(below, Split)
        above: Split | None = None
        if place.above is not None:
            above = place.above.memory()
            self._outlet = Outlet(self._transport, job.run, place, place.above.rings(above))
        layer: BaseStreamedLayer = place.layer_factory(below, above, *self.sharing)
        self.progress[0] = layer.progress[0]
        if place.below is not None:
            self._inlet = Inlet(place.below.rings(below), place.passes, self._times)
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
        is_ahead = self.group is None and not self._ends_pass(layer, block.last)
        if is_ahead:
            self._answer(layer, results)
        try:
            results += self._minibatch(layer, block.last)
        except BaseException as error:
            if not is_ahead:
                raise
            if not isinstance(error, Stopped):  # as the next block will be
                self._failure = self._failed(error, layer.epoch)
                self.send("failures", (self.number, self._failure))
            return
        if self.group is not None:
            self.group.gather(None)  # all have read their input, which then is overwritten
        if not is_ahead and self.is_to_answer():
            self._answer(layer, results)

    def _ends_pass(self, layer: BaseStreamedLayer, number: int) -> bool:
        """Return whether an epoch of the layer may end with a minibatch, or the stream."""
        steps, last = self._place.passes.steps, self._place.handed_up.stop - 1
        return (number - layer.plan.delay) % steps == 0 or number >= last > 0

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
        found: list[tuple[int, bool]] = self.group.all_gather((inlet.newest, stops))
        if any(own for _, own in found):
            raise Stopped
        self._common = min(newest for newest, _ in found)

    def _failed(self, error: BaseException, epoch: int) -> Answer:
        error, trace = sendable(error, self.number, epoch)
        return Answer(None, error, trace)
