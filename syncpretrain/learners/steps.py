"""The protocol of a training step, and the steps of a minibatch that is not cut into shards.

A whole step is the gradient and then the update; on a device that has a fused form of contrastive
divergence it is four launches.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Protocol

from syncpretrain.backends.fused import FusedArrays, Pace
from syncpretrain.kernels.arrays import Array, Rows
from syncpretrain.kernels.program import PhaseRunner, in_turn
from syncpretrain.learners.base import Learner
from syncpretrain.learners.rbm import RBM
from syncpretrain.models.layer import Layer
from syncpretrain.rng import Address, Purpose

if TYPE_CHECKING:
    from syncpretrain.backends.cuda_fused import CudaFused


class Step(Protocol):
    """A step of one learner on a minibatch."""

    def train_step(
        self, X: Array, rows: Rows, *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error.

        ``run`` executes the phases of a step that is cut into shards.
        """

    def hand_up(self, out: Array) -> bool:
        """Copy the hidden means from before the update; return False if they must be recomputed.

        They are the means of the positive phase. With dropout, or with noise on the input, these
        are not the means for the plain input: then nothing is copied.
        """

    def state(self) -> dict[str, Array]:
        """Return the next step's inputs except the parameters, by name; live arrays."""

    def restart(self) -> None:
        """Set :meth:`state` back to before the first step."""


class LearnerStep:
    """Base of the steps that have no state besides their learner's.

    Parameters
    ----------
    learner : Learner
        Its parameters are trained.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def hand_up(self, out: Array) -> bool:
        """Copy the hidden means from before the update; return False if they must be recomputed."""
        return self.learner.hand_up(out)

    def state(self) -> dict[str, Array]:
        """Return the state of the learner."""
        return self.learner.state()

    def restart(self) -> None:
        """Set :meth:`state` back to before the first step."""
        self.learner.restart()


class WholeStep(LearnerStep):
    """The gradient of a whole minibatch, then the update."""

    def train_step(
        self, X: Array, rows: Rows, *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        error = self.learner.gradient(X, rows, epoch=epoch, step=step)
        self.learner.update(epoch=epoch)
        return error


@cache
def spaced(count: int, total: int) -> frozenset[int]:
    """Return up to ``count`` whole numbers from 1 to ``total``, spaced by their logarithm."""
    steps = max(count - 1, 1)
    return frozenset(round(total ** (i / steps)) for i in range(count))


class MarkedStep:
    """A step that keeps the layer as it is after some updates, for whoever studies the learning.

    Parameters
    ----------
    step : Step
    learner : Learner
    epochs, count : int
        Epochs of the layer, and how many of its updates are marked.

    Attributes
    ----------
    steps : int
        Minibatches of an epoch; set before the first of them.
    marks : dict of int to Layer
        The layer by the number of updates, as long as nobody has taken it.
    """

    def __init__(self, step: Step, learner: Learner, *, epochs: int, count: int) -> None:
        self._step, self._learner, self._epochs, self._count = step, learner, epochs, count
        self.steps, self.marks = 0, dict[int, Layer]()
        self.hand_up, self.restart, self.state = step.hand_up, step.restart, step.state

    def train_step(
        self, X: Array, rows: Rows, *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        error = self._step.train_step(X, rows, epoch=epoch, step=step, run=run)
        update = (epoch - 1) * self.steps + step + 1
        if update in spaced(self._count, self._epochs * self.steps):
            self.marks[update] = self.snapshot()
        return error

    def snapshot(self) -> Layer:
        """Return a copy of the layer, with the chains of all ranks."""
        if self._learner.settings.chains:
            self._step.state()
        return self._learner.snapshot()


def load_state(learner: Learner, step: Step, snapshot: Layer, state: Mapping[str, Array]) -> None:
    """Go back to a snapshot and to what ``step.state()`` held then; the result is bit-identical.

    Raises
    ------
    ValueError, KeyError
        If they belong to another learner, or to another step.
    """
    learner.restore(snapshot)
    learner.load_arrays(step.state(), state)


class FusedDivergence(LearnerStep):
    """The steps of an RBM by CD-k, each made as a whole by its device.

    Parameters
    ----------
    rbm : RBM
        An RBM without persistent chains, sparsity or dropout.
    fused : CudaFused
        The device's step for its arrays.
    """

    learner: RBM

    def __init__(self, rbm: RBM, fused: CudaFused) -> None:
        super().__init__(rbm)
        self._fused = fused

    def train_step(
        self, X: Array, rows: Rows, *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        rbm, settings = self.learner, self.learner.settings
        addresses = [
            Address(rbm.seed, Purpose.HIDDEN, rbm.layer, epoch, step, k << 32)
            for k in range(settings.cd_steps)
        ]
        draws = [(*address.key, *address.counter) for address in addresses]
        momentum, decay = settings.momentum.at(epoch), settings.weight_decay
        pace = Pace(momentum, rbm.learning_rate, decay, settings.l1)
        given, numbers = (
            (X, rows) if self._fused.takes(X, rows) else (self._gathered(X, rows), None)
        )
        error: float = self._fused(given, numbers, draws, pace)
        return error

    def _gathered(self, X: Array, rows: Rows) -> Array:
        """Return rows in an array of their own."""
        v, *_ = self.learner.buffers
        return self.learner.backend.gather(X, rows, out=v[: len(rows)])  # type: ignore[no-any-return]


def fused_step_of(rbm: RBM) -> FusedDivergence | None:
    """Return the fused steps of an RBM; None where its backend has none for it."""
    v, h, states, _, _ = rbm.buffers
    arrays = FusedArrays(
        tuple(rbm.parameters),
        tuple(rbm.velocities().values()),
        *(v, h, states, rbm.settings.visible_units, rbm.settings.hidden_units),
        rbm.settings.precision,
    )
    fused = rbm.backend.fused_step(arrays)
    return None if fused is None else FusedDivergence(rbm, fused)
