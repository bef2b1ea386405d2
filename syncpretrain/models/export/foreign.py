"""Read the dense layers of a network that PyTorch or Keras trained, as layers of a stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from syncpretrain.errors import DataError
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.export.steps import FUNCTIONS
from syncpretrain.models.layer import DenseLayer, Head
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


def layers_of_torch(network: Any) -> list[Dense]:
    """Return the dense layers of an ``nn.Sequential`` or an ``nn.Linear``.

    Raises
    ------
    DataError
        Naming the first module that is no dense layer or function.
    """
    return _read(
        network, _modules, _linear, lambda module: TORCH_FUNCTIONS.get(type(module).__name__)
    )


def layers_of_keras(network: Any) -> list[Dense]:
    """Return the dense layers of a ``keras.Sequential``, or of a model that is a plain stack.

    Raises
    ------
    DataError
        Naming the first layer that is no dense layer or function.
    """
    if len(getattr(network, "inputs", None) or ()) > 1:
        raise DataError(f"network: got a model of {len(network.inputs)} inputs, expected one")
    return _read(network, _keras_layers, _keras_dense, _keras_function)


def parts_of(
    encoder: Sequence[Dense],
    decoder: Sequence[Dense] | None,
    *,
    classes: Sequence[Any] | None,
    regression: bool,
    visible_units: str,
) -> tuple[tuple[DenseLayer, ...], Head | None]:
    """Return the layers of a stack, and its head if the last layer is one.

    Parameters
    ----------
    encoder : sequence of Dense
        Layers from the input up.
    decoder : sequence of Dense, optional
        Layers from the code down, of the same widths; default the transposed weights, and biases
        of 0.
    classes : sequence of int or of str, optional
        Labels of the last layer's outputs; they make it the head of a classifier.
    regression : bool
        True makes the last layer the head of a regression.
    visible_units : str
        Kind of the input.

    Raises
    ------
    DataError
        If the layers do not fit each other.
    """
    own, head = list(encoder), None
    if classes is not None or regression:
        head = _head(own.pop(), classes)
    if not own:
        raise DataError(f"network: got {len(encoder)} dense layers, expected one below the head")
    if any(kind_of(UNITS_OF[layer.function]).is_exclusive for layer in own):
        raise DataError("classes: got none for a softmax; give the labels of its outputs")
    down = [None] * len(own) if decoder is None else list(reversed(decoder))
    if len(down) != len(own):
        raise DataError(
            f"decoder: got {len(down)} dense layers, expected {len(own)}, the encoder's"
        )
    below, layers = visible_units, list[DenseLayer]()
    for number, (up, back) in enumerate(zip(own, down, strict=True), start=1):
        shape = up.weight.shape
        if layers and len(layers[-1].hidden_bias) != shape[0]:
            raise DataError(
                f"network: dense layer {number} reads {shape[0]} values, expected those of the"
                f" layer below, {len(layers[-1].hidden_bias)}"
            )
        if back is not None and back.weight.shape != shape[::-1]:
            raise DataError(
                f"decoder: got a layer of shape {back.weight.shape}, expected {shape[::-1]}, that"
                f" of dense layer {number} of the encoder, transposed"
            )
        bias = np.zeros(shape[0], dtype=np.float32) if back is None else back.bias
        weight = None if back is None else back.weight
        units = UNITS_OF[up.function]
        kinds = {"hidden_units": units, "visible_units": below, "model": "autoencoder"}
        layers.append(DenseLayer(up.weight, up.bias, bias, weight, **kinds))
        below = kind_of(units).above
    return tuple(layers), head


def _head(last: Dense, classes: Sequence[Any] | None) -> Head:
    is_softmax = kind_of(UNITS_OF[last.function]).is_exclusive
    if last.function != LINEAR and not (is_softmax and classes is not None):
        raise DataError(
            f"network: got {last.function} behind the last layer, expected nothing behind a head"
        )
    if classes is None:
        return Head(last.weight, last.bias, "regression")
    if len(classes) != len(last.bias) or len(set(classes)) != len(classes):
        raise DataError(
            f"classes: got {len(classes)} for {len(last.bias)} outputs, expected as many, each once"
        )
    texts = all(isinstance(label, str) for label in classes)
    own = tuple(map(str, classes)) if texts else tuple(map(int, classes))
    return Head(last.weight, last.bias, "classification", own)


def _read(
    network: Any,
    modules: Callable[[Any], Iterator[Any]],
    dense: Callable[[Any], Dense | None],
    function: Callable[[Any], str | None],
) -> list[Dense]:
    """Return the dense layers of a network, each with the function behind it."""
    found: list[Dense] = []
    behind = False  # True while the last layer may still get a function
    for place, module in enumerate(modules(network)):
        layer, own = dense(module), function(module)
        if layer is not None:
            found.append(layer)
            behind = layer.function == LINEAR
        elif own in UNITS_OF and behind:
            found[-1] = found[-1]._replace(function=str(own))
            behind = False
        elif type(module).__name__ not in WITHOUT_EFFECT:
            raise DataError(
                f"network: got {type(module).__name__} at place {place}, counted from 0, expected"
                f" {WANTED}"
            )
    if not found:
        raise DataError(f"network: got no dense layer, expected {WANTED}")
    return found


def _modules(network: Any) -> Iterator[Any]:
    """Yield the modules of nested ``nn.Sequential`` in order."""
    if type(network).__name__ != "Sequential":
        yield network
        return
    for module in network:
        yield from _modules(module)


def _linear(module: Any) -> Dense | None:
    if type(module).__name__ != "Linear":
        return None
    weight = _array(module.weight.detach().cpu().numpy().T)
    bias = None if module.bias is None else module.bias.detach().cpu().numpy()
    return Dense(weight, _bias(bias, weight))


def _keras_layers(network: Any) -> Iterator[Any]:
    for layer in getattr(network, "layers", None) or (network,):
        if layer is not network and getattr(layer, "layers", None):
            yield from _keras_layers(layer)
        else:
            yield layer


def _keras_dense(layer: Any) -> Dense | None:
    if type(layer).__name__ != "Dense":
        return None
    function = layer.activation.__name__
    if function not in UNITS_OF:
        raise DataError(f"network: got a dense layer with {function}, expected {WANTED}")
    arrays = layer.get_weights()
    weight = _array(arrays[0])
    return Dense(weight, _bias(arrays[1] if layer.use_bias else None, weight), function)


def _keras_function(layer: Any) -> str | None:
    kind = type(layer).__name__
    if kind == "Activation":
        return str(layer.activation.__name__)
    return {"ReLU": "relu", "Softmax": "softmax"}.get(kind)


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
