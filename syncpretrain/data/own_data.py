"""Data sets of a user's own files, read into memory or left in a ``.npy`` file.

In memory they may have a test part and further examples without labels, each from a file of its
own.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncpretrain.data import readers
from syncpretrain.data.dataset import UNLABELLED, Dataset, Rows, all_of, divided, hold_out
from syncpretrain.data.examples import as_examples, checked_rows, scale_examples, watched_rows
from syncpretrain.data.file_rows import FileRows, rows_in_file
from syncpretrain.data.images import check_axes
from syncpretrain.data.meaning import ALL_ONES, Meaning, check_precision
from syncpretrain.data.sparse_rows import SparseRows, joined
from syncpretrain.errors import DataError
from syncpretrain.shapes import ImageShape
from syncpretrain.storage import expanded

RECENT_NS = 2_000_000_000  # a file written so lately may change again within the same time stamp


def share_of(test: str | float | os.PathLike[str] | None) -> float | None:
    """Return the fraction of a test part; None if the part is a file, or there is none.

    Raises
    ------
    DataError
        If the fraction is not above 0 and below 1.
    """
    try:
        share = None if test is None else float(test)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    if share is not None and not 0 < share < 1:
        raise DataError(
            f"test: got {test}, expected a fraction above 0 and below 1, or the path of a file"
        )
    return share


def load_own(
    path: str | os.PathLike[str],
    wanted: readers.Wanted,
    *,
    validation: float | None = None,
    seed: int = 0,
    test: str | float | os.PathLike[str] | None = None,
    unlabelled: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Read files and divide their examples into train, validation and test.

    Parameters
    ----------
    path : str or path
    wanted : Wanted
        Options of reading.
    validation : float, optional
        Fraction held out; None takes a tenth.
    seed : int
        Seed of the split.
    test : float, str or path, optional
        Fraction to test with, stratified where there are labels, or a file.
    unlabelled : str or path, optional
        File of more examples to train on, without labels.

    Raises
    ------
    DataError
        If a file cannot be read, or does not fit the others.
    """
    share = share_of(test)
    rows = readers.read_rows(path, wanted)
    notices = list(rows.notices)
    known: dict[str, Any] = {"columns": rows.columns, "meaning": rows.meaning}
    again = wanted._replace(**known, target=None, drop=None, weights=None)
    apart = None if test is None or share is not None else readers.read_rows(os.fspath(test), again)  # type: ignore[arg-type]
    if rows.test is not None:
        if test is not None:
            raise DataError(
                f"test: got {test}, but {path} has a test part of its own, X_test; leave one out"
            )
        apart = rows.test
    if apart is not None:
        notices += apart.notices
        _check_width("test", test or f"X_test of {path}", apart, rows, path)
    count = len(rows.X)
    if unlabelled is not None:
        others = readers.read_rows(unlabelled, again)
        notices += others.notices
        rows = _joined(rows, others, path, unlabelled)
    rows = rows._replace(notices=tuple(dict.fromkeys(notices)))
    data = divided(path, rows, validation=validation, test=share, seed=seed)
    if unlabelled is not None:
        more = f"{len(rows.X) - count:,} without labels of {unlabelled}"
        data = replace(data, source=f"{all_of(path, count)}, {more}")
    if apart is None:
        return data
    labels = apart.labels
    if labels is None and data.train_labels is not None:
        labels = np.full(len(apart.X), _no_label(data.train_labels), dtype=data.train_labels.dtype)
    return replace(data, test=scale_examples(apart.X), test_labels=labels)


def _joined(rows: Rows, others: Rows, path: Any, unlabelled: Any) -> Rows:
    """Return rows followed by others without labels."""
    if rows.weights is not None:
        raise DataError("weights: got them with unlabelled rows, which have none; leave one out")
    if rows.labels is None:
        raise DataError(
            f"unlabelled: got {unlabelled}, but {path} has no labels either; name its target, or"
            " give one file alone"
        )
    _check_width("unlabelled", unlabelled, others, rows, path)
    both: list[Any] = [scale_examples(rows.X), scale_examples(others.X)]
    if isinstance(both[0], SparseRows) != isinstance(both[1], SparseRows):
        forms = ["sparse" if isinstance(X, SparseRows) else "dense" for X in both]
        raise DataError(
            f"unlabelled: got {unlabelled}, which is {forms[1]}, but {path} is {forms[0]}; save"
            " both in one form"
        )
    X: Any = joined(both) if isinstance(both[0], SparseRows) else np.concatenate(both)
    none = np.full(len(others.X), _no_label(rows.labels), dtype=rows.labels.dtype)
    labels = np.concatenate([rows.labels, none])
    return rows._replace(X=X, labels=labels)


def _no_label(labels: NDArray[Any]) -> float:
    """Return the number that stands for no label."""
    return math.nan if labels.dtype.kind == "f" else UNLABELLED


def _check_width(option: str, name: Any, other: Rows, rows: Rows, path: Any) -> None:
    got, expected = other.X.shape[1], rows.X.shape[1]
    if got != expected:
        raise DataError(
            f"{option}: {name} has {got} values an example, expected {expected}, as {path} has"
        )


class FileStamp(msgspec.Struct, frozen=True):
    """Size, times and inode of a file: every write to the file changes one of them."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class KnownFile(NamedTuple):
    """Stamp of a file when its values were checked, and SHA-256 of the data set made of it."""

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
    """Load a file as :func:`load_own` does, but leave the rows in it.

    A file in Fortran order is read into memory all the same, and so is a file with numbers of
    another type than the ``meaning`` of an earlier data set.

    One pass over the file checks every value and computes the hash of the file's values and of the
    sizes of the parts. A file with the stamp of a ``known`` one needs no pass.

    Raises
    ------
    DataError
        As :func:`load_own`.
    """
    path = expanded(path)
    readers.check_file(path)
    stamp = _stamp_of(path)
    how: dict[str, Any] = {"validation": validation, "seed": seed}
    wanted = readers.Wanted(bounded=bounded)
    X = readers.map_npy(path)
    notices = [*check_axes(X.shape, images, path)]
    if X.size and not X.flags.c_contiguous:
        return _in_memory(path, wanted, **how)
    X = as_examples(X.reshape(len(X), -1) if X.ndim > 2 and X.size else X, str(path))
    rows, n = rows_in_file(X), len(X)
    if rows is None:
        return _in_memory(path, wanted, **how)
    own = Meaning.of(rows, bounded=bounded)
    if meaning is not None and own.values != meaning.values:
        return load_own(path, wanted._replace(meaning=meaning), **how)
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
        sha256 = look.digest.hexdigest()
        if look.most == 1:  # all are 0 or 1
            notices.append(ALL_ONES.format(path))
    return Dataset(
        str(path),
        all_of(path, n),
        train=_part(rows, kept),
        validation=_part(rows, held),
        test=_part(rows, held[:0]),
        notices=tuple(notices),
        meaning=own,
        full_sha256=sha256,
        stamp=stamp,
    )


class _Look:
    """Observer of one pass over a file: hash of the values, and the largest byte, up to 2."""

    def __init__(self, X: NDArray[Any], parts: tuple[int, int]) -> None:
        self.digest = hashlib.sha256(f"mapped:{X.shape}:{X.dtype.str}:{parts};".encode())
        self.most = 0 if X.dtype == np.uint8 else 2

    def __call__(self, block: NDArray[Any]) -> None:
        self.digest.update(np.ascontiguousarray(block).data)
        if self.most < 2:
            self.most = max(self.most, int(block.max()))


def _part(rows: FileRows, chosen: NDArray[np.intp]) -> NDArray[np.float32]:
    """Return the chosen rows of a file, typed as the array that they stand for."""
    part = rows if len(chosen) == len(rows) else rows.subset(chosen)
    return cast("NDArray[np.float32]", part)


def _stamp_of(path: Path) -> FileStamp | None:
    """Return the stamp of a file; None if a write just now might not show in it."""
    found = path.stat()
    if time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) < RECENT_NS:
        return None
    return FileStamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


def _in_memory(path: Path, wanted: readers.Wanted, **options: Any) -> Dataset:
    """Read a file in Fortran order, and add a notice."""
    data = load_own(path, wanted, **options)
    message = f"{path}: is in Fortran order, and was read into memory; save it again with"
    return replace(data, notices=(*data.notices, f"{message} numpy.ascontiguousarray"))
