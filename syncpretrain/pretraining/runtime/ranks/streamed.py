"""A layer of a stream on a rank: a block an order, a minibatch at a time from the rank below.

The rank of the layer below sends what it hands up straight to this one, as soon as it is computed,
and the communication thread puts it into the ring while the layer computes. The slot is free: the
layer below is sent to a minibatch only when this one has answered for that which lay there.
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
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.pretraining.runtime.child_loop import sendable
from syncpretrain.pretraining.runtime.ranks.layers import HeldLayer
from syncpretrain.pretraining.runtime.ranks.messages import HandedUp, StreamLayer, port
from syncpretrain.pretraining.runtime.split import Split
from syncpretrain.pretraining.runtime.streamed.base import BaseStreamedLayer, EpochResult
from syncpretrain.pretraining.runtime.streamed.messages import (
    Answer,
    GiveLayer,
    GiveState,
    Processed,
    StreamOrder,
)
from syncpretrain.pretraining.runtime.streamed.rings import Passes, Rings
from syncpretrain.pretraining.schedule.stream import Block

__all__ = ["HeldStream", "Inlet", "Outlet"]


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
    """A layer of a stream."""

    _common = 0  # the newest minibatch that every rank of the group has

    def work(self) -> None:
        """Obey orders until there are no more; report every failure."""
        name = f"syncpretrain-layer-{self.number}"
        pool = WorkerPool(self._place.replicas, name, self._times)
        self.worker_count[0] = self._place.replicas

        def run(phases: Phases, shards: int) -> None:
            pool.run(phases, shards, int(self.worker_count[0]))

        try:
            layer, inlet, outlet = self._layer()
            layer.progress = self.progress
            while (order := self.next_order()) is not None:
                try:
                    answer = Answer(self._obeyed(layer, order, inlet, outlet, run))
                except BaseException as error:  # rank 0 raises it
                    answer = self._failed(error, layer.epoch)
                if self.is_to_answer(answer.error):
                    self.send("progress", {self.number: float(self.progress[0])})
                    self.send("answers", answer, self.number)
        except BaseException as error:  # construction failed; rank 0 reports it
            if self.is_to_answer(error):
                self.send("answers", self._failed(error, 1), self.number)
        finally:
            pool.close()

    def _layer(self) -> tuple[BaseStreamedLayer, Inlet | None, Outlet | None]:
        place, job = self._place, self._job
        below = job.data if place.below is None else place.below.memory()
        assert below is not None
        above: Split | None = None
        inlet, outlet = None, None
        if place.above is not None:
            above = place.above.memory()
            outlet = Outlet(self._transport, job.run, place, place.above.rings(above))
        layer: BaseStreamedLayer = place.layer_factory(below, above, *self.sharing)
        self.progress[0] = layer.progress[0]
        if place.below is not None:
            inlet = Inlet(place.below.rings(below), place.passes, self._times)
            self._transport.listen(port(job.run, "minibatches", self.number), inlet.put)
        return layer, inlet, outlet

    def _obeyed(
        self,
        layer: BaseStreamedLayer,
        order: StreamOrder,
        inlet: Inlet | None,
        outlet: Outlet | None,
        run: Callable[[Phases, int], None],
    ) -> Any:
        """Do what an order says; return what is to be answered."""
        if isinstance(order, Block):
            results: list[EpochResult] = []
            for number in range(order.first, order.last + 1):
                if inlet is not None:
                    self._wait_for(inlet, number)
                one = Block(order.layer, number, number)
                results += layer.process(one, self.stop, run)
                if outlet is not None:
                    outlet.send(number)
            if self.group is not None:
                self.group.gather(None)  # all have read their input, which then is overwritten
            newest = layer.current() if results else None
            return Processed(tuple(results), newest, layer.busy_seconds)
        if isinstance(order, GiveLayer):
            return layer.current()
        if isinstance(order, GiveState):
            return layer.state(order.above)
        layer.load_state(order.state)
        for number in sorted(order.state.ring):
            if outlet is not None:
                outlet.send(number)
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
