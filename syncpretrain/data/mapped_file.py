"""A ``.npy`` file as a data set whose examples stay in the file."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.dataset import Dataset, hold_out
from syncpretrain.data.examples import as_examples, checked_rows, watched_rows
from syncpretrain.data.file_rows import FileRows, rows_in_file
from syncpretrain.data.image_shape import check_image_shape
from syncpretrain.data.meaning import Meaning, check_precision
from syncpretrain.data.readers import ALL_ONES, check_file, colours_last, load_file, map_npy
from syncpretrain.shapes import ImageShape
from syncpretrain.storage import expanded

__all__ = ["FileStamp", "KnownFile", "is_mapped_file", "load_mapped"]

RECENT_NS = 2_000_000_000  # a file so new may change again and keep its times


class FileStamp(msgspec.Struct, frozen=True):
    """Size, times and number of a file: every write to it changes one of them."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class KnownFile(NamedTuple):
    """A file whose values were checked, and the SHA-256 of the data set made of it then."""

    stamp: FileStamp | None
    sha256: str


def is_mapped_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file of this name can stay where it is."""
    return Path(path).suffix.lower() == ".npy"


def load_mapped(
    path: str | os.PathLike[str],
    *,
    validation: float | None = None,
    seed: int = 0,
    bounded: bool = True,
    known: KnownFile | None = None,
    images: ImageShape | None = None,
    meaning: Meaning | None = None,
) -> Dataset:
    """Return what :func:`syncpretrain.data.readers.load_file` does, with all parts in the file.

    One in Fortran order is read into memory all the same, and so is one with numbers that are not
    of the type that their ``meaning`` in an earlier data set asks for.

    One pass over the file checks every value and takes its hash, which is that of the file's own
    values and of the sizes of the parts. Without a pass, a file that has the stamp of a ``known``
    one is that file.

    Raises
    ------
    DataError
        As :func:`syncpretrain.data.readers.load_file`.
    """
    path = expanded(path)
    check_file(path)
    stamp = _stamp_of(path)
    X = map_npy(path)
    check_image_shape(X.shape[1:], images, str(path))
    notices = [*colours_last(X.shape, path)]
    if X.size and not X.flags.c_contiguous:
        return _in_memory(path, validation=validation, seed=seed, bounded=bounded)
    X = as_examples(X.reshape(len(X), -1) if X.ndim > 2 and X.size else X, str(path))
    rows, n = rows_in_file(X), len(X)
    if rows is None:
        return _in_memory(path, validation=validation, seed=seed, bounded=bounded)
    own = Meaning.of(rows, bounded=bounded)
    if meaning is not None and own.values != meaning.values:
        return load_file(path, validation=validation, seed=seed, bounded=bounded, meaning=meaning)
    if not bounded:
        check_precision(rows, str(path))
    kept, held = hold_out(np.arange(n), None, validation=validation, default=n // 10, seed=seed)
    sha256 = ""
    if known is not None and stamp is not None and known.stamp == stamp:
        sha256 = known.sha256
        rows = watched_rows(rows, str(path), bounded=bounded)
    else:
        look = _Look(X, (len(kept), len(held)))
        rows = checked_rows(rows, str(path), bounded=bounded, seen=look)
        sha256 = look.sha256
        if look.is_all_ones:
            notices.append(ALL_ONES.format(path))
    return Dataset(
        str(path),
        f"the {n:,} examples of {path}",
        train=_part(rows, kept),
        validation=_part(rows, held),
        test=_part(rows, held[:0]),
        notices=tuple(notices),
        meaning=own,
        full_sha256=sha256,
        stamp=stamp,
    )


class _Look:
    """What one pass over the values finds; called with each few rows."""

    def __init__(self, X: NDArray[Any], parts: tuple[int, int]) -> None:
        self._digest = hashlib.sha256(f"mapped:{X.shape}:{X.dtype.str}:{parts};".encode())
        self._most = 0 if X.dtype == np.uint8 else 2

    def __call__(self, block: NDArray[Any]) -> None:
        self._digest.update(np.ascontiguousarray(block).data)
        if self._most < 2:
            self._most = max(self._most, int(block.max()))

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    @property
    def is_all_ones(self) -> bool:
        return self._most == 1


def _part(rows: FileRows, chosen: NDArray[np.intp]) -> NDArray[np.float32]:
    """Return some rows, which stand for an array in memory."""
    part = rows if len(chosen) == len(rows) else rows.subset(chosen)
    return cast("NDArray[np.float32]", part)


def _stamp_of(path: Path) -> FileStamp | None:
    """Return the stamp of a file; None if a write just now might not show in it."""
    found = path.stat()
    if time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) < RECENT_NS:
        return None
    return FileStamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


def _in_memory(path: Path, **options: Any) -> Dataset:
    """Read a file whose rows do not lie together."""
    data = load_file(path, **options)
    message = f"{path}: is in Fortran order, and was read into memory; save it again with"
    return replace(data, notices=(*data.notices, f"{message} numpy.ascontiguousarray"))
