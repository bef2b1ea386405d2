"""Contrastive divergence as whole steps of a device: four launches each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.fused import FusedArrays, FusedStep, Pace
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.program import PhaseRunner, in_turn
from syncpretrain.learners.rbm import RBM
from syncpretrain.learners.steps import LearnerStep
from syncpretrain.rng import Address, Purpose

__all__ = ["FusedDivergence", "fused_step_of"]


class FusedDivergence(LearnerStep):
    """The steps of an RBM by CD-k, each made as a whole by its device.

    Parameters
    ----------
    rbm : RBM
        Without persistent chains, sparsity or dropout.
    fused : FusedStep
        Of its arrays.
    """

    learner: RBM

    def __init__(self, rbm: RBM, fused: FusedStep) -> None:
        super().__init__(rbm)
        self._fused = fused

    def train_step(
        self, X: Array, rows: NDArray[np.intp], *, epoch: int, step: int, run: PhaseRunner = in_turn
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

    def _gathered(self, X: Array, rows: NDArray[np.intp]) -> Array:
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
