"""Networks as ONNX graphs, for ONNX Runtime and others.

ONNX Runtime reads operator set 17 and version 8 of the format from 1.12 on (2022); nothing here
needs a newer one. A graph has one input of shape (n, values); for a table with categories it has an
input a column, texts as texts. A classifier has a second output, the labels. The metadata hold the
names as JSON, under ``syncpretrain``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from syncpretrain.errors import SettingsError, needed
from syncpretrain.models.export import steps as kinds
from syncpretrain.models.export.formats import not_installed
from syncpretrain.models.export.steps import Network

OPERATORS, ML_OPERATORS, IR_VERSION = 17, 3, 8
ML_DOMAIN = "ai.onnx.ml"
MOST_BYTES = 2**31 - 2**20  # the encoding limits a file to 2 GB
FUNCTION_OPERATORS = {"sigmoid": "Sigmoid", "relu": "Relu", "tanh": "Tanh"}
N = "n"  # the name of the number of rows


class _Graph:
    """Nodes and constants of a graph, under unique names.

    For each step there is a method of its name, which adds the nodes of the step to the graph and
    returns the name of their output.
    """

    def __init__(self, onnx: Any) -> None:
        self.onnx, self.helper = onnx, onnx.helper
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.names: set[str] = set()

    def name(self, wanted: str) -> str:
        """Return a name that no other value has."""
        while wanted in self.names:
            wanted += "_"
        self.names.add(wanted)
        return wanted

    def constant(self, wanted: str, values: ArrayLike) -> str:
        """Add an array, or a list of texts; return its name."""
        array, name = np.asarray(values), self.name(wanted)
        if array.dtype.kind == "U":
            kind, texts = self.onnx.TensorProto.STRING, [text.encode() for text in array.tolist()]
            found = self.helper.make_tensor(name, kind, array.shape, texts)
        else:
            found = self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
        self.constants.append(found)
        return name

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output; return the output's name."""
        name = self.name(f"{operator.lower()}_{len(self.nodes)}")
        node = self.helper.make_node(operator, inputs, [name], domain=domain, **attributes)
        self.nodes.append(node)
        return name

    def reshape(self, x: str, *shape: int) -> str:
        """Add a node that reshapes a value; 0 keeps a size."""
        return self.add("Reshape", x, self.constant("shape", np.array(shape, dtype=np.int64)))

    def value(self, name: str, kind: str, *shape: int | str) -> Any:
        """Return the type of an input or of an output."""
        element = getattr(self.onnx.TensorProto, kind)
        return self.helper.make_tensor_value_info(name, element, list(shape))

    def one_hot(self, names: list[str], step: kinds.OneHot) -> str:
        parts = []
        for name, (_, choices) in zip(names, step.columns, strict=True):
            if choices:  # an unknown text becomes zeros, as a missing one does
                options = {"cats_strings": list(choices), "zeros": 1}
                ones = self.add("OneHotEncoder", name, domain=ML_DOMAIN, **options)
                name = self.reshape(ones, -1, len(choices))
            parts.append(name)
        return self.add("Concat", *parts, axis=1)

    def standardize(self, x: str, step: kinds.Standardize) -> str:
        centred = self.add("Sub", x, self.constant("shift", step.shift))
        return self.add("Div", centred, self.constant("scale", step.scale))

    def restore(self, x: str, step: kinds.Restore) -> str:
        scaled = self.add("Mul", x, self.constant("scale", step.scale))
        return self.add("Add", scaled, self.constant("shift", step.shift))

    def fill_missing(self, x: str, step: kinds.FillMissing) -> str:
        zero = self.constant("zero", np.zeros((), dtype=np.float32))
        return self.add("Where", self.add("IsNaN", x), zero, x)

    def dense(self, x: str, step: kinds.Dense) -> str:
        weight, bias = self.constant("weight", step.weight), self.constant("bias", step.bias)
        return self.add("Gemm", x, weight, bias)

    def activate(self, x: str, step: kinds.Activate) -> str:
        return self.function(x, step.function)

    def activate_blocks(self, x: str, step: kinds.ActivateBlocks) -> str:
        parts = []
        for block in step.blocks:
            bounds = [self.constant("bound", np.array([at])) for at in (block.start, block.stop, 1)]
            own = self.add("Slice", x, *bounds)
            if block.groups:
                own = self.reshape(own, -1, block.groups, block.choices)
            own = self.function(own, block.function)
            parts.append(self.reshape(own, -1, block.stop - block.start) if block.groups else own)
        return self.add("Concat", *parts, axis=1)

    def to_images(self, x: str, step: kinds.ToImages) -> str:
        images = step.images
        if step.channels_first:
            return self.reshape(x, -1, images.channels, images.height, images.width)
        lying = self.reshape(x, -1, images.height, images.width, images.channels)
        return self.add("Transpose", lying, perm=[0, 3, 1, 2])

    def to_rows(self, x: str, step: kinds.ToRows) -> str:
        x = x if step.channels_first else self.add("Transpose", x, perm=[0, 2, 3, 1])
        return self.reshape(x, -1, step.images.values)

    def convolve(self, x: str, step: Any, operator: str = "Conv") -> str:
        weight = self.constant("weight", step.weight.transpose(3, 2, 0, 1))  # (F, C / G, k, k)
        options = {"group": step.groups, "pads": [step.pad] * 4}
        return self.add(operator, x, weight, self.constant("bias", step.bias), **options)

    def convolve_back(self, x: str, step: kinds.ConvolveBack) -> str:
        return self.convolve(x, step, "ConvTranspose")

    def max_pool(self, x: str, step: Any, operator: str = "MaxPool") -> str:
        sides = [step.size, step.size]
        return self.add(operator, x, kernel_shape=sides, strides=sides)

    def mean_pool(self, x: str, step: kinds.MeanPool) -> str:
        return self.max_pool(x, step, "AveragePool")

    def probabilistic_pool(self, x: str, step: kinds.ProbabilisticPool) -> str:
        size, images = step.size, step.images
        blocks = self.reshape(x, -1, images.channels, images.height, size, images.width, size)
        return self.add("Sigmoid", self.add("ReduceLogSumExp", blocks, axes=[3, 5], keepdims=0))

    def spread(self, x: str, step: kinds.Spread) -> str:
        scales = self.constant("scales", np.array([1, 1, step.size, step.size], dtype=np.float32))
        options = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
        wide = self.add("Resize", x, "", scales, nearest_mode="floor", **options)
        return self.add("Div", wide, self.constant("block", np.float32(step.size**2)))

    def function(self, x: str, function: str) -> str:
        if function == "softmax":
            return self.add("Softmax", x, axis=-1)
        return x if function == "linear" else self.add(FUNCTION_OPERATORS[function], x)


def build(network: Network) -> Any:
    """Return an ``onnx.ModelProto``, checked.

    Raises
    ------
    SettingsError
        If the package onnx is not installed, or the arrays are too large for one file.
    """
    missing = not_installed("onnx", "onnx", "install syncpretrain[export], or export to npz")
    onnx = needed("onnx", missing)
    for part in ("checker", "helper", "numpy_helper"):
        needed(f"onnx.{part}", missing)
    arrays = [getattr(step, "weight", None) for step in network.steps]
    total = sum(array.nbytes for array in arrays if array is not None)
    if total > MOST_BYTES:
        got = f"onnx for {total / 1e9:.1f} GB of weights"
        how = "one file holds 2 GB at most; take torch, keras or npz"
        raise SettingsError(f"format: got {got}, and {how}")
    graph = _Graph(onnx)
    inputs, x = _inputs(graph, network)
    for step in network.steps:
        x = getattr(graph, step.name)(x, step)
    outputs = _outputs(graph, network, x if isinstance(x, str) else x[0])
    name = f"syncpretrain_{network.part}"
    made = onnx.helper.make_graph(graph.nodes, name, inputs, outputs, graph.constants)
    versions = {"": OPERATORS, ML_DOMAIN: ML_OPERATORS}
    sets = [onnx.helper.make_opsetid(*version) for version in versions.items()]
    model = onnx.helper.make_model(made, opset_imports=sets, ir_version=IR_VERSION)
    model.producer_name = "syncpretrain"
    onnx.helper.set_model_props(model, {"syncpretrain": network.about})
    onnx.checker.check_model(model)
    return model


def contents(path: Path, network: Network) -> dict[Path, bytes]:
    """Return the content of a file.

    Raises
    ------
    SettingsError
        As :func:`build`.
    """
    return {path: build(network).SerializeToString()}


def _inputs(graph: _Graph, network: Network) -> tuple[list[Any], Any]:
    """Return the inputs of the graph, and the name of the first value, or of each column."""
    if not network.table:
        name = graph.name(network.ends[0])
        return [graph.value(name, "FLOAT", N, network.width)], name
    names = [graph.name(name) for name, _ in network.table]
    types = ["STRING" if choices else "FLOAT" for _, choices in network.table]
    return [graph.value(n, kind, N, 1) for n, kind in zip(names, types, strict=True)], names


def _outputs(graph: _Graph, network: Network, x: str) -> list[Any]:
    """Add the outputs, the labels of a classifier among them; return their types."""
    name = graph.name(network.ends[1])
    graph.nodes.append(graph.helper.make_node("Identity", [x], [name]))
    found = [graph.value(name, "FLOAT", N, network.outputs)]
    if network.classes:
        classes = np.array(network.classes)
        classes = classes if classes.dtype.kind == "U" else classes.astype(np.int64)
        places = graph.add("ArgMax", x, axis=1, keepdims=0)
        label = graph.name("label")
        own = [graph.constant("classes", classes), places]
        graph.nodes.append(graph.helper.make_node("Gather", own, [label], axis=0))
        found.append(graph.value(label, "STRING" if classes.dtype.kind == "U" else "INT64", N))
    return found
