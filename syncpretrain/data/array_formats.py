"""Files of arrays: IDX (gzipped or not), NumPy's archives, and headers of ``.npy``.

A size that a file claims is checked against the file's own size and the machine's memory before
any memory is taken. Pickles are never opened.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import zipfile
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from syncpretrain.data.dataset import Rows
from syncpretrain.data.examples import check_values
from syncpretrain.data.sparse_rows import SPARSE_NAMES, sparse_rows
from syncpretrain.errors import DataError

GZIP_MAGIC = b"\x1f\x8b"
TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MAX_DIMENSIONS = 8
DEFLATE_MAX_RATIO = 1032  # no deflate stream unpacks to more than this many times its size
CHUNK_BYTES = 1 << 20
EXAMPLE_NAMES = ("X", "x", "data", "images", "X_train", "x_train")
LABEL_NAMES = ("y", "labels", "target", "y_train")
TEST_NAMES = ("X_test", "x_test")
TEST_LABEL_NAMES = ("y_test",)
READ = (*EXAMPLE_NAMES, *LABEL_NAMES, *TEST_NAMES, *TEST_LABEL_NAMES)
SPARSE_MARKS = ({"data", "indices", "indptr"}, {"data", "format", "shape"})  # DIA and COO too
TEXT_ALLOWED = (*LABEL_NAMES, *TEST_LABEL_NAMES)
Stream = BinaryIO | gzip.GzipFile


def is_idx(head: bytes) -> bool:
    """Return whether a file is IDX, judged by its first 4 bytes: 0, 0, the type, the dimensions."""
    if len(head) < 4 or head[:2] != b"\0\0":
        return False
    return head[2] in TYPES and 1 <= head[3] <= MAX_DIMENSIONS


def read_idx(path: Path, *, sha256: str | None = None) -> NDArray[Any]:
    """Read an IDX file, unpacking it where it is gzipped.

    Parameters
    ----------
    path : Path
        The file.
    sha256 : str, optional
        Hexadecimal sum that the unpacked bytes must have.

    Raises
    ------
    DataError
        If the file cannot be read, is no IDX, holds more or less than it claims, or has another
        sum.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            packed = file.read(2) == GZIP_MAGIC
            file.seek(0)
            if not packed:
                return _read_idx_stream(file, path, limit=size, sha256=sha256)
            with gzip.GzipFile(fileobj=file) as stream:
                return _read_idx_stream(stream, path, limit=size * DEFLATE_MAX_RATIO, sha256=sha256)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}: got a damaged gzip file ({error}), expected a whole one; fetch it again"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read_idx_stream(stream: Stream, path: Path, *, limit: int, sha256: str | None) -> NDArray[Any]:
    header, dtype, shape = _read_idx_header(stream, path)
    claim = math.prod(shape) * dtype.itemsize
    if len(header) + claim > limit:
        raise DataError(_cut_off_idx(path, shape))
    check_memory(path, claim)
    data = np.empty(claim, dtype=np.uint8)
    filled = 0
    while filled < claim:
        part = stream.read(min(CHUNK_BYTES, claim - filled))
        if not part:
            raise DataError(_cut_off_idx(path, shape))
        data[filled : filled + len(part)] = np.frombuffer(part, dtype=np.uint8)
        filled += len(part)
    if stream.read(1):  # this read also makes gzip check its own sum
        raise DataError(f"{path}: got bytes after the {claim:,} of shape {shape}; fetch it again")
    if sha256 is not None:
        _check_idx_sum(path, header, data, sha256)
    return data.view(dtype).reshape(shape)


def _read_idx_header(stream: Stream, path: Path) -> tuple[bytes, np.dtype[Any], tuple[int, ...]]:
    head = stream.read(4)
    if not is_idx(head):
        raise DataError(
            f"{path}: got a file that begins with bytes {head.hex(' ') or '(none)'}, expected IDX:"
            " 00 00, the type and the number of dimensions; save the array as .npy instead"
        )
    sizes = stream.read(4 * head[3])
    if len(sizes) < 4 * head[3]:
        raise DataError(f"{path}: got an IDX file cut off in its header; fetch it again")
    shape = tuple(int(size) for size in np.frombuffer(sizes, dtype=">u4"))
    return head + sizes, np.dtype(TYPES[head[2]]), shape


def _cut_off_idx(path: Path, shape: tuple[int, ...]) -> str:
    return (
        f"{path}: got fewer bytes than the shape {shape} that it claims; the file is cut off or"
        " damaged, fetch it again"
    )


def _check_idx_sum(path: Path, header: bytes, data: NDArray[np.uint8], expected: str) -> None:
    digest = hashlib.sha256(header)
    digest.update(data.data)
    if digest.hexdigest() != expected:
        raise DataError(
            f"{path}: got SHA-256 {digest.hexdigest()} of the unpacked bytes, expected {expected};"
            " the file is damaged or another one, fetch it again"
        )


def read_npz(path: Path) -> Rows:
    """Read an archive; a sparse matrix, as SciPy's ``save_npz`` writes it, becomes sparse rows.

    Raises
    ------
    DataError
        If it is damaged, or its examples have other names.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {i.filename.removesuffix(".npy"): i for i in archive.infolist()}
            read = partial(_read_first, archive, members, path)
            if any(members.keys() >= names for names in SPARSE_MARKS):
                labels = read(LABEL_NAMES)
                return Rows(_read_sparse(archive, members, path), labels)
            shapes = {key: _member_shape(archive, i, path) for key, i in members.items()}
            X = _read_member(archive, members[_examples_key(shapes, path)], path)
            labels, X_test, test_labels = map(read, (LABEL_NAMES, TEST_NAMES, TEST_LABEL_NAMES))
            return Rows(X, labels, test=None if X_test is None else Rows(X_test, test_labels))
    except DataError:
        raise
    except Exception as error:  # the unpackers raise a dozen kinds over damaged archives
        raise DataError(
            f"{path}: got no whole .npz archive ({reason_of(error)}); save it again with"
            " numpy.savez (pickles are never opened)"
        ) from error


def _read_first(
    archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], path: Path, names: Sequence[str]
) -> NDArray[Any] | None:
    """Return the first member with one of some names; None if there is none."""
    found = next((members[name] for name in names if name in members), None)
    if found is None:
        return None
    _member_shape(archive, found, path)
    return _read_member(archive, found, path)


def _read_sparse(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], path: Path) -> Any:
    """Read a sparse matrix and check that its values are finite."""
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
    rows: Any = sparse_rows(arrays, form, str(path))
    check_values(rows, str(path), bounded=False)
    return rows


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
        return np.asarray(npy_format.read_array(file, allow_pickle=False))


def npy_claim(file: IO[bytes], size: int, name: str, *, kinds: str = "biuf") -> tuple[int, ...]:
    """Return the shape that an .npy header claims, if the file is large enough for it.

    Raises
    ------
    DataError
        If there is no such header, its type is not among ``kinds``, or the file is too small.
    """
    try:
        version = npy_format.read_magic(file)
        read = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
        shape, _, dtype = read[version](file)
    except Exception as error:  # NumPy's parser raises many kinds over damaged headers
        raise DataError(
            f"{name}: got no .npy file that can be read ({error}), expected an array of numbers;"
            " save it with numpy.save (pickles are never opened)"
        ) from error
    if dtype.kind not in kinds:
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


def check_memory(path: Path, claim: int) -> None:
    """Refuse to unpack more bytes than this machine has memory for.

    Raises
    ------
    DataError
        Saying to use a memory-mapped ``.npy`` file.
    """
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return  # no such figure on this system
    if claim > memory:
        raise DataError(
            f"{path}: got {claim:,} bytes when unpacked, expected at most this machine's memory,"
            f" {memory:,}; save the array as .npy, which is read from the disk as needed"
        )


def reason_of(error: Exception) -> str:
    """Return why a file could not be read, in a few words."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
