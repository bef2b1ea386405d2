"""A user's own files: examples and labels of any format, and data sets made of such files.

Nothing in a file is executed or believed. ``.npy`` is memory-mapped, and may stay in the file; all
others are read whole. Object arrays and pickles are refused under every name. In a table, the
target becomes the labels, some columns may be left out, and texts become categories. In memory, a
data set may have a test part and further examples without labels, each from a file of its own.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncpretrain.data import array_formats
from syncpretrain.data.blocks import as_bits
from syncpretrain.data.columns import Columns, columns_of
from syncpretrain.data.csv_table import read_csv_table
from syncpretrain.data.dataset import Dataset, Rows, all_of, divided, hold_out, no_labels
from syncpretrain.data.examples import as_examples, check_values, checked_rows, scale_examples
from syncpretrain.data.facts import facts_of
from syncpretrain.data.fasta import FASTA_SUFFIXES, read_fasta
from syncpretrain.data.file_rows import FileRows, rows_in_file
from syncpretrain.data.frames import read_parquet
from syncpretrain.data.images import check_axes, is_image_folder, read_image_folder
from syncpretrain.data.labels import labelled, labels_of, target_of
from syncpretrain.data.meaning import ALL_ONES, SHARES, Meaning, check_precision
from syncpretrain.data.sparse_rows import SparseRows, joined
from syncpretrain.data.table import Table
from syncpretrain.data.weights import checked_weights
from syncpretrain.errors import DataError
from syncpretrain.shapes import ImageShape
from syncpretrain.storage import expanded

LIKE_A_TARGET = ("class", "label", "labels", "target")  # names of a last column
FORMATS = ".npy, .npz, IDX, .csv or .fasta (gzipped or not), or .parquet"
CSV_SUFFIXES = (".csv", ".tsv")
ARRAY_LABELS = "expected a .csv or .parquet file, or labels beside the examples (.npz with X and y)"
TABLES = "expected a .csv or .parquet file"
FOLDER_LABELS = "its subfolders are the classes, so leave it out"
NEW_FOLDERS = (  # format with a path, a number and folders
    "{}: images without a label, as no class of their folder's name was trained on: {:,} (of {})"
)
AS_BITS = "{}: its bytes are all 0 or 1, and were not divided by 255"
AS_BYTES = (
    "{}: its bytes are all 0 or 1, and were divided by 255, as the training data was, so that no"
    " value is above 0.004; where 1 is white, multiply by 255"
)
RECENT_NS = 2_000_000_000  # a file written so lately may change again within the same time stamp


class Wanted(NamedTuple):
    """Options of reading examples, from a file or a published data set, and of their split.

    ``target``, ``drop`` and ``weights`` name columns, or number them from 1. ``task`` is None where
    the labels decide it, ``drop`` where no option leaves out columns. ``encode`` permits
    categories, ``bounded`` refuses values outside [0, 1]. A file is read by the names of the
    ``columns`` of an earlier run, and by the ``meaning`` of an earlier file's numbers, if they are
    given. ``images`` is the shape of images that the layers read. ``validation`` is the fraction to
    hold out, None for the usual one, and ``seed`` the seed of the split.
    """

    bounded: bool = True
    target: str | None = None
    drop: tuple[str, ...] | None = ()
    task: str | None = None
    encode: bool = False
    columns: Columns | None = None
    images: ImageShape | None = None
    meaning: Meaning | None = None
    weights: str | None = None
    validation: float | None = None
    seed: int = 0

    @property
    def known_names(self) -> list[str] | None:
        """Column names of an earlier run; empty if its columns had none, None without a run."""
        if self.columns is None or not self.columns.features:
            return None
        return [x.name for x in self.columns.features] if self.columns.named else []


def read_rows(path: str | os.PathLike[str], wanted: Wanted) -> Rows:
    """Read the examples of a file with labels, columns, meaning and notices.

    In ``.npz`` the examples are under ``X``, ``x``, ``data`` or ``images``, or the only array of
    two dimensions or more, and the labels under ``y``, ``labels`` or ``target``. A CSV file has
    commas, semicolons or tabs, and a line of names or none; see
    :func:`syncpretrain.data.csv_table.read_head` for names that are numbers.

    The values have the file's own type; bytes are still unscaled, but booleans where all are 0 or
    1. More than two dimensions are flattened. A ``.npy`` file gives a read-only view of the disk.

    Raises
    ------
    DataError
        If the file is missing, unreadable, of another format, damaged, lacks the ``wanted``
        columns, holds something other than numbers, or values that are not finite, or outside
        [0, 1] where they are ``bounded``.
    """
    path = expanded(path)
    if is_image_folder(path):
        _refuse_columns(path, wanted, FOLDER_LABELS)
        return _of_folder(path, wanted)
    head = check_file(path)
    suffix = path.suffix.lower()
    unpacked = Path(path.stem).suffix.lower() if suffix == ".gz" else suffix
    is_named_idx = path.name.lower().endswith("ubyte") or suffix.startswith(".idx")
    if unpacked in CSV_SUFFIXES:
        return _of_table(read_csv_table(path, wanted.known_names), wanted)
    if unpacked in FASTA_SUFFIXES:
        return _of_table(read_fasta(path), wanted)
    if suffix == ".parquet":
        return _of_table(read_parquet(path), wanted)
    _refuse_columns(path, wanted)
    if suffix == ".npz":
        found, task = array_formats.read_npz(path), wanted.task
        rows = labelled(found.X, found.labels, str(path), wanted.columns, task)
        rows = _checked(rows, path, wanted)
        if found.test is None:
            return rows
        own, name = wanted._replace(meaning=rows.meaning), f"{path}: the test part"
        test = labelled(found.test.X, found.test.labels, name, rows.columns, task)
        return rows._replace(test=_checked(test, path, own))
    if suffix == ".npy":
        X = map_npy(path)
    elif array_formats.is_idx(head) or head[:2] == array_formats.GZIP_MAGIC or is_named_idx:
        X = array_formats.read_idx(path)
    else:
        expected = f"{FORMATS}, or a folder of images"
        raise DataError(f"{path}: got a file of an unknown format, expected {expected}")
    return _checked(Rows(X), path, wanted)


def _of_folder(path: Path, wanted: Wanted) -> Rows:
    """Return images, with the classes of an earlier run where subfolders have their names."""
    X, names, notices, *_ = read_image_folder(path)
    own = None if X.dtype == np.uint8 else SHARES  # floats of a picture are shares of white
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
    rows = labelled(X, names, str(path), wanted.columns, wanted.task, target="class")
    return _checked(rows._replace(notices=(*notices, *rows.notices), meaning=own), path, wanted)


def _of_table(table: Table, wanted: Wanted) -> Rows:
    rows = rows_of_table(table, wanted)
    names = None if rows.columns is None else rows.columns.names
    return _meant(rows, as_examples(rows.X, table.name), table.name, wanted, names)


def rows_of_table(table: Table, wanted: Wanted) -> Rows:
    """Return the encoded rows of a table, with the labels of its target.

    Raises
    ------
    DataError
        If a column is missing, or has values of another kind than expected.
    """
    known = wanted.columns if wanted.columns and wanted.columns.features else None
    table = replace(table, is_file=wanted.drop is not None, of_run=wanted.meaning is not None)
    dropped = [table.find(name, "drop") for name in wanted.drop or ()]
    name = None if wanted.target is None else table.find(wanted.target, "target")
    if wanted.weights is not None:
        dropped.append(table.find(wanted.weights, "weights"))
    if name in dropped or len(set(dropped)) < len(dropped):
        twice = max(dropped, key=dropped.count) if name not in dropped else name
        # The target is named twice with one of these, another column with two.
        once = dropped[: len(wanted.drop or ())].count(str(twice))
        option = "drop" if once > (twice != name) else "weights"
        what = "the target" if twice == name else "a column that is dropped"
        raise DataError(f"{option}: got {twice!r}, {what}; name a column once")
    if known is not None and name in [column.name for column in known.features]:
        raise DataError(
            f"target: got {name!r}, which is an input of the run; expected a column that it was not"
            " trained on"
        )
    target = None if name is None else target_of(table, name, wanted.task)
    by_place = known is not None and not (known.named and table.named)
    rest = table.without([*dropped, name] if name and not by_place else dropped)
    if known is None:
        if name is None:
            _check_last(rest)
        columns = columns_of(rest, encode=wanted.encode, target=target, dropped=dropped)
        X = columns.encode(rest)
    else:
        X = known.encode(rest, exact=wanted.meaning is not None and bool(wanted.meaning.origin))
        target = target or known.target
        columns = Columns(known.features, known.named, target, known.dropped)
    without = by_place and len(table.names) == len(columns.features)
    labels, told = (None, ()) if without else labels_of(table, target)
    as_array = not table.named and not columns.has_categories and target is None and not dropped
    own = None if as_array and known is None else columns
    weights = None if wanted.weights is None else _weights(table, dropped[-1])
    return Rows(X, labels, (*table.notices, *told), own, weights=weights)


def _weights(table: Table, name: str) -> NDArray[np.float64]:
    """Return a column of weights."""
    values = table.column(name)
    if not isinstance(values, np.ndarray):
        raise DataError(f"weights: got {name!r}, which holds texts, expected numbers of 0 or more")
    weights = np.asarray(values, dtype=np.float64)
    checked_weights(weights, len(weights), None)
    return weights


def _check_last(table: Table) -> None:
    """Refuse to train on a last column that is likely to be the class."""
    names: Sequence[str] = table.names
    if table.named and len(names) > 1 and names[-1].lower() in LIKE_A_TARGET:
        how = f"give target={names[-1]} to predict it, or drop={names[-1]} to leave it out"
        raise DataError(
            f"target: got none for {table.name}, whose last column is named {names[-1]!r};"
            f" {how if table.is_file else 'leave it out'} (under another name it is trained on)"
        )


def _checked(rows: Rows, path: Path, wanted: Wanted) -> Rows:
    """Return rows with two dimensions, once their shape and values are checked."""
    notices = (*rows.notices, *check_axes(rows.X.shape, wanted.images, path))
    X = rows.X.reshape(len(rows.X), -1) if rows.X.ndim > 2 and rows.X.size else rows.X
    return _meant(rows._replace(notices=notices), as_examples(X, str(path)), str(path), wanted)


def _meant(
    rows: Rows, X: Any, name: str, wanted: Wanted, names: Sequence[str] | None = None
) -> Rows:
    """Check the values of rows, and prepare them by the meaning of an earlier file, if given.

    Rows that come with a meaning are shares of white: they cannot be mistaken for bytes.
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
            meaning = Meaning(meaning.values)  # no origin: binary units take values as they are
        if meaning.values == "bits" and X.dtype == np.uint8:
            rows = rows._replace(notices=(*rows.notices, AS_BITS.format(name)))
        X = meaning.prepare(X, name)
    return rows._replace(X=X, meaning=meaning)


def _refuse_columns(path: Path, wanted: Wanted, expected: str = ARRAY_LABELS) -> None:
    drop = ",".join(wanted.drop or ())
    given = {"target": wanted.target, "drop": drop, "weights": wanted.weights}
    for name, value in given.items():
        if value:
            what = TABLES if name == "weights" else expected
            raise DataError(f"{name}: got {value!r} for {path}, which has no named columns; {what}")


def check_file(path: Path) -> bytes:
    """Return the first bytes of a file.

    Raises
    ------
    DataError
        If the path is no file, or the file cannot be read.
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
        raise DataError(f"{path}: cannot be read: {array_formats.reason_of(error)}") from error


def map_npy(path: Path) -> NDArray[Any]:
    """Return the array of a ``.npy`` file, a view of the disk.

    Raises
    ------
    DataError
        If it cannot be read, or holds no numbers.
    """
    try:
        with path.open("rb") as file:
            shape = array_formats.npy_claim(file, os.fstat(file.fileno()).st_size, str(path))
        if 0 in shape:
            return np.empty(shape, dtype=np.float32)  # nothing to map
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read: {array_formats.reason_of(error)}") from error


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
    wanted: Wanted,
    *,
    test: str | float | os.PathLike[str] | None = None,
    unlabelled: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Read files and divide their examples into train, validation and test.

    Parameters
    ----------
    path : str or path
    wanted : Wanted
        Options of reading. By default a tenth is held out.
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
    rows = read_rows(path, wanted)
    notices = list(rows.notices)
    known: dict[str, Any] = {"columns": rows.columns, "meaning": rows.meaning}
    again = wanted._replace(**known, target=None, drop=None, weights=None)
    apart = None if test is None or share is not None else read_rows(os.fspath(test), again)  # type: ignore[arg-type]
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
        others = read_rows(unlabelled, again)
        notices += others.notices
        rows = _joined(rows, others, path, unlabelled)
    rows = rows._replace(notices=tuple(dict.fromkeys(notices)))
    data = divided(path, rows, validation=wanted.validation, test=share, seed=wanted.seed)
    if unlabelled is not None:
        more = f"{len(rows.X) - count:,} without labels of {unlabelled}"
        data = replace(data, source=f"{all_of(path, count)}, {more}")
    if apart is None:
        return data
    labels = apart.labels
    if labels is None and data.train_labels is not None:
        labels = no_labels(data.train_labels, len(apart.X))
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
    labels = np.concatenate([rows.labels, no_labels(rows.labels, len(others.X))])
    return rows._replace(X=X, labels=labels)


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
    path: str | os.PathLike[str], wanted: Wanted, *, known: KnownFile | None = None
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
    check_file(path)
    stamp = _stamp_of(path)
    bounded, meaning = wanted.bounded, wanted.meaning
    how: dict[str, Any] = {"validation": wanted.validation, "seed": wanted.seed}
    plain = Wanted(bounded=bounded, meaning=meaning, **how)
    X = map_npy(path)
    notices = [*check_axes(X.shape, wanted.images, path)]
    if X.size and not X.flags.c_contiguous:
        return _in_memory(path, plain)
    X = as_examples(X.reshape(len(X), -1) if X.ndim > 2 and X.size else X, str(path))
    rows, n = rows_in_file(X), len(X)
    if rows is None:
        return _in_memory(path, plain)
    own = Meaning.of(rows, bounded=bounded)
    if meaning is not None and own.values != meaning.values:
        return load_own(path, plain)
    if not bounded:
        check_precision(rows, str(path))
    kept, held = hold_out(np.arange(n), None, default=n // 10, **how)
    look, sha256 = _Look(X, (len(kept), len(held))), ""
    if known is not None and stamp is not None and known.stamp == stamp:
        sha256 = known.sha256
    rows = checked_rows(rows, str(path), bounded=bounded, seen=look, are_known=bool(sha256))
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
        full_sha256=sha256 or look.digest.hexdigest(),
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


def _in_memory(path: Path, wanted: Wanted) -> Dataset:
    """Read a file in Fortran order, and add a notice."""
    data = load_own(path, wanted)
    message = f"{path}: is in Fortran order, and was read into memory; save it again with"
    return replace(data, notices=(*data.notices, f"{message} numpy.ascontiguousarray"))
