"""The parts of a stack: dense and convolutional layers, the head on top, and passes through layers.

A learner publishes a layer: its parameters, the kinds of its units, and the passes up and down.
Examples pass through several layers a few rows at a time. The top layer may return the log-odds of
its binary units in place of their probabilities: probabilities near 0 and 1 hide how sure a unit
is, and log-odds are linear in the input of the unit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from syncpretrain.data.scaling import Scaling
from syncpretrain.data.sparse_rows import run_of
from syncpretrain.errors import DataError
from syncpretrain.kernels import convolution as kernels
from syncpretrain.kernels.activations import affine
from syncpretrain.kernels.arrays import Array, blocks_in
from syncpretrain.kernels.conditions import as_documents
from syncpretrain.kernels.precision import PRODUCTS
from syncpretrain.shapes import ConvolutionShape, DenseShape
from syncpretrain.units.kinds import kind_of


def _parameters(layer: DenseLayer | ConvolutionalLayer) -> Iterator[tuple[str, Array]]:
    """Yield name and array of each parameter in their fixed order."""
    yield "weight", layer.weight
    yield "hidden_bias", layer.hidden_bias
    if layer.decoder_weight is not None:
        yield "decoder_weight", layer.decoder_weight
    yield "visible_bias", layer.visible_bias


NO_RBM = "is an autoencoder, or was fine-tuned, and"  # and what follows from that


@dataclass(frozen=True, eq=False)  # == of two arrays is no truth value
class DenseLayer:
    """Parameters of a dense layer, float32 and contiguous, and the kinds of its units.

    ``weight`` has shape (visible, hidden), ``hidden_bias`` (hidden,), ``visible_bias`` (visible,).
    ``decoder_weight`` has shape (hidden, visible), or is None if the decoder uses the transposed
    ``weight``. Units are one of ``syncpretrain.units.kinds.UNITS``; ``model`` is "rbm" or
    "autoencoder". ``precision`` is the precision of the products while the layer is trained.
    ``chains`` is None, or an array of shape (chains, hidden): the hidden states at which persistent
    chains apart from the minibatch have ended.
    """

    weight: Array
    hidden_bias: Array
    visible_bias: Array
    decoder_weight: Array | None = None
    hidden_units: str = "bernoulli"
    visible_units: str = "bernoulli"
    model: str = "rbm"
    precision: str = "float32"
    chains: Any = None

    @property
    def shape(self) -> DenseShape:
        """The numbers of visible and of hidden units."""
        return DenseShape(*self.weight.shape)

    @property
    def decoding(self) -> Array:
        """The decoder weights, of shape (hidden, visible)."""
        return self.weight.T if self.decoder_weight is None else self.decoder_weight

    parameters = _parameters

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield the parameters, and the chains of an RBM that has some."""
        yield from self.parameters()
        if self.chains is not None and self.model == "rbm":
            yield "chains", self.chains

    def to(self, device: Callable[[Any], Any]) -> DenseLayer:
        """Return the layer with every array moved by ``device``, to a device or to the host."""
        return replace(self, **{name: device(array) for name, array in self.arrays()})

    def up(self, X: Array, *, out: Array | None = None, units: str | None = None) -> Array:
        """Return the mean of the hidden units for each row of X; p(h = 1 | v) for binary units.

        With ``units`` it is the mean that such units would have.
        """
        multiply = PRODUCTS[self.precision].multiply
        units = units or self.hidden_units
        return affine(X, self.weight, self.hidden_bias, units, out=out, multiply=multiply)

    def down(self, H: Array, *, out: Array | None = None, units: str | None = None) -> Array:
        """Return the mean of the visible units, or of ``units``, for each row of H."""
        multiply = PRODUCTS[self.precision].multiply
        units = units or self.visible_units
        return affine(H, self.decoding, self.visible_bias, units, out=out, multiply=multiply)

    def reconstruct(self, X: Array, H: Array | None = None) -> Array:
        """Return the mean of the visible units for the code of each row of X."""
        Y = self.down(self.up(X) if H is None else H)
        return as_documents(Y, X, self.visible_units)


@dataclass(frozen=True, eq=False)  # == of two arrays is no truth value
class ConvolutionalLayer:
    """Parameters of a convolutional layer with pooling, and the kinds of its units.

    The arrays are float32 and contiguous. ``weight`` has shape (size, size, channels / groups,
    filters), ``hidden_bias`` (filters,), and ``visible_bias`` (channels,). ``decoder_weight`` has
    the shape of ``weight``, or is None if the decoder uses ``weight``. Units and ``model`` are as
    for a :class:`DenseLayer`.

    The hidden units read the pooled maps: f(pool(x W) + b); with probabilistic pooling a code holds
    the probability that one unit of a block is on. The decoder spreads each number of a code evenly
    over its block of the map: this is the expected value at each place, if the maximum is equally
    likely at each.
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
        """The decoder weights, in the shape of ``weight``."""
        return self.weight if self.decoder_weight is None else self.decoder_weight

    parameters = arrays = _parameters

    def to(self, device: Callable[[Any], Any]) -> ConvolutionalLayer:
        """Return the layer with every array moved by ``device``, to a device or to the host."""
        return replace(self, **{name: device(array) for name, array in self.parameters()})

    def up(self, X: Array, *, out: Array | None = None) -> Array:
        """Return the code of each row of X, position by position, then filter by filter."""
        result = self._empty(X, len(X), self.shape.hidden) if out is None else out
        if self.shape.pooling == "prob":
            return kernels.block_sums(self._unpooled(X), self.shape, out=result)
        return self._convolved(X, result, self._empty(X, 0), self.shape, self.hidden_units)

    def _unpooled(self, X: Array) -> Array:
        """Return the means of the hidden units at every position, for each row of X."""
        shape = self.shape.unpooled
        excludes = self.shape.pooling == "prob"  # at most one unit of a block is on
        units = "gaussian" if excludes else self.hidden_units
        maps = self._empty(X, len(X), shape.hidden)
        self._convolved(X, maps, self._empty(X, 0), shape, units)
        return kernels.block_means(maps, self.shape) if excludes else maps

    def down(self, H: Array, *, out: Array | None = None, units: str | None = None) -> Array:
        """Return the mean of the visible units, or of ``units``, for each row of H."""
        return self._decoded(H, self._empty(H, 0), units or self.visible_units, out)

    def reconstruct(self, X: Array, H: Array | None = None) -> Array:
        """Return the mean of the visible units for each row of X.

        The code alone is not enough: an RBM reconstructs from its maps before pooling, and an
        autoencoder puts each number of the code back to the place of the maximum.
        """
        if self.model == "rbm":
            return replace(self, shape=self.shape.unpooled).down(self._unpooled(X))
        code, places = (self._empty(X, len(X), self.shape.hidden) for _ in range(2))
        self._convolved(X, code, places, self.shape, self.hidden_units)
        return self._decoded(code, places, self.visible_units)

    def _convolved(
        self, X: Array, out: Array, places: Array, shape: ConvolutionShape, units: str
    ) -> Array:
        """Fill ``out`` with the means of the hidden units of a shape, ``places`` of the maxima."""
        weight = self.weight.reshape(shape.fan_in, shape.filters)
        scratch = self._empty(X, kernels.scratch_size(shape))
        kernels.convolve(X, weight, self.hidden_bias, out, places, scratch, shape, units)
        return out

    def _decoded(self, H: Array, places: Array, units: str, out: Array | None = None) -> Array:
        """Return the means of the visible units; each number of H goes to its place, if given."""
        shape = self.shape
        result = self._empty(H, len(H), shape.visible) if out is None else out
        scratch = self._empty(H, kernels.scratch_size(shape))
        weight = self.decoding.reshape(shape.fan_in, shape.filters)
        kernels.convolve_back(H, places, weight, result, scratch, shape)
        return kernels.visible_means(result, self.visible_bias, shape, units)

    def _empty(self, like: Array, *shape: int) -> Array:
        """Return a new array with the type of ``like``, on the device of the parameters."""
        return np.empty_like(self.weight, dtype=like.dtype, shape=shape, order="C")


@dataclass(frozen=True, eq=False)
class ModuleLayer:
    """Arrays of a layer that another library computes, by name, float32.

    Numbers of another type are in the file and in messages as their bytes, seen as float32. The
    kinds of units say only that outputs have no known range.
    """

    named: dict[str, Array]
    hidden_units: str = "bernoulli"
    visible_units: str = "bernoulli"
    model: str = "module"

    def parameters(self) -> Iterator[tuple[str, Array]]:
        """Yield name and array of each parameter and buffer in their fixed order."""
        yield from self.named.items()

    arrays = parameters

    def to(self, device: Callable[[Any], Any]) -> ModuleLayer:
        """Return the arrays alone, every array moved by ``device``."""
        return ModuleLayer({name: device(array) for name, array in self.named.items()})


# A trained layer of any kind: the arrays and the passes of :class:`DenseLayer`, the shapes of the
# arrays by the kind.
Layer = DenseLayer | ConvolutionalLayer


def in_float32(layer: Layer) -> Layer:
    """Return a layer with products in float32: the layer itself if it has them already."""
    if isinstance(layer, DenseLayer):
        return layer if layer.precision == "float32" else replace(layer, precision="float32")
    if not (layer.shape.rounded or layer.shape.tf32):
        return layer
    return replace(layer, shape=layer.shape.in_precision("float32"))


@dataclass(frozen=True, eq=False)
class Head:
    """The output layer of a classifier or a regression, on top of the code: outputs = code W + b.

    ``weight`` has shape (top units, outputs), ``bias`` (outputs,). ``kind`` is "classification" or
    "regression"; the outputs of a classifier are logits. ``classes`` are the labels of a
    classifier's outputs, in their order.
    """

    weight: Array
    bias: Array
    kind: str
    classes: tuple[int, ...] | tuple[str, ...] = ()


def parameters_sha256(
    layers: Sequence[Layer], scaling: Scaling | None = None, head: Head | None = None
) -> str:
    """Return the SHA-256 of all parameters in layer order, as little-endian float32 in C order."""
    arrays = [array for layer in layers for _, array in layer.parameters()]
    if scaling is not None:
        arrays += [scaling.shift, scaling.scale]
    if head is not None:
        arrays += [head.weight, head.bias]
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype="<f4").data)
    return digest.hexdigest()


MOST_ROWS = 2000
NUMBERS_AT_ONCE = 1 << 26  # inputs and outputs of a layer, 256 MB
Step = Callable[..., Array]  # takes rows and optionally ``out``


def rows_at_once(layers: Iterable[Layer], most: int = MOST_ROWS) -> int:
    """Return how many rows go through layers together: ``most``, or fewer if layers are wide."""
    widest = max(layer.shape.visible + layer.shape.hidden for layer in layers)
    return max(1, min(most, NUMBERS_AT_ONCE // widest))


def blocks_through(layers: Iterable[Layer], X: Any, most: int = MOST_ROWS) -> Iterator[Any]:
    """Yield the rows of X in blocks of as many as go through layers together."""
    for part in blocks_in(slice(0, len(X)), rows_at_once(layers, most)):
        yield X[part]


def up_through(layers: Sequence[Layer], X: Array) -> Array:
    """Pass the rows of X up through layers, given from the lowest up; return the codes."""
    return _through([layer.up for layer in layers], X, layers, layers[-1].shape.hidden)


def units_of(layers: Sequence[Layer]) -> tuple[str, ...]:
    """Return the kinds of the units of the input and of each layer, given from the lowest up."""
    return (layers[0].visible_units, *(layer.hidden_units for layer in layers))


def down_through(layers: Sequence[Layer], codes: Array) -> Array:
    """Pass codes down through layers, given from the lowest up; return the lowest visible means.

    The layers on the way keep the kinds of units of their encoders.
    """
    pairs = zip(reversed(layers), reversed(units_of(layers)[:-1]), strict=True)
    steps: list[Step] = [partial(layer.down, units=kind) for layer, kind in pairs]
    return _through(steps, codes, layers, layers[0].shape.visible)


def _through(steps: Sequence[Step], X: Array, layers: Sequence[Layer], width: int) -> Array:
    result = np.empty((len(X), width), dtype=np.float32)
    for part in blocks_in(slice(0, len(X)), rows_at_once(layers)):
        rows = run_of(X, part) if layers[0].shape.name == "dense" else X[part]
        for step in steps[:-1]:
            rows = step(rows)
        steps[-1](rows, out=result[part])
    return result


def with_log_odds(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers with a top layer that returns the log-odds of its units, not their means.

    Raises
    ------
    DataError
        If the units of the top layer are not binary, or exclude each other.
    """
    *below, top = layers
    check_have_odds(top.hidden_units)
    if isinstance(top, ConvolutionalLayer) and top.shape.pooling == "prob":
        wanted = "max or mean; leave log_odds out"
        got = "probabilistic pooling in the layer of the codes"
        raise DataError(f"log_odds: got {got}, expected {wanted}")
    return (*below, replace(top, hidden_units="gaussian"))


def check_have_odds(units: str) -> None:
    """Refuse hidden units that are not binary.

    Raises
    ------
    DataError
    """
    if not kind_of(units).is_binary:
        got = f"{units} units in the layer of the codes"
        raise DataError(f"log_odds: got {got}, expected bernoulli; leave log_odds out")
