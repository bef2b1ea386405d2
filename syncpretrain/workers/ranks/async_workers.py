"""The ranks of an asynchronous run: a replica, and a server of a slice of the parameters.

A replica gets a task an order. A server executes what rank 0 decides, in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas.pool import Failed
from syncpretrain.parallel.replicas.server import Push, ServerSlice
from syncpretrain.parallel.replicas.steps import LocalSteps, Work, Worked, answer
from syncpretrain.workers.child_start import sendable
from syncpretrain.workers.ranks.messages import (
    ReplicaAnswer,
    ReplicaAssignment,
    SendSlice,
    ServerAssignment,
    ServerRank,
    SetSlice,
    SliceOf,
    TakeChange,
    port,
)
from syncpretrain.workers.ranks.parameter_windows import ParameterWindows, WindowPlaces
from syncpretrain.workers.ranks.worker import RankWorker

__all__ = ["ReplicaWorker", "ServerWorker"]


class ReplicaWorker(RankWorker[ReplicaAssignment]):
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
        assignment = self._assignment
        fetched, change = (np.empty(assignment.size, np.float32) for _ in range(2))
        steps = LocalSteps(assignment.factory(assignment.data), fetched, change)
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
        servers = self._assignment.servers
        if isinstance(servers, WindowPlaces):
            return _InWindows(ParameterWindows(self._transport.windows, servers))
        return _WithServers(self, servers) if servers else None

    def send_change(self, server: ServerRank, part: SliceOf) -> None:
        """Send a server its slice of a change."""
        to = port(self._job.run, f"change {server.number}", self.number)
        self._transport.send(server.rank, to, part)


class _WithServers:
    """Exchange of slices with servers on ranks."""

    def __init__(self, held: ReplicaWorker, servers: Sequence[ServerRank]) -> None:
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


class ServerWorker(RankWorker[ServerAssignment]):
    """Serves a slice of the parameters: replicas fetch it, and send their changes of it.

    A replica's change is on its way before rank 0 knows of it, so waiting for one that rank 0 has
    decided about ends.
    """

    def work(self) -> None:
        """Obey orders until there are no more; report every failure."""
        self._slice: ServerSlice | None = None
        self._sent: dict[int, Array] = {}  # to each replica last, for the compensation
        try:
            while (order := self.next_order()) is not None:
                self._obey(order)
        except BaseException as error:
            failed = Failed(*sendable(error, 0, 0))
            self.send("answers", ReplicaAnswer(self.number, failed))

    def _obey(self, order: Any) -> None:
        if isinstance(order, SetSlice):
            own = (np.array(order.parameters), np.array(order.mean_square))
            self._slice = ServerSlice(*own, self._assignment.rules)
            return
        part = self._slice
        assert part is not None
        if isinstance(order, SendSlice):
            values = self._sent[order.replica] = part.parameters.copy()
            to = port(self._job.run, "slices", order.replica)
            rank = self._assignment.replicas[order.replica]
            self._transport.send(rank, to, SliceOf(self.number, values))
        elif isinstance(order, TakeChange):
            found = self.take(f"change {self.number}", order.replica)
            if found is not None and order.share is not None:
                part.add(np.array(found.values), order.share, self._sent[order.replica])
        else:
            report = SliceOf(self.number, part.parameters.copy(), part.mean_square.copy())
            self.send("reports", report)
