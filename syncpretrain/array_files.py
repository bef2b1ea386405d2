"""Files of float32 arrays: safetensors, written whole or not at all, read with suspicion.

Model files and checkpoints share :func:`write_tensors` and :func:`read_tensors`. A checkpoint
(:func:`write_arrays`) holds numbered arrays, a JSON header that says what each of them is, and the
SHA-256 over header and arrays; an array that has several names is stored once. Nothing in a file is
ever executed, and no size it claims is believed.

Small records are files of JSON (:func:`write_record`, :func:`read_record`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from syncpretrain.errors import CheckpointError, SyncpretrainError
from syncpretrain.storage import write_atomically

R = TypeVar("R", bound=msgspec.Struct)

CHECKPOINT_FORMAT = "syncpretrain checkpoint 1"
# An AttributeError names a type of numbers that NumPy lacks.
UNREADABLE = (safetensors.SafetensorError, OSError, ValueError, TypeError, AttributeError)


def write_arrays(
    path: Path, header: dict[str, Any], arrays: Mapping[str, NDArray[np.float32]]
) -> None:
    """Write a header (JSON values) and named arrays; one that was there before stays until then.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    kept: dict[int, str] = {}
    tensors: dict[str, NDArray[np.float32]] = {}
    index = {}
    for name, array in arrays.items():
        if id(array) not in kept:
            kept[id(array)] = key = f"{len(tensors):05d}"
            tensors[key] = array
        index[name] = kept[id(array)]
    text = msgspec.json.encode({"header": header, "arrays": index}).decode()
    metadata = {"format": CHECKPOINT_FORMAT, "text": text, "sha256": _digest(text, tensors)}
    write_tensors(path, tensors, metadata)


class _Text(msgspec.Struct):
    header: dict[str, Any]
    arrays: dict[str, str]


def read_arrays(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """Return what :func:`write_arrays` wrote.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged or of another format.
    """
    metadata, tensors = read_tensors(
        path, CHECKPOINT_FORMAT, kind="checkpoint", error_type=CheckpointError
    )
    text = metadata.get("text", "")
    if _digest(text, tensors) != metadata.get("sha256"):
        raise CheckpointError(f"{path}: is damaged: it does not match its checksum")
    try:
        table = msgspec.json.decode(text, type=_Text)
        return table.header, {name: tensors[key] for name, key in table.arrays.items()}
    except (msgspec.DecodeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as a checkpoint: {error}") from error


def write_tensors(
    path: Path, tensors: Mapping[str, NDArray[np.float32]], metadata: Mapping[str, str]
) -> None:
    """Write arrays and a text table; a file that was there before stays until this is complete.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    # safetensors would write a transposed or strided array as garbage (its issue 825)
    plain = {name: np.ascontiguousarray(array, dtype="<f4") for name, array in tensors.items()}
    write_atomically(path, safetensors.numpy.save(plain, dict(metadata)))


def read_tensors(
    path: Path, file_format: str, *, kind: str, error_type: type[SyncpretrainError]
) -> tuple[dict[str, str], dict[str, NDArray[np.float32]]]:
    """Return the text table and the arrays of a file.

    Parameters
    ----------
    path : Path
    file_format : str
        The value of ``format`` in the text table.
    kind : str
        The kind of file in an error message.
    error_type : type
        Raised, with one sentence, if the file is missing, damaged, of another format, or holds
        other numbers than float32.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except UNREADABLE as error:
        expected = f"a {kind} of syncpretrain, a .safetensors file"
        raise error_type(f"{path}: cannot be read as {expected}: {error}") from error
    if any(array.dtype != np.float32 for array in tensors.values()):
        raise error_type(f"{path}: holds arrays that are not float32")
    found = metadata.get("format")
    if found != file_format:
        raise error_type(
            f"{path}: its format is {found!r}, expected {file_format!r}; it is no {kind} that"
            " syncpretrain wrote"
        )
    return metadata, tensors


def _digest(text: str, tensors: Mapping[str, NDArray[np.float32]]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def write_record(path: Path, record: msgspec.Struct) -> None:
    """Write a record as JSON, the file whole or not at all.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    write_atomically(path, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def read_record(path: Path, kind: type[R], error_type: type[SyncpretrainError]) -> R | None:
    """Return the record in a JSON file; None if there is no such file.

    Raises
    ------
    SyncpretrainError
        If the file cannot be read; the type is the given one.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise error_type(
            f"{path}: cannot be read ({error}); put it back, or begin a new run"
        ) from error
