"""A convolutional RBM (Lee et al. 2009), trained by contrastive divergence."""

from __future__ import annotations

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.convolution import (
    convolve,
    convolve_back,
    convolve_gradient,
    scratch_size,
    sum_channels,
)
from syncpretrain.kernels.dispatch import multiply
from syncpretrain.learners.first_convolution import channel_means, first_convolution
from syncpretrain.learners.rbm import INITIAL_SPREAD, BaseRBM, RBMSettings
from syncpretrain.shapes import ConvolutionShape
from syncpretrain.units.kinds import kind_of

__all__ = ["ConvolutionalRBM"]


class ConvolutionalRBM(BaseRBM):
    """One convolutional layer with shared weights; see :class:`Learner`.

    There is a hidden unit at each position of each filter, before pooling: the energy is
    -sum_p h_p (v W)_p - b sum_p h_p - a sum_i v_i, in which h_p are the F units of position p.
    What is handed up is the pooled code f(pool(v W) + b), which for the maximum is the largest
    mean of each block.

    A filter acts at P positions. The statistics of weights and hidden biases are averaged over
    them, as over the examples, and those of the visible biases over the pixels, where their sums
    are the gradient of the likelihood: so a learning rate that suits a dense layer suits
    a convolution of any image.

    A unit at every position is more than an image needs: filters that are on everywhere, or that
    copy a pixel, reconstruct it as well as those that stand for something. So with
    ``sparsity_cost`` the hidden biases, and they alone, are moved by cost (target - q) beside their
    gradient; q is the mean activity of a filter in this minibatch (Lee et al. 2008). Biases of
    binary units start where their mean is the target.

    Without ``pad`` a corner pixel is reconstructed by one weight of each filter, which grows until
    it does; padding by half a filter or more avoids that where images do not end in black.
    """

    def __init__(self, layer: int, shape: ConvolutionShape, settings: RBMSettings) -> None:
        shape = self._shape = shape.in_precision(settings.precision)
        self._maps = shape.unpooled
        first = first_convolution(
            layer,
            shape,
            seed=settings.seed,
            spread=INITIAL_SPREAD,
            kinds=settings.kinds(self.model),
        )
        start = kind_of(settings.hidden_units).bias_of
        if settings.sparsity_cost and start is not None:
            first.hidden_bias.fill(start(np, settings.sparsity_target))
        super().__init__(layer, first, settings, self._maps)

    def _allocate(self, rows: int) -> None:
        super()._allocate(rows)
        empty, zeros = self.backend.empty, self.backend.zeros
        self._scratch = empty(scratch_size(self._maps))
        self._places = empty(0)  # nothing is pooled in training
        self._no_bias = zeros(self._shape.filters)
        self._code = empty((rows, self._shape.hidden))
        self._ones = empty(rows * self._maps.positions)
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
        convolve(v, self._filters, self._no_bias, out, none, scratch, self._maps, "gaussian")
        return out

    def _down(self, h: Array, *, out: Array) -> Array:
        convolve_back(h, self._places, self._filters, out, self._scratch, self._maps)
        return out

    def _visible_biases(self) -> Array:
        pixels = self._shape.height * self._shape.width
        tiled = np.repeat if self._shape.channels_first else np.tile
        biases: Array = tiled(self.visible_bias, pixels)
        return biases

    def _fill(self, v: Array, h: Array, examples: int) -> None:
        n, shape, (dW, da, db) = len(v) // 2, self._maps, self.gradients
        positions, pixels = shape.positions, shape.height * shape.width
        v *= np.float32(1 / (examples * positions))
        np.negative(v[n:], out=v[n:])
        into = dW.reshape(shape.fan_in, -1)
        convolve_gradient(v, h, self._places, into, self._scratch, shape)
        sum_channels(v, shape, out=da)
        da *= np.float32(positions / pixels)
        h0, h1 = (self._by_bias(half) for half in np.split(h, 2))
        np.copyto(db, self.bias_gradient(h0, h1, examples * positions))

    def bias_gradient(self, h0: Array, h1: Array, units: int) -> Array:
        """Return the gradient of the biases of some filters.

        ``h0`` and ``h1`` of shape (n P, filters) are their means; ``units`` are those that
        a filter has in the whole minibatch.
        """
        ones = self._ones[: len(h0)]  # a product adds up ten times as fast as a sum over rows
        active = multiply(ones, h0)
        db: Array = np.subtract(active, multiply(ones, h1))
        cost = self.settings.sparsity_cost
        if cost:
            share = np.float32(len(h0))  # of all units of a filter, those of these examples
            db += np.float32(cost) * (np.float32(self._target) * share - active)
        db /= np.float32(units)
        return db

    @property
    def maps(self) -> ConvolutionShape:
        """The shape without pooling, of which the hidden units are."""
        return self._maps
