"""A rank's share of a fine-tuning that rank 0 leads: an epoch an order."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Protocol

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.program import Phases
from syncpretrain.parallel.blas import usable_cores
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.pretraining.runtime.child_loop import sendable
from syncpretrain.pretraining.runtime.ranks.layers import HeldLayer
from syncpretrain.pretraining.runtime.ranks.messages import GiveShare, TakeShare, TunerPlace
from syncpretrain.pretraining.runtime.split import Split

__all__ = ["HeldTuner", "Tuner"]


class Tuner(Protocol):
    """What the factory of a :class:`TunerPlace` returns, for the ranks of a group.

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


class HeldTuner(HeldLayer[TunerPlace]):
    """A share of a fine-tuning."""

    def work(self) -> None:
        """Obey orders until there are no more; report every failure."""
        try:
            threads = min(self._place.threads, usable_cores())  # more only wait for each other
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
            pool.run(phases, shards, self._place.threads)

        data = (inputs, targets) if len(targets) else (inputs,)
        tuner: Tuner = self._place.factory(data, shared=self.agreed, run=run)
        while (order := self.next_order()) is not None:
            if isinstance(order, TakeShare):
                tuner.take_state(order.parameters, order.optimizer, order.steps)
            elif isinstance(order, GiveShare):
                tuner.give_state()
            else:
                tuner.train_epoch(order.epoch, order.first)
