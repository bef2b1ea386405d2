"""Read a file of examples. Nothing in it is ever executed, and no size it claims is believed.

``.npy`` is memory-mapped; all others are read whole. Object arrays and pickles are
refused under every name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import as_bits
from syncpretrain.data.columns import Columns
from syncpretrain.data.csv_table import read_csv_table
from syncpretrain.data.dataset import Dataset, classes_only, from_rows, hold_out
from syncpretrain.data.examples import as_examples, check_examples, check_values
from syncpretrain.data.facts import facts_of
from syncpretrain.data.frames import read_parquet
from syncpretrain.data.idx import GZIP_MAGIC, is_idx, read_idx
from syncpretrain.data.image_folder import is_image_folder, read_image_folder
from syncpretrain.data.image_shape import COLOUR_CHANNELS, check_image_shape
from syncpretrain.data.meaning import SHARES, Meaning
from syncpretrain.data.npy_header import npy_claim, reason_of
from syncpretrain.data.npz_file import read_npz
from syncpretrain.data.split import stratified_split
from syncpretrain.data.table import Table
from syncpretrain.data.table_rows import Rows, Wanted, array_labels, rows_of_table
from syncpretrain.errors import DataError
from syncpretrain.storage import expanded

__all__ = [
    "ALL_ONES",
    "FORMATS",
    "check_examples",
    "check_file",
    "colours_last",
    "divided",
    "load_file",
    "map_npy",
    "read_file",
    "read_rows",
]

FORMATS = ".npy, .npz, IDX or .csv (gzipped or not), or .parquet"
CSV_SUFFIXES = (".csv", ".tsv")
COLOURS_LAST = (  # of a path and a shape
    "{}: got images of shape {} with their colours last, which pictures and convolutions read"
    " channel by channel; save X.transpose(0, 3, 1, 2)"
)
ARRAY_LABELS = "expected a .csv or .parquet file, or labels beside the examples (.npz with X and y)"
FOLDER_LABELS = "its subfolders are the classes, so leave it out"
NEW_FOLDERS = (  # of a path, a number and folders
    "{}: images without a label, as no class of their folder's name was trained on: {:,} (of {})"
)
AS_BITS = "{}: its bytes are all 0 or 1, and were not divided by 255"
AS_BYTES = (
    "{}: its bytes are all 0 or 1, and were divided by 255, as the training data was, so that no"
    " value is above 0.004; where 1 is white, multiply by 255"
)
ALL_ONES = (  # of a path
    "{}: its bytes are all 0 or 1, and like all bytes of a stream they were scaled by 1/255, so"
    " that no value is above 0.004; where 1 means on, save the array as bool or float32"
)


def read_file(
    path: str | os.PathLike[str], *, bounded: bool = True
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Read the examples of a file, and their labels where it has some.

    Parameters
    ----------
    path : str or path
        A ``.npy``, ``.npz``, IDX or ``.csv`` file, the last two gzipped or not. In ``.npz`` the
        examples are under ``X``, ``x``, ``data`` or ``images``, or the only array of two dimensions
        or more, and the labels under ``y``, ``labels`` or ``target``. A CSV file has commas,
        semicolons or tabs, and a line of names or none; see
        :func:`syncpretrain.data.csvfile.read_head` for names that are numbers.
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
    rows = read_rows(path, Wanted(bounded=bounded))
    return rows.X, rows.labels


def read_rows(path: str | os.PathLike[str], wanted: Wanted) -> Rows:
    """Read the examples of a file, with all that is known of them.

    Raises
    ------
    DataError
        As :func:`read_file`, or if the file has no columns as they are ``wanted``.
    """
    path = expanded(path)
    if is_image_folder(path):
        _refuse_columns(path, wanted, FOLDER_LABELS)
        return _of_folder(path, wanted)
    head = check_file(path)
    suffix = path.suffix.lower()
    unpacked = Path(path.stem).suffix.lower() if suffix == ".gz" else suffix
    if unpacked in CSV_SUFFIXES:
        return _of_table(read_csv_table(path, wanted.known_names), wanted)
    if suffix == ".parquet":
        return _of_table(read_parquet(path), wanted)
    _refuse_columns(path, wanted)
    if suffix == ".npz":
        found = read_npz(path)
        labels = array_labels(found.labels, len(found.X), str(path), wanted)
        rows = _checked(Rows(found.X, labels[0], labels[2], labels[1]), path, wanted)
        if found.X_test is None:
            return rows
        own = wanted._replace(columns=rows.columns, meaning=rows.meaning)
        y_test = array_labels(found.test_labels, len(found.X_test), f"{path}: the test part", own)
        return rows._replace(test=_checked(Rows(found.X_test, y_test[0], y_test[2]), path, own))
    if suffix == ".npy":
        X = map_npy(path)
    elif is_idx(head) or head[:2] == GZIP_MAGIC or _named_idx(path):
        X = read_idx(path)
    else:
        raise DataError(f"{path}: got a file of an unknown format, expected {FORMATS}")
    return _checked(Rows(X), path, wanted)


def _of_folder(path: Path, wanted: Wanted) -> Rows:
    """Return images, with the classes of an earlier run where subfolders have their names."""
    X, names, notices = read_image_folder(path)
    own = None if X.dtype == np.uint8 else SHARES  # of white
    known = None if wanted.columns is None else wanted.columns.target
    if names is None:
        return _checked(Rows(X, notices=notices, meaning=own), path, wanted)
    if known is not None and known.classes is not None:
        new = ~np.isin(names, known.classes)
        if new.any():
            folders = ", ".join(np.unique(names[new]))
            notices += (NEW_FOLDERS.format(path, int(new.sum()), folders),)
        names[new] = ""  # no label
    for name in map(str, np.unique(names)):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{path}: got a folder {name!r}, a name that is no text; rename it, for it is that"
                " of a class"
            ) from None
    labels, columns, more = array_labels(names, len(X), str(path), wanted, target="class")
    return _checked(Rows(X, labels, (*notices, *more), columns, meaning=own), path, wanted)


def _of_table(table: Table, wanted: Wanted) -> Rows:
    rows = rows_of_table(table, wanted)
    names = None if rows.columns is None else rows.columns.names
    return _meant(rows, as_examples(rows.X, table.name), table.name, wanted, names)


def _checked(rows: Rows, path: Path, wanted: Wanted) -> Rows:
    """Return rows of two dimensions whose values can be trained on."""
    check_image_shape(rows.X.shape[1:], wanted.images, str(path))
    X = rows.X.reshape(len(rows.X), -1) if rows.X.ndim > 2 and rows.X.size else rows.X
    notices = (*rows.notices, *colours_last(rows.X.shape, path))
    return _meant(rows._replace(notices=notices), as_examples(X, str(path)), str(path), wanted)


def _meant(
    rows: Rows, X: Any, name: str, wanted: Wanted, names: Sequence[str] | None = None
) -> Rows:
    """Return rows by the meaning of the numbers in the earlier file, if there was one.

    Rows that have a meaning of their own are shares of white, which need not be told from bytes.
    """
    meaning = wanted.meaning or rows.meaning
    if meaning is not None and not (rows.meaning and meaning.values in ("bytes", "shares")):
        if meaning.values == "bytes" and X.dtype == np.uint8 and X.any() and as_bits(X) is not X:
            rows = rows._replace(notices=(*rows.notices, AS_BYTES.format(name)))
        X = meaning.prepare(X, name, bounded=wanted.bounded)
    check_values(X, name, bounded=wanted.bounded, names=names, missing=True)
    if meaning is None:
        meaning = Meaning.of(X)
        if wanted.bounded or (meaning.values == "shares" and facts_of(X).are_probabilities):
            meaning = Meaning(meaning.values)  # of binary units, which see values as they are
        if meaning.values == "bits" and X.dtype == np.uint8:
            rows = rows._replace(notices=(*rows.notices, AS_BITS.format(name)))
        X = meaning.prepare(X, name)
    return rows._replace(X=X, meaning=meaning)


def colours_last(shape: tuple[int, ...], path: Path) -> tuple[str, ...]:
    """Return a notice about images whose last axis has the colours; none of other arrays."""
    if len(shape) != 4 or shape[-1] not in COLOUR_CHANNELS or shape[1] in (1, *COLOUR_CHANNELS):
        return ()
    return (COLOURS_LAST.format(path, shape),)


def _refuse_columns(path: Path, wanted: Wanted, expected: str = ARRAY_LABELS) -> None:
    for name, value in (("target", wanted.target), ("drop", ",".join(wanted.drop))):
        if value:
            raise DataError(
                f"{name}: got {value!r} for {path}, which has no named columns; {expected}"
            )


def load_file(
    path: str | os.PathLike[str],
    *,
    validation: float | None = None,
    seed: int = 0,
    bounded: bool = True,
    meaning: Meaning | None = None,
) -> Dataset:
    """Read a file and hold out a part of it for validation; there is no test part.

    ``validation`` is the fraction held out, stratified where labels ride along; None takes a
    tenth. With 0, a float32 ``.npy`` file stays on the disk and is read as needed.

    Raises
    ------
    DataError
        As :func:`read_file`, or if the fraction is not in [0, 1) or leaves nothing to train on.
    """
    rows = read_rows(path, Wanted(bounded=bounded, meaning=meaning))
    return divided(
        path,
        rows.X,
        rows.labels,
        validation=validation,
        seed=seed,
        notices=rows.notices,
        meaning=rows.meaning,
    )


def divided(
    path: str | os.PathLike[str],
    X: NDArray[Any],
    labels: NDArray[Any] | None,
    *,
    validation: float | None = None,
    test: float | None = None,
    seed: int = 0,
    notices: Sequence[str] = (),
    columns: Columns | None = None,
    meaning: Meaning | None = None,
) -> Dataset:
    """Return what :func:`load_file` makes of the examples and labels that were read from a file.

    ``test`` is the fraction to test with, held out before that to validate with.

    Raises
    ------
    DataError
        If the fraction is not in [0, 1) or leaves nothing to train on.
    """
    rows = np.arange(len(X))
    kept, tested = rows, rows[:0]
    if test is not None:
        # Step 3: other draws than those of the validation examples.
        kept, tested = stratified_split(
            classes_only(labels), len(X), held_out=max(round(test * len(X)), 1), seed=seed, step=3
        )
    own = None if labels is None else labels[kept]
    train, held = hold_out(kept, own, validation=validation, default=len(kept) // 10, seed=seed)
    return from_rows(
        str(path),
        X,
        labels,
        source=f"the {len(X):,} examples of {path}",
        parts=(train, held, tested),
        notices=notices,
        columns=columns,
        meaning=meaning,
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
            raise DataError(
                f"{path}: got a folder, expected a file: {FORMATS}; or a folder with images in it"
                " or in its subfolders, under names without a dot before"
            )
        if not stat.S_ISREG(mode):  # to read a pipe or a device might never end
            raise DataError(f"{path}: got a pipe or a device, expected a file: {FORMATS}")
        with path.open("rb") as file:
            return file.read(4)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file; check its path") from None
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: cannot be read: {reason_of(error)}") from error


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
            shape = npy_claim(file, size, str(path))
        if 0 in shape:
            return np.empty(shape, dtype=np.float32)  # nothing to map
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read: {reason_of(error)}") from error
