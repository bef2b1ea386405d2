"""A layer of a stream on a rank: an order is a block; minibatches come from the rank below.

The rank of the layer below sends a minibatch to this rank as soon as the minibatch is computed, and
the communication thread puts it into the ring while the layer computes. The slot is free: the
schedule lets the layer below process a minibatch only after this layer has answered for the older
minibatch in the same slot.

A block is answered before its last minibatch, unless an epoch ends there: the next order comes
while the last minibatch is computed, and the layer goes on without a pause. Rings have room for
:data:`AHEAD_MINIBATCHES` more minibatches than the schedule counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.program import Phases
from syncpretrain.learners.epoch import Stopped
from syncpretrain.models.layer import Layer
from syncpretrain.parallel.timeouts import Deadline, Timeouts
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.schedule.stream import Block
from syncpretrain.workers.activations import Split
from syncpretrain.workers.link import Obey, Raised
from syncpretrain.workers.ranks.worker import Assignment, RankContext, port
from syncpretrain.workers.streamed.base import BaseStreamedLayer, EpochResult, LayerPart
from syncpretrain.workers.streamed.inputs import Passes, Rings
from syncpretrain.workers.streamed.job import GiveLayer, Processed, StreamOrder, TakeState, obeyed

AHEAD_MINIBATCHES = 1  # minibatches of a block that are not computed yet at the answer
# Least time between two sendings of the parameters to rank 0, at the end of an epoch: if this rank
# is lost, the stack of the error has the parameters that were sent last.
KNOWN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class StreamAssignment(Assignment):
    """Job of a layer of a stream: the function that builds the layer, and the part in the stream.

    ``ranks_above`` are the ranks of the layer above; a step has ``replicas`` threads on each rank.
    """

    layer_factory: Callable[..., Any]
    part: LayerPart
    ranks_above: tuple[int, ...]
    replicas: int

    @property
    def reads_data(self) -> bool:
        """True if the rank is sent the data of the run."""
        return self.part.below is None

    @contextmanager
    def open(self, context: RankContext) -> Iterator[Obey]:
        """Return the context of the worker; see :class:`syncpretrain.workers.link.Job`."""
        context.workers[0] = self.replicas
        name = f"syncpretrain-layer-{context.number}"
        with closing(WorkerPool(self.replicas, name, context.times)) as pool:
            yield StreamWorker(context, self, pool).obey


@dataclass(frozen=True, slots=True)
class HandedUp:
    """A minibatch for the layer above, with the validation examples at the end of a pass."""

    number: int
    minibatch: Array
    validation: Array | None


class Inlet:
    """Ring of a layer's input, which the communication thread fills.

    Parameters
    ----------
    rings : Rings
    passes : Passes
    times : Timeouts
        Only ``tick`` and ``stall`` are used; ``stall`` limits the wait for a minibatch.

    Attributes
    ----------
    newest : int
        Number of the newest minibatch that has come.
    """

    def __init__(self, rings: Rings, passes: Passes, times: Timeouts) -> None:
        self._rings, self._passes, self._times = rings, passes, times
        self._changed = threading.Condition()  # guards the newest number
        self.newest = 0

    def put(self, source: int, handed: HandedUp) -> None:
        """Put a minibatch into the ring."""
        self._rings.minibatches.put(handed.number, handed.minibatch)
        if handed.validation is not None:
            self._rings.validation.put(handed.number // self._passes.steps, handed.validation)
        # The data first, then the number: a layer that sees the number finds the minibatch whole.
        with self._changed:
            self.newest = handed.number
            self._changed.notify_all()

    def wait_for(self, number: int, stop: Callable[[], bool]) -> None:
        """Wait for a minibatch.

        Raises
        ------
        Stopped
            If ``stop`` turned true.
        StalledError
            If the minibatch does not come.
        """
        deadline = Deadline(self._times.stall)
        with self._changed:
            while self.newest < number:
                self._changed.wait(self._times.tick)
                if stop():
                    raise Stopped
                deadline.check(f"minibatch {number} of the layer below did not come within")


class StreamWorker:
    """Trains a layer of a stream.

    Parameters
    ----------
    context : RankContext
    assignment : StreamAssignment
    pool : WorkerPool
        Threads that compute the steps.
    """

    def __init__(
        self, context: RankContext, assignment: StreamAssignment, pool: WorkerPool
    ) -> None:
        self.context, self._assignment, self._pool = context, assignment, pool
        self._inlet: Inlet | None = None
        self._above: Rings | None = None  # into which the layer writes
        # All ranks of a group have the same means. The ranks above are dealt among the group: each
        # gets every minibatch once.
        own = 0 if context.group is None else context.group.number
        self._ranks_above = assignment.ranks_above[own :: max(1, len(assignment.group))]
        self._failure: Raised | None = None  # in a minibatch that was answered for before it failed
        self._known = time.monotonic()  # time at which rank 0 got the layer last
        self._common = 0  # the newest minibatch that every rank of the group has
        part = assignment.part
        if part.above is not None:
            self._above = part.above.on()
        if part.below is not None:
            below: Split | Rings = part.below.on()
        else:
            assert context.data is not None
            below = Split(*context.data)
        build, given = assignment.layer_factory, (below, self._above, *context.sharing)
        self._layer: BaseStreamedLayer = build(*given)
        context.progress[0] = self._layer.progress[0]
        if isinstance(below, Rings):
            self._inlet = Inlet(below, part.passes, context.times)
            context.transport.listen(context.port("minibatches"), self._inlet.put)
        self._layer.progress = context.progress

    def obey(self, order: StreamOrder) -> Any:
        """Execute an order; return the answer, or None if it was sent already."""
        if self._failure is not None and not isinstance(order, GiveLayer):
            return self._failure
        try:
            if isinstance(order, Block):
                return self._process(order)
            answer = obeyed(self._layer, order, stop=self.context.stop, run=self._run)
        except BaseException:
            number = self.context.number
            self.context.send("progress", {number: float(self.context.progress[0])})
            raise
        if isinstance(order, TakeState):
            for number in sorted(order.state.ring):
                self._hand_up(number)
        return answer

    def _process(self, block: Block) -> Processed | None:
        """Process the minibatches of a block; return the answer, or None if it was sent already."""
        results: list[EpochResult] = []
        for number in range(block.first, block.last):
            results += self._minibatch(number)
        # Answer before the last minibatch: the next order travels while the minibatch is computed.
        # Not at the end of an epoch, since the answer has the epoch's result; nor in a group, since
        # all ranks have to be through with a slot before rank 0 lets the layer below fill it.
        group, is_ahead = self.context.group, False
        if group is None and not self._ends_pass(block.last):
            self.context.answer(self._processed(results))
            is_ahead = True
        try:
            results += self._minibatch(block.last)
        except BaseException as error:
            if not is_ahead:
                raise
            # The answer is sent already. A stop becomes the answer to the next block; rank 0 gets a
            # failure at once, since no other block may come.
            if not isinstance(error, Stopped):
                self._failure = Raised(error)
                self.context.send("failures", (self.context.number, self._failure))
        if group is not None:
            group.gather(None)  # all ranks have read their input, and it may be overwritten
        return self._processed(results) if not is_ahead and self.context.leads else None

    def _ends_pass(self, number: int) -> bool:
        """Return True if an epoch of the layer, or the stream, may end with a minibatch."""
        part = self._assignment.part
        steps, last = part.passes.steps, part.handed_up.stop - 1
        return self._layer.plan.at(number) % steps == 0 or number >= last > 0

    def _minibatch(self, number: int) -> list[EpochResult]:
        if self._inlet is not None:
            self._wait_for(self._inlet, number)
        block = Block(self.context.number, number, number)
        results = self._layer.process(block, self.context.stop, self._run)
        self._hand_up(number)
        return results

    def _hand_up(self, number: int) -> None:
        """Send a minibatch to ranks of the layer above, if that layer trains on it."""
        part, above = self._assignment.part, self._above
        if above is None or number not in part.handed_up:
            return
        passes, validation = part.passes, None
        if number % passes.steps == 0 and passes.held_out:
            validation = above.validation.slot(number // passes.steps, passes.held_out)
        minibatch = above.minibatches.slot(number, passes.size(number))
        to = port(self.context.run, "minibatches", self.context.number + 1)
        for rank in self._ranks_above:
            self.context.transport.send(rank, to, HandedUp(number, minibatch, validation))

    def _run(self, phases: Phases, shards: int) -> None:
        self._pool.run(phases, shards, int(self.context.workers[0]))

    def _processed(self, results: list[EpochResult]) -> Processed:
        """Return the answer to a block.

        The answer has the layer after its last epoch, and after an epoch that ends
        :data:`KNOWN_SECONDS` or more after rank 0 got the layer.
        """
        newest: Layer | None = None
        is_old = time.monotonic() > self._known + KNOWN_SECONDS
        if results and (is_old or results[-1].is_last):
            newest, self._known = self._layer.current(), time.monotonic()
        position = float(self.context.progress[0])
        return Processed(tuple(results), newest, self._layer.busy_seconds, position)

    def _wait_for(self, inlet: Inlet, number: int) -> None:
        """Wait for a minibatch, in a group until each rank has it; raise Stopped on all or none."""
        group, should_stop = self.context.group, self.context.should_stop
        if group is None:
            inlet.wait_for(number, should_stop)
            return
        if number <= self._common:
            return
        stops = False
        try:
            inlet.wait_for(number, should_stop)
        except Stopped:
            stops = True
        # The ranks of a group get minibatches by different ways. They agree on the newest minibatch
        # that all have, and so run the same steps; most minibatches need no exchange.
        found: list[tuple[int, bool]] = group.all_gather((inlet.newest, stops))
        if any(own for _, own in found):
            raise Stopped
        self._common = min(newest for newest, _ in found)
