"""Archives of NumPy's arrays: examples, labels and a test part, or a sparse matrix."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from syncpretrain.data.examples import check_values
from syncpretrain.data.idx import check_memory
from syncpretrain.data.npy_header import npy_claim, reason_of
from syncpretrain.data.sparse_rows import SPARSE_NAMES, sparse_rows
from syncpretrain.errors import DataError

__all__ = ["Archive", "read_npz"]

EXAMPLE_NAMES = ("X", "x", "data", "images", "X_train", "x_train")
LABEL_NAMES = ("y", "labels", "target", "y_train")
TEST_NAMES = ("X_test", "x_test")
TEST_LABEL_NAMES = ("y_test",)
READ = (*EXAMPLE_NAMES, *LABEL_NAMES, *TEST_NAMES, *TEST_LABEL_NAMES)
SPARSE_MARKS = ({"data", "indices", "indptr"}, {"data", "format", "shape"})  # of DIA and COO too
TEXT_ALLOWED = (*LABEL_NAMES, *TEST_LABEL_NAMES)


class Archive(NamedTuple):
    """What an archive holds; the rest is None where it has none."""

    X: NDArray[Any]
    labels: NDArray[Any] | None = None
    X_test: NDArray[Any] | None = None
    test_labels: NDArray[Any] | None = None


def read_npz(path: Path) -> Archive:
    """Read an archive; a sparse matrix, as SciPy's ``save_npz`` writes it, becomes sparse rows.

    Raises
    ------
    DataError
        If it is damaged, or its examples have other names.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {i.filename.removesuffix(".npy"): i for i in archive.infolist()}
            if any(members.keys() >= names for names in SPARSE_MARKS):
                key = next((name for name in LABEL_NAMES if name in members), None)
                labels = None
                if key is not None:
                    _member_shape(archive, members[key], path)
                    labels = _read_member(archive, members[key], path)
                return Archive(_read_sparse(archive, members, path), labels)
            shapes = {key: _member_shape(archive, i, path) for key, i in members.items()}
            keys = [_examples_key(shapes, path)]
            for names in (LABEL_NAMES, TEST_NAMES, TEST_LABEL_NAMES):
                keys.append(next((key for key in names if key in members), ""))
            found = [_read_member(archive, members[key], path) if key else None for key in keys]
            return Archive(*found)  # type: ignore[arg-type]
    except DataError:
        raise
    except Exception as error:  # the unpackers raise a dozen kinds over damaged archives
        raise DataError(
            f"{path}: got no whole .npz archive ({reason_of(error)}); save it again with"
            " numpy.savez (pickles are never opened)"
        ) from error


def _read_sparse(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], path: Path) -> Any:
    """Read a sparse matrix, whose values are finite."""
    form = ""
    if "format" in members:
        form = _sparse_format(_read_member(archive, members["format"], path), str(path))
    lacks = SPARSE_NAMES - members.keys()
    if lacks:
        raise DataError(
            f"{path}: got a sparse matrix without {min(lacks)}; save it with scipy.sparse.save_npz"
        )
    arrays = {}
    for name in SPARSE_NAMES:
        with archive.open(members[name]) as file:
            npy_claim(file, members[name].file_size, f"{path}: {name}", kinds="biufSU")
        arrays[name] = _read_member(archive, members[name], path)
    rows = sparse_rows(arrays, form, str(path))
    values: Any = rows
    check_values(values, str(path), bounded=False)
    return values


def _sparse_format(written: NDArray[Any], name: str) -> str:
    """Return the format that a file says it has; refuse all but CSR and CSC."""
    form = written.item() if written.ndim == 0 else ""
    form = form.decode("ascii", "replace") if isinstance(form, bytes) else str(form)
    if form not in ("csr", "csc"):
        raise DataError(
            f"{name}: got a sparse matrix in the format {form!r}, expected csr; save X.tocsr()"
        )
    return form


def _member_shape(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path
) -> tuple[int, ...] | None:
    """Return the shape of a member, or None if it is no array of numbers."""
    key = member.filename.removesuffix(".npy")
    kinds = "biufU" if key in TEXT_ALLOWED else "biuf"
    with archive.open(member) as file:
        try:
            return npy_claim(file, member.file_size, f"{path}: {member.filename}", kinds=kinds)
        except DataError:
            if key in READ:
                raise
            return None


def _examples_key(shapes: dict[str, tuple[int, ...] | None], path: Path) -> str:
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
    return np.asarray(array)
