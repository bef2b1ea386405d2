"""Read a file of examples and labels, of any format. Nothing in it is executed or believed.

``.npy`` is memory-mapped; all others are read whole. Object arrays and pickles are refused under
every name. In a table, the target becomes the labels, some columns may be left out, and texts
become categories.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data import array_formats
from syncpretrain.data.blocks import as_bits
from syncpretrain.data.columns import Columns, columns_of
from syncpretrain.data.csv_table import read_csv_table
from syncpretrain.data.dataset import Rows
from syncpretrain.data.examples import as_examples, check_values
from syncpretrain.data.facts import facts_of
from syncpretrain.data.fasta import FASTA_SUFFIXES, read_fasta
from syncpretrain.data.frames import read_parquet
from syncpretrain.data.images import check_axes, is_image_folder, read_image_folder
from syncpretrain.data.labels import labelled, labels_of, target_of
from syncpretrain.data.meaning import SHARES, Meaning
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


class Wanted(NamedTuple):
    """Options of reading a file of examples.

    ``target``, ``drop`` and ``weights`` name columns, or number them from 1. ``task`` is None where
    the labels decide it, ``drop`` where no option leaves out columns. ``encode`` permits
    categories, ``bounded`` refuses values outside [0, 1]. A file is read by the names of the
    ``columns`` of an earlier run, and by the ``meaning`` of an earlier file's numbers, if they are
    given. ``images`` is the shape of images that the layers read.
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
        if found.X_test is None:
            return rows
        own, name = wanted._replace(meaning=rows.meaning), f"{path}: the test part"
        test = labelled(found.X_test, found.test_labels, name, rows.columns, task)
        return rows._replace(test=_checked(test, path, own))
    if suffix == ".npy":
        X = map_npy(path)
    elif array_formats.is_idx(head) or head[:2] == array_formats.GZIP_MAGIC or _named_idx(path):
        X = array_formats.read_idx(path)
    else:
        expected = f"{FORMATS}, or a folder of images"
        raise DataError(f"{path}: got a file of an unknown format, expected {expected}")
    return _checked(Rows(X), path, wanted)


def _of_folder(path: Path, wanted: Wanted) -> Rows:
    """Return images, with the classes of an earlier run where subfolders have their names."""
    X, names, notices = read_image_folder(path)
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
        exact = wanted.meaning is not None and bool(wanted.meaning.origin)
        X = known.encode(rest, exact=exact)
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
            shape = array_formats.npy_claim(file, size, str(path))
        if 0 in shape:
            return np.empty(shape, dtype=np.float32)  # nothing to map
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read: {array_formats.reason_of(error)}") from error
