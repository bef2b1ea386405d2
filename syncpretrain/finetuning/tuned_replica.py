"""A network to fine-tune away from the trainer: a replica, or one rank's share of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from syncpretrain.backends.numpy_backend import NumpyBackend
from syncpretrain.cluster.group import AgreedStop
from syncpretrain.data.order import minibatches, steps_per_epoch
from syncpretrain.finetuning.chain import Link
from syncpretrain.finetuning.data_parallel import network_of
from syncpretrain.finetuning.network_on_ranks import NetworkOnRanks
from syncpretrain.finetuning.optimizers import LEARNING_RATES, optimizer_for, scheduled
from syncpretrain.finetuning.options import TuningOptions, network_options
from syncpretrain.finetuning.trainable import Trainable
from syncpretrain.finetuning.weights import ExampleWeights
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.program import PhaseRunner, in_turn

__all__ = ["TunedReplica", "TunedShare"]

STEPS = "steps"
# Base of the two digits in which float32 keeps a number of steps: its whole numbers end at 2^24,
# and two digits of 2^20 reach 2^40.
STEPS_BASE = 1 << 20


class TunedReplica:
    """A network that trains on its own; see :class:`syncpretrain.parallel.replicas.steps.Replica`.

    Parameters
    ----------
    chain : sequence of Link
    loss : str
    options : TuningOptions
    weights : ndarray of shape (n_examples, 1) or None
    data : sequence of ndarray
        The inputs, and the targets if they are others.
    share : callable, optional
        Argument of :func:`~syncpretrain.finetuning.data_parallel.network_of`.
    run : callable
        Works the phases of a step.
    """

    def __init__(
        self,
        chain: Sequence[Link],
        loss: str,
        options: TuningOptions,
        weights: Array | None,
        data: Sequence[Any],
        *,
        share: Callable[[Any], Trainable] | None = None,
        run: PhaseRunner = in_turn,
    ) -> None:
        self._options, self._backend, self._run = options, NumpyBackend(), run
        self._inputs, self._targets = data[0], data[-1]
        self.network = network_of(
            chain, loss=loss, backend=self._backend, share=share, **network_options(options)
        )
        self.optimizer = optimizer_for(options)(self.network)
        widths = (self._inputs.shape[1], self._targets.shape[1])
        self._batch = [np.empty((options.batch_size, n), np.float32) for n in widths]
        self._weights = ExampleWeights(weights, self.network, self._batch[1].shape)
        self._rate = options.learning_rate or LEARNING_RATES[options.optimizer]
        self._steps = steps_per_epoch(len(self._inputs), options.batch_size)
        self._trained = 0
        self._order: tuple[int, list[Any]] = (0, [])

    @property
    def parameters(self) -> list[Array]:
        """The flat vector of the network."""
        return [self.network.parameters]

    def train(self, epoch: int, step: int) -> tuple[float]:
        """Train on a minibatch of an epoch; return its summed error."""
        rows = self._rows(epoch)[step]
        self._weights.take(rows)
        x = target = self._backend.gather(self._inputs, rows, out=self._batch[0][: len(rows)])
        if self._targets is not self._inputs:
            target = self._backend.gather(self._targets, rows, out=self._batch[1][: len(rows)])
        options = self._options
        done = ((epoch - 1) * self._steps + step) / (options.epochs * self._steps)
        rate = self._rate * scheduled(options.rate_schedule, done)
        self._trained += 1
        error = self.optimizer.train(
            self.network, x, target, rate=rate, epoch=epoch, step=step, run=self._run
        )
        return (float(error),)

    def state(self) -> dict[str, Array]:
        """Return what the optimizer remembers."""
        digits = np.array(divmod(self._trained, STEPS_BASE), np.float32)
        return {**self.optimizer.state(), STEPS: digits}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go back to what :meth:`state` held."""
        self._trained = 0
        for digit in state[STEPS]:  # an older state has a single one, the number
            self._trained = self._trained * STEPS_BASE + int(digit)
        self.optimizer.load_state(state, steps=self._trained)

    def _rows(self, epoch: int) -> list[Any]:
        if self._order[0] != epoch:
            own = self._options
            order = minibatches(
                len(self._inputs), own.batch_size, seed=own.seed, layer=0, epoch=epoch
            )
            self._order = (epoch, list(order))
        return self._order[1]


class TunedShare(TunedReplica):
    """The share of a rank in the steps of a trainer elsewhere; see ``TunerWorker``.

    Parameters
    ----------
    chain, loss, options, weights, data, run
        Arguments of :class:`TunedReplica`.
    shared : AgreedStop
        Stop that all ranks agree on; the trainer's rank is the first.
    """

    def __init__(self, *arguments: Any, shared: AgreedStop, run: PhaseRunner) -> None:
        super().__init__(*arguments, share=partial(NetworkOnRanks, stop=shared), run=run)
        self._stop = shared

    def train_epoch(self, epoch: int, first: int) -> None:
        """Share the steps of an epoch from the ``first``, until all ranks are to stop."""
        for step in range(first, self._steps):
            if self._stop():
                return
            self.train(epoch, step)

    def give_state(self) -> None:
        """Send this rank's part of the optimizer's memory to the trainer's rank."""
        assert isinstance(self.network, NetworkOnRanks)
        self.network.collect(self.optimizer.state().values())

    def take_state(self, parameters: Array, state: Mapping[str, Array], steps: int) -> None:
        """Go on from parameters and the optimizer's whole state after ``steps`` steps."""
        np.copyto(self.network.parameters, parameters)
        self.optimizer.load_state(state, steps=steps)
