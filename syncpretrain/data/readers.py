"""Read a file of examples. Nothing in it is ever executed, and no size it claims is believed.

``.npy`` is memory-mapped; ``.npz``, IDX and CSV are read whole. Object arrays and pickles are
refused under every name.
"""

from __future__ import annotations

import math
import os
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from syncpretrain.data.blocks import as_bits
from syncpretrain.data.csvfile import read_csv
from syncpretrain.data.dataset import Dataset, from_rows, hold_out
from syncpretrain.data.examples import as_examples, check_examples, check_values
from syncpretrain.data.idx import GZIP_MAGIC, check_memory, is_idx, read_idx
from syncpretrain.errors import DataError

__all__ = [
    "ALL_ONES",
    "FORMATS",
    "check_examples",
    "check_file",
    "divided",
    "load_file",
    "map_npy",
    "read_file",
]

FORMATS = ".npy, .npz, IDX (gzipped or not) or .csv"
AS_BITS = "{}: its bytes are all 0 or 1, and were not divided by 255"
ALL_ONES = (  # of a path
    "{}: its bytes are all 0 or 1, and like all bytes of a stream they were scaled by 1/255, so"
    " that no value is above 0.004; where 1 means on, save the array as bool or float32"
)
EXAMPLE_NAMES = ("X", "x", "data", "images")
LABEL_NAMES = ("y", "labels", "target")

Labels = NDArray[np.int64]


def read_file(
    path: str | os.PathLike[str], *, bounded: bool = True
) -> tuple[NDArray[Any], Labels | None]:
    """Read the examples of a file, and their labels where it has some.

    Parameters
    ----------
    path : str or path
        A ``.npy``, ``.npz``, IDX (gzipped or not) or ``.csv`` file. In ``.npz`` the examples are
        under ``X``, ``x``, ``data`` or ``images``, or the only array of two dimensions or more,
        and the labels under ``y``, ``labels`` or ``target``. A CSV file has commas, semicolons
        or tabs, and a line of names or none; see
        :func:`syncpretrain.data.csvfile.read_csv` for names that are numbers.
    bounded : bool
        False permits values outside [0, 1].

    Returns
    -------
    X : array of shape (n_examples, width)
        Of the file's own type, checked; bytes are still unscaled, but booleans where all are 0 or
        1. More than two dimensions are flattened. Of a ``.npy`` file it is a read-only view of the
        disk.
    labels : int64 array of shape (n_examples,), or None

    Raises
    ------
    DataError
        If the file is missing, unreadable, of another format, damaged, holds something other
        than numbers, or values that are not finite or outside [0, 1].
    """
    X, labels, _ = _read(Path(path).expanduser(), bounded=bounded)
    return X, labels


def _read(path: Path, *, bounded: bool) -> tuple[NDArray[Any], Labels | None, list[str]]:
    """Return what :func:`read_file` does, and messages for the user."""
    head = check_file(path)
    labels, notices = None, list[str]()
    if path.suffix.lower() == ".npy":
        X = map_npy(path)
    elif path.suffix.lower() == ".npz":
        X, labels = _read_npz(path)
    elif path.suffix.lower() == ".csv":
        X, notices = read_csv(path)
    elif is_idx(head) or head[:2] == GZIP_MAGIC or _named_idx(path):
        X = read_idx(path)
    else:
        raise DataError(f"{path}: got a file of an unknown format, expected {FORMATS}")
    if X.ndim > 2 and X.size:
        X = X.reshape(len(X), -1)
    X = as_examples(X, str(path))
    check_values(X, str(path), bounded=bounded)
    bits = as_bits(X)
    if bits is not X:
        notices = [*notices, AS_BITS.format(path)]
    return bits, None if labels is None else _check_labels(labels, len(X), path), notices


def load_file(
    path: str | os.PathLike[str],
    *,
    validation: float | None = None,
    seed: int = 0,
    bounded: bool = True,
) -> Dataset:
    """Read a file and hold out a part of it for validation; there is no test part.

    ``validation`` is the fraction held out, stratified where labels ride along; None takes a
    tenth. With 0, a float32 ``.npy`` file stays on the disk and is read as needed.

    Raises
    ------
    DataError
        As :func:`read_file`, or if the fraction is not in [0, 1) or leaves nothing to train on.
    """
    X, labels, notices = _read(Path(path).expanduser(), bounded=bounded)
    return divided(path, X, labels, validation=validation, seed=seed, notices=notices)


def divided(
    path: str | os.PathLike[str],
    X: NDArray[Any],
    labels: Labels | None,
    *,
    validation: float | None = None,
    seed: int = 0,
    notices: Sequence[str] = (),
) -> Dataset:
    """Return what :func:`load_file` makes of the examples and labels that were read from a file.

    Raises
    ------
    DataError
        If the fraction is not in [0, 1) or leaves nothing to train on.
    """
    rows = np.arange(len(X))
    train, held = hold_out(rows, labels, validation=validation, default=len(X) // 10, seed=seed)
    return from_rows(
        str(path),
        X,
        labels,
        source=f"the {len(X):,} examples of {path}",
        parts=(train, held, rows[:0]),
        notices=notices,
    )


def check_file(path: Path) -> bytes:
    """Return the first bytes of a file.

    Raises
    ------
    DataError
        If it is none, or cannot be read.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise DataError(f"{path}: got a folder, expected a file: {FORMATS}")
        if not stat.S_ISREG(mode):  # to read a pipe or a device might never end
            raise DataError(f"{path}: got a pipe or a device, expected a file: {FORMATS}")
        with path.open("rb") as file:
            return file.read(4)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file; check its path") from None
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: cannot be read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _named_idx(path: Path) -> bool:
    name = path.name.lower()
    return name.endswith("ubyte") or path.suffix.lower().startswith(".idx")


def map_npy(path: Path) -> NDArray[Any]:
    """Return the array of a ``.npy`` file, a view of the disk.

    Raises
    ------
    DataError
        If it cannot be read, or holds no numbers.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            shape = _npy_claim(file, size, str(path))
        if 0 in shape:
            return np.empty(shape, dtype=np.float32)  # nothing to map
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read: {_reason(error)}") from error


def _npy_claim(file: IO[bytes], size: int, name: str) -> tuple[int, ...]:
    """Return the shape that an .npy header claims, once the file's size bears it out."""
    try:
        version = npy_format.read_magic(file)
        read = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
        shape, _, dtype = read[version](file)
    except Exception as error:  # NumPy's parser raises many kinds over damaged headers
        raise DataError(
            f"{name}: got no .npy file that can be read ({error}), expected an array of numbers;"
            " save it with numpy.save (pickles are never opened)"
        ) from error
    if dtype.kind not in "biuf":
        raise DataError(
            f"{name}: got values of type {dtype}, expected numbers; save them as numbers"
            " (pickles are never opened)"
        )
    there = size - file.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > there:
        raise DataError(
            f"{name}: got {there:,} bytes where shape {shape} of {dtype} is claimed; the file is"
            " cut off or damaged, save it again"
        )
    return shape


def _read_npz(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {i.filename.removesuffix(".npy"): i for i in archive.infolist()}
            shapes = {key: _member_shape(archive, i, path) for key, i in members.items()}
            X = _read_member(archive, members[_examples_key(shapes, path)], path)
            key = next((key for key in LABEL_NAMES if key in members), None)
            return X, None if key is None else _read_member(archive, members[key], path)
    except DataError:
        raise
    except Exception as error:  # the unpackers raise a dozen kinds over damaged archives
        raise DataError(
            f"{path}: got no whole .npz archive ({_reason(error)}); save it again with numpy.savez"
            " (pickles are never opened)"
        ) from error


def _member_shape(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path
) -> tuple[int, ...] | None:
    """Return the shape of a member, or None if it is no array of numbers."""
    with archive.open(member) as file:
        try:
            return _npy_claim(file, member.file_size, f"{path}: {member.filename}")
        except DataError:
            if member.filename.removesuffix(".npy") in EXAMPLE_NAMES + LABEL_NAMES:
                raise
            return None


def _examples_key(shapes: dict[str, tuple[int, ...] | None], path: Path) -> str:
    if {"indices", "indptr", "data"} <= shapes.keys():
        raise DataError(f"{path}: got a sparse matrix; save its X.toarray() with numpy.savez")
    candidates = [key for key in EXAMPLE_NAMES if key in shapes]
    if not candidates:
        candidates = [key for key, shape in shapes.items() if shape and len(shape) >= 2]
        if len(candidates) > 1 or not candidates:
            raise DataError(
                f"{path}: got the arrays {', '.join(shapes) or '(none)'}, expected the examples"
                f" under one of {', '.join(EXAMPLE_NAMES)};"
                " save them with numpy.savez(file, X=X, y=y)"
            )
    return candidates[0]


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> NDArray[Any]:
    check_memory(path, member.file_size)
    with archive.open(member) as file:
        array: NDArray[Any] = npy_format.read_array(file, allow_pickle=False)
    return array


def _check_labels(labels: NDArray[Any], n: int, path: Path) -> Labels:
    if labels.size != n or max(labels.shape, default=0) != n:
        raise DataError(
            f"{path}: got labels of shape {labels.shape} for {n} examples, expected one an example"
        )
    labels = labels.reshape(n)
    with np.errstate(invalid="ignore"):
        whole = labels.astype(np.int64)
    if not np.array_equal(whole, labels):
        raise DataError(
            f"{path}: got labels that are not whole numbers, expected classes such as 0, 1, 2;"
            " number the classes, or leave the labels out"
        )
    return whole
