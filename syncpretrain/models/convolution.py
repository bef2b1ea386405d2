"""A convolutional layer with pooling, as a learner publishes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.convolution import (
    block_means,
    block_sums,
    convolve,
    convolve_back,
    scratch_size,
    visible_means,
)
from syncpretrain.shapes import ConvolutionShape

__all__ = ["ConvolutionalLayer"]


@dataclass(frozen=True, eq=False)  # of two arrays, == is no truth value
class ConvolutionalLayer:
    """Parameters of a convolutional layer, float32, contiguous, and what its units are.

    ``weight`` has shape (size, size, channels / groups, filters), ``hidden_bias`` (filters,), and
    ``visible_bias`` (channels,). ``decoder_weight`` of the shape of ``weight`` is None as long as
    the decoder uses ``weight``. Units and ``model`` are those of a
    :class:`syncpretrain.models.layer.DenseLayer`.

    The hidden units read the pooled maps: f(pool(x W) + b); with probabilistic pooling a code holds
    the probability that one unit of a block is on. The decoder spreads each number of
    a code evenly over its block of the map: if a maximum is as likely at each place, that is what
    is expected at each.
    """

    weight: Array
    hidden_bias: Array
    visible_bias: Array
    shape: ConvolutionShape
    decoder_weight: Array | None = None
    hidden_units: str = "bernoulli"
    visible_units: str = "bernoulli"
    model: str = "rbm"

    @property
    def decoding(self) -> Array:
        """The decoder weights, of the shape of ``weight``."""
        return self.weight if self.decoder_weight is None else self.decoder_weight

    def parameters(self) -> Iterator[tuple[str, Array]]:
        """Yield name and array of each parameter in their fixed order."""
        yield "weight", self.weight
        yield "hidden_bias", self.hidden_bias
        if self.decoder_weight is not None:
            yield "decoder_weight", self.decoder_weight
        yield "visible_bias", self.visible_bias

    def to(self, device: Callable[[Any], Any]) -> ConvolutionalLayer:
        """Return the layer with every array moved by ``device``, to a device or to the host."""
        return replace(self, **{name: device(array) for name, array in self.parameters()})

    def up(self, X: Array, *, out: Array | None = None) -> Array:
        """Return the code of each row of X, position by position, then filter by filter."""
        shape = self.shape
        result = self._empty(X, len(X), shape.hidden) if out is None else out
        if shape.pooling == "prob":
            return block_sums(self._unpooled(X), shape, out=result)
        scratch = self._empty(X, scratch_size(shape))
        none = self._empty(X, 0)
        weight = self.weight.reshape(shape.fan_in, shape.filters)
        convolve(X, weight, self.hidden_bias, result, none, scratch, shape, self.hidden_units)
        return result

    def _unpooled(self, X: Array) -> Array:
        """Return the means of the hidden units at every position, for each row of X."""
        shape = self.shape.unpooled
        maps = self._empty(X, len(X), shape.hidden)
        scratch = self._empty(X, scratch_size(shape))
        none = self._empty(X, 0)
        weight = self.weight.reshape(shape.fan_in, shape.filters)
        excludes = self.shape.pooling == "prob"  # the units of a block each other
        units = "gaussian" if excludes else self.hidden_units
        convolve(X, weight, self.hidden_bias, maps, none, scratch, shape, units)
        return block_means(maps, self.shape) if excludes else maps

    def down(self, H: Array, *, out: Array | None = None, units: str | None = None) -> Array:
        """Return the mean of the visible units, or of ``units``, for each row of H."""
        shape = self.shape
        result = self._empty(H, len(H), shape.visible) if out is None else out
        scratch = self._empty(H, scratch_size(shape))
        none = self._empty(H, 0)
        weight = self.decoding.reshape(shape.fan_in, shape.filters)
        convolve_back(H, none, weight, result, scratch, shape)
        return visible_means(result, self.visible_bias, shape, units or self.visible_units)

    def reconstruct(self, X: Array, H: Array | None = None) -> Array:
        """Return the mean of the visible units for each row of X.

        An RBM reconstructs from its maps before they are pooled, an autoencoder from a code whose
        numbers go back to the places where the maximum was: the code alone is not enough.
        """
        if self.model == "rbm":
            unpooled = replace(self, shape=self.shape.unpooled)
            return unpooled.down(self._unpooled(X))
        shape = self.shape
        code = self._empty(X, len(X), shape.hidden)
        places = np.empty_like(code)
        result = self._empty(X, len(X), shape.visible)
        scratch = self._empty(X, scratch_size(shape))
        weight = self.weight.reshape(shape.fan_in, shape.filters)
        decoding = self.decoding.reshape(shape.fan_in, shape.filters)
        convolve(X, weight, self.hidden_bias, code, places, scratch, shape, self.hidden_units)
        convolve_back(code, places, decoding, result, scratch, shape)
        return visible_means(result, self.visible_bias, shape, self.visible_units)

    def _empty(self, like: Array, *shape: int) -> Array:
        """Return a new array of the kind of numbers of another, where the parameters are."""
        return np.empty_like(self.weight, dtype=like.dtype, shape=shape, order="C")
