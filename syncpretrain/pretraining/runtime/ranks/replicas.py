"""Replicas of asynchronous training on the ranks of a job, of which rank 0 is the server.

What goes to and fro are the parameters with an order that fetches, and the change with an answer. A
rank that is lost ends the run, as MPI ends the job; its checkpoint goes on.
"""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from syncpretrain.cluster.job import member
from syncpretrain.errors import StalledError, WorkerError
from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas.pool import Failed
from syncpretrain.parallel.replicas.steps import ReplicaFactory, Work
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining.runtime.layer_process import RemoteTraceback
from syncpretrain.pretraining.runtime.ranks.messages import (
    ReplicaAnswer,
    ReplicaOrder,
    ReplicaPlace,
)
from syncpretrain.pretraining.runtime.ranks.run import RunRanks

__all__ = ["RankReplicas"]


class _RankChannel:
    """A replica on a rank, as the loop of the server sees it.

    Messages arrive in the thread of the transport; the pipe only says that there is one, so that
    many replicas can be waited for together.
    """

    def __init__(self, number: int, size: int, ranks: RunRanks) -> None:
        self.fetched, self.change = (np.empty(size, np.float32) for _ in range(2))
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
        fetches = isinstance(order, Work) and order.fetches
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
        if isinstance(found.answer, Failed) and found.answer.trace:
            found.answer.error.__cause__ = RemoteTraceback(found.answer.trace)
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


class RankReplicas:
    """Replicas on ranks that are started and ended together.

    Parameters
    ----------
    size : int
        Number of parameters.
    factory : callable
        Returns a replica, given the data.
    data : sequence of ndarray
    replicas : int
        Of which a rank has several if there are fewer ranks.
    times : Timeouts
    """

    def __init__(
        self,
        size: int,
        factory: ReplicaFactory,
        data: Sequence[Array],
        replicas: int,
        times: Timeouts,
    ) -> None:
        self._size, self._factory, self._data = size, factory, tuple(data)
        self._replicas, self._times = replicas, times
        self._ranks: RunRanks | None = None
        self._channels: list[_RankChannel] = []

    def start(self) -> list[tuple[_RankChannel, Array, Array]]:
        """Start them; return channel and vectors of each."""
        numbers = range(1, self._replicas + 1)
        ranks = self._ranks = RunRanks(member(), (1,) * (self._replicas + 1), self._times)
        channels = self._channels = [_RankChannel(n, self._size, ranks) for n in numbers]
        ranks.listen("answers", lambda source, found: channels[found.number - 1].record(found))
        places = [ReplicaPlace(n, self._factory, self._data, self._size) for n in numbers]
        ranks.begin(places, lambda layers: None, 1, what="replica")
        return [(channel, channel.fetched, channel.change) for channel in channels]

    def end(self) -> None:
        """End them."""
        alive = [] if self._ranks is None else self._ranks.end()
        for channel in self._channels:
            channel.close()
        self._channels, self._ranks = [], None
        if alive:
            raise StalledError(f"{', '.join(alive)} did not end")
