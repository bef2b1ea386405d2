"""Read the dense layers of a network that PyTorch or Keras trained, as layers of a stack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from syncpretrain.errors import DataError
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.export.steps import FUNCTIONS
from syncpretrain.models.layer import DenseLayer, Head
from syncpretrain.models.model_file import Model
from syncpretrain.units.kinds import kind_of

LINEAR = "linear"
TORCH_FUNCTIONS = {"Sigmoid": "sigmoid", "ReLU": "relu", "Tanh": "tanh", "Identity": LINEAR}
TORCH_FUNCTIONS |= {"Softmax": "softmax"}
UNITS_OF = {function: units for units, function in FUNCTIONS.items()} | {LINEAR: "gaussian"}
WITHOUT_EFFECT = ("Dropout", "Flatten", "InputLayer")  # they leave rows as they are, once trained
WANTED = "dense layers with sigmoid, ReLU, tanh or no function behind each"


class Dense(NamedTuple):
    """A dense layer of the network: weights of shape (inputs, outputs), bias, and function."""

    weight: Array
    bias: Array
    function: str = LINEAR


# Yields the name of each module's class, and the layer or the function that the module is.
Parts = Callable[[Any], Iterable[tuple[str, Dense | str | None]]]


def model_of(
    parts: Parts,
    network: Any,
    decoder: Any,
    *,
    classes: Sequence[Any] | None = None,
    regression: bool = False,
    visible_units: str = "gaussian",
) -> Model:
    """Return the layers of a stack, and its head if the last layer is one.

    Parameters
    ----------
    parts : callable
        Returns the modules of a network: :func:`torch_parts` or :func:`keras_parts`.
    network, decoder : object
        Networks from the input up, and from the code down, of the same widths; without a decoder
        the transposed weights, and biases of 0.
    classes : sequence of int or of str, optional
        Labels of the last layer's outputs; they make it the head of a classifier.
    regression : bool
        True makes the last layer the head of a regression.
    visible_units : str
        Kind of the input.

    Raises
    ------
    DataError
        If the layers do not fit each other, or naming the first module that is no dense layer or
        function.
    """
    encoder, head = _read(parts, network), None
    own = list(encoder)
    if classes is not None or regression:
        head = _head(own.pop(), classes)
    if not own:
        raise DataError(f"network: got {len(encoder)} dense layers, expected one below the head")
    if any(kind_of(UNITS_OF[layer.function]).is_exclusive for layer in own):
        raise DataError("classes: got none for a softmax; give the labels of its outputs")
    down = [None] * len(own) if decoder is None else _read(parts, decoder)[::-1]
    if len(down) != len(own):
        wanted = f"expected {len(own)}, the encoder's"
        raise DataError(f"decoder: got {len(down)} dense layers, {wanted}")
    below, layers = visible_units, list[DenseLayer]()
    for number, (up, back) in enumerate(zip(own, down, strict=True), start=1):
        shape = up.weight.shape
        if layers and len(layers[-1].hidden_bias) != shape[0]:
            wanted = f"those of the layer below, {len(layers[-1].hidden_bias)}"
            reads = f"dense layer {number} reads {shape[0]} values"
            raise DataError(f"network: {reads}, expected {wanted}")
        if back is not None and back.weight.shape != shape[::-1]:
            wanted = f"{shape[::-1]}, that of dense layer {number} of the encoder, transposed"
            raise DataError(f"decoder: got a layer of shape {back.weight.shape}, expected {wanted}")
        bias = np.zeros(shape[0], dtype=np.float32) if back is None else back.bias
        weight = None if back is None else back.weight
        units = UNITS_OF[up.function]
        kinds = {"hidden_units": units, "visible_units": below, "model": "autoencoder"}
        layers.append(DenseLayer(up.weight, up.bias, bias, weight, **kinds))
        below = kind_of(units).above
    return Model(tuple(layers), {}, None, head)


def _head(last: Dense, classes: Sequence[Any] | None) -> Head:
    is_softmax = kind_of(UNITS_OF[last.function]).is_exclusive
    if last.function != LINEAR and not (is_softmax and classes is not None):
        got = f"{last.function} behind the last layer"
        raise DataError(f"network: got {got}, expected nothing behind a head")
    if classes is None:
        return Head(last.weight, last.bias, "regression")
    if len(classes) != len(last.bias) or len(set(classes)) != len(classes):
        got = f"{len(classes)} for {len(last.bias)} outputs"
        raise DataError(f"classes: got {got}, expected as many, each once")
    texts = all(isinstance(label, str) for label in classes)
    own = tuple(map(str, classes)) if texts else tuple(map(int, classes))
    return Head(last.weight, last.bias, "classification", own)


def _read(parts: Parts, network: Any) -> list[Dense]:
    """Return the dense layers of a network, each with the function behind it."""
    if len(getattr(network, "inputs", None) or ()) > 1:
        raise DataError(f"network: got a model of {len(network.inputs)} inputs, expected one")
    found: list[Dense] = []
    behind = False  # True while the last layer may still get a function
    for place, (kind, own) in enumerate(parts(network)):
        if isinstance(own, Dense):
            found.append(own)
            behind = own.function == LINEAR
        elif own in UNITS_OF and behind:
            found[-1] = found[-1]._replace(function=str(own))
            behind = False
        elif kind not in WITHOUT_EFFECT:
            got = f"{kind} at place {place}, counted from 0"
            raise DataError(f"network: got {got}, expected {WANTED}")
    if not found:
        raise DataError(f"network: got no dense layer, expected {WANTED}")
    return found


def torch_parts(network: Any) -> Iterator[tuple[str, Dense | str | None]]:
    """Yield the modules of an ``nn.Sequential`` or an ``nn.Linear``."""
    kind = type(network).__name__
    if kind == "Sequential":
        for module in network:
            yield from torch_parts(module)
    elif kind == "Linear":
        weight = _array(network.weight.detach().cpu().numpy().T)
        bias = None if network.bias is None else network.bias.detach().cpu().numpy()
        yield kind, Dense(weight, _bias(bias, weight))
    else:
        yield kind, TORCH_FUNCTIONS.get(kind)


def keras_parts(network: Any) -> Iterator[tuple[str, Dense | str | None]]:
    """Yield the modules of a ``keras.Sequential``, or of a model that is a plain stack."""
    for layer in getattr(network, "layers", None) or (network,):
        kind = type(layer).__name__
        if layer is not network and getattr(layer, "layers", None):
            yield from keras_parts(layer)
        elif kind == "Dense":
            yield kind, _keras_dense(layer)
        elif kind == "Activation":
            yield kind, str(layer.activation.__name__)
        else:
            yield kind, {"ReLU": "relu", "Softmax": "softmax"}.get(kind)


def _keras_dense(layer: Any) -> Dense:
    function = layer.activation.__name__
    if function not in UNITS_OF:
        raise DataError(f"network: got a dense layer with {function}, expected {WANTED}")
    arrays = layer.get_weights()
    weight = _array(arrays[0])
    return Dense(weight, _bias(arrays[1] if layer.use_bias else None, weight), function)


def _bias(bias: Any, weight: Array) -> Array:
    return np.zeros(weight.shape[1], dtype=np.float32) if bias is None else _array(bias)


def _array(values: Any) -> Array:
    """Return a copy as float32.

    Raises
    ------
    DataError
        If a number is not finite.
    """
    array: Array = np.array(values, dtype=np.float32, order="C")
    if not np.isfinite(array).all():
        raise DataError("network: holds NaN or infinite weights")
    return array
