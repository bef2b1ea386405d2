"""Convolutional links of a network that is fine-tuned, up to a code and down to an image.

Both compute with a weight of shape (k k C, F); symbols are those of
:mod:`syncpretrain.kernels.convolution`. What comes down is the derivative of the loss with respect
to the pooled inputs of the units, because units read the pooled maps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from syncpretrain.finetuning.chain import Affine, Columns, Link, Site
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.convolution import scratch_size
from syncpretrain.kernels.operations import Operation
from syncpretrain.models.convolution import ConvolutionalLayer
from syncpretrain.models.layer import Layer
from syncpretrain.shapes import ConvolutionShape

__all__ = ["Convolve", "Deconvolve", "link_down", "link_up", "tuned"]


@dataclass(frozen=True, slots=True)
class Convolve:
    """A convolution: the means of ``units`` whose input is pool(x W) + b, a bias a filter."""

    weight: Array
    bias: Array
    units: str
    shape: ConvolutionShape

    is_local: ClassVar[bool] = True

    def in_precision(self, name: str) -> Convolve:
        """Return the same with products in a precision."""
        return replace(self, shape=self.shape.in_precision(name))

    @property
    def groups(self) -> int:
        """Groups of filters, each of which reads its own part of the channels."""
        return self.shape.groups

    @property
    def reads(self) -> Columns:
        """The images that it reads."""
        return _images(self.shape)

    @property
    def makes(self) -> Columns:
        """The pooled maps that it hands on."""
        return _maps(self.shape)

    @property
    def scratch(self) -> int:
        """Numbers of scratch that a shard needs."""
        return scratch_size(self.shape)

    @property
    def keeps_places(self) -> bool:
        """Whether the maximum of each block has a place."""
        return self.shape.has_places

    def up(self, site: Site, own: slice) -> list[Operation]:
        """Return what fills the means of some filters."""
        arrays = (site.read, site.weight, site.bias, site.out, site.places, site.scratch)
        return [("convolve", *arrays, self.shape, self.units, own.start, own.stop)]

    def gradient(self, site: Site, reads: slice, own: slice) -> list[Operation]:
        """Return what fills the gradients of some filters."""
        if own.start == own.stop:
            return []
        arrays = (site.read, site.delta, site.places, site.weight_gradient, site.scratch)
        return [
            ("convolve_gradient", *arrays, self.shape, own.start, own.stop),
            ("sum_rows", self.makes.of(site.delta, own), site.bias_gradient[own]),
        ]

    def down(self, site: Site, below: Array, reads: slice) -> list[Operation]:
        """Return what fills the derivative of the loss with respect to some channels."""
        arrays = (site.delta, site.places, site.weight, below, site.scratch)
        return [("convolve_back", *arrays, self.shape, reads.start, reads.stop)]

    def moved(self, reads: slice) -> slice | None:
        """Return None: all shards need all weights on the way down."""
        return None


@dataclass(frozen=True, slots=True)
class Deconvolve:
    """The way back: the means of ``units`` whose input is spread(code) W' + a, a bias a channel.

    The transposed of a convolution with mean pooling; ``shape`` is that of the convolution.
    """

    weight: Array
    bias: Array
    units: str
    shape: ConvolutionShape

    is_local: ClassVar[bool] = True
    keeps_places: ClassVar[bool] = False

    def in_precision(self, name: str) -> Deconvolve:
        """Return the same with products in a precision."""
        return replace(self, shape=self.shape.in_precision(name))

    @property
    def groups(self) -> int:
        """Groups of channels, each of which reads the codes of its own filters."""
        return self.shape.groups

    @property
    def reads(self) -> Columns:
        """The codes that it reads."""
        return _maps(self.shape)

    @property
    def makes(self) -> Columns:
        """The images that it hands on."""
        return _images(self.shape)

    @property
    def scratch(self) -> int:
        """Numbers of scratch that a shard needs."""
        return max(map(scratch_size, (self.shape, self._transposed)))

    def up(self, site: Site, own: slice) -> list[Operation]:
        """Return what fills the means of some channels."""
        none, out = site.places, self.makes.of(site.out, own)
        arrays = (site.read, none, site.weight, site.out, site.scratch)
        inputs = ("convolve_back", *arrays, self.shape, own.start, own.stop)
        if not self.makes.by_unit:
            return [inputs, ("means", out, site.bias[own], self.units)]
        return [inputs, ("visible_means", out, site.bias[own], self._part(own), self.units)]

    def gradient(self, site: Site, reads: slice, own: slice) -> list[Operation]:
        """Return what fills the gradient of some filters, and of some channels' biases."""
        none, found = site.places, list[Operation]()
        if reads.start < reads.stop:
            arrays = (site.delta, site.read, none, site.weight_gradient, site.scratch)
            found += [("convolve_gradient", *arrays, self.shape, reads.start, reads.stop)]
        if own.start < own.stop:
            delta = self.makes.of(site.delta, own)
            by_unit = ("sum_channels", delta, site.bias_gradient[own], self._part(own))
            found += [
                by_unit if self.makes.by_unit else ("sum_rows", delta, site.bias_gradient[own])
            ]
        return found

    def down(self, site: Site, below: Array, reads: slice) -> list[Operation]:
        """Return what fills the derivative of the loss with respect to some maps of the code."""
        none, bias = site.places, np.zeros_like(site.weight, shape=(self.shape.filters,))
        arrays = (site.delta, site.weight, bias, below, none, site.scratch)
        return [("convolve", *arrays, self._transposed, "gaussian", reads.start, reads.stop)]

    def moved(self, reads: slice) -> slice | None:
        """Return None: the weights of filters do not lie together."""
        return None

    @property
    def _transposed(self) -> ConvolutionShape:
        """The shape of the convolution that this is the transposed of."""
        return replace(self.shape, pooling="mean")

    def _part(self, own: slice) -> ConvolutionShape:
        """Return the shape of some channels."""
        return replace(self.shape, channels=own.stop - own.start, groups=1)


def link_up(layer: Layer) -> Link:
    """Return the encoder of a layer."""
    if isinstance(layer, ConvolutionalLayer):
        weight = layer.weight.reshape(layer.shape.fan_in, -1)
        return Convolve(weight, layer.hidden_bias, layer.hidden_units, _network_shape(layer))
    return Affine(layer.weight, layer.hidden_bias, layer.hidden_units)


def link_down(layer: Layer, units: str) -> Link:
    """Return the decoder of a layer, to visible units of a kind."""
    if isinstance(layer, ConvolutionalLayer):
        weight = layer.decoding.reshape(layer.shape.fan_in, -1)
        return Deconvolve(weight, layer.visible_bias, units, _network_shape(layer))
    return Affine(layer.decoding, layer.visible_bias, units)


def tuned(layer: Layer, **changed: Any) -> Layer:
    """Return a layer with other parameters: a network's, and no RBM any more."""
    if isinstance(layer, ConvolutionalLayer):
        changed["shape"] = _network_shape(layer)
    return replace(layer, **changed, model="autoencoder")


def _network_shape(layer: ConvolutionalLayer) -> ConvolutionShape:
    """Return the shape with the maximum in place of probabilistic pooling, which only RBMs have."""
    pooling = "max" if layer.shape.pooling == "prob" else layer.shape.pooling
    return replace(layer.shape, pooling=pooling)


def _images(shape: ConvolutionShape) -> Columns:
    return Columns(shape.channels, shape.height * shape.width, shape.channels_first)


def _maps(shape: ConvolutionShape) -> Columns:
    output = shape.output
    return Columns(shape.filters, output.height * output.width)
