"""The IDX format of MNIST, gzipped or not: a size that is claimed is checked before it is used."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import DataError

__all__ = ["GZIP_MAGIC", "check_memory", "is_idx", "read_idx"]

GZIP_MAGIC = b"\x1f\x8b"
TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MAX_DIMENSIONS = 8
DEFLATE_MAX_RATIO = 1032  # no deflate stream unpacks to more than this many times its size
CHUNK_BYTES = 1 << 20

Stream = BinaryIO | gzip.GzipFile


def is_idx(head: bytes) -> bool:
    """Return whether a file is IDX, judged by its first 4 bytes: 0, 0, the type, the dimensions."""
    return (
        len(head) >= 4
        and head[:2] == b"\0\0"
        and head[2] in TYPES
        and 1 <= head[3] <= MAX_DIMENSIONS
    )


def read_idx(path: Path, *, sha256: str | None = None) -> NDArray[Any]:
    """Read an IDX file, unpacking it where it is gzipped.

    Parameters
    ----------
    path : Path
        The file.
    sha256 : str, optional
        The hexadecimal sum that the unpacked bytes must have.

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
                return _read(file, path, limit=size, sha256=sha256)
            with gzip.GzipFile(fileobj=file) as stream:
                return _read(stream, path, limit=size * DEFLATE_MAX_RATIO, sha256=sha256)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}: got a damaged gzip file ({error}), expected a whole one; fetch it again"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


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


def _read(stream: Stream, path: Path, *, limit: int, sha256: str | None) -> NDArray[Any]:
    header, dtype, shape = _read_header(stream, path)
    claim = math.prod(shape) * dtype.itemsize
    if len(header) + claim > limit:
        raise DataError(_truncated(path, shape))
    check_memory(path, claim)
    data = np.empty(claim, dtype=np.uint8)
    filled = 0
    while filled < claim:
        part = stream.read(min(CHUNK_BYTES, claim - filled))
        if not part:
            raise DataError(_truncated(path, shape))
        data[filled : filled + len(part)] = np.frombuffer(part, dtype=np.uint8)
        filled += len(part)
    if stream.read(1):  # this read also makes gzip check its own sum
        raise DataError(f"{path}: got bytes after the {claim:,} of shape {shape}; fetch it again")
    if sha256 is not None:
        _check_sum(path, header, data, sha256)
    return data.view(dtype).reshape(shape)


def _read_header(stream: Stream, path: Path) -> tuple[bytes, np.dtype[Any], tuple[int, ...]]:
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


def _truncated(path: Path, shape: tuple[int, ...]) -> str:
    return (
        f"{path}: got fewer bytes than the shape {shape} that it claims; the file is cut off or"
        " damaged, fetch it again"
    )


def _check_sum(path: Path, header: bytes, data: NDArray[np.uint8], expected: str) -> None:
    digest = hashlib.sha256(header)
    digest.update(data.data)
    if digest.hexdigest() != expected:
        raise DataError(
            f"{path}: got SHA-256 {digest.hexdigest()} of the unpacked bytes, expected {expected};"
            " the file is damaged or another one, fetch it again"
        )
