"""Convolutional layers: RBMs (Lee et al. 2009) and an autoencoder (Masci et al. 2011).

One learner of RBMs pools like the autoencoder does, the other by probabilities. Both kinds of
layer share the shape of a convolution, its kernels, and the averages over a filter's positions.

Steps of both kinds may have their filters and channels dealt out to shards: model parallelism
inside a layer (Yadan et al. 2013). Going up, a shard computes its filters of all examples, coming
down its channels. The gradient of a filter is of its owner alone, so that nothing is added up. All
shards wait for each other after each phase.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from syncpretrain.kernels import convolution as kernels
from syncpretrain.kernels.activations import means, times_derivative
from syncpretrain.kernels.arrays import Array, Rows, ordered_sum, slices_of
from syncpretrain.kernels.backprop import output_delta, squared_error
from syncpretrain.kernels.contrastive_divergence import draw_noise, sample_states
from syncpretrain.kernels.dispatch import multiply
from syncpretrain.kernels.program import Phase, PhaseRunner, in_turn
from syncpretrain.learners.autoencoder import BaseAutoencoder
from syncpretrain.learners.base import Learner
from syncpretrain.learners.first_layers import channel_means, first_layer
from syncpretrain.learners.rbm import INITIAL_SPREAD, BaseRBM
from syncpretrain.learners.steps import LearnerStep
from syncpretrain.rng import Address, Purpose
from syncpretrain.settings.fields import LayerSettings
from syncpretrain.shapes import ConvolutionShape
from syncpretrain.units.kinds import kind_of


class Part(NamedTuple):
    """The filters and channels that a product is made of, and its scratch memory."""

    scratch: Array
    filters: slice = slice(None)
    channels: slice = slice(None)


class Convolutional(Learner):
    """Base of the convolutional layers of both models."""

    _shape: ConvolutionShape

    def _visible_means(self, X: Array) -> Array:
        return channel_means(X, self._shape)

    @property
    def _filters(self) -> Array:
        return self.weight.reshape(self._shape.fan_in, -1)


class ConvolutionalRBM(Convolutional, BaseRBM):
    """One convolutional layer with shared weights; see :class:`Learner`.

    There is a hidden unit at each position of each filter, before pooling: the energy is
    -sum_p h_p (v W)_p - b sum_p h_p - a sum_i v_i, in which h_p are the F units of position p.
    It hands up the pooled code f(pool(v W) + b), which for the maximum is the largest mean of each
    block.

    A filter acts at P positions. The gradient of the likelihood is a sum over them, and for the
    visible biases over the pixels; the statistics of weights and hidden biases are averages over
    the positions, as over the examples, and the statistics of visible biases over the pixels. So a
    learning rate that suits a dense layer suits a convolution of any image.

    A unit at every position is more than an image needs: filters that are on everywhere, or that
    copy a pixel, reconstruct it as well as filters that stand for a feature. So with
    ``sparsity_cost`` the hidden biases, and they alone, are moved by cost (target - q) in addition
    to their gradient; q is the mean activity of a filter in this minibatch (Lee et al. 2008). The
    biases of binary units start where their mean is the target.

    Without ``pad`` a corner pixel is reconstructed by one weight of each filter, which grows until
    it does; padding by half a filter or more avoids that where images do not end in black.

    ``maps`` is the shape without pooling, with a hidden unit at each position of a filter.
    """

    def __init__(self, layer: int, shape: ConvolutionShape, settings: LayerSettings) -> None:
        shape = self._shape = shape.in_precision(settings.precision)
        self.maps = shape.unpooled
        first = first_layer(layer, shape, settings, self.model, spread=INITIAL_SPREAD)
        start = kind_of(settings.hidden_units).bias_of
        if settings.sparsity_cost and start is not None:
            first.hidden_bias.fill(start(np, settings.sparsity_target))
        super().__init__(layer, first, settings, self.maps)

    def _allocate(self, rows: int) -> None:
        super()._allocate(rows)
        empty, zeros = self.backend.empty, self.backend.zeros
        self._whole = Part(empty(kernels.scratch_size(self.maps)))
        self._places = empty(0)  # nothing is pooled in training
        self._no_bias = zeros(self._shape.filters)
        self._code = empty((rows, self._shape.hidden))
        self._ones = empty(rows * self.maps.positions)
        self._ones.fill(1)

    def hidden_means(self, n: int) -> Array | None:
        """Return the code of the positive phase; None with dropout, or where blocks are averaged.

        The mean of a block is taken of its inputs, which the means of its units replaced.
        """
        if self.settings.hidden_dropout or self._shape.pooling != "max":
            return None
        size, code = self._shape.pool, self._shape.output
        blocks = self._h[:n].reshape(n, code.height, size, code.width, size, code.channels)
        out: Array = self._code[:n]
        np.max(blocks, axis=(2, 4), out=out.reshape(n, code.height, code.width, code.channels))
        return out

    def _up(self, v: Array, *, out: Array, part: Part | None = None) -> Array:
        (scratch, own, _), none, shape = part or self._whole, self._places, self.maps
        weight, bias = self._filters, self._no_bias
        kernels.convolve(v, weight, bias, out, none, scratch, shape, "gaussian", own)
        return out

    def _down(self, h: Array, *, out: Array, part: Part | None = None) -> Array:
        scratch, _, own = part or self._whole
        kernels.convolve_back(h, self._places, self._filters, out, scratch, self.maps, own)
        return out

    def _visible_biases(self) -> Array:
        pixels = self._shape.height * self._shape.width
        tiled = np.repeat if self._shape.channels_first else np.tile
        return tiled(self.visible_bias, pixels)

    def _fill(self, v: Array, h: Array, n: int, examples: float) -> None:
        shape, (dW, da, db) = self.maps, self.gradients
        positions, pixels = shape.positions, shape.height * shape.width
        v *= np.float32(1 / (examples * positions))
        np.multiply(v[n:], -1, out=v[n:])
        into = dW.reshape(shape.fan_in, -1)
        kernels.convolve_gradient(v, h, self._places, into, self._whole.scratch, shape)
        kernels.sum_channels(v, shape, out=da)
        da *= np.float32(positions / pixels)
        h0, h1 = (self._by_bias(half) for half in np.split(h, 2))
        np.copyto(db, self.bias_gradient(h0, h1, examples * positions))

    def bias_gradient(self, h0: Array, h1: Array, units: float) -> Array:
        """Return the gradient of the biases of some filters.

        ``h0`` and ``h1`` of shape (n P, filters) are their means; ``units`` is the number of units
        that a filter has in the whole minibatch.
        """
        ones = self._ones[: len(h0)]  # a product adds up ten times as fast as a sum over rows
        active = multiply(ones, h0)
        db: Array = np.subtract(active, multiply(ones, h1))
        cost = self.settings.sparsity_cost
        if cost:
            share = np.float32(len(h0))  # the units of a filter in these examples
            db += np.float32(cost) * (np.float32(self._target) * share - active)
        db /= np.float32(units)
        return db


class ProbabilisticRBM(ConvolutionalRBM):
    """One convolutional layer of binary units; at most one unit in a block is on.

    It hands up the probability that one is. There is no dropout: units would have to be left out
    before the others share the probability.
    """

    def hidden_means(self, n: int) -> Array | None:
        """Return the code of the positive phase."""
        return kernels.block_sums(self._h[:n], self._shape, out=self._code[:n])

    def _sample_hidden(self, inputs: Array, address: Address, *, out: Array) -> None:
        self._add_bias(inputs)
        noise = self._noise.reshape(-1)[: len(inputs) * self._shape.hidden]
        noise = noise.reshape(len(inputs), -1)
        draw_noise(self.backend.generator(address), self.settings.hidden_units, out=noise)
        kernels.draw_blocks(inputs, noise, self._shape, out=out)

    def _take_means(self, inputs: Array) -> None:
        self._add_bias(inputs)
        kernels.block_means(inputs, self._shape)

    def _add_bias(self, inputs: Array) -> None:
        by_bias = self._by_bias(inputs)
        by_bias += self.hidden_bias


def convolutional_rbm(
    layer: int, shape: ConvolutionShape, settings: LayerSettings
) -> ConvolutionalRBM:
    """Return the learner of a layer, by the kind of its pooling."""
    kind = ProbabilisticRBM if shape.pooling == "prob" else ConvolutionalRBM
    return kind(layer, shape, settings)


class ConvolutionalAutoencoder(Convolutional, BaseAutoencoder):
    """One convolutional layer that reconstructs its input; see :class:`Learner`.

    The code is h = f(pool(z W) + b) of the input z, noisy or not. The decoder puts each number of
    the code back to the place where the maximum was, with zeros elsewhere, or spreads it evenly
    where blocks are averaged, and adds up what the filters of W, or its own, make of it.

    A filter acts at many positions, and the gradient of the loss is a sum over them. The gradients
    of the weights and hidden biases are averages over the Q numbers of a code that each filter
    makes, the gradients of the visible biases averages over the pixels: so a learning rate that
    suits a dense layer suits a convolution of any image.
    """

    def __init__(self, layer: int, shape: ConvolutionShape, settings: LayerSettings) -> None:
        shape = self._shape = shape.in_precision(settings.precision)
        variance = kind_of(settings.hidden_units).weight_variance(shape.fan_in, shape.fan_out)
        own = {"spread": math.sqrt(variance), "tied": settings.tied}
        super().__init__(layer, first_layer(layer, shape, settings, self.model, **own), settings)

    def _allocate(self, rows: int) -> None:
        super()._allocate(rows)
        shape, empty = self._shape, self.backend.empty
        # Twice, for both halves of the stacked arrays.
        self._places = empty((2 * rows, shape.hidden))
        self._ones = empty(rows * shape.output.height * shape.output.width)
        self._ones.fill(1)  # a product adds up ten times as fast as a sum over rows
        self._whole = Part(empty(max(map(kernels.scratch_size, (shape, shape.unpooled)))))

    @property
    def buffers(self) -> tuple[Array, ...]:
        """The buffers of a step.

        They are the examples and their reconstruction; the encoder's input above the derivative by
        the decoder's inputs; and the derivative by the code's inputs above the code.
        """
        return self._x, self._y, self._z_and_y_delta, self._h_delta_and_h

    @property
    def _decoder_filters(self) -> Array:
        return self._now.decoding.reshape(self._shape.fan_in, -1)

    def _encode(self, z: Array, *, out: Array, part: Part | None = None) -> None:
        (scratch, own, _), weight, bias = part or self._whole, self._filters, self.hidden_bias
        places, units = self._places[: len(z)], self.settings.hidden_units
        kernels.convolve(z, weight, bias, out, places, scratch, self._shape, units, own)

    def _down(self, h: Array, *, out: Array, part: Part | None = None) -> None:
        (scratch, _, own), places = part or self._whole, self._places[: len(h)]
        kernels.convolve_back(h, places, self._decoder_filters, out, scratch, self._shape, own)

    def _decode(self, h: Array, *, out: Array) -> None:
        self._down(h, out=out)
        kernels.visible_means(out, self.visible_bias, self._shape, self.settings.visible_units)

    def _decode_back(self, y_delta: Array, *, out: Array, part: Part | None = None) -> None:
        (scratch, own, _), places = part or self._whole, self._places[: len(y_delta)]
        weight, shape = self._decoder_filters, self._shape
        kernels.convolve_at(y_delta, weight, places, out, scratch, shape, own)

    def _fill(self, n: int, *, share: float) -> None:
        (_, da, db, *_), shape = self.gradients, self._shape
        y_delta, h_delta = self._z_and_y_delta[n : 2 * n], self._h_delta_and_h[:n]
        code = shape.output.height * shape.output.width
        y_delta /= np.float32(code)
        h_delta /= np.float32(code)
        self._fill_weights(n)
        kernels.sum_channels(y_delta, shape, out=da)
        da *= np.float32(code / (shape.height * shape.width))
        multiply(self._ones[: n * code], h_delta.reshape(-1, shape.filters), out=db)

    def _fill_weights(self, n: int, part: Part | None = None) -> None:
        """Fill the gradients of filters from both deltas, which have their sign and share."""
        (dW, _, _, *dU), (scratch, own, _) = self.gradients, part or self._whole
        shape, places = self._shape, self._places[: 2 * n]
        both = self._z_and_y_delta[: 2 * n], self._h_delta_and_h[: 2 * n]
        products = [(*both, places, dW)]
        if dU:
            (z, y_delta), (h_delta, h) = (np.split(stacked, 2) for stacked in both)
            products = [(y_delta, h, places[:n], dU[0]), (z, h_delta, places[:n], dW)]
        else:
            by_filter = places.reshape(2 * n, -1, shape.filters)[:, :, own]
            np.copyto(by_filter[n:], by_filter[:n])
        for x, delta, kept, gradient in products:
            into = gradient.reshape(shape.fan_in, -1)
            kernels.convolve_gradient(x, delta, kept, into, scratch, shape, own)


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
        size = max(kernels.scratch_size(shape), kernels.scratch_size(shape.unpooled))
        cuts = slices_of(shape.filters, shards), slices_of(shape.channels, shards)
        self._parts = [Part(np.empty(size, np.float32), *cut) for cut in zip(*cuts, strict=True)]
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
        return maps.reshape(-1, self._shape.filters)[:, self._parts[shard].filters]

    def _of_channels(self, images: Array, shard: int) -> Array:
        """Return a shard's channels of images, a view with a row an image or a pixel."""
        own, pixels = self._parts[shard].channels, self._shape.height * self._shape.width
        if self._shape.channels_first:
            return images[:, own.start * pixels : own.stop * pixels]
        return images.reshape(-1, self._shape.channels)[:, own]

    def _take_visible_means(self, images: Array, shard: int) -> Array:
        """Replace the inputs of a shard's channels by the means of their units; return these."""
        own, units = self._parts[shard].channels, self.learner.settings.visible_units
        found, bias = self._of_channels(images, shard), self.learner.visible_bias[own]
        if not self._shape.channels_first:
            return means(found, bias, units)
        part = replace(self._shape, channels=own.stop - own.start, groups=1)
        return kernels.visible_means(found, bias, part, units)

    def _sum_channels(self, images: Array, shard: int) -> Array:
        """Return the sums of a shard's channels over images and pixels."""
        found = self._of_channels(images, shard)
        own, pixels = self._parts[shard].channels, self._shape.height * self._shape.width
        if self._shape.channels_first:
            found = found.reshape(len(images), own.stop - own.start, pixels)
        sums: Array = found.sum(axis=(0, 2) if self._shape.channels_first else 0)
        return sums

    def _move(self, shard: int) -> None:
        self.learner.update_share(shard, len(self._errors), epoch=self._epoch)


class RBMByFilters(ByFilters):
    """The steps of a convolutional RBM by CD-k, without persistent chains or dropout."""

    def __init__(self, learner: Any, shards: int) -> None:
        super().__init__(learner, learner.maps, shards)
        self._v, self._h, self._states, noise, self._difference = learner.buffers
        self._noise = noise.reshape(-1)
        self._negative = np.empty((self._shape.fan_in, self._shape.filters), np.float32)
        self._none = np.empty(0, dtype=np.float32)

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
        v, h = self._halves(self._v)[min(k, 1)], self._halves(self._h)[min(k, 1)]
        self.learner._up(v, out=h, part=self._parts[shard])
        return self._of_filters(h, shard)

    def _draw(self, k: int, shard: int) -> None:
        """Draw a shard's hidden states for the k-th reconstruction."""
        rbm, own, n = self.learner, self._parts[shard].filters, len(self._rows)
        inputs, states = self._up(k, shard), self._of_filters(self._states[:n], shard)
        first = len(self._states) * self._shape.positions * own.start
        noise = self._noise[first:][: inputs.size].reshape(inputs.shape)
        bias, units = rbm.hidden_bias[own], rbm.settings.hidden_units
        address = self._address(Purpose.HIDDEN, shard | k << 32)
        sample_states(inputs, bias, units, address, noise=noise, out=states)

    def _down(self, shard: int) -> None:
        """Reconstruct a shard's channels."""
        n, own, v1 = len(self._rows), self._parts[shard].channels, self._halves(self._v)[1]
        if own.start == own.stop:  # fewer channels than shards
            return
        self.learner._down(self._states[:n], out=v1, part=self._parts[shard])
        found = self._take_visible_means(v1, shard)
        given = self._of_channels(self._v[:n], shard)
        out = self._of_channels(self._difference[:n], shard)
        self._errors[shard] = squared_error(given, found, out=out)

    def _fill(self, shard: int) -> None:
        """Find a shard's hidden means of the reconstruction, and its gradients."""
        rbm, n, shape = self.learner, len(self._rows), self._shape
        scratch, own, channels = self._parts[shard]
        h1 = means(self._up(1, shard), rbm.hidden_bias[own], rbm.settings.hidden_units)
        dW, da, db = rbm.gradients
        into = dW.reshape(self._negative.shape)
        halves = zip(self._halves(self._v), self._halves(self._h), strict=True)
        for (v, h), gradient in zip(halves, (into, self._negative), strict=True):
            kernels.convolve_gradient(v, h, self._none, gradient, scratch, shape, own)
        into[:, own] -= self._negative[:, own]
        into[:, own] *= np.float32(1 / (n * shape.positions))
        sums = [self._sum_channels(half, shard) for half in self._halves(self._v)]
        pixels = shape.height * shape.width
        da[channels] = (sums[0] - sums[1]) * np.float32(1 / (n * pixels))
        h0 = self._of_filters(self._h[:n], shard)
        db[own] = rbm.bias_gradient(h0, h1, n * shape.positions)


class AutoencoderByFilters(ByFilters):
    """The steps of a convolutional autoencoder, denoising or not."""

    def __init__(self, learner: Any, shards: int) -> None:
        super().__init__(learner, learner.current().shape, shards)
        self._x, self._y, self._stacked, self._deltas = learner.buffers
        self._positions = self._shape.output.height * self._shape.output.width

    def _phases(self) -> list[Phase]:
        return [self._gather, self._encode, self._decode, self._fill]

    def _gather(self, shard: int) -> None:
        learner, own, (z, _) = self.learner, self._own_rows(shard), self._halves(self._stacked)
        learner.backend.gather(self._X, self._rows[own], out=self._x[own])
        np.copyto(z[own], self._x[own])
        if own.start < own.stop:
            learner.corrupt(z[own], self._address(Purpose.CORRUPTION, shard))

    def _encode(self, shard: int) -> None:
        """Find a shard's filters of the code."""
        (z, _), (_, code) = map(self._halves, (self._stacked, self._deltas))
        self.learner._encode(z, out=code, part=self._parts[shard])

    def _decode(self, shard: int) -> None:
        """Reconstruct a shard's channels, and find the derivative of their loss."""
        learner, n, own = self.learner, len(self._rows), self._parts[shard].channels
        if own.start == own.stop:
            return
        settings, y, (_, y_delta) = learner.settings, self._y[:n], self._halves(self._stacked)
        _, code = self._halves(self._deltas)
        learner._down(code, out=y, part=self._parts[shard])
        found = self._take_visible_means(y, shard)
        given, delta = (self._of_channels(array, shard) for array in (self._x[:n], y_delta))
        kinds = settings.visible_units, settings.loss
        self._errors[shard] = output_delta(given, found, *kinds, out=delta)
        # The loss is averaged over rows, which are pixels where channels lie side by side.
        delta *= np.float32(-len(given) / (n * self._positions))

    def _fill(self, shard: int) -> None:
        """Find the derivative by a shard's filters of the code, and the shard's gradients."""
        learner, n, shape, part = self.learner, len(self._rows), self._shape, self._parts[shard]
        (_, y_delta), (h_delta, code) = map(self._halves, (self._stacked, self._deltas))
        learner._decode_back(y_delta, out=h_delta, part=part)
        mine, means = (self._of_filters(array, shard) for array in (h_delta, code))
        times_derivative(mine, means, learner.settings.hidden_units)
        learner._fill_weights(n, part)
        _, da, db, *_ = learner.gradients
        share = np.float32(self._positions / (shape.height * shape.width))
        da[part.channels] = self._sum_channels(y_delta, shard) * share
        db[part.filters] = mine.sum(axis=0)
