"""Convolutional layers: RBMs (Lee et al. 2009) and an autoencoder (Masci et al. 2011).

One learner of RBMs pools like the autoencoder does, the other by probabilities. Both kinds of
layer share the shape of a convolution, its kernels, and the averages over a filter's positions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from syncpretrain.kernels import convolution as kernels
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.contrastive_divergence import draw_noise
from syncpretrain.kernels.dispatch import multiply
from syncpretrain.learners.autoencoder import BaseAutoencoder
from syncpretrain.learners.first_layers import channel_means, first_layer
from syncpretrain.learners.rbm import INITIAL_SPREAD, BaseRBM
from syncpretrain.rng import Address
from syncpretrain.settings.fields import LayerSettings
from syncpretrain.shapes import ConvolutionShape
from syncpretrain.units.kinds import kind_of


class ConvolutionalRBM(BaseRBM):
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
        self._scratch = empty(kernels.scratch_size(self.maps))
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

    def _visible_means(self, X: Array) -> Array:
        return channel_means(X, self._shape)

    @property
    def _filters(self) -> Array:
        return self.weight.reshape(self._shape.fan_in, -1)

    def _up(self, v: Array, *, out: Array) -> Array:
        none, scratch = self._places, self._scratch
        kernels.convolve(v, self._filters, self._no_bias, out, none, scratch, self.maps, "gaussian")
        return out

    def _down(self, h: Array, *, out: Array) -> Array:
        kernels.convolve_back(h, self._places, self._filters, out, self._scratch, self.maps)
        return out

    def _visible_biases(self) -> Array:
        pixels = self._shape.height * self._shape.width
        tiled = np.repeat if self._shape.channels_first else np.tile
        biases: Array = tiled(self.visible_bias, pixels)
        return biases

    def _fill(self, v: Array, h: Array, n: int, examples: float) -> None:
        shape, (dW, da, db) = self.maps, self.gradients
        positions, pixels = shape.positions, shape.height * shape.width
        v *= np.float32(1 / (examples * positions))
        np.multiply(v[n:], -1, out=v[n:])
        into = dW.reshape(shape.fan_in, -1)
        kernels.convolve_gradient(v, h, self._places, into, self._scratch, shape)
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
        draws: Any = self.backend.generator(address)
        draw_noise(draws, self.settings.hidden_units, out=noise)
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


class ConvolutionalAutoencoder(BaseAutoencoder):
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
        shape = shape.in_precision(settings.precision)
        self._shape = shape
        variance = kind_of(settings.hidden_units).weight_variance(shape.fan_in, shape.fan_out)
        own = {"spread": math.sqrt(variance), "tied": settings.tied}
        first = first_layer(layer, shape, settings, self.model, **own)
        super().__init__(layer, first, settings)

    def _allocate(self, rows: int) -> None:
        super()._allocate(rows)
        shape, empty = self._shape, self.backend.empty
        # Twice, for both halves of the stacked arrays.
        self._places = empty((2 * rows, shape.hidden))
        self._ones = empty(rows * shape.output.height * shape.output.width)
        self._ones.fill(1)  # a product adds up ten times as fast as a sum over rows
        self._scratch = empty(max(map(kernels.scratch_size, (shape, shape.unpooled))))

    @property
    def buffers(self) -> tuple[Array, ...]:
        """The buffers of a step.

        They are the examples and their reconstruction; the encoder's input above the derivative by
        the decoder's inputs; the derivative by the code's inputs above the code; and the places.
        """
        return self._x, self._y, self._z_and_y_delta, self._h_delta_and_h, self._places

    def _visible_means(self, X: Array) -> Array:
        return channel_means(X, self._shape)

    @property
    def _filters(self) -> Array:
        return self.weight.reshape(self._shape.fan_in, -1)

    @property
    def _decoder_filters(self) -> Array:
        own = self.decoder_weight
        return self._filters if own is None else own.reshape(self._shape.fan_in, -1)

    def _encode(self, z: Array, *, out: Array) -> None:
        weight, bias, shape = self._filters, self.hidden_bias, self._shape
        places, units = self._places[: len(z)], self.settings.hidden_units
        kernels.convolve(z, weight, bias, out, places, self._scratch, shape, units)

    def _decode(self, h: Array, *, out: Array) -> None:
        shape, places = self._shape, self._places[: len(h)]
        kernels.convolve_back(h, places, self._decoder_filters, out, self._scratch, shape)
        kernels.visible_means(out, self.visible_bias, shape, self.settings.visible_units)

    def _decode_back(self, y_delta: Array, *, out: Array) -> None:
        places = self._places[: len(y_delta)]
        kernels.convolve_at(y_delta, self._decoder_filters, places, out, self._scratch, self._shape)

    def _fill(self, n: int, *, share: float) -> None:
        shape = self._shape
        dW, da, db, *dU = self.gradients
        z_and_y_delta, h_delta_and_h = self._z_and_y_delta[: 2 * n], self._h_delta_and_h[: 2 * n]
        (z, y_delta), (h_delta, h) = np.split(z_and_y_delta, 2), np.split(h_delta_and_h, 2)
        places, scratch, filters = self._places[: 2 * n], self._scratch, (shape.fan_in, -1)
        code = shape.output.height * shape.output.width
        y_delta /= np.float32(code)
        h_delta /= np.float32(code)
        if dU:
            kernels.convolve_gradient(
                y_delta, h, places[:n], dU[0].reshape(filters), scratch, shape
            )
            kernels.convolve_gradient(z, h_delta, places[:n], dW.reshape(filters), scratch, shape)
        else:
            np.copyto(places[n:], places[:n])
            both = z_and_y_delta, h_delta_and_h, places
            kernels.convolve_gradient(*both, dW.reshape(filters), scratch, shape)
        kernels.sum_channels(y_delta, shape, out=da)
        da *= np.float32(code / (shape.height * shape.width))
        multiply(self._ones[: n * code], h_delta.reshape(-1, shape.filters), out=db)
