"""A link between ranks that is emulated: messages come one after the other, and late."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler

from syncpretrain.cluster.engine import Buffer, Envelope
from syncpretrain.cluster.transport import Transport

__all__ = ["Link", "emulate"]


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

    def due(self, now: float, size: int) -> float:
        """Return when a message of some bytes has arrived that is sent now."""
        self._free = max(self._free, now) + size / self.bandwidth
        return self._free + self.latency


def emulate(transport: Transport, link: Link | None) -> None:
    """Let all that other ranks send to this one come over a link; over none without one."""
    engine, peers = transport._engine, transport.peers
    vars(engine).pop("take_arrived", None)
    vars(engine).pop("wait", None)
    if link is None:
        return
    own, take, wait = link, engine.take_arrived, engine.wait
    late = deque[tuple[float, int, list[Buffer]]]()  # due in this order

    def take_late() -> list[tuple[int, list[Buffer]]]:
        now, found = time.monotonic(), list[tuple[int, list[Buffer]]]()
        for source, parts in take():
            sent = Envelope(*ForkingPickler.loads(parts[0])).sent + peers.offset(source)
            size = sum(memoryview(part).nbytes for part in parts)
            late.append((own.due(min(sent, now), size), source, parts))
        while late and late[0][0] <= now:
            _, source, parts = late.popleft()
            found.append((source, parts))
        return found

    def wait_for_late(seconds: float) -> bool:
        left = max(late[0][0] - time.monotonic(), 0.0) if late else seconds
        return wait(min(seconds, left))

    engine.take_arrived = take_late  # type: ignore[method-assign]
    engine.wait = wait_for_late  # type: ignore[method-assign]
