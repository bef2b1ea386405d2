"""Parameter server whose slices are on ranks, as rank 0 sees it.

Rank 0 has the clock and decides: whether a change is taken, with which share, and what a replica
fetches. Parameters and changes pass between the ranks of the replicas and those of the servers
alone. Every server gets the same decisions in the same order, so that a change is in all slices or
in none, and the result is, bit for bit, that of one server.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from syncpretrain.errors import StalledError, WorkerError
from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas.server import ParameterServer, Push
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining.runtime.ranks.messages import (
    ReportSlice,
    SendSlice,
    ServerPlace,
    ServerRank,
    SetSlice,
    TakeChange,
)

__all__ = ["RankServers"]


class Ranks(Protocol):
    """The interface of the ranks of a run; see ``pretraining/runtime/ranks/run.py``."""

    groups: dict[int, tuple[int, ...]]

    def send(self, layer: int, name: str, thing: Any) -> None:
        """Send something to a port of a replica or server."""
        ...

    def take(self, name: str, timeout: float) -> tuple[int, Any] | None:
        """Return the next thing that came to a port of this rank, and its sender; or None."""
        ...

    def lost(self, layer: int) -> str | None:
        """Return how the rank of a replica or server was lost, None if it was not."""
        ...


class RankServers:
    """A :class:`~syncpretrain.parallel.replicas.server.Server` of replicas by their numbers.

    Parameters
    ----------
    own : ParameterServer
        Of which the parameters here are those of the last :meth:`settle`.
    replicas : int
        Numbered from 1; servers have the numbers after theirs.
    times : Timeouts
        Of which ``stall`` and ``tick`` are used.
    """

    def __init__(self, own: ParameterServer, replicas: int, times: Timeouts) -> None:
        self._own, self._times = own, times
        self._replicas = range(1, replicas + 1)
        self._slices = dict(enumerate(own.slices, start=replicas + 1))
        self._ranks: Ranks | None = None
        self._failure: BaseException | None = None

    def begin(self, ranks: Ranks) -> tuple[tuple[ServerRank, ...], list[ServerPlace]]:
        """Return the servers as replicas have to know them, and what their ranks are sent."""
        self._ranks = ranks
        where = {number: ranks.groups[number][0] for number in self._replicas}
        known = tuple(
            ServerRank(number, ranks.groups[number][0], (own.start, own.stop))
            for number, own in self._slices.items()
        )
        return known, [ServerPlace(number, self._own.rules, where) for number in self._slices]

    def fail(self, error: BaseException) -> None:
        """Keep the error of a server, in the thread of the transport; :meth:`settle` raises it."""
        self._failure = error

    def start(self) -> None:
        """Send every server its slice."""
        mean_square = self._own.mean_square
        for number, own in self._slices.items():
            self._send(number, SetSlice(self._own.parameters[own].copy(), mean_square[own].copy()))

    def end(self) -> None:
        """Leave the ranks, which end with the replicas."""
        self._ranks = None

    def fetch(self, out: int) -> int:
        """Have every server send its slice to a replica; return the clock."""
        self._send_all(SendSlice(out))
        return self._own.clock

    def push(self, change: int, then: int, fetched: int) -> Push:
        """Have every server add its slice of a replica's change, or drop it."""
        push = self._own.decide(then)
        share = self._own.rules.share(push.staleness) if push.is_taken else None
        self._send_all(TakeChange(change, share))
        return push

    def settle(self) -> None:
        """Wait for all changes, and bring the parameters here.

        Raises
        ------
        WorkerError
            If a server has failed, or its rank is lost.
        StalledError
            If a server does not answer.
        """
        self._send_all(ReportSlice())
        missing = set(self._slices)
        deadline = time.monotonic() + self._times.stall
        assert self._ranks is not None
        while missing:
            found = self._ranks.take("reports", self._times.tick)
            if found is not None:
                _, now = found
                own = self._slices[now.server]
                np.copyto(self._own.parameters[own], now.values)
                np.copyto(self._own.mean_square[own], now.mean_square)
                missing.discard(now.server)
                continue
            if self._failure is not None:
                raise self._failure
            for number in missing:
                how = self._ranks.lost(number)
                if how is not None:
                    raise WorkerError(f"parameter server {number - len(self._replicas)}: {how}")
            if time.monotonic() > deadline:
                raise StalledError(
                    f"{len(missing)} parameter servers sent no parameters for"
                    f" {self._times.stall:g} s"
                )

    def state(self) -> dict[str, Array]:
        """Return what the next push depends on, as of the last :meth:`settle`."""
        return self._own.state()

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go back to a state."""
        self._own.load_state(state)
        self._resend()

    def add_late(self, state: Mapping[str, Array]) -> None:
        """Add the changes that wait in a state."""
        self._own.add_late(state)
        self._resend()

    def _resend(self) -> None:
        if self._ranks is not None:
            self.start()

    def _send_all(self, order: Any) -> None:
        for number in self._slices:
            self._send(number, order)

    def _send(self, number: int, order: Any) -> None:
        assert self._ranks is not None
        self._ranks.send(number, "orders", order)
