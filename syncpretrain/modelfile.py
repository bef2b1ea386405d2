"""Model files: safetensors with a checksum, written whole or not at all, read with suspicion.

The format is a table of named float32 arrays (``layers.1.weight`` of shape (visible, hidden), and
so on) and a text table that holds ``info`` as JSON and the SHA-256 of the parameters and of
``info``. Nothing in it is ever executed.
"""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from syncpretrain.atomic import write_atomically
from syncpretrain.errors import ModelFileError
from syncpretrain.stack import Layer, Stack

__all__ = ["MODEL_NAME", "read_stack", "write_stack"]

MODEL_NAME = "model.safetensors"
FORMAT = "syncpretrain 1"


def write_stack(stack: Stack, path: Path) -> None:
    """Write a stack; a file that was there before stays until the new one is complete."""
    tensors = {
        # safetensors would write a transposed or strided array as garbage (its issue 825)
        f"layers.{number}.{name}": np.ascontiguousarray(array, dtype="<f4")
        for number, layer in enumerate(stack.layers, start=1)
        for name, array in layer.parameters()
    }
    info = json.dumps(stack.info)
    metadata = {
        "format": FORMAT,
        "sha256": stack.parameters_sha256,
        "info": info,
        "info_sha256": _sha256(info),
    }
    write_atomically(path, safetensors.numpy.save(tensors, metadata))


def read_stack(path: Path) -> Stack:
    """Read a stack from a model file, or from the one in a run folder.

    Raises
    ------
    ModelFileError
        One sentence on what is missing or wrong.
    """
    file = _model_file(path)
    try:
        with safetensors.safe_open(file, framework="numpy") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (  # an AttributeError names a type of numbers that NumPy lacks
        safetensors.SafetensorError,
        OSError,
        ValueError,
        TypeError,
        AttributeError,
    ) as error:
        raise ModelFileError(f"{file}: cannot be read as a model: {error}") from error
    if metadata.get("format") != FORMAT:
        raise ModelFileError(
            f"{file}: its format is {metadata.get('format')!r}, expected {FORMAT!r}; it was not"
            " written by Stack.save"
        )
    stack = Stack(_layers(file, tensors), _info(file, metadata))
    if stack.parameters_sha256 != metadata.get("sha256"):
        raise ModelFileError(f"{file}: is damaged: its parameters do not match their checksum")
    return stack


def _model_file(path: Path) -> Path:
    try:
        file = path / MODEL_NAME if path.is_dir() else path
        found = file.is_file()
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read as a model: {error.strerror}") from error
    if not found:
        raise ModelFileError(
            f"{path}: holds no model; expected a .safetensors file, or the folder of a run with"
            f" {MODEL_NAME} in it"
        )
    return file


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _layers(file: Path, tensors: dict[str, NDArray[Any]]) -> tuple[Layer, ...]:
    if any(array.dtype != np.float32 for array in tensors.values()):
        raise ModelFileError(f"{file}: holds arrays that are not float32")
    untied = {
        number: tensors.pop(name)
        for number in range(1, len(tensors))
        if (name := f"layers.{number}.decoder_weight") in tensors
    }
    try:
        depth = max(int(name.split(".")[1]) for name in tensors)
        layers = tuple(
            Layer(
                tensors.pop(f"layers.{number}.weight"),
                tensors.pop(f"layers.{number}.hidden_bias"),
                tensors.pop(f"layers.{number}.visible_bias"),
                untied.get(number),
            )
            for number in range(1, depth + 1)
        )
    except (KeyError, IndexError, ValueError) as error:
        raise ModelFileError(f"{file}: lacks an array of a layer: {error}") from error
    if tensors:
        raise ModelFileError(f"{file}: holds arrays of no layer: {', '.join(sorted(tensors))}")
    _check_shapes(file, layers)
    return layers


def _check_shapes(file: Path, layers: tuple[Layer, ...]) -> None:
    for number, layer in enumerate(layers, start=1):
        shape = layer.weight.shape
        fits = len(shape) == 2 and layer.decoding.shape == shape[::-1]
        fits = fits and (*layer.visible_bias.shape, *layer.hidden_bias.shape) == shape
        if not fits:
            raise ModelFileError(f"{file}: the arrays of layer {number} do not fit each other")
        if not all(np.isfinite(array).all() for _, array in layer.parameters()):
            raise ModelFileError(f"{file}: layer {number} holds NaN or infinite parameters")
    for number, (lower, upper) in enumerate(pairwise(layers), start=1):
        if lower.weight.shape[1] != upper.weight.shape[0]:
            raise ModelFileError(f"{file}: layers {number} and {number + 1} do not fit each other")


def _info(file: Path, metadata: dict[str, str]) -> dict[str, Any]:
    text = metadata.get("info", "")
    if _sha256(text) != metadata.get("info_sha256"):
        raise ModelFileError(f"{file}: is damaged: its info does not match its checksum")
    try:
        info = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{file}: its info is damaged: {error}") from error
    if not isinstance(info, dict):
        raise ModelFileError(f"{file}: its info is damaged: expected a table")
    return info
