"""Headers of NumPy's files: a size that is claimed is checked before it is used."""

from __future__ import annotations

import math
from typing import IO

from numpy.lib import format as npy_format

from syncpretrain.errors import DataError

__all__ = ["npy_claim", "reason_of"]


def npy_claim(file: IO[bytes], size: int, name: str, *, kinds: str = "biuf") -> tuple[int, ...]:
    """Return the shape that an .npy header claims, once the file's size bears it out.

    Raises
    ------
    DataError
        If it is none, or its values are not of one of the ``kinds`` of types.
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


def reason_of(error: Exception) -> str:
    """Return why a file could not be read, in a few words."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
