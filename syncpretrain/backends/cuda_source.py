"""The CUDA source of this folder: compiled for each device at its first use, launched by name.

The tests compile the source by NVRTC for several architectures, and run it on the CPU. It has never
run on a GPU.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

__all__ = [
    "MOST_ELEMENTS",
    "THREADS",
    "CudaSource",
    "cuda_source",
    "grid_of",
    "is_vector",
    "layout",
]

CUDA_FILES = ("kernels.cu", "convolutions.cu")  # the latter uses functions of the former
THREADS = 256
MOST_BLOCKS = 4096  # beyond that a thread takes several elements
MOST_ELEMENTS = 2**31 - 1
COMPILER_OPTIONS = ("--fmad=false",)  # no contraction: NumPy's roundings


@cache
def cuda_source() -> str:
    """Return the whole source, one translation unit."""
    folder = files("syncpretrain.backends")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in CUDA_FILES)


def layout(*arrays: Any) -> tuple[int, ...] | None:
    """Return rows, columns, and each array's elements from row to row; None if not to be had.

    The arrays are float32 of one shape, with contiguous rows.
    """
    shape = arrays[0].shape
    if arrays[0].size > MOST_ELEMENTS or len(shape) not in (1, 2):
        return None
    steps = []
    for array in arrays:
        if array.dtype != np.float32 or array.shape != shape:
            return None
        *row, column = array.strides
        if (column != 4 and shape[-1] > 1) or (row and (row[0] % 4 or row[0] < 0)):
            return None
        steps.append(row[0] // 4 if row else shape[0])
    return (shape[0] if len(shape) == 2 else 1, shape[-1], *steps)


def is_vector(array: Any, length: int) -> bool:
    """Return whether an array is a contiguous vector of float32 of a length."""
    return bool(array.dtype == np.float32 and array.shape == (length,) and array.flags.c_contiguous)


def grid_of(items: int, each: int = THREADS) -> tuple[int]:
    """Return the grid of blocks that take ``each`` of some items at a time."""
    return (min(MOST_BLOCKS, -(-items // each)),)


class CudaSource:
    """The kernels of the source, compiled for each device at its first use there.

    Parameters
    ----------
    cupy : module
        CuPy, or what stands in for it in a test.

    Attributes
    ----------
    units : dict of str to int
        The kinds of units that the source has, and their numbers there.
    """

    def __init__(self, cupy: Any) -> None:
        source = cuda_source()
        self._module = cupy.RawModule(code=source, options=COMPILER_OPTIONS)
        numbers = re.findall(r"^#define UNITS_(\w+) (\d+)$", source, re.MULTILINE)
        self.units = {name.lower(): int(number) for name, number in numbers}
        self._functions: dict[str, Any] = {}

    def launch(self, name: str, grid: tuple[int], block: tuple[int, ...], *args: Any) -> None:
        """Launch a kernel onto the current stream."""
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = self._module.get_function(name)
        function(grid, block, args)

    def flat(self, name: str, items: int, *args: Any) -> None:
        """Launch a kernel with one thread for each item; none for no items."""
        if items:
            self.launch(name, grid_of(items), (THREADS,), *args)
