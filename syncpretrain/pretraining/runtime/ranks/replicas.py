"""Replicas of asynchronous training on the ranks of a job, of which rank 0 is the server.

What goes to and fro are the parameters with an order that fetches, and the change with an answer;
with several servers they have ranks too, and replicas exchange slices of both with them. With
windows, replicas reach into the memory where the parameters are, without a server. A rank that is
lost ends the run, as MPI ends the job; the run resumes from its checkpoint.
"""

from __future__ import annotations

import multiprocessing
import queue
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from syncpretrain.cluster.job import member
from syncpretrain.errors import StalledError, WorkerError
from syncpretrain.parallel.replicas.pool import Failed, Started, StartedReplicas
from syncpretrain.parallel.replicas.server import ParameterServer, Server
from syncpretrain.parallel.replicas.steps import Work
from syncpretrain.pretraining.runtime.layer_process import RemoteTraceback
from syncpretrain.pretraining.runtime.ranks.messages import (
    ReplicaAnswer,
    ReplicaOrder,
    ReplicaPlace,
    ServerPlace,
)
from syncpretrain.pretraining.runtime.ranks.run import RunRanks
from syncpretrain.pretraining.runtime.ranks.servers import RankServers
from syncpretrain.pretraining.runtime.ranks.window_server import WindowServer

__all__ = ["RankReplicas", "WindowReplicas"]


class _RankChannel:
    """A replica on a rank, as the loop of the server sees it.

    Messages arrive in the thread of the transport; the pipe only says that there is one, so that
    many replicas can be waited for together.
    """

    def __init__(self, number: int, size: int, ranks: RunRanks) -> None:
        self.fetched, self.change = (np.empty(size, np.float32) for _ in range(2))
        self._is_server = bool(size)  # whether rank 0 has the parameters
        self._number, self._ranks = number, ranks
        ours, self._theirs = multiprocessing.Pipe()
        self.channel: Connection | None = ours
        self._answers: queue.SimpleQueue[ReplicaAnswer] = queue.SimpleQueue()

    @property
    def has_ended(self) -> bool:
        """Whether its rank was lost."""
        return self._ranks.lost(self._number) is not None

    def send(self, order: Any) -> None:
        """Send an order, with the parameters if it fetches them."""
        fetches = self._is_server and isinstance(order, Work) and order.fetches
        fetched = self.fetched if fetches else None
        self._ranks.send(self._number, "orders", ReplicaOrder(order, fetched))

    def record(self, answer: ReplicaAnswer) -> None:
        """Keep an answer, in the thread of the transport."""
        self._answers.put(answer)
        self._theirs.send_bytes(b".")

    def receive(self) -> Any:
        """Return the next answer, and fill the change.

        Raises
        ------
        WorkerError
            If its rank was lost: the job is at its end.
        """
        assert self.channel is not None
        if not self.channel.poll():
            raise WorkerError(f"replica {self._number} failed: {self.ending()}")
        self.channel.recv_bytes()
        found = self._answers.get()
        if found.change is not None:
            np.copyto(self.change, found.change)
        return found.answer

    def ending(self) -> str:
        """Return how its rank was lost."""
        return str(self._ranks.lost(self._number))

    def close(self) -> None:
        """Close the pipe; nothing comes any more."""
        if self.channel is not None:
            self.channel.close()
            self._theirs.close()
            self.channel = None


class RankReplicas(StartedReplicas):
    """Replicas on ranks, of which one has several if there are fewer; servers as well."""

    def __init__(self, server: ParameterServer, *arguments: Any) -> None:
        super().__init__(server, *arguments)
        self._ranks: RunRanks | None = None
        self._channels: list[_RankChannel] = []
        self._servers: RankServers | WindowServer | None = None
        if len(server.slices) > 1:
            self._servers = RankServers(server, self._replicas, self._times)

    @property
    def server(self) -> Server[Any]:
        """The server: here, or on ranks."""
        return self._parameters if self._servers is None else self._servers

    def start(self) -> Started:
        """Start them; return channel of each, and its vectors or twice its number."""
        numbers, servers = range(1, self._replicas + 1), self._servers
        slices = len(self._parameters.slices)
        count = self._replicas + (slices if slices > 1 else 0)
        ranks = self._ranks = RunRanks(member(), (1,) * (count + 1), self._times)
        size = self._size if servers is None else 0
        channels = self._channels = [_RankChannel(n, size, ranks) for n in numbers]
        ranks.listen("answers", lambda source, found: self._record(found))
        known, others = ((), list[ServerPlace]()) if servers is None else servers.begin(ranks)
        places = [ReplicaPlace(n, self._factory, self._data, self._size, known) for n in numbers]
        ranks.begin([*places, *others], lambda layers: None, 1, called="replica {} failed: ")
        if servers is not None:  # which know replicas by their numbers
            return [(channel, n, n) for n, channel in zip(numbers, channels, strict=True)]
        return [(channel, channel.fetched, channel.change) for channel in channels]

    def end(self) -> None:
        """End them."""
        alive = [] if self._ranks is None else self._ranks.end()
        for channel in self._channels:
            channel.close()
        self._channels, self._ranks = [], None
        if alive:
            raise StalledError(f"{', '.join(alive)} did not end")

    def _record(self, found: ReplicaAnswer) -> None:
        """Keep an answer of a replica; the failure of a server is that of all."""
        is_server = found.number > self._replicas
        if isinstance(found.answer, Failed):
            found = replace(found, answer=self._placed(found.answer, found.number, is_server))
        if not is_server:
            self._channels[found.number - 1].record(found)
            return
        if isinstance(self._servers, RankServers) and isinstance(found.answer, Failed):
            self._servers.fail(found.answer.error)
        for channel in self._channels:
            channel.record(found)

    def _placed(self, failed: Failed, number: int, is_server: bool) -> Failed:
        """Return a failure with the name of its rank, and the traceback that came with it."""
        assert self._ranks is not None
        error, rank = failed.error, self._ranks.groups[number][0]
        place = self._ranks.transport.peers.name(rank)
        if is_server:
            kind = type(error).__name__
            error = WorkerError(f"a parameter server failed on {place}: {kind}: {error}")
        error.__cause__ = RemoteTraceback(failed.trace) if failed.trace else None
        return replace(failed, error=error, place="" if is_server else place)


class WindowReplicas(RankReplicas):
    """Replicas on ranks that exchange parameters through windows."""

    def __init__(self, server: ParameterServer, *arguments: Any) -> None:
        super().__init__(server, *arguments)
        self._servers = self._windows = WindowServer(server, self._replicas)

    def _record(self, found: ReplicaAnswer) -> None:
        """Keep an answer, and what became of a push."""
        if found.push is not None:
            self._windows.record(found.number, found.push)
        super()._record(found)
