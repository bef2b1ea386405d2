"""A replica of asynchronous training on a rank: a task an order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas.pool import Failed
from syncpretrain.parallel.replicas.server import Push
from syncpretrain.parallel.replicas.steps import LocalSteps, Work, Worked, answer
from syncpretrain.pretraining.runtime.child_loop import sendable
from syncpretrain.pretraining.runtime.ranks.layers import HeldLayer
from syncpretrain.pretraining.runtime.ranks.messages import (
    ReplicaAnswer,
    ReplicaPlace,
    ServerRank,
    SliceOf,
    port,
)
from syncpretrain.pretraining.runtime.ranks.parameter_windows import ParameterWindows, WindowPlaces

__all__ = ["HeldReplica"]


class HeldReplica(HeldLayer[ReplicaPlace]):
    """A replica, which gets parameters and answers with changes of them.

    It exchanges them with rank 0, in its orders and answers; or slices of them with the servers; or
    through windows.
    """

    def work(self) -> None:
        """Obey orders until there are no more; report every failure."""
        try:
            self._obey()
        except BaseException as error:
            failed = Failed(*sendable(error, 0, 0))
            self.send("answers", ReplicaAnswer(self.number, failed))

    def _obey(self) -> None:
        place = self._place
        fetched, change = (np.empty(place.size, np.float32) for _ in range(2))
        steps = LocalSteps(place.factory(place.data), fetched, change)
        exchange = self._exchange()
        while (order := self.next_order()) is not None:
            if order.fetched is not None:
                np.copyto(fetched, order.fetched)
            fetches = isinstance(order.order, Work) and order.order.fetches
            if fetches and exchange is not None and not exchange.fetch(fetched):
                return
            found, push = answer(steps, order.order), None
            made = change if isinstance(found, Worked) else None
            if made is not None and exchange is not None:
                push = exchange.push(made)
                made = None
            # It stays as it is until the next order, which comes when rank 0 has it.
            self.send("answers", ReplicaAnswer(self.number, found, made, push))

    def _exchange(self) -> _WithServers | _InWindows | None:
        """Return how parameters and changes go to and fro, unless by orders and answers."""
        servers = self._place.servers
        if isinstance(servers, WindowPlaces):
            return _InWindows(ParameterWindows(self._transport.windows, servers))
        return _WithServers(self, servers) if servers else None

    def send_change(self, server: ServerRank, part: SliceOf) -> None:
        """Send a server its slice of a change."""
        to = port(self._job.run, f"change {server.number}", self.number)
        self._transport.send(server.rank, to, part)


class _WithServers:
    """Exchange of slices with servers on ranks."""

    def __init__(self, held: HeldReplica, servers: Sequence[ServerRank]) -> None:
        self._held, self._servers = held, servers

    def fetch(self, out: Array) -> bool:
        """Take the slices of the parameters; return False if the run ends first."""
        parts = {server.number: slice(*server.own) for server in self._servers}
        for _ in parts:
            found = self._held.take("slices", self._held.number)
            if found is None:
                return False
            out[parts[found.server]] = found.values
        return True

    def push(self, change: Array) -> None:
        """Send each server its slice of a copy: the next change may be there before it is sent."""
        whole = change.copy()
        for server in self._servers:
            part = SliceOf(server.number, whole[slice(*server.own)])
            self._held.send_change(server, part)


class _InWindows:
    """Exchange through windows."""

    def __init__(self, parameters: ParameterWindows) -> None:
        self._parameters, self._known = parameters, 0

    def fetch(self, out: Array) -> bool:
        """Fetch the parameters, and the clock."""
        self._known = self._parameters.fetch(out)
        return True

    def push(self, change: Array) -> Push:
        """Add a share of the change, which is used up."""
        push = self._parameters.push(change, self._known)
        self._known += push.is_taken  # of its own push it knows
        return push
