"""Links of a network that is fine-tuned: dense and convolutional ones, and dropout.

Convolutional links go up to a code, and down to an image. Both compute with a weight of shape
(k k C, F); symbols are as in :mod:`syncpretrain.kernels.convolution`. What comes down is the
derivative of the loss with respect to the pooled inputs of the units, because units read the pooled
maps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from syncpretrain.backends.base import Backend
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.backprop import Pair
from syncpretrain.kernels.convolution import scratch_size
from syncpretrain.kernels.operations import Operation
from syncpretrain.kernels.precision import PRODUCTS, Precision
from syncpretrain.learners.base import Places
from syncpretrain.models.layer import ConvolutionalLayer, Layer
from syncpretrain.shapes import ConvolutionShape
from syncpretrain.units.kinds import kind_of


@dataclass(frozen=True, slots=True)
class Columns:
    """Layout of a row: numbers of some units at each of some positions.

    Attributes
    ----------
    units, positions : int
    by_unit : bool
        True if the numbers of one unit lie together, False if those at one position do.
    """

    units: int
    positions: int = 1
    by_unit: bool = False

    @property
    def numbers(self) -> int:
        """Numbers of a row."""
        return self.units * self.positions

    def of(self, x: Array, own: slice) -> Array:
        """Return a view of the numbers of some units in contiguous rows, with two axes."""
        if self.by_unit:
            return x[:, own.start * self.positions : own.stop * self.positions]
        return x.reshape(-1, self.units)[:, own]


@dataclass(frozen=True, slots=True)
class Site:
    """The arrays in which a shard works a link.

    Attributes
    ----------
    weight, bias, weight_gradient, bias_gradient : ndarray
        Parameters and their gradients.
    read, out, delta : ndarray of shape (n, numbers)
        Input of the link, its output, and the derivative of the loss with respect to the inputs of
        its units.
    places, scratch : ndarray
        Pooling indices and scratch of the convolution kernels; empty for other links.
    normal, spread : ndarray
        Standardized inputs of the units of shape (n, numbers), and their standard deviations
        before; empty for links without normalization.
    """

    weight: Array
    bias: Array
    weight_gradient: Array
    bias_gradient: Array
    read: Array
    out: Array
    delta: Array
    places: Array
    scratch: Array
    normal: Array
    spread: Array


@dataclass(frozen=True, slots=True)
class Link(ABC):
    """One layer of a chain.

    Attributes
    ----------
    weight, bias : ndarray of shape (rows, columns) and (units,)
        Initial values of the parameters.
    units : str
    is_local : bool
        Whether each unit reads a part of the layer below, with the same weights at each position.
    groups : int
        Number of groups of its units; each group reads its own part of the units below.
    scratch : int
        Numbers of scratch that a shard needs.
    stores_argmax : bool
        Whether the forward pass stores pooling indices for the backward pass.
    is_normalized : bool
        Whether the inputs of each unit are standardized over the rows of a minibatch, ahead of the
        bias. A shard by examples standardizes over its own rows.
    """

    weight: Array
    bias: Array
    units: str
    is_normalized: bool = field(default=False, kw_only=True)

    is_local: ClassVar[bool] = False

    @property
    def groups(self) -> int:  # noqa: D102 - above
        return 1

    @property
    def scratch(self) -> int:  # noqa: D102
        return 0

    @property
    def stores_argmax(self) -> bool:  # noqa: D102
        return False

    @abstractmethod
    def in_precision(self, name: str) -> Link:
        """Return the same with products in a precision."""

    @property
    @abstractmethod
    def reads(self) -> Columns:
        """Layout of its input."""

    @property
    @abstractmethod
    def makes(self) -> Columns:
        """Layout of its output."""

    @abstractmethod
    def up(self, site: Site, own: slice) -> list[Operation]:
        """Return what fills the means of some units."""

    @abstractmethod
    def gradient(self, site: Site, reads: slice, own: slice) -> list[Operation]:
        """Return what fills a shard's part of the gradients.

        A link divides its weights by the units that it reads or by its own, as suits it.
        """

    @abstractmethod
    def down(self, site: Site, below: Array, reads: slice) -> list[Operation]:
        """Return what fills the derivative of the loss with respect to some units it reads."""

    def weight_slice(self, reads: slice) -> slice | None:
        """Return the slice of the flat weights that these input units own, counted from 0.

        None if their weights do not lie together, or the backward passes of other units read them.
        """
        return None


@dataclass(frozen=True, slots=True)
class Affine(Link):
    """One layer of a chain: the means of ``units`` at the input x W + b, in a precision.

    If it ``is_normalized``, at the input (x W - mean) / spread + b.
    """

    precision: str = "float32"

    def in_precision(self, name: str) -> Affine:
        """Return the same with products in a precision."""
        return replace(self, precision=name)

    @property
    def product(self) -> Precision:
        """The products of its precision."""
        return PRODUCTS[self.precision]

    @property
    def reads(self) -> Columns:
        """Layout of its input."""
        return Columns(len(self.weight))

    @property
    def makes(self) -> Columns:
        """Layout of its output."""
        return Columns(len(self.bias))

    def up(self, site: Site, own: slice) -> list[Operation]:
        """Return what fills the means of some units."""
        out = site.out[:, own]
        means: list[Operation] = [("means", out, site.bias[own], self.units)]
        if self.precision == "own" and kind_of(self.units).is_exclusive:
            means = [("means", out, site.bias[own], "gaussian"), ("softmax_fixed", out)]
        given = self.product.operation, site.read, site.weight[:, own]
        if not self.is_normalized:
            return [(*given, out), *means]
        normal = site.normal[:, own]  # kept for the way down
        standardized = [(*given, normal), ("normalize", normal, site.spread[own])]
        return [*standardized, ("copy", normal, out), *means]

    def gradient(self, site: Site, reads: slice, own: slice) -> list[Operation]:
        """Return what fills rows of the weight's gradient, and a part of the bias'."""
        found: list[Operation] = []
        if reads.start < reads.stop:
            read, product = site.read[:, reads].T, self.product.operation
            found += [(product, read, site.delta, site.weight_gradient[reads])]
        if own.start < own.stop:
            found += [("sum_rows", site.delta[:, own], site.bias_gradient[own])]
        return found

    def down(self, site: Site, below: Array, reads: slice) -> list[Operation]:
        """Return what fills the derivative of the loss with respect to some units it reads."""
        return [(self.product.operation, site.delta, site.weight[reads].T, below[:, reads])]

    def weight_slice(self, reads: slice) -> slice | None:
        """Return the slice of the flat weights that these input units own: whole rows."""
        return slice(reads.start * len(self.bias), reads.stop * len(self.bias))


@dataclass(frozen=True, slots=True)
class Dropout:
    """Shares of the inputs and of the hidden units left out of each example (Hinton et al. 2012).

    The units that stay are scaled up, so that nothing needs scaling when all are there.
    """

    input: float = 0.0
    hidden: float = 0.0
    seed: int = 0


def places_of(chain: Sequence[Link], backend: Backend) -> Places:
    """Return the places of the layers of a chain in a flat vector: a weight, then its bias."""
    return Places([layer.weight.size + layer.bias.size for layer in chain], backend)


def views(vector: Array, chain: Sequence[Link], places: Places) -> Iterator[Pair]:
    """Yield the weight and the bias of each layer of a chain, as views of a flat vector."""
    for layer, start in zip(chain, places.starts, strict=False):
        middle, end = start + layer.weight.size, start + layer.weight.size + layer.bias.size
        yield vector[start:middle].reshape(layer.weight.shape), vector[middle:end]


@dataclass(frozen=True, slots=True)
class _Local(Link):
    """Base of the links of a convolution of a ``shape``, up or back down.

    Its weights have no :meth:`weight_slice`: upward links read all of them on the way down, and
    the weights of the filters that a downward link owns do not lie together.
    """

    shape: ConvolutionShape

    is_local: ClassVar[bool] = True

    def in_precision(self, name: str) -> _Local:
        """Return the same with products in a precision."""
        return replace(self, shape=self.shape.in_precision(name))

    @property
    def groups(self) -> int:
        """Number of groups of filters; each group has its own part of the channels."""
        return self.shape.groups


@dataclass(frozen=True, slots=True)
class Convolve(_Local):
    """A convolution: the means of ``units`` at the input pool(x W) + b, with a bias a filter."""

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
    def stores_argmax(self) -> bool:
        """Whether the forward pass stores the place of each block's maximum."""
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


@dataclass(frozen=True, slots=True)
class Deconvolve(_Local):
    """The way back: the means of ``units`` at the input spread(code) W' + a, a bias a channel.

    The transposed of a convolution with mean pooling; ``shape`` is that of the convolution.
    """

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
            delta, sums = self.makes.of(site.delta, own), site.bias_gradient[own]
            by_unit = ("sum_channels", delta, sums, self._part(own))
            found += [by_unit if self.makes.by_unit else ("sum_rows", delta, sums)]
        return found

    def down(self, site: Site, below: Array, reads: slice) -> list[Operation]:
        """Return what fills the derivative of the loss with respect to some maps of the code."""
        none, bias = site.places, np.zeros_like(site.weight, shape=(self.shape.filters,))
        arrays = (site.delta, site.weight, bias, below, none, site.scratch)
        return [("convolve", *arrays, self._transposed, "gaussian", reads.start, reads.stop)]

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


def tuned(layer: Layer, encoder: Pair, **changed: Any) -> Layer:
    """Return a layer with copies of a link's parameters as its encoder, and no RBM any more."""
    weight, bias = encoder
    changed |= {"weight": weight.reshape(layer.weight.shape).copy(), "hidden_bias": bias.copy()}
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
