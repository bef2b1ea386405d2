"""A convolutional autoencoder with pooling (Masci et al. 2011), denoising or not."""

from __future__ import annotations

import math

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.convolution import (
    convolve,
    convolve_back,
    convolve_gradient,
    scratch_size,
    sum_channels,
    visible_means,
)
from syncpretrain.kernels.dispatch import multiply
from syncpretrain.kernels.remembered_places import convolve_at
from syncpretrain.learners.autoencoder import AutoencoderSettings, BaseAutoencoder
from syncpretrain.learners.first_convolution import channel_means, first_convolution
from syncpretrain.shapes import ConvolutionShape
from syncpretrain.units.kinds import kind_of

__all__ = ["ConvolutionalAutoencoder"]


class ConvolutionalAutoencoder(BaseAutoencoder):
    """One convolutional layer that reconstructs its input; see :class:`Learner`.

    The code is h = f(pool(z W) + b) of the input z, noisy or not. The decoder puts each number of
    the code back to the place where the maximum was, with zeros elsewhere, or spreads it evenly
    where blocks are averaged, and adds up what the filters of W, or its own, make of it.

    A filter acts at many positions. The gradients of the weights and hidden biases are averaged
    over the Q numbers of a code that each filter makes, those of the visible biases over the
    pixels, where the sums are the gradient of the loss: so a learning rate that suits a dense layer
    suits a convolution of any image.
    """

    settings: AutoencoderSettings

    def __init__(self, layer: int, shape: ConvolutionShape, settings: AutoencoderSettings) -> None:
        shape = shape.in_precision(settings.precision)
        self.settings, self._shape = settings, shape
        variance = kind_of(settings.hidden_units).weight_variance
        first = first_convolution(
            layer,
            shape,
            seed=settings.seed,
            spread=math.sqrt(variance(shape.fan_in, shape.fan_out)),
            tied=settings.tied,
            kinds=settings.kinds(self.model),
        )
        super().__init__(layer, first, settings)

    def _allocate(self, rows: int) -> None:
        super()._allocate(rows)
        shape, empty = self._shape, self.backend.empty
        self._places = empty((2 * rows, shape.hidden))  # twice, for both halves of what is stacked
        self._ones = empty(rows * shape.output.height * shape.output.width)
        self._ones.fill(1)  # a product adds up ten times as fast as a sum over rows
        self._scratch = empty(max(map(scratch_size, (shape, shape.unpooled))))

    @property
    def buffers(self) -> tuple[Array, ...]:
        """What a step is computed in.

        The examples, their reconstruction, the code; what is read above the derivative by the
        decoder's inputs, the derivative by those of the code above the code, and the places.
        """
        stacked = self._z_and_y_delta, self._h_delta_and_h, self._places
        return self._x, self._y, self._h, *stacked

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
        convolve(
            z,
            self._filters,
            self.hidden_bias,
            out,
            self._places[: len(z)],
            self._scratch,
            self._shape,
            self.settings.hidden_units,
        )

    def _decode(self, h: Array, *, out: Array) -> None:
        shape, places = self._shape, self._places[: len(h)]
        convolve_back(h, places, self._decoder_filters, out, self._scratch, shape)
        visible_means(out, self.visible_bias, shape, self.settings.visible_units)

    def _decode_back(self, y_delta: Array, *, out: Array) -> None:
        places = self._places[: len(y_delta)]
        convolve_at(y_delta, self._decoder_filters, places, out, self._scratch, self._shape)

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
            convolve_gradient(y_delta, h, places[:n], dU[0].reshape(filters), scratch, shape)
            convolve_gradient(z, h_delta, places[:n], dW.reshape(filters), scratch, shape)
        else:
            np.copyto(places[n:], places[:n])
            both = z_and_y_delta, h_delta_and_h, places
            convolve_gradient(*both, dW.reshape(filters), scratch, shape)
        sum_channels(y_delta, shape, out=da)
        da *= np.float32(code / (shape.height * shape.width))
        multiply(self._ones[: n * code], h_delta.reshape(-1, shape.filters), out=db)
