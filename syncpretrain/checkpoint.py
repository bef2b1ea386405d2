"""Checkpoint files: they appear whole or not at all, and the newest good one counts.

A file is safetensors: numbered float32 arrays, and a text table with a JSON header that says what
each array is, and the SHA-256 over header and arrays. An array that is several things at once is
kept once. Nothing in a file is ever executed, and no size it claims is believed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from syncpretrain.atomic import write_atomically
from syncpretrain.errors import CheckpointError

__all__ = ["newest", "numbered", "prune", "read_arrays", "write_arrays"]

Array = NDArray[np.float32]
T = TypeVar("T")
FORMAT = "syncpretrain checkpoint 1"
REFUSED = ".refused"  # behind the name of a checkpoint that cannot be used


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


def numbered(folder: Path, stem: str, number: int) -> Path:
    """Return the file of a checkpoint; a higher number is a newer one."""
    return folder / f"{stem}-{number:08d}.safetensors"


def newest(
    folder: Path, stem: str, read: Callable[[Path], T], tell: Callable[[str], Any]
) -> T | None:
    """Return the newest checkpoint that can be read, None if there is none.

    ``tell`` is given a sentence for each newer one that is refused. Such a file is renamed, so
    that :func:`prune` does not count it among those that are kept.
    """
    found = _found(folder, stem)
    for number, path in enumerate(reversed(found), start=1):
        try:
            return read(path)
        except CheckpointError as error:
            onward = "the one before it is used" if number < len(found) else "none is before it"
            tell(f"warning: {error}; {onward}")
            _set_aside(path, tell)
    return None


def prune(folder: Path, stem: str, keep: int) -> None:
    """Delete all but the ``keep`` newest checkpoints; with 0 the refused ones as well."""
    found = _found(folder, stem)
    for path in found[: max(0, len(found) - keep)]:
        path.unlink(missing_ok=True)
    if keep == 0:
        for path in _found(folder, stem, REFUSED):
            path.unlink(missing_ok=True)


def _set_aside(path: Path, tell: Callable[[str], Any]) -> None:
    try:
        path.replace(path.with_name(path.name + REFUSED))
    except OSError as error:
        tell(f"warning: {path} could not be renamed: {error.strerror}; delete it by hand")


def _found(folder: Path, stem: str, suffix: str = "") -> list[Path]:
    """Return the checkpoints, from the oldest to the newest."""
    pattern = re.compile(re.escape(stem) + r"-(\d{8,})\.safetensors" + re.escape(suffix))
    if not folder.is_dir():
        return []
    found = [(m, path) for path in folder.iterdir() if (m := pattern.fullmatch(path.name))]
    return [path for _, path in sorted((int(m[1]), path) for m, path in found)]


def _digest(text: str, tensors: Mapping[str, Array]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
