"""Trainer that shares its minibatches with other ranks, and its optimizer, which leads theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from syncpretrain.cluster.group import AgreedStop, GroupError
from syncpretrain.finetuning.network_on_ranks import NetworkOnRanks
from syncpretrain.finetuning.optimizers import Optimizer
from syncpretrain.finetuning.options import TuningOptions
from syncpretrain.finetuning.state import FinetuneState
from syncpretrain.finetuning.trainable import Trainable
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.program import PhaseRunner, in_turn
from syncpretrain.models.stack import Stack
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.workers.ranks.messages import GiveShare, TakeShare, TrainShare
from syncpretrain.workers.ranks.tuning import TuningRanks

__all__ = ["OptimizerOnRanks", "TrainerOnRanks"]


class OptimizerOnRanks:
    """An optimizer that is spread over ranks: each remembers a slice; see ``Optimizer``.

    The other ranks get one order an epoch, and leave the epoch early where all ranks agree on a
    stop. So nothing but the next order has to end an epoch.

    Parameters
    ----------
    build : callable
        Returns the optimizer of this rank.
    ranks : TuningRanks
    network : NetworkOnRanks
    """

    def __init__(
        self, build: Callable[[Trainable], Optimizer], ranks: TuningRanks, network: Trainable
    ) -> None:
        assert isinstance(network, NetworkOnRanks)
        self._own, self._ranks, self._network = build(network), ranks, network
        self._epoch = 0  # the last one ordered

    @property
    def steps(self) -> int:
        """Number of steps taken."""
        return self._own.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._own.steps = steps

    def numbers(self, rate: float, steps: int) -> tuple[float, ...]:
        """Return the numbers that a step computes with; see ``Optimizer``."""
        return self._own.numbers(rate, steps)

    def train(
        self,
        network: Trainable,
        x: Array,
        target: Array,
        *,
        rate: float,
        epoch: int,
        step: int,
        run: PhaseRunner = in_turn,
    ) -> float:
        """Move the parameters, on every rank; return the error before that."""
        with self._failures_elsewhere():
            # Once an epoch: from there the other ranks count the steps themselves, draw the same
            # order of rows, and meet this one in each step's exchange.
            if epoch != self._epoch:
                self._epoch = epoch
                self._ranks.order(TrainShare(epoch, step))
            return self._own.train(network, x, target, rate=rate, epoch=epoch, step=step, run=run)

    def state(self) -> dict[str, Array]:
        """Return the memory of all ranks, collected from the slice of each."""
        found = self._own.state()
        # The order comes first: collect is a gathering, in which every rank has to take part.
        with self._failures_elsewhere():
            self._ranks.order(GiveShare())
            self._network.collect(found.values())
        return found

    def load_state(self, state: Mapping[str, Array], *, steps: int) -> None:
        """Go back to what :meth:`state` held, on all ranks, with this rank's parameters."""
        self._own.load_state(state, steps=steps)
        with self._failures_elsewhere():
            self._ranks.order(TakeShare(self._network.parameters.copy(), state, steps))

    @contextmanager
    def _failures_elsewhere(self) -> Iterator[None]:
        """Raise what went wrong on another rank."""
        try:
            yield
        except GroupError as error:
            raise self._ranks.failure(error, self._epoch) from None


class TrainerOnRanks:
    """One fine-tuning that shares its minibatches with other ranks.

    Parameters
    ----------
    build, share : callable
        Builders of the trainer, as ``Trainer``, and of another rank's share, as ``TunedShare``.
    task, examples, validation, options, optimizer, others
        Arguments of the trainer.
    times : Timeouts
        Seconds that the ranks wait for each other.
    blas_threads : int
        BLAS threads of each rank.
    """

    def __init__(
        self,
        build: Callable[..., Any],
        share: Callable[..., Any],
        task: Any,
        examples: Any,
        validation: Any,
        options: TuningOptions,
        optimizer: Callable[[Trainable], Optimizer],
        *,
        times: Timeouts,
        blas_threads: int,
        **others: Any,
    ) -> None:
        factory = partial(share, task.chain(), task.loss, options, others["weights"])
        self._ranks = ranks = TuningRanks(
            options.replicas or 1, factory, examples, blas_threads, times
        )
        run, agreed = others["run_in_pool"], AgreedStop(ranks.group, others["stop"])
        others |= {"stop": agreed, "share": partial(NetworkOnRanks, stop=agreed)}
        others["run_in_pool"] = lambda phases, shards, _: run(phases, shards, ranks.threads)
        leading = partial(OptimizerOnRanks, optimizer, ranks)
        self._trainer = build(task, examples, validation, options, leading, **others)

    def train(self, record: Mapping[str, Any], resume: FinetuneState | None = None) -> Stack:
        """Train with the other ranks; see ``Trainer.train``."""
        with self._ranks:
            tuned: Stack = self._trainer.train(record, resume)
        return tuned
