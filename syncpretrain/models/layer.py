"""The parts of a stack: one layer's parameters, which a learner publishes, and the head on top."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import Field, dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from syncpretrain.data.scaling import Scaling
from syncpretrain.kernels.activations import affine
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.conditions import as_documents
from syncpretrain.kernels.precision import PRECISIONS
from syncpretrain.shapes import ConvolutionShape, DenseShape, LayerShape

__all__ = ["DenseLayer", "Head", "Layer", "in_float32", "parameters_sha256"]


class Layer(Protocol):
    """A trained layer of any shape, with what all kinds of layers have.

    A dataclass, whose attributes are those of a :class:`DenseLayer`; the arrays have the shapes of
    their kind.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def weight(self) -> Array:
        """The encoder weights."""
        ...

    @property
    def hidden_bias(self) -> Array:
        """The biases of the hidden units."""
        ...

    @property
    def visible_bias(self) -> Array:
        """The biases of the visible units."""
        ...

    @property
    def decoder_weight(self) -> Array | None:
        """The decoder's own weights, None as long as it uses ``weight``."""
        ...

    @property
    def decoding(self) -> Array:
        """The decoder weights."""
        ...

    @property
    def hidden_units(self) -> str:
        """The kind of the hidden units."""
        ...

    @property
    def visible_units(self) -> str:
        """The kind of the visible units."""
        ...

    @property
    def model(self) -> str:
        """``rbm`` or ``autoencoder``."""
        ...

    def parameters(self) -> Iterator[tuple[str, Array]]:
        """Yield name and array of each parameter in their fixed order."""
        ...

    def to(self, device: Callable[[Any], Any]) -> Layer:
        """Return the layer with every array moved by ``device``, to a device or to the host."""
        ...

    @property
    def shape(self) -> LayerShape:
        """The shape of the layer; rows of its input have ``shape.visible`` numbers."""
        ...

    def up(self, X: Array, *, out: Array | None = None) -> Array:
        """Return the mean of the hidden units for each row of X."""
        ...

    def down(self, H: Array, *, out: Array | None = None, units: str | None = None) -> Array:
        """Return the mean of the visible units for each row of H.

        ``units`` stand for the layer's own visible units, if they are given.
        """
        ...

    def reconstruct(self, X: Array, H: Array | None = None) -> Array:
        """Return what the layer makes of each row of X as it is trained, without sampling.

        ``H`` are the means of the hidden units for X, where they are known.
        """
        ...


@dataclass(frozen=True, eq=False)  # of two arrays, == is no truth value
class DenseLayer:
    """Parameters of one layer, float32, contiguous, and what its units are.

    ``weight`` has shape (visible, hidden), ``hidden_bias`` (hidden,), ``visible_bias`` (visible,).
    ``decoder_weight`` of shape (hidden, visible) is None as long as the decoder uses the transposed
    ``weight``. Units are one of ``syncpretrain.units.kinds.UNITS``; ``model`` is "rbm" or
    "autoencoder". ``precision`` is that of the products while the layer is trained.
    """

    weight: Array
    hidden_bias: Array
    visible_bias: Array
    decoder_weight: Array | None = None
    hidden_units: str = "bernoulli"
    visible_units: str = "bernoulli"
    model: str = "rbm"
    precision: str = "float32"

    @property
    def shape(self) -> DenseShape:
        """The numbers of visible and of hidden units."""
        return DenseShape(*self.weight.shape)

    @property
    def decoding(self) -> Array:
        """The decoder weights, of shape (hidden, visible)."""
        return self.weight.T if self.decoder_weight is None else self.decoder_weight

    def parameters(self) -> Iterator[tuple[str, Array]]:
        """Yield name and array of each parameter in their fixed order."""
        yield "weight", self.weight
        yield "hidden_bias", self.hidden_bias
        if self.decoder_weight is not None:
            yield "decoder_weight", self.decoder_weight
        yield "visible_bias", self.visible_bias

    def to(self, device: Callable[[Any], Any]) -> DenseLayer:
        """Return the layer with every array moved by ``device``, to a device or to the host."""
        return replace(self, **{name: device(array) for name, array in self.parameters()})

    def up(self, X: Array, *, out: Array | None = None) -> Array:
        """Return the mean of the hidden units for each row of X, p(h = 1 | v) of binary ones."""
        multiply = PRECISIONS[self.precision].multiply
        return affine(
            X, self.weight, self.hidden_bias, self.hidden_units, out=out, multiply=multiply
        )

    def down(self, H: Array, *, out: Array | None = None, units: str | None = None) -> Array:
        """Return the mean of the visible units, or of ``units``, for each row of H."""
        multiply = PRECISIONS[self.precision].multiply
        units = units or self.visible_units
        return affine(H, self.decoding, self.visible_bias, units, out=out, multiply=multiply)

    def reconstruct(self, X: Array, H: Array | None = None) -> Array:
        """Return the mean of the visible units for the code of each row of X."""
        Y = self.down(self.up(X) if H is None else H)
        return as_documents(Y, X, self.visible_units)


def in_float32(layer: Layer) -> Layer:
    """Return a layer whose products are of float32, the same one if they are."""
    if isinstance(layer, DenseLayer):
        return layer if layer.precision == "float32" else replace(layer, precision="float32")
    shape = layer.shape
    if not isinstance(shape, ConvolutionShape) or not (shape.rounded or shape.tf32):
        return layer
    changed: Any = {"shape": shape.in_precision("float32")}
    return replace(layer, **changed)


@dataclass(frozen=True, eq=False)
class Head:
    """What a classifier or a regression has on top of the code: outputs = code W + b.

    ``weight`` has shape (top units, outputs), ``bias`` (outputs,); ``kind`` is "classification",
    whose outputs are the logarithms of the classes' odds, or "regression". ``classes`` are the
    labels that the outputs of a classifier stand for, in their order.
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
