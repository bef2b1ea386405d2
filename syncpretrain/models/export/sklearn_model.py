"""Networks as scikit-learn's multilayer perceptrons.

``MLPRegressor`` and ``MLPClassifier`` have dense layers and one function for all hidden units; the
function of the last units is ``out_activation_``. Standardization becomes part of the first
weights, and its inverse part of the last ones. A layer with linear units is multiplied into the
layer above. A table with categories becomes a pipeline, with scikit-learn's one-hot encoder in
front. Scikit-learn refuses missing values.

The file is a skops file, which holds no pickle.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import SettingsError, needed
from syncpretrain.models.export import steps as kinds
from syncpretrain.models.export.formats import not_installed
from syncpretrain.models.export.steps import Network

# Attributes left by a step of training, as large as the weights; scikit-learn makes them on demand.
TRAINING_ATTRIBUTES = ("_optimizer", "_best_coefs", "_best_intercepts")
MLP_FUNCTIONS = {"linear": "identity", "sigmoid": "logistic"}  # others have the same name


class _Layer(NamedTuple):
    """A dense layer in float64, with a function of its outputs."""

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    function: str = "linear"


def build(network: Network) -> Any:
    """Return a fitted ``MLPClassifier`` or ``MLPRegressor``, or a pipeline that ends in one.

    ``predict`` of an encoder returns codes, of a decoder rows.

    Raises
    ------
    SettingsError
        If the network does not fit scikit-learn's perceptrons, or scikit-learn is not installed.
    """
    layers = _merged(list(_layers(network)))
    hidden = {layer.function for layer in layers[:-1]}
    if len(hidden) > 1:
        raise SettingsError(
            "format: got sklearn, whose MLP has one function for all hidden units, and those of the"
            f" {network.part} are {' and '.join(sorted(hidden))}; take onnx, torch, keras or npz"
        )
    advice = "install syncpretrain[sklearn], or export to npz"
    networks = needed("sklearn.neural_network", not_installed("sklearn", "scikit-learn", advice))
    widths = tuple(len(layer.bias) for layer in layers[:-1])
    options: dict[str, Any] = {"hidden_layer_sizes": widths, "random_state": 0}
    options["activation"] = _mlp_function(next(iter(hidden), "linear"))
    if network.classes:
        layers, classes = _for_classes(layers, network.classes)
        rows = np.zeros((len(classes), len(layers[0].weight)))
        model = networks.MLPClassifier(**options).partial_fit(rows, classes, classes=classes)
    else:
        rows, outputs = np.zeros((2, len(layers[0].weight))), len(layers[-1].bias)
        model = networks.MLPRegressor(**options)
        model.partial_fit(rows, np.zeros((2, outputs)) if outputs > 1 else np.zeros(2))
    # A step of training has set the attributes of a fitted model; these are the network's numbers.
    # In float64 a shift that is large compared with the scale loses nothing.
    model.coefs_ = [layer.weight for layer in layers]
    model.intercepts_ = [layer.bias for layer in layers]
    model.out_activation_ = _mlp_function(layers[-1].function)
    for name in TRAINING_ATTRIBUTES:
        vars(model).pop(name, None)
    return _with_categories(network, model) if network.table else model


def contents(path: Path, network: Network) -> dict[Path, bytes]:
    """Return the content of a file, which ``skops.io.load`` reads.

    Raises
    ------
    SettingsError
        As :func:`build`, or if skops is not installed.
    """
    model = build(network)
    text = (
        "format: got sklearn, whose files need the package skops, and that is not installed;"
        " install it, or take Stack.to_sklearn in Python"
    )
    return {path: needed("skops.io", SettingsError(text)).dumps(model)}


def _mlp_function(name: str) -> str:
    return MLP_FUNCTIONS.get(name, name)


def _layers(network: Network) -> Iterator[_Layer]:
    """Yield a layer for each product, with the linear steps around it merged into its numbers.

    Raises
    ------
    SettingsError
        Naming the step that no perceptron has.
    """
    shift, scale = np.float64(0), np.float64(1)
    last: _Layer | None = None
    for step in network.steps:
        if isinstance(step, (kinds.OneHot, kinds.FillMissing)):
            continue
        if isinstance(step, kinds.Standardize):
            shift, scale = step.shift.astype(np.float64), step.scale.astype(np.float64)
        elif isinstance(step, kinds.Dense):
            if last is not None:
                yield last
            divisors = np.broadcast_to(scale, len(step.weight))[:, None]
            weight = step.weight.astype(np.float64) / divisors
            moved = np.broadcast_to(shift, len(weight)) @ weight
            last = _Layer(weight, step.bias.astype(np.float64) - moved)
            shift, scale = np.float64(0), np.float64(1)
        elif isinstance(step, kinds.Activate) and last is not None:
            last = last._replace(function=step.function)
        elif isinstance(step, kinds.Restore) and last is not None and last.function == "linear":
            last = _Layer(last.weight * step.scale, last.bias * step.scale + step.shift)
        else:
            raise SettingsError(f"format: got sklearn, {_why_not(network, step)}")
    assert last is not None
    yield last


def _why_not(network: Network, step: kinds.Step) -> str:
    """Return why a step cannot be part of a perceptron, and the formats to take instead."""
    others = "take onnx, torch, keras or npz"
    if isinstance(step, kinds.Restore) and isinstance(network.steps[-2], kinds.Activate):
        return f"whose MLP cannot take probabilities back to the range of the columns; {others}"
    if isinstance(step, (kinds.ActivateBlocks, kinds.Restore)):
        reason = "the rows have columns of several kinds"
        return f"whose MLP has one function for all outputs, and {reason}; {others}"
    return f"whose MLP has dense layers alone, and the {network.part} has convolutions; {others}"


def _merged(layers: list[_Layer]) -> list[_Layer]:
    """Multiply linear layers into the layers above them: W1 W2, b1 W2 + b2."""
    found = layers[:1]
    for layer in layers[1:]:
        if found[-1].function == "linear":
            below = found.pop()
            weight, bias = below.weight @ layer.weight, below.bias @ layer.weight + layer.bias
            layer = _Layer(weight, bias, layer.function)
        found.append(layer)
    return found


def _for_classes(
    layers: list[_Layer], classes: tuple[Any, ...]
) -> tuple[list[_Layer], NDArray[Any]]:
    """Return layers with outputs in scikit-learn's order, and one output for two classes."""
    if len(classes) < 2:
        raise SettingsError(
            "format: got sklearn, whose classifiers have two classes or more, and the stack has"
            " one; take onnx, torch, keras or npz"
        )
    order = np.argsort(np.array(classes))
    weight, bias, function = layers[-1]
    weight, bias = weight[:, order], bias[order]
    if len(classes) == 2:  # softmax of two is the sigmoid of their difference
        weight, bias, function = weight[:, 1:] - weight[:, :1], bias[1:] - bias[:1], "sigmoid"
    return [*layers[:-1], _Layer(weight, bias, function)], np.array(classes)[order]


def _with_categories(network: Network, model: Any) -> Any:
    """Return a pipeline that encodes the columns of a table first."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder

    ones = [
        OneHotEncoder(categories=[list(choices)], sparse_output=False) if choices else "passthrough"
        for _, choices in network.table
    ]
    parts = [(f"column{place}", own, [place]) for place, own in enumerate(ones)]
    row = np.array([[choices[0] if choices else 0.0 for _, choices in network.table]], dtype=object)
    return Pipeline([("columns", ColumnTransformer(parts).fit(row)), ("network", model)])
