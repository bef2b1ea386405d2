"""Trainers whose minibatches are trained elsewhere: by replicas, or with other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from syncpretrain.cluster.group import AgreedStop
from syncpretrain.finetuning.asynchronous import OptimizersOfReplicas, async_epoch, fleet_of
from syncpretrain.finetuning.on_ranks import OptimizerOnRanks
from syncpretrain.finetuning.state import FinetuneState
from syncpretrain.finetuning.trainable import Trainable
from syncpretrain.finetuning.trainer import Trainer
from syncpretrain.finetuning.tuned_replica import TunedReplica, TunedShare
from syncpretrain.learners.cursor import Cursor
from syncpretrain.models.stack import Stack
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining.runtime.ranks.tuning import TuningRanks

__all__ = ["AsyncTrainer", "RanksTrainer"]


class AsyncTrainer(Trainer):
    """The training of one asynchronous fine-tuning; its parameters are those of :class:`Trainer`.

    ``times`` is how long the server waits for the replicas.
    """

    def __init__(self, *arguments: Any, times: Timeouts, **options: Any) -> None:
        self._times, self._given = times, options.get("weights")
        task, examples, validation, own = arguments[:4]
        super().__init__(task, examples, validation, own, self._fleet_of, **options)

    def train(self, record: Mapping[str, Any], resume: FinetuneState | None = None) -> Stack:
        """Train with the replicas, which live as long; see :meth:`Trainer.train`."""
        with self.fleet:
            return super().train(record, resume)

    def train_epoch(self, epoch: int, begin: Cursor) -> float:
        """Train on every minibatch once; return their mean error, each before its update."""
        return async_epoch(self, self.fleet, epoch, begin) / len(self.examples.inputs)

    def _fleet_of(self, network: Trainable) -> OptimizersOfReplicas:
        task, own, (inputs, targets) = self.task, self.options, self.examples
        build = partial(TunedReplica, task.chain(), task.loss, own, self._given)
        data = (inputs,) if targets is inputs else (inputs, targets)
        self.fleet = fleet_of(build, network, own, data, self.emit, self._times)
        return OptimizersOfReplicas(self.fleet)


class RanksTrainer(Trainer):
    """The training of one fine-tuning whose minibatches ranks share; as :class:`Trainer`.

    ``times`` is how long they wait for each other, ``blas_threads`` those of each.
    """

    def __init__(self, *arguments: Any, times: Timeouts, blas_threads: int, **options: Any) -> None:
        task, examples, held_out, own, build = arguments
        factory = partial(TunedShare, task.chain(), task.loss, own, options["weights"])
        self._ranks = ranks = TuningRanks(own.replicas, factory, examples, blas_threads, times)
        run, agreed = options["run_in_pool"], AgreedStop(ranks.group, options["stop"])
        options |= {"stop": agreed, "shared": agreed}
        options["run_in_pool"] = lambda phases, shards, _: run(phases, shards, ranks.threads)
        optimizer = partial(OptimizerOnRanks, build, ranks)
        super().__init__(task, examples, held_out, own, optimizer, **options)

    def train(self, record: Mapping[str, Any], resume: FinetuneState | None = None) -> Stack:
        """Train with the other ranks; see :meth:`Trainer.train`."""
        with self._ranks:
            return super().train(record, resume)
