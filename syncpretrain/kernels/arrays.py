"""Type of the arrays that the equations compute on, their sizes and their slices."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from itertools import pairwise
from operator import add
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

Array = NDArray[np.float32]
Rows = NDArray[np.intp]  # numbers of some rows of the data
FLOAT_BYTES = 4
BLOCK = 65_536  # numbers that a pass takes at a time: several such arrays stay in the L2 cache
LONG_BLOCK = 2**18  # the same where a pass holds the interpreter's lock, not to pass it around


def slices_of(size: int, shards: int) -> list[slice]:
    """Return slices of about equal length that make up ``range(size)``; some may be empty."""
    ends = [size * i // shards for i in range(shards + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


def blocks_in(own: slice, size: int) -> list[slice]:
    """Return slices of at most ``size`` numbers that make up another one."""
    return [slice(at, min(at + size, own.stop)) for at in range(own.start, own.stop, size)]


def ordered_sum(numbers: Iterable[T], first: T) -> T:
    """Return ``first`` and all numbers, added one after another.

    The built-in ``sum`` compensates for the rounding of floats since Python 3.12, so that the bits
    of its result depend on Python's version.
    """
    return reduce(add, numbers, first)
