"""An autoencoder of one hidden layer: plain, denoising or contractive, tied or untied."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.draws import Address, Purpose
from syncpretrain.kernels.activations import affine, times_derivative
from syncpretrain.kernels.autoencoder import contraction, corrupt
from syncpretrain.kernels.backprop import output_delta
from syncpretrain.learners.base import Learner, LearnerSettings

__all__ = ["Autoencoder", "AutoencoderSettings"]

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoencoderSettings(LearnerSettings):
    """What one autoencoder's training needs to know.

    ``loss`` is "squared" or "cross-entropy". ``corruption`` is None, or the kind of noise and its
    amount (Vincent et al. 2010); ``contraction`` the weight of the penalty on the Jacobian of the
    code (Rifai et al. 2011).
    """

    tied: bool = True
    loss: str = "squared"
    corruption: tuple[str, float] | None = None
    contraction: float = 0.0


class Autoencoder(Learner):
    """One layer that reconstructs its input from ``hidden`` units; see :class:`Learner`."""

    model = "autoencoder"

    def __init__(
        self, layer: int, visible: int, hidden: int, settings: AutoencoderSettings
    ) -> None:
        spread = math.sqrt(2 / (visible + hidden))  # Glorot and Bengio 2010
        super().__init__(layer, visible, hidden, settings, spread=spread, tied=settings.tied)
        self.settings = settings
        rows = settings.batch_size
        self._x, self._z, self._y, self._y_delta = (
            np.empty((rows, visible), dtype=np.float32) for _ in range(4)
        )
        self._h, self._h_delta = (np.empty((rows, hidden), dtype=np.float32) for _ in range(2))
        if settings.tied:
            self._decoding_gradient = np.empty((hidden, visible), dtype=np.float32)

    def gradient(self, X: Array, rows: NDArray[np.intp], *, epoch: int, step: int) -> float:
        """Fill the gradients with the way down the loss on some rows of X.

        Returns
        -------
        float
            Squared error between the examples and their reconstruction, summed over both.
        """
        n, settings = len(rows), self.settings
        x, y, h = self._x[:n], self._y[:n], self._h[:n]
        y_delta, h_delta = self._y_delta[:n], self._h_delta[:n]
        np.take(X, rows, axis=0, out=x, mode="clip")
        z = self._corrupted(x, epoch, step)
        decoding = self.weight.T if self.decoder_weight is None else self.decoder_weight
        affine(z, self.weight, self.hidden_bias, settings.hidden_units, out=h)
        affine(h, decoding, self.visible_bias, settings.visible_units, out=y)
        error = output_delta(x, y, settings.visible_units, settings.loss, out=y_delta)
        np.matmul(y_delta, decoding.T, out=h_delta)
        self._fill(z, h, y_delta, h_delta)
        return error

    def _corrupted(self, x: Array, epoch: int, step: int) -> Array:
        if self.settings.corruption is None:
            return x
        z = self._z[: len(x)]
        np.copyto(z, x)
        address = Address(self.seed, Purpose.CORRUPTION, self.layer, epoch, step, self.shard)
        corrupt(z, *self.settings.corruption, address.generator())
        return z

    def _fill(self, z: Array, h: Array, y_delta: Array, h_delta: Array) -> None:
        """Fill the gradients, as the way down: minus the derivative of the loss."""
        dW, da, db, *dU = self._gradients
        settings = self.settings
        np.matmul(h.T, y_delta, out=dU[0] if dU else self._decoding_gradient)
        np.sum(y_delta, axis=0, out=da)
        penalty = None
        if settings.contraction:
            penalty = contraction(h, self.weight, settings.hidden_units, settings.contraction)
        times_derivative(h_delta, h, settings.hidden_units)
        if penalty is not None:
            h_delta += penalty[0]
        np.matmul(z.T, h_delta, out=dW)
        np.sum(h_delta, axis=0, out=db)
        if penalty is not None:
            dW += penalty[1]
        if not dU:
            dW += self._decoding_gradient.T
        for gradient in self._gradients:
            np.negative(gradient, out=gradient)
