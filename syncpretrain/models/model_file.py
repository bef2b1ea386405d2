"""Model files: the layers of a stack, its scaling and its head, under a checksum.

A file is a table of named float32 arrays (``layers.1.weight`` of shape (visible, hidden),
``input.shift``, ``head.weight`` and so on) and a table of texts: ``info`` and ``meaning`` as JSON
(the kinds of each layer's units, and the shape of a convolution), and the SHA-256 of the parameters
and of both texts. Nothing in it is ever executed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncpretrain.array_files import read_tensors, write_tensors
from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import ModelFileError
from syncpretrain.models.layer import ConvolutionalLayer, DenseLayer, Head, Layer, parameters_sha256
from syncpretrain.shapes import POOLINGS, ConvolutionShape, DenseShape, LayerShape
from syncpretrain.units.kinds import UNITS, kind_of, visible_kind

MODEL_NAME = "model.safetensors"
MODEL_FORMAT = "syncpretrain 2"
ROUNDS = ("rounded", "tf32")  # precision in training, not saved: a stack computes in float32


class Model(NamedTuple):
    """The parts of a stack."""

    layers: tuple[Layer, ...]
    info: dict[str, Any]
    scaling: Scaling | None
    head: Head | None


def write_model(path: Path, model: Model) -> None:
    """Write a model; an earlier file stays until the new one is complete."""
    tensors = {
        f"layers.{number}.{name}": array
        for number, layer in enumerate(model.layers, start=1)
        for name, array in layer.arrays()
    }
    if model.scaling is not None:
        tensors |= {"input.shift": model.scaling.shift, "input.scale": model.scaling.scale}
    if model.head is not None:
        tensors |= {"head.weight": model.head.weight, "head.bias": model.head.bias}
    info, meaning = json.dumps(model.info), json.dumps(_meaning(model))
    metadata = {
        **_chains_sha256(tensors),
        "format": MODEL_FORMAT,
        "sha256": parameters_sha256(model.layers, model.scaling, model.head),
        "info": info,
        "info_sha256": _sha256(info),
        "meaning": meaning,
        "meaning_sha256": _sha256(meaning),
    }
    write_tensors(path, tensors, metadata)


def read_model(path: Path) -> Model:
    """Read a model from a model file, or from the model file of a run folder.

    Raises
    ------
    ModelFileError
        If the file is missing, damaged or of another format, in one sentence.
    """
    file = _model_file(path)
    metadata, tensors = read_tensors(file, MODEL_FORMAT, kind="model", error_type=ModelFileError)
    info, meaning = _text(file, metadata, "info"), _text(file, metadata, "meaning")
    if any(metadata.get(name) != found for name, found in _chains_sha256(tensors).items()):
        raise ModelFileError(f"{file}: is damaged: its chains do not match their checksum")
    scaling, head = _scaling(file, tensors), _head(file, tensors, meaning)
    layers = _layers(file, tensors, meaning)
    if scaling is not None and scaling.shift.shape != (layers[0].shape.visible,):
        raise ModelFileError(f"{file}: the input's scaling does not fit layer 1")
    if head is not None and head.weight.shape[0] != layers[-1].shape.hidden:
        raise ModelFileError(f"{file}: the head does not fit the top layer")
    if parameters_sha256(layers, scaling, head) != metadata.get("sha256"):
        raise ModelFileError(f"{file}: is damaged: its parameters do not match their checksum")
    return Model(layers, info, scaling, head)


def _model_file(path: Path) -> Path:
    try:
        file = path / MODEL_NAME if path.is_dir() else path
        found = file.is_file()
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read as a model: {error.strerror}") from error
    if not found:
        wanted = f"a .safetensors file, or the folder of a run with {MODEL_NAME} in it"
        raise ModelFileError(f"{path}: holds no model; expected {wanted}")
    return file


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _chains_sha256(tensors: dict[str, NDArray[Any]]) -> dict[str, str]:
    """Return the checksum of the chains of all layers by its name; nothing without chains."""
    chains = [tensors[name] for name in sorted(tensors) if name.endswith(".chains")]
    whole = b"".join(np.ascontiguousarray(array, dtype="<f4").tobytes() for array in chains)
    return {"chains_sha256": hashlib.sha256(whole).hexdigest()} if chains else {}


def _meaning(model: Model) -> dict[str, Any]:
    """Return the meaning of the parameters: kinds of units, shapes, and kind of the head."""
    names = ("hidden_units", "visible_units", "model")
    layers = [
        {name: getattr(layer, name) for name in names} | _written_shape(layer)
        for layer in model.layers
    ]
    own = model.head
    head = None if own is None else {"kind": own.kind, "classes": list(own.classes)}
    return {"layers": layers, "head": head}


def _written_shape(layer: Layer) -> dict[str, Any]:
    """Return the shape of a convolution, which its arrays do not determine."""
    shape = layer.shape
    if not isinstance(shape, ConvolutionShape):
        return {}
    return {"shape": {name: x for name, x in asdict(shape).items() if name not in ROUNDS}}


def _scaling(file: Path, tensors: dict[str, NDArray[Any]]) -> Scaling | None:
    shift, scale = (tensors.pop(name, None) for name in ("input.shift", "input.scale"))
    if shift is None or scale is None:
        if shift is not scale:
            raise ModelFileError(f"{file}: lacks half of the input's scaling")
        return None
    good = shift.shape == scale.shape and np.isfinite(shift).all() and np.isfinite(scale).all()
    if not good or not (scale >= 0).all():
        raise ModelFileError(f"{file}: the input's scaling is damaged")
    return Scaling(shift, scale)


def _head(file: Path, tensors: dict[str, NDArray[Any]], meaning: dict[str, Any]) -> Head | None:
    weight, bias = tensors.pop("head.weight", None), tensors.pop("head.bias", None)
    wanted = meaning.get("head")
    if weight is None or bias is None or wanted is None:
        if not weight is bias is wanted:
            raise ModelFileError(f"{file}: lacks a part of its head")
        return None
    try:
        head = Head(weight, bias, str(wanted["kind"]), _classes(wanted["classes"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelFileError(f"{file}: its head is damaged: {error}") from error
    outputs = len(head.classes) if head.kind == "classification" else bias.size
    fits = weight.ndim == 2 and bias.shape == (outputs,) == weight.shape[1:]
    if head.kind not in ("classification", "regression") or not fits or not bias.size:
        raise ModelFileError(f"{file}: its head is damaged: its arrays do not fit each other")
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise ModelFileError(f"{file}: its head holds NaN or infinite parameters")
    return head


def _classes(written: Any) -> tuple[int, ...] | tuple[str, ...]:
    """Return the classes of a head: all texts, or whole numbers."""
    texts = tuple(x for x in written if isinstance(x, str))
    return texts if texts and len(texts) == len(written) else tuple(map(int, written))


def _layers(
    file: Path, tensors: dict[str, NDArray[Any]], meaning: dict[str, Any]
) -> tuple[Layer, ...]:
    try:
        depth = max(int(name.split(".")[1]) for name in tensors)
        layers = tuple(_layer(tensors, n, meaning["layers"][n - 1]) for n in range(1, depth + 1))
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise ModelFileError(f"{file}: lacks an array of a layer: {error}") from error
    if tensors:
        raise ModelFileError(f"{file}: holds arrays of no layer: {', '.join(sorted(tensors))}")
    _check_shapes(file, layers)
    return layers


def _layer(tensors: dict[str, NDArray[Any]], number: int, meaning: dict[str, Any]) -> Layer:
    """Build a layer of the kind that ``meaning`` names; its arrays are checked later."""
    names = ("weight", "hidden_bias", "visible_bias")
    weight, hidden, visible = (tensors.pop(f"layers.{number}.{name}") for name in names)
    units, decoder = _units(meaning), tensors.pop(f"layers.{number}.decoder_weight", None)
    chains = tensors.pop(f"layers.{number}.chains", None)
    if "shape" not in meaning:
        return DenseLayer(weight, hidden, visible, decoder, **units, chains=chains)
    if chains is not None:
        raise ValueError("a convolution has no chains")
    return ConvolutionalLayer(weight, hidden, visible, _shape(meaning["shape"]), decoder, **units)


def _shape(table: Any) -> ConvolutionShape:
    """Return the shape of a convolution, after checking that its sizes fit."""
    shape = msgspec.convert(table, ConvolutionShape)
    sizes = (shape.channels, shape.height, shape.width, shape.filters, shape.size, shape.pool)
    fits = min(*sizes, shape.groups) > 0 <= shape.pad < shape.size and shape.pooling in POOLINGS
    fits = fits and not (shape.channels % shape.groups or shape.filters % shape.groups)
    fits = fits and min(shape.map_height, shape.map_width) > 0
    if not fits or shape.map_height % shape.pool or shape.map_width % shape.pool:
        raise ValueError(f"{table} is no convolution")
    return shape


def _units(kinds: dict[str, str]) -> dict[str, str]:
    known = {"hidden_units": UNITS, "visible_units": UNITS, "model": ("rbm", "autoencoder")}
    for name, values in known.items():
        in_blocks = name == "visible_units" and visible_kind(kinds[name]) is not None
        if kinds[name] not in values and not in_blocks:
            raise ValueError(f"{name} {kinds[name]!r} is unknown")
    return {name: kinds[name] for name in known}


def _check_shapes(file: Path, layers: tuple[Layer, ...]) -> None:
    for number, layer in enumerate(layers, start=1):
        in_blocks = kind_of(layer.visible_units).blocks is not None
        if not _arrays_fit(layer) or (number > 1 and in_blocks):
            raise ModelFileError(f"{file}: the arrays of layer {number} do not fit each other")
        if not all(np.isfinite(array).all() for _, array in layer.arrays()):
            raise ModelFileError(f"{file}: layer {number} holds NaN or infinite parameters")
    for number, (lower, upper) in enumerate(pairwise(layers), start=1):
        if not _layers_fit(lower.shape, upper.shape):
            raise ModelFileError(f"{file}: layers {number} and {number + 1} do not fit each other")


def _arrays_fit(layer: Layer) -> bool:
    """Return whether the arrays of a layer have the shapes of their kind."""
    biases = (*layer.visible_bias.shape, *layer.hidden_bias.shape)
    weight, blocks = layer.weight.shape, kind_of(layer.visible_units).blocks
    if isinstance(layer, ConvolutionalLayer):
        shape = layer.shape
        wanted = (shape.size, shape.size, shape.reads, shape.filters)
        as_wanted = weight == wanted == layer.decoding.shape and biases == shape.biases
        return as_wanted and blocks is None
    if blocks is not None and blocks.width != len(layer.weight):
        return False
    if layer.chains is not None and layer.chains.shape[1:] != layer.hidden_bias.shape:
        return False
    return len(weight) == 2 and layer.decoding.shape == weight[::-1] and biases == weight


def _layers_fit(lower: LayerShape, upper: LayerShape) -> bool:
    """Return whether a layer can read the output of the layer below."""
    if isinstance(upper, DenseShape):
        return lower.hidden == upper.visible
    if isinstance(lower, DenseShape):
        return False  # the units of a dense layer have no positions
    return lower.output == upper.images and not upper.channels_first


def _text(file: Path, metadata: dict[str, str], name: str) -> dict[str, Any]:
    """Return a JSON table of the file, after comparing its checksum."""
    text = metadata.get(name, "")
    if _sha256(text) != metadata.get(f"{name}_sha256"):
        raise ModelFileError(f"{file}: is damaged: its {name} does not match its checksum")
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{file}: its {name} is damaged: {error}") from error
    if not isinstance(table, dict):
        raise ModelFileError(f"{file}: its {name} is damaged: expected a table")
    return table
