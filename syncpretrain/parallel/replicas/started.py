"""Replicas that are started and ended together, wherever they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas.pool import Channel
from syncpretrain.parallel.replicas.server import ParameterServer, Server
from syncpretrain.parallel.replicas.steps import ReplicaFactory
from syncpretrain.parallel.timeouts import Timeouts

__all__ = ["Started", "StartedReplicas"]

Started = Sequence[tuple[Channel, Any, Any]]  # of each: its channel, and its two vectors


class StartedReplicas(ABC):
    """Replicas of one fleet.

    Parameters
    ----------
    server : ParameterServer
    factory : callable
        Returns a replica, given the data.
    data : sequence of ndarray of shape (rows, width)
    replicas : int
    times : Timeouts
    """

    def __init__(
        self,
        server: ParameterServer,
        factory: ReplicaFactory,
        data: Sequence[Array],
        replicas: int,
        times: Timeouts,
    ) -> None:
        self._parameters, self._size = server, len(server.parameters)
        self._factory, self._data = factory, tuple(data)
        self._replicas, self._times = replicas, times

    @property
    def server(self) -> Server[Any]:
        """The server that their vectors are for."""
        return self._parameters

    @abstractmethod
    def start(self) -> Started:
        """Start them; return channel and vectors of each."""

    @abstractmethod
    def end(self) -> None:
        """End them.

        Raises
        ------
        StalledError
            If one does not end in time.
        """
