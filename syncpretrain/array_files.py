"""Files of named arrays with a header, under a checksum.

A file is safetensors: numbered float32 arrays, and a text table with a JSON header that says what
each array is, and the SHA-256 over header and arrays. An array that has several names is stored
once. Nothing in a file is ever executed, and no size it claims is believed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from syncpretrain.errors import CheckpointError
from syncpretrain.storage import write_atomically

__all__ = ["read_arrays", "write_arrays"]

Array = NDArray[np.float32]
FORMAT = "syncpretrain checkpoint 1"


def write_arrays(path: Path, header: dict[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write a header (JSON values) and named arrays; one that was there before stays until then.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    kept: dict[int, str] = {}
    tensors: dict[str, Array] = {}
    index = {}
    for name, array in arrays.items():
        if id(array) not in kept:
            kept[id(array)] = key = f"{len(tensors):05d}"
            # safetensors would write a transposed or strided array as garbage (its issue 825)
            tensors[key] = np.ascontiguousarray(array, dtype="<f4")
        index[name] = kept[id(array)]
    text = msgspec.json.encode({"header": header, "arrays": index}).decode()
    metadata = {"format": FORMAT, "text": text, "sha256": _digest(text, tensors)}
    write_atomically(path, safetensors.numpy.save(tensors, metadata))


class _Text(msgspec.Struct):
    header: dict[str, Any]
    arrays: dict[str, str]


def read_arrays(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return what :func:`write_arrays` wrote.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged or of another format.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as opened:
            metadata = opened.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise CheckpointError(
                    f"{path}: its format is {metadata.get('format')!r}, expected {FORMAT!r}"
                )
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        text = metadata.get("text", "")
        if any(array.dtype != np.float32 for array in tensors.values()):
            raise CheckpointError(f"{path}: holds arrays that are not float32")
        if _digest(text, tensors) != metadata.get("sha256"):
            raise CheckpointError(f"{path}: is damaged: it does not match its checksum")
        table = msgspec.json.decode(text, type=_Text)
        return table.header, {name: tensors[key] for name, key in table.arrays.items()}
    except CheckpointError:
        raise
    except (  # an AttributeError names a type of numbers that NumPy lacks
        safetensors.SafetensorError,
        msgspec.DecodeError,
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
    ) as error:
        raise CheckpointError(f"{path}: cannot be read as a checkpoint: {error}") from error


def _digest(text: str, tensors: Mapping[str, Array]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
