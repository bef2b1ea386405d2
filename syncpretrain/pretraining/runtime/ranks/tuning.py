"""The ranks that share a fine-tuning, as rank 0 uses them, which is the first of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from syncpretrain.cluster.group import Group, GroupError
from syncpretrain.cluster.job import member
from syncpretrain.errors import WorkerError
from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.timeouts import Closing, Timeouts
from syncpretrain.pretraining.runtime.layer_process import RemoteTraceback
from syncpretrain.pretraining.runtime.ranks.messages import (
    GiveShare,
    TakeShare,
    TrainShare,
    TunerPlace,
    port,
)
from syncpretrain.pretraining.runtime.ranks.placement import RankShares
from syncpretrain.pretraining.runtime.ranks.run import RunRanks
from syncpretrain.pretraining.runtime.split import Split

__all__ = ["TuningRanks"]

SHARE = 1  # the number of what all ranks hold


class TuningRanks(Closing):
    """Rank 0 and the next ones, as many as there are replicas or ranks.

    Parameters
    ----------
    replicas : int
        Two or more.
    factory : callable
        Returns the :class:`~syncpretrain.pretraining.runtime.ranks.held_tuner.Tuner` of a rank.
    data : tuple of two ndarray
        Inputs and targets, which may be the same.
    blas_threads : int
        Of each rank.
    times : Timeouts
        Of which ``stall`` is how long a message of another rank is waited for.

    Attributes
    ----------
    group : Group
        Of all of them.
    threads : int
        Of each rank.
    """

    def __init__(
        self,
        replicas: int,
        factory: Callable[..., Any],
        data: tuple[Array, Array],
        blas_threads: int,
        times: Timeouts,
    ) -> None:
        super().__init__(times)
        own = member()
        most = min(replicas, own.transport.size)
        self._ranks = RunRanks(own, (1, 1), times, RankShares((most - 1,)))
        every = (own.transport.rank, *self._ranks.groups[SHARE])
        base = port(self._ranks.run, "group", SHARE)
        self.group = Group(own.transport, every, base, times, self._is_lost)
        self.threads = -(-replicas // most)
        self._place = TunerPlace(SHARE, factory, self.threads, group=every)
        inputs, targets = data
        self._data = Split(inputs, targets[:0] if targets is inputs else targets)
        self._blas_threads = blas_threads

    def order(self, order: TrainShare | GiveShare | TakeShare) -> None:
        """Send an order to every other rank; raise GroupError if one was lost."""
        if self._is_lost():
            raise GroupError("a rank was lost")
        self._ranks.send(SHARE, "orders", order)

    def failure(self, error: GroupError, epoch: int) -> WorkerError:
        """Return what ended the exchange with the other ranks, in an epoch."""
        where = f"fine-tuning failed in epoch {epoch}"
        how = self._ranks.lost(SHARE)
        if how is not None:
            return WorkerError(f"{where}: {how}")
        found = self._ranks.take("answers", self._times.drain)
        if found is None:
            return WorkerError(f"{where}: {error}")
        rank, (cause, trace) = found
        name = self._ranks.transport.peers.name(rank)
        failed = WorkerError(f"{where} on {name}: {type(cause).__name__}: {cause}")
        failed.__cause__ = RemoteTraceback(trace) if trace else None
        return failed

    def _is_lost(self) -> bool:
        return self._ranks.lost(SHARE) is not None

    def _open(self) -> None:
        self._ranks.transport.is_eager = True
        own, called = [self._place], "fine-tuning failed: "
        self._ranks.begin(own, lambda layers: self._data, self._blas_threads, called)

    def _close(self) -> list[str]:
        self._ranks.transport.is_eager = False
        return self._ranks.end()
