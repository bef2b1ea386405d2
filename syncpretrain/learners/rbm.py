"""A restricted Boltzmann machine with binary units, trained by contrastive divergence.

A step has two halves, so that averaging can stand between them: :meth:`RBM.gradient` fills the
gradient arrays from a minibatch, :meth:`RBM.update` moves the parameters. All arrays are
allocated in the constructor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.draws import Purpose, generator
from syncpretrain.kernels.activations import affine_sigmoid
from syncpretrain.kernels.contrastive_divergence import (
    gibbs_step,
    momentum_step,
    sample,
    statistics,
)
from syncpretrain.kernels.errors import squared_error
from syncpretrain.settings import MomentumSchedule

__all__ = ["RBM", "RBMSettings", "Snapshot"]

Array = NDArray[np.float32]
INITIAL_SPREAD = 0.01  # standard deviation of the first weights (Hinton 2010, section 8)


@dataclass(frozen=True, slots=True)
class RBMSettings:
    """What one layer's training needs to know."""

    batch_size: int
    learning_rate: float
    momentum: MomentumSchedule
    weight_decay: float
    cd_steps: int
    seed: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An immutable copy of an RBM's parameters: what a version publishes."""

    weight: Array
    hidden_bias: Array
    visible_bias: Array

    def transform(self, X: Array, out: Array) -> None:
        """Fill ``out`` with p(h = 1 | v) of each row of X."""
        affine_sigmoid(X, self.weight, self.hidden_bias, out=out)


class RBM:
    """One layer: ``visible`` to ``hidden`` units.

    Parameters
    ----------
    layer, visible, hidden : int
        Its number in the stack, counted from 1, and its widths.
    settings : RBMSettings
    """

    def __init__(self, layer: int, visible: int, hidden: int, settings: RBMSettings) -> None:
        self.layer = layer
        self.settings = settings
        start = generator(settings.seed, Purpose.WEIGHTS, layer=layer)
        self.weight = start.standard_normal((visible, hidden), dtype=np.float32)
        self.weight *= np.float32(INITIAL_SPREAD)
        self.hidden_bias = np.zeros(hidden, dtype=np.float32)
        self.visible_bias = np.zeros(visible, dtype=np.float32)
        self._parameters = (self.weight, self.visible_bias, self.hidden_bias)
        self._gradients = tuple(np.zeros_like(p) for p in self._parameters)
        self._velocities = tuple(np.zeros_like(p) for p in self._parameters)
        rows = settings.batch_size
        self._v = np.empty((2 * rows, visible), dtype=np.float32)  # v0 above v1
        self._h = np.empty((2 * rows, hidden), dtype=np.float32)  # h0 above h1
        self._states = np.empty((rows, hidden), dtype=np.float32)
        self._uniform = np.empty((rows, hidden), dtype=np.float32)
        self._difference = np.empty((rows, visible), dtype=np.float32)

    def train_step(self, X: Array, rows: NDArray[np.intp], *, epoch: int, step: int) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        np.take(X, rows, axis=0, out=self._v[: len(rows)], mode="clip")  # "raise" would buffer
        error = self.gradient(len(rows), epoch=epoch, step=step)
        self.update(epoch=epoch)
        return error

    def gradient(self, examples: int, *, epoch: int, step: int) -> float:
        """Fill the gradients by CD-k from the examples that lie first in the visible buffer.

        Returns
        -------
        float
            Squared error between the examples and their reconstruction, summed over both.
        """
        v, h = self._v[: 2 * examples], self._h[: 2 * examples]
        v0, v1, h0, h1 = v[:examples], v[examples:], h[:examples], h[examples:]
        W, a, b = self.weight, self.visible_bias, self.hidden_bias
        affine_sigmoid(v0, W, b, out=h0)
        draws = generator(
            self.settings.seed, Purpose.HIDDEN, layer=self.layer, epoch=epoch, step=step
        )
        for k in range(self.settings.cd_steps):
            draws.random(out=self._uniform[:examples], dtype=np.float32)
            states = sample(h1 if k else h0, self._uniform[:examples], out=self._states[:examples])
            gibbs_step(states, W, a, b, v1=v1, h1=h1)
        error = squared_error(v0, v1, out=self._difference[:examples])
        dW, da, db = self._gradients
        statistics(v, h, dW=dW, da=da, db=db)
        return error

    def update(self, *, epoch: int) -> None:
        """Move the parameters along the gradients, with this epoch's momentum."""
        settings = self.settings
        decays = (settings.weight_decay, 0.0, 0.0)  # biases are not decayed (Hinton 2010, 10.1)
        for parameter, gradient, velocity, decay in zip(
            self._parameters, self._gradients, self._velocities, decays, strict=True
        ):
            momentum_step(
                parameter,
                gradient,
                velocity,
                momentum=settings.momentum.at(epoch),
                learning_rate=settings.learning_rate,
                weight_decay=decay,
            )

    def validation_error(self, X: Array) -> float:
        """Return the mean squared error of reconstructing X without sampling."""
        hidden = affine_sigmoid(X, self.weight, self.hidden_bias)
        visible = affine_sigmoid(hidden, self.weight.T, self.visible_bias)
        return squared_error(X, visible, out=visible) / len(X)

    def snapshot(self) -> Snapshot:
        """Copy the parameters."""
        return Snapshot(self.weight.copy(), self.hidden_bias.copy(), self.visible_bias.copy())

    def is_finite(self) -> bool:
        """Return whether every parameter is a finite number."""
        # A sum is finite only if its terms are, and needs no array of flags.
        with np.errstate(all="ignore"):
            return all(bool(np.isfinite(parameter.sum())) for parameter in self._parameters)

    def restore(self, snapshot: Snapshot) -> None:
        """Take the parameters of a snapshot; the velocities start anew."""
        np.copyto(self.weight, snapshot.weight)
        np.copyto(self.hidden_bias, snapshot.hidden_bias)
        np.copyto(self.visible_bias, snapshot.visible_bias)
        for velocity in self._velocities:
            velocity.fill(0)
