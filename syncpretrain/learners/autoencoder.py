"""An autoencoder of one hidden layer: plain, denoising or contractive, tied or untied."""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np

from syncpretrain.kernels.arrays import Array, Rows
from syncpretrain.kernels.backprop import contraction, corrupt, derivative_and_sums, output_delta
from syncpretrain.kernels.conditions import conditions_of, impose
from syncpretrain.kernels.contrastive_divergence import FixedDraws
from syncpretrain.learners.base import Learner
from syncpretrain.learners.first_layers import first_layer
from syncpretrain.rng import Address, Purpose
from syncpretrain.settings.fields import LayerSettings
from syncpretrain.shapes import DenseShape


class BaseAutoencoder(Learner):
    """An autoencoder of any shape: the steps of its gradient, without the products."""

    model = "autoencoder"

    def _allocate(self, rows: int) -> None:
        shape, empty = self.current().shape, self.backend.empty
        # The input of the code above the derivative by the output's, and what each is multiplied
        # with for the gradient of tied weights: both lie stacked, so that one product serves.
        self._z_and_y_delta = empty((2 * rows, shape.visible))
        self._h_delta_and_h = empty((2 * rows, shape.hidden))
        self._x, self._y = (empty((rows, shape.visible)) for _ in range(2))

    def gradient(
        self, X: Array, rows: Rows, *, epoch: int, step: int, examples: float | None = None
    ) -> float:
        """Fill the gradients with the descent direction of the loss on some rows of X.

        Returns
        -------
        float
            Squared error between the examples and their reconstruction, summed over both.
        """
        n, settings = len(rows), self.settings
        z, y_delta = np.split(self._z_and_y_delta[: 2 * n], 2)
        x, y = self._x[:n] if self._changes_input else z, self._y[:n]
        h_delta, code = np.split(self._h_delta_and_h[: 2 * n], 2)
        self.backend.gather(X, rows, out=x)
        known = conditions_of(x, settings.visible_units, missing=settings.missing)
        if self._changes_input:
            np.copyto(z, x)
            self.corrupt(z, self.address(Purpose.CORRUPTION, epoch, step))
        if known is not None and known.known is not None:
            z *= known.known  # noise on what is missing would be read
        self._encode(z, out=code)
        self._decode(code, out=y)
        impose(y, settings.visible_units, known)
        share, (da, db) = n / (examples or n), self._bias_gradients
        own = settings.visible_units, settings.loss
        error = output_delta(x, y, *own, out=y_delta, share=-share, sums=da)  # downhill
        self._decode_back(y_delta, out=h_delta)
        derivative_and_sums(h_delta, code, settings.hidden_units, sums=db)
        self._fill(n, share=share)
        return error

    @property
    def _changes_input(self) -> bool:
        """True if the code is computed from other rows than the examples: noisy or masked ones."""
        return self.settings.corruption is not None or self.settings.missing

    @property
    def _bias_gradients(self) -> tuple[Array | None, Array | None]:
        """The gradients of both biases, if they are the sums of their units' deltas."""
        return None, None

    def hidden_means(self, n: int) -> Array | None:
        """Return the code of the plain input; None with noise on the input."""
        return None if self.settings.corruption is not None else self._h_delta_and_h[n : 2 * n]

    def corrupt(self, x: Array, address: Address) -> None:
        """Put noise on rows of x, in place, if the settings have a corruption."""
        if self.settings.corruption is not None:
            is_fixed = self.precision.name == "own"
            draws = FixedDraws(address) if is_fixed else self.backend.generator(address)
            kind, amount = self.settings.corruption
            corrupt(x, kind, amount, draws, self.settings.limits)

    @abstractmethod
    def _encode(self, z: Array, *, out: Array) -> None:
        """Fill ``out`` with the code of each row of z."""

    @abstractmethod
    def _decode(self, h: Array, *, out: Array) -> None:
        """Fill ``out`` with the reconstruction from each code."""

    @abstractmethod
    def _decode_back(self, y_delta: Array, *, out: Array) -> None:
        """Fill ``out`` with the derivative by the code, given that by the decoder's inputs."""

    @abstractmethod
    def _fill(self, n: int, *, share: float) -> None:
        """Fill the rest of the gradients from both deltas, which have their sign and share."""


class Autoencoder(BaseAutoencoder):
    """One layer that reconstructs its input from ``hidden`` units; see :class:`Learner`."""

    def __init__(self, layer: int, visible: int, hidden: int, settings: LayerSettings) -> None:
        # Glorot and Bengio 2010
        own = {"spread": math.sqrt(2 / (visible + hidden)), "tied": settings.tied}
        first = first_layer(layer, DenseShape(visible, hidden), settings, self.model, **own)
        super().__init__(layer, first, settings)

    def _encode(self, z: Array, *, out: Array) -> None:
        self._now.up(z, out=out)

    @property
    def _bias_gradients(self) -> tuple[Array, Array]:
        return self.gradients[1], self.gradients[2]

    def _decode(self, h: Array, *, out: Array) -> None:
        self._now.down(h, out=out)

    def _decode_back(self, y_delta: Array, *, out: Array) -> None:
        self.precision.multiply(y_delta, self._now.decoding.T, out=out)

    def _fill(self, n: int, *, share: float) -> None:
        dW, _, db, *dU = self.gradients
        multiply = self.precision.multiply
        z, y_delta = np.split(self._z_and_y_delta[: 2 * n], 2)
        h_delta, h = np.split(self._h_delta_and_h[: 2 * n], 2)
        penalty = None
        if self.settings.contraction:
            amount = self.settings.contraction * share
            penalty = contraction(h, self.weight, self.settings.hidden_units, amount)
            h_delta -= penalty[0]
            np.sum(h_delta, axis=0, out=db)
        if dU:
            multiply(h.T, y_delta, out=dU[0])
            multiply(z.T, h_delta, out=dW)
        else:
            multiply(self._z_and_y_delta[: 2 * n].T, self._h_delta_and_h[: 2 * n], out=dW)
        if penalty is not None:
            dW -= penalty[1]
