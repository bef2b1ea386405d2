"""A fine-tuning shared by ranks: rank 0, which leads it, and the share of every other rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Protocol

import numpy as np

from syncpretrain.cluster.group import Group, GroupError
from syncpretrain.cluster.job import member
from syncpretrain.errors import WorkerError
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.program import Phases
from syncpretrain.parallel.blas import usable_cores
from syncpretrain.parallel.timeouts import Closing, Timeouts
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.workers.child_start import sendable
from syncpretrain.workers.layer_process import RemoteTraceback
from syncpretrain.workers.ranks.messages import (
    GiveShare,
    TakeShare,
    TrainShare,
    TunerAssignment,
    port,
)
from syncpretrain.workers.ranks.placement import RankShares
from syncpretrain.workers.ranks.run import RunRanks
from syncpretrain.workers.ranks.worker import RankWorker
from syncpretrain.workers.split import Split

__all__ = ["Tuner", "TunerWorker", "TuningRanks"]


SHARE = 1  # the number of what all ranks hold


class TuningRanks(Closing):
    """Rank 0 and the next ones, as many as there are replicas or ranks.

    Parameters
    ----------
    replicas : int
        Two or more.
    factory : callable
        Returns the :class:`~syncpretrain.workers.ranks.tuning.Tuner` of a rank.
    data : tuple of two ndarray
        Inputs and targets, which may be the same.
    blas_threads : int
        BLAS threads of each rank.
    times : Timeouts
        Only ``stall`` is used: how long a message of another rank is waited for.

    Attributes
    ----------
    group : Group
        The group of all ranks.
    threads : int
        Threads of each rank.
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
        self._assignment = TunerAssignment(SHARE, factory, self.threads, group=every)
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
        own, called = [self._assignment], "fine-tuning failed: "
        self._ranks.begin(own, lambda layers: self._data, self._blas_threads, called)

    def _close(self) -> list[str]:
        self._ranks.transport.is_eager = False
        return self._ranks.end()


class Tuner(Protocol):
    """The share of a rank: what the factory of a :class:`TunerAssignment` returns.

    The factory is given the data, and by name the group's ``shared`` :class:`AgreedStop` and what
    is to ``run`` phases. Every method is called on all ranks of the group at the same time.
    """

    def train_epoch(self, epoch: int, first: int) -> None:
        """Share the steps of an epoch from the ``first``, until all ranks are to stop."""
        ...

    def give_state(self) -> None:
        """Send the first rank what this one remembers."""
        ...

    def take_state(self, parameters: Array, state: Mapping[str, Array], steps: int) -> None:
        """Go on from parameters and a state after ``steps`` steps."""
        ...


class TunerWorker(RankWorker[TunerAssignment]):
    """A share of a fine-tuning."""

    def work(self) -> None:
        """Obey orders until there are no more; report every failure."""
        try:
            threads = min(self._assignment.threads, usable_cores())  # more only wait for each other
            workers = WorkerPool(threads, "syncpretrain-finetune", self._times)
            with closing(workers) as pool, np.errstate(over="ignore", invalid="ignore"):
                self._obey(pool)
        except BaseException as error:
            if self.is_to_answer(error):
                self.send("answers", sendable(error, 0, 0))

    def _obey(self, pool: WorkerPool) -> None:
        assert isinstance(self._job.data, Split)
        inputs, targets = self._job.data

        def run(phases: Phases, shards: int) -> None:
            pool.run(phases, shards, self._assignment.threads)

        data = (inputs, targets) if len(targets) else (inputs,)
        tuner: Tuner = self._assignment.factory(data, shared=self.agreed, run=run)
        while (order := self.next_order()) is not None:
            if isinstance(order, TakeShare):
                tuner.take_state(order.parameters, order.optimizer, order.steps)
            elif isinstance(order, GiveShare):
                tuner.give_state()
            else:
                tuner.train_epoch(order.epoch, order.first)
