"""The ranks of one run, as rank 0 uses them: which layer each holds, and how they end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from syncpretrain.cluster.job import Membership
from syncpretrain.cluster.transport import Handler
from syncpretrain.errors import (
    DivergedError,
    IterableError,
    StalledError,
    WorkerError,
)
from syncpretrain.learners.epoch import Stopped
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.workers.ranks.messages import (
    CONTROL,
    DUMP,
    Assignment,
    RunJob,
    RunOver,
    SentSplit,
    port,
    to_send,
)
from syncpretrain.workers.ranks.placement import UNSHARED, RankShares, groups_of_layers
from syncpretrain.workers.split import Split

__all__ = ["RunRanks"]

RANK_DUMP_SECONDS = 0.3


class RunRanks:
    """The ranks that hold the layers of one run.

    Parameters
    ----------
    own : Membership
    widths : sequence of int
        Values of an example, then the units of each layer.
    times : Timeouts
        Only ``join`` is used.
    shares : RankShares
        How many ranks may share a layer.

    Attributes
    ----------
    groups : dict of int to tuple of int
        The ranks that hold each layer; the first of them answers.
    """

    def __init__(
        self,
        own: Membership,
        widths: Sequence[int],
        times: Timeouts,
        shares: RankShares = UNSHARED,
    ) -> None:
        self._own, self._times = own, times
        self.transport = own.transport
        self.groups = groups_of_layers(widths, own.transport.size, shares)
        # Ports carry the number of the run: a late message of an earlier run reaches nobody.
        own.runs += 1
        self.run = own.runs
        self._begun: list[int] = []

    def begin(
        self,
        layers: Sequence[Assignment],
        data: Callable[[Sequence[int]], Split | None],
        blas_threads: int,
        called: str = "layer {} failed: ",
    ) -> None:
        """Send each rank its layers, and what ``data`` returns for them.

        ``called`` is what the witness says before a rank that dies, with the layers' numbers.
        """
        known: Split | None = None
        sent: SentSplit | None = None
        for rank in sorted({rank for group in self.groups.values() for rank in group}):
            own = tuple(layer for layer in layers if rank in self.groups[layer.layer])
            if not own:  # it only has memory, in a window
                continue
            given = data([layer.layer for layer in own])
            # Packed once for all ranks that get the same data.
            if given is not None and given is not known:
                known, sent = given, to_send(given)
            own_data = sent if given is not None else None
            job = RunJob(self.run, own, own_data, blas_threads, self._times)
            self._begun.append(rank)
            numbers = ", ".join(str(layer.layer) for layer in own)
            self._own.describe(rank, called.format(numbers))
            self.transport.send(rank, CONTROL, job)

    def send(self, layer: int, name: str, thing: Any) -> None:
        """Send something to a port of a layer, on every rank that holds it."""
        for rank in self.groups[layer]:
            self.transport.send(rank, port(self.run, name, layer), thing)

    def send_first(self, layer: int, name: str, thing: Any) -> None:
        """Send something to a port of a layer, on the rank that answers for it."""
        self.transport.send(self.groups[layer][0], port(self.run, name, layer), thing)

    def take(self, name: str, timeout: float, layer: int = 0) -> tuple[int, Any] | None:
        """Return the next thing that came to a port of this rank, and its sender; or None."""
        return self.transport.take(port(self.run, name, layer), timeout)

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
        time.sleep(RANK_DUMP_SECONDS)  # this process writes its own stacks to the same stream next

    def lost(self, layer: int) -> str | None:
        """Return how a rank of a layer was lost, None if none was."""
        for rank in self.groups[layer]:
            how = self.transport.lost(rank)
            if how is not None:
                return f"{self.transport.peers.name(rank)} {how}"
        return None

    def name(self, layer: int) -> str:
        """Return what a message calls the rank that answers for a layer."""
        return self.transport.peers.name(self.groups[layer][0])

    def offset(self, layer: int) -> float:
        """Return the seconds to add to times of the layer's rank."""
        return self.transport.peers.offset(self.groups[layer][0])

    def give_up(self) -> None:
        """Record that a rank does not answer: the job is aborted in the end."""
        self._own.broken = True

    @property
    def is_given_up(self) -> bool:
        """Whether a rank does not answer."""
        return self._own.broken

    def located(self, error: BaseException, layer: int, epoch: int, rank: int) -> BaseException:
        """Return an error of a layer with the name of its rank."""
        if isinstance(error, (Stopped, KeyboardInterrupt, IterableError)):
            return error
        where, kind = f"on {self.transport.peers.name(rank)}", type(error).__name__
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
            # A rank may die while it is waited for: it will not answer.
            dead = {rank for rank in waited if self.transport.lost(rank) is not None}
            lost |= dead
            waited -= dead
        self.transport.forget(self.run)
        for rank in self._begun:
            self._own.describe(rank)
        if lost or waited or alive:
            self.give_up()
        return alive + [self.transport.peers.name(rank) for rank in sorted(waited)]
