"""The ranks of one run, as rank 0 uses them: which layer each holds, and how they end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from syncpretrain.cluster.job import Membership
from syncpretrain.cluster.transport import Handler
from syncpretrain.errors import (
    DivergedError,
    IterableError,
    StalledError,
    WorkerError,
)
from syncpretrain.learners.cursor import Stopped
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining.runtime.ranks.messages import (
    CONTROL,
    DUMP,
    EpochLayer,
    ReplicaPlace,
    RunJob,
    RunOver,
    ServerPlace,
    StreamLayer,
    port,
)
from syncpretrain.pretraining.runtime.split import Split

__all__ = ["RunRanks", "ranks_of_layers"]

RANK_DUMP_SECONDS = 0.3


def ranks_of_layers(widths: Sequence[int], size: int) -> dict[int, int]:
    """Return the rank of each layer, of ranks 1 to ``size - 1``; heavy layers are spread first.

    Parameters
    ----------
    widths : sequence of int
        Values of an example, then the units of each layer.
    size : int
        Ranks, rank 0 included.
    """
    costs = {i: below * own for i, (below, own) in enumerate(pairwise(widths), start=1)}
    loads = dict.fromkeys(range(1, size), 0)
    found: dict[int, int] = {}
    for layer in sorted(costs, key=lambda layer: (-costs[layer], layer)):
        rank = min(loads, key=lambda rank: (loads[rank], rank))
        loads[rank] += costs[layer]
        found[layer] = rank
    return found


class RunRanks:
    """The ranks that hold the layers of one run.

    Parameters
    ----------
    own : Membership
    widths : sequence of int
        Values of an example, then the units of each layer.
    times : Timeouts
        Of which ``join`` is used.

    Attributes
    ----------
    rank : dict of int to int
        The rank of each layer.
    """

    def __init__(self, own: Membership, widths: Sequence[int], times: Timeouts) -> None:
        self._own, self._times = own, times
        self.transport = own.transport
        self.rank = ranks_of_layers(widths, own.transport.size)
        own.runs += 1
        self.run = own.runs
        self._begun: list[int] = []

    def begin(
        self,
        layers: Sequence[EpochLayer | StreamLayer | ReplicaPlace | ServerPlace],
        data: Callable[[Sequence[int]], Split | None],
        blas_threads: int,
        what: str = "layer",
    ) -> None:
        """Send each rank its layers, which are ``what``, and what ``data`` returns for them."""
        for rank in sorted(set(self.rank.values())):
            own = tuple(layer for layer in layers if self.rank[layer.layer] == rank)
            given = data([layer.layer for layer in own])
            job = RunJob(self.run, own, given, blas_threads, self._times)
            self._begun.append(rank)
            numbers = ", ".join(str(layer.layer) for layer in own)
            self._own.describe(rank, f"{what} {numbers} failed: ")
            self.transport.send(rank, CONTROL, job)

    def send(self, layer: int, name: str, thing: Any) -> None:
        """Send something to a port of a layer."""
        self.transport.send(self.rank[layer], port(self.run, name, layer), thing)

    def take(self, name: str, timeout: float, layer: int = 0) -> Any:
        """Return the next thing that came to a port of this rank; None after a time."""
        found = self.transport.take(port(self.run, name, layer), timeout)
        return None if found is None else found[1]

    def listen(self, name: str, handler: Handler) -> None:
        """Have a function called with what arrives at a port of this rank."""
        self.transport.listen(port(self.run, name), handler)

    def stop(self) -> None:
        """Ask every layer to stop after its minibatch."""
        for rank in self._begun:
            self.transport.send(rank, port(self.run, "stop"), None)

    def dump_stacks(self) -> None:
        """Have every other rank write on stderr where its threads stand."""
        for rank in self._begun:
            self.transport.send(rank, DUMP, None)
        time.sleep(RANK_DUMP_SECONDS)  # they write to the same place

    def lost(self, layer: int) -> str | None:
        """Return how the rank of a layer was lost, None if it was not."""
        how = self.transport.lost(self.rank[layer])
        return None if how is None else f"{self.name(layer)} {how}"

    def name(self, layer: int) -> str:
        """Return what a message calls the rank of a layer."""
        return self.transport.peers.name(self.rank[layer])

    def offset(self, layer: int) -> float:
        """Return the seconds to add to times of the layer's rank."""
        return self.transport.peers.offset(self.rank[layer])

    def give_up(self) -> None:
        """Record that a rank does not answer: the job is aborted in the end."""
        self._own.broken = True

    def located(self, error: BaseException, layer: int, epoch: int) -> BaseException:
        """Return an error of a layer with the name of its rank."""
        if isinstance(error, (Stopped, KeyboardInterrupt, IterableError)):
            return error
        where, kind = f"on {self.name(layer)}", type(error).__name__
        if isinstance(error, (DivergedError, StalledError)):
            found: WorkerError = type(error)(f"{error} ({where})")
        else:
            text = f"{kind}: {error}" if type(error) is not WorkerError else str(error)
            found = WorkerError(f"layer {layer} failed in epoch {epoch} {where}: {text}")
        found.__cause__ = error.__cause__
        return found

    def end(self) -> list[str]:
        """End the layers; return the names of the ranks that do not answer in time."""
        waited = {rank for rank in self._begun if self.transport.lost(rank) is None}
        lost = set(self._begun) - waited
        for rank in waited:
            self.transport.send(rank, CONTROL, RunOver(self.run))
        deadline, alive = time.monotonic() + self._times.join, list[str]()
        while waited and (left := deadline - time.monotonic()) > 0:
            found = self.transport.take(port(self.run, "left"), min(left, self._times.tick))
            if found is not None:
                waited.discard(found[0])
                alive += [f"{name} of {self.transport.peers.name(found[0])}" for name in found[1]]
            dead = {rank for rank in waited if self.transport.lost(rank) is not None}
            lost |= dead
            waited -= dead
        self.transport.forget(self.run)
        for rank in self._begun:
            self._own.describe(rank)
        if lost or waited or alive:
            self.give_up()
        return alive + [self.transport.peers.name(rank) for rank in sorted(waited)]
