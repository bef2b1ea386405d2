"""The steps of a convolutional layer, with its filters and channels dealt out to shards.

Model parallelism inside a layer (Yadan et al. 2013): going up, a shard computes its filters of all
examples, coming down its channels. The gradient of a filter is of its owner alone, so that nothing
is added up. All shards wait for each other after each phase.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from syncpretrain.kernels.activations import means, times_derivative
from syncpretrain.kernels.arrays import LONG_BLOCK, Array, Rows, blocks_in, ordered_sum, slices_of
from syncpretrain.kernels.autoencoder import corrupt
from syncpretrain.kernels.backprop import output_delta, squared_error
from syncpretrain.kernels.contrastive_divergence import sample_states
from syncpretrain.kernels.convolution import (
    convolve,
    convolve_at,
    convolve_back,
    convolve_gradient,
    scratch_size,
    visible_means,
)
from syncpretrain.kernels.program import Phase, PhaseRunner, in_turn
from syncpretrain.learners.steps import LearnerStep
from syncpretrain.rng import Address, Purpose
from syncpretrain.shapes import ConvolutionShape


class ByFilters(LearnerStep):
    """The filters and channels of a learner, dealt out to shards: what its steps share.

    Parameters
    ----------
    learner : Learner
    shape : ConvolutionShape
        The shape of its products.
    shards : int
    """

    learner: Any

    def __init__(self, learner: Any, shape: ConvolutionShape, shards: int) -> None:
        super().__init__(learner)
        self._shape = shape
        self._filters = slices_of(shape.filters, shards)
        self._channels = slices_of(shape.channels, shards)
        size = max(scratch_size(shape), scratch_size(shape.unpooled))
        self._scratch = [np.empty(size, dtype=np.float32) for _ in range(shards)]
        self._errors = [0.0] * shards

    def train_step(
        self, X: Array, rows: Rows, *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        self._X, self._rows, self._epoch, self._step = X, rows, epoch, step
        self._errors = [0.0] * len(self._errors)
        run([*self._phases(), self._move], len(self._errors))
        return ordered_sum(self._errors, 0.0)

    @abstractmethod
    def _phases(self) -> list[Phase]:
        """Return the phases from the rows to the gradients."""

    def _address(self, purpose: Purpose, shard: int) -> Address:
        address: Address = self.learner.address(purpose, self._epoch, self._step)
        return address._replace(shard=shard)

    def _own_rows(self, shard: int) -> slice:
        return slices_of(len(self._rows), len(self._errors))[shard]

    def _halves(self, array: Array) -> tuple[Array, Array]:
        """Return two arrays of the minibatch that lie one above the other."""
        n = len(self._rows)
        return array[:n], array[n : 2 * n]

    def _of_filters(self, maps: Array, shard: int) -> Array:
        """Return a shard's filters of codes or maps, a view with a row a position."""
        return maps.reshape(-1, self._shape.filters)[:, self._filters[shard]]

    def _of_channels(self, images: Array, shard: int) -> Array:
        """Return a shard's channels of images, a view with a row an image or a pixel."""
        own, pixels = self._channels[shard], self._shape.height * self._shape.width
        if self._shape.channels_first:
            return images[:, own.start * pixels : own.stop * pixels]
        return images.reshape(-1, self._shape.channels)[:, own]

    def _take_visible_means(self, images: Array, shard: int) -> Array:
        """Replace the inputs of a shard's channels by the means of their units; return these."""
        own, units = self._channels[shard], self.learner.settings.visible_units
        found, bias = self._of_channels(images, shard), self.learner.visible_bias[own]
        if not self._shape.channels_first:
            return means(found, bias, units)
        part = replace(self._shape, channels=own.stop - own.start, groups=1)
        return visible_means(found, bias, part, units)

    def _sum_channels(self, images: Array, shard: int) -> Array:
        """Return the sums of a shard's channels over images and pixels."""
        found = self._of_channels(images, shard)
        own, pixels = self._channels[shard], self._shape.height * self._shape.width
        if self._shape.channels_first:
            found = found.reshape(len(images), own.stop - own.start, pixels)
        sums: Array = found.sum(axis=(0, 2) if self._shape.channels_first else 0)
        return sums

    def _weight(self, array: Array) -> Array:
        return array.reshape(self._shape.fan_in, self._shape.filters)

    def _move(self, shard: int) -> None:
        """Move a slice of the parameters along their gradients."""
        learner = self.learner
        for i, gradient in enumerate(learner.gradients):
            own, flat = slices_of(gradient.size, len(self._errors))[shard], gradient.reshape(-1)
            for block in blocks_in(own, LONG_BLOCK):
                learner.update_slice(i, block, flat[block], epoch=self._epoch)


class RBMByFilters(ByFilters):
    """The steps of a convolutional RBM by CD-k, without persistent chains or dropout."""

    def __init__(self, learner: Any, shards: int) -> None:
        super().__init__(learner, learner.maps, shards)
        self._v, self._h, self._states, noise, self._difference = learner.buffers
        self._noise = noise.reshape(-1)
        self._negative = np.empty_like(self._weight(learner.weight))
        self._none = np.empty(0, dtype=np.float32)
        self._no_bias = np.zeros(self._shape.filters, dtype=np.float32)

    def _phases(self) -> list[Phase]:
        phases: list[Phase] = [self._gather]
        for k in range(self.learner.settings.cd_steps):
            phases += [partial(self._draw, k), self._down]
        return [*phases, self._fill]

    def _gather(self, shard: int) -> None:
        own = self._own_rows(shard)
        self.learner.backend.gather(self._X, self._rows[own], out=self._v[own])

    def _up(self, k: int, shard: int) -> Array:
        """Fill the inputs of a shard's hidden units, from the data or from the reconstruction."""
        scratch, half = self._scratch[shard], min(k, 1)
        v, h = self._halves(self._v)[half], self._halves(self._h)[half]
        weight, own = self._weight(self.learner.weight), self._filters[shard]
        convolve(v, weight, self._no_bias, h, self._none, scratch, self._shape, "gaussian", own)
        return self._of_filters(h, shard)

    def _draw(self, k: int, shard: int) -> None:
        """Draw a shard's hidden states for the k-th reconstruction."""
        rbm, own, n = self.learner, self._filters[shard], len(self._rows)
        inputs, states = self._up(k, shard), self._of_filters(self._states[:n], shard)
        first = len(self._states) * self._shape.positions * own.start
        noise = self._noise[first:][: inputs.size].reshape(inputs.shape)
        bias, units = rbm.hidden_bias[own], rbm.settings.hidden_units
        address = self._address(Purpose.HIDDEN, shard | k << 32)
        sample_states(inputs, bias, units, address, noise=noise, out=states)

    def _down(self, shard: int) -> None:
        """Reconstruct a shard's channels."""
        n, weight = len(self._rows), self._weight(self.learner.weight)
        own, v1, scratch = self._channels[shard], self._halves(self._v)[1], self._scratch[shard]
        if own.start == own.stop:  # fewer channels than shards
            return
        convolve_back(self._states[:n], self._none, weight, v1, scratch, self._shape, own)
        found = self._take_visible_means(v1, shard)
        given = self._of_channels(self._v[:n], shard)
        out = self._of_channels(self._difference[:n], shard)
        self._errors[shard] = squared_error(given, found, out=out)

    def _fill(self, shard: int) -> None:
        """Find a shard's hidden means of the reconstruction, and its gradients."""
        rbm, n, shape, own = self.learner, len(self._rows), self._shape, self._filters[shard]
        h1 = means(self._up(1, shard), rbm.hidden_bias[own], rbm.settings.hidden_units)
        dW, da, db = rbm.gradients
        into = self._weight(dW)
        halves = zip(self._halves(self._v), self._halves(self._h), strict=True)
        for (v, h), gradient in zip(halves, (into, self._negative), strict=True):
            convolve_gradient(v, h, self._none, gradient, self._scratch[shard], shape, own)
        into[:, own] -= self._negative[:, own]
        into[:, own] *= np.float32(1 / (n * shape.positions))
        sums = [self._sum_channels(half, shard) for half in self._halves(self._v)]
        pixels = shape.height * shape.width
        da[self._channels[shard]] = (sums[0] - sums[1]) * np.float32(1 / (n * pixels))
        h0 = self._of_filters(self._h[:n], shard)
        db[own] = rbm.bias_gradient(h0, h1, n * shape.positions)


class AutoencoderByFilters(ByFilters):
    """The steps of a convolutional autoencoder, denoising or not."""

    def __init__(self, learner: Any, shards: int) -> None:
        super().__init__(learner, learner.current().shape, shards)
        self._x, self._y, self._stacked, self._deltas, self._places = learner.buffers
        self._positions = self._shape.output.height * self._shape.output.width

    def _phases(self) -> list[Phase]:
        return [self._gather, self._encode, self._decode, self._fill]

    def _gather(self, shard: int) -> None:
        learner, own, (z, _) = self.learner, self._own_rows(shard), self._halves(self._stacked)
        learner.backend.gather(self._X, self._rows[own], out=self._x[own])
        np.copyto(z[own], self._x[own])
        settings = learner.settings
        if settings.corruption is not None and own.start < own.stop:
            draws = learner.backend.generator(self._address(Purpose.CORRUPTION, shard))
            kind, amount = settings.corruption
            corrupt(z[own], kind, amount, draws, settings.limits)

    def _encode(self, shard: int) -> None:
        """Find a shard's filters of the code."""
        learner, n, (z, _) = self.learner, len(self._rows), self._halves(self._stacked)
        _, code = self._halves(self._deltas)
        weight, bias = self._weight(learner.weight), learner.hidden_bias
        places, units = self._places[:n], learner.settings.hidden_units
        scratch, own = self._scratch[shard], self._filters[shard]
        convolve(z, weight, bias, code, places, scratch, self._shape, units, own)

    def _decode(self, shard: int) -> None:
        """Reconstruct a shard's channels, and find the derivative of their loss."""
        learner, n, own = self.learner, len(self._rows), self._channels[shard]
        if own.start == own.stop:
            return
        settings, y, (_, y_delta) = learner.settings, self._y[:n], self._halves(self._stacked)
        weight, places = self._weight(learner.current().decoding), self._places[:n]
        _, code = self._halves(self._deltas)
        convolve_back(code, places, weight, y, self._scratch[shard], self._shape, own)
        found = self._take_visible_means(y, shard)
        given, delta = (self._of_channels(array, shard) for array in (self._x[:n], y_delta))
        self._errors[shard] = output_delta(
            given, found, settings.visible_units, settings.loss, out=delta
        )
        # The loss is averaged over rows, which are pixels where channels lie side by side.
        delta *= np.float32(-len(given) / (n * self._positions))

    def _fill(self, shard: int) -> None:
        """Find the derivative by a shard's filters of the code, and the shard's gradients."""
        learner, n, own, shape = self.learner, len(self._rows), self._filters[shard], self._shape
        (z, y_delta), (h_delta, code) = map(self._halves, (self._stacked, self._deltas))
        places, scratch = self._places[: 2 * n], self._scratch[shard]
        decoding = self._weight(learner.current().decoding)
        convolve_at(y_delta, decoding, places[:n], h_delta, scratch, shape, own)
        mine, means = (self._of_filters(array, shard) for array in (h_delta, code))
        times_derivative(mine, means, learner.settings.hidden_units)
        dW, da, db, *dU = learner.gradients
        if dU:
            convolve_gradient(y_delta, code, places[:n], self._weight(dU[0]), scratch, shape, own)
            convolve_gradient(z, h_delta, places[:n], self._weight(dW), scratch, shape, own)
        else:
            lower, upper = (self._of_filters(half, shard) for half in self._halves(self._places))
            np.copyto(upper, lower)
            both = self._stacked[: 2 * n], self._deltas[: 2 * n], places
            convolve_gradient(*both, self._weight(dW), scratch, shape, own)
        share = np.float32(self._positions / (shape.height * shape.width))
        da[self._channels[shard]] = self._sum_channels(y_delta, shard) * share
        db[own] = mine.sum(axis=0)
