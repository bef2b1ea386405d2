"""Links between ranks on which messages come late: emulated, and of a pipeline by a model."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from typing import Any

from syncpretrain.cluster.engine import Buffer, Envelope
from syncpretrain.cluster.transport import Transport
from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.steps import LearnerStep

__all__ = ["Emulation", "Link", "emulate", "only_take_time", "pipeline_seconds"]

FORWARD = 1 / 3  # of a step's time


@dataclass(slots=True)
class Link:
    """A link into one rank, over which messages come one after the other.

    Parameters
    ----------
    bandwidth : float
        Bytes a second.
    latency : float
        Seconds from the last byte sent to its arrival.
    """

    bandwidth: float = math.inf
    latency: float = 0.0
    _free: float = field(default=-math.inf, init=False)

    def due(self, now: float, size: float) -> float:
        """Return when a message of some bytes has arrived that is sent now."""
        self._free = max(self._free, now) + size / self.bandwidth
        return self._free + self.latency


class Emulation:
    """What a transport's engine does with messages that come over a link.

    The link may be another one at any time; messages that it holds are not lost for that.
    """

    def __init__(self, transport: Transport) -> None:
        self.link = Link()
        self._peers = transport.peers
        self._take, self._wait = transport._engine.take_arrived, transport._engine.wait
        self._late = deque[tuple[float, int, list[Buffer]]]()  # taken in this order

    def take_arrived(self) -> list[tuple[int, list[Buffer]]]:
        """Return the messages that are due, with their ranks."""
        now, found = time.monotonic(), list[tuple[int, list[Buffer]]]()
        for source, parts in self._take():
            sent = Envelope(*ForkingPickler.loads(parts[0])).sent + self._peers.offset(source)
            size = sum(memoryview(part).nbytes for part in parts)
            self._late.append((self.link.due(min(sent, now), size), source, parts))
        while self._late and self._late[0][0] <= now:
            _, source, parts = self._late.popleft()
            found.append((source, parts))
        return found

    def wait(self, seconds: float) -> bool:
        """Wait for a message at most until one is due."""
        left = max(self._late[0][0] - time.monotonic(), 0.0) if self._late else seconds
        return self._wait(min(seconds, left))


def emulate(transport: Transport, link: Link | None) -> None:
    """Let all that other ranks send to this one come over a link; over none without one."""
    engine = transport._engine
    own = getattr(engine.take_arrived, "__self__", None)
    if not isinstance(own, Emulation):
        own = Emulation(transport)
        engine.take_arrived = own.take_arrived  # type: ignore[method-assign]
        engine.wait = own.wait  # type: ignore[method-assign]
    own.link = link or Link()


def only_take_time(kind: Any, seconds: Sequence[float]) -> None:
    """Let the steps of a kind take some seconds of each layer on this rank, and compute nothing."""

    def train_step(self: LearnerStep, X: Array, rows: object, **how: object) -> float:
        time.sleep(seconds[self.learner.layer - 1])
        return 0.0

    def hand_up(self: LearnerStep, out: Array) -> bool:
        out.fill(0.5)
        return True

    kind.train_step = train_step
    LearnerStep.hand_up = hand_up  # type: ignore[method-assign]


def pipeline_seconds(
    stages: int, microbatches: int, *, step: float, size: float, link: Link
) -> float:
    """Return the seconds of a minibatch in a 1F1B pipeline with a flush.

    Parameters
    ----------
    stages, microbatches : int
    step : float
        Seconds of a whole minibatch on one stage.
    size : float
        Bytes of the output of a stage for a whole minibatch, and of its gradient.
    link : Link
        Between two neighbours in each direction.
    """
    ended: dict[tuple[str, int, int], float] = {}  # when a pass of a microbatch on a stage was
    free, share = [0.0] * stages, {"F": FORWARD, "B": 1 - FORWARD}
    links = {(way, s): Link(link.bandwidth, link.latency) for way in share for s in range(stages)}
    orders = [_order(stages - stage, microbatches) for stage in range(stages)]
    while any(orders):
        for stage, order in enumerate(orders):
            while order:
                way, number = order[0]
                source = stage - 1 if way == "F" else stage + 1
                if source == -1:
                    begin = 0.0
                elif source == stages:  # the gradient of the loss
                    begin = ended["F", number, stage]
                elif (way, number, source) not in ended:
                    break
                else:
                    begin = links[way, source].due(ended[way, number, source], size / microbatches)
                del order[0]
                free[stage] = max(free[stage], begin) + share[way] * step / microbatches
                ended[way, number, stage] = free[stage]
    return max(free)


def _order(depth: int, microbatches: int) -> list[tuple[str, int]]:
    """Return the passes of a stage in their order, given the stages from it to the last one."""
    ahead = min(depth, microbatches)
    order = [("F", i) for i in range(ahead)]
    for i in range(microbatches):
        order.append(("B", i))
        if ahead + i < microbatches:
            order.append(("F", ahead + i))
    return order
