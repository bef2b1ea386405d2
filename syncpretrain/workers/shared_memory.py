"""Arrays that several processes see: memory with a file descriptor and no name.

A file without a name is gone with the last process that has it open or mapped, however that process
ended, and is not bound by the size of ``/dev/shm``. Its pages are allocated when they are first
touched. Only a descriptor is kept open; a mapping lives as long as an array on it.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import Prepare
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.errors import SettingsError
from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.parallel.descriptors import PAGE, nameless_memory, size_memory
from syncpretrain.workers.split import Split

__all__ = [
    "SharedNumbers",
    "SharedSparse",
    "SharedSplits",
    "check_runtime",
    "mapped",
    "shared_data",
    "write_array",
]


AT_ONCE = 1 << 24  # bytes written in a call: a signal is handled between two calls


def check_runtime(name: str) -> None:
    """Refuse processes where there is no memory without a name.

    Raises
    ------
    SettingsError
        On any system but Linux and FreeBSD.
    """
    if name == "processes" and not hasattr(os, "memfd_create"):
        raise SettingsError(
            "runtime: got processes, which need memfd_create of Linux; take threads"
        )


@dataclass(frozen=True, slots=True)
class SharedSplits:
    """Shared memory for a number of splits of the same shape.

    ``rows`` are those for training and for validation. May be sent to another process that has
    the descriptor under the same number.
    """

    descriptor: int
    rows: tuple[int, int]
    width: int
    splits: int

    @classmethod
    def create(cls, rows: tuple[int, int], width: int, splits: int) -> SharedSplits:
        """Return new memory; its pages are allocated when they are first touched."""
        # Until this returns, nobody else can close the descriptor.
        shared = cls(nameless_memory(), rows, width, splits)
        try:
            size_memory(shared.descriptor, splits * sum(shared._sizes()))
        except BaseException:
            shared.close()
            raise
        return shared

    @classmethod
    def of(cls, split: Split) -> SharedSplits:
        """Return new memory with a copy of one split.

        Raises
        ------
        OSError
            If there is not enough memory.
        """
        shared = cls.create((len(split.train), len(split.validation)), split.train.shape[1], 1)
        try:
            for offset, rows in zip((0, shared._sizes()[0]), split, strict=True):
                write_array(shared.descriptor, rows, offset)
        except BaseException:
            shared.close()
            raise
        return shared

    def map(self, *, write: bool = False) -> list[Split]:
        """Return the splits, read-only unless ``write``."""
        memory = mapped(self.descriptor, self.splits * sum(self._sizes()), write=write)
        return [Split(*self._arrays(memory, i)) for i in range(self.splits)]

    def close(self) -> None:
        """Close the descriptor; what is mapped stays."""
        os.close(self.descriptor)

    def _arrays(self, memory: mmap.mmap, i: int) -> Iterator[NDArray[np.float32]]:
        # Each array begins on a page, so that a write to one never touches a page of another.
        offset = i * sum(self._sizes())
        for rows, size in zip(self.rows, self._sizes(), strict=True):
            shape = (rows, self.width)
            yield np.ndarray(shape, np.float32, memory, offset)
            offset += size

    def _sizes(self) -> list[int]:
        return [PAGE * math.ceil(FLOAT_BYTES * rows * self.width / PAGE) for rows in self.rows]


def write_array(descriptor: int, array: NDArray[Any], offset: int) -> None:
    """Write an array to shared memory, as bytes from an offset on.

    Raises
    ------
    OSError
        If there is not enough memory: an array that is mapped would end in a signal.
    """
    # Written, not copied into a mapping: without memory a write fails with an error, while a store
    # to a mapped page ends the process with a signal.
    left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    while len(left):
        written = os.pwrite(descriptor, left[:AT_ONCE], offset)
        left, offset = left[written:], offset + written


@dataclass(frozen=True, slots=True)
class SharedNumbers:
    """Shared float64 numbers, each with one writer, and so without a lock.

    A reader may see an old number, never half of a new one: an aligned store of 8 bytes is whole.
    """

    descriptor: int
    count: int

    @classmethod
    def create(cls, count: int) -> SharedNumbers:
        """Return new numbers, all 0."""
        shared = cls(nameless_memory(), count)
        try:
            size_memory(shared.descriptor, 8 * count)
        except BaseException:
            shared.close()
            raise
        return shared

    def map(self) -> NDArray[np.float64]:
        """Return the numbers."""
        memory = mapped(self.descriptor, 8 * self.count, write=True)
        numbers: NDArray[np.float64] = np.ndarray((self.count,), np.float64, memory)
        return numbers

    def close(self) -> None:
        """Close the descriptor; what is mapped stays."""
        os.close(self.descriptor)


def mapped(descriptor: int, size: int, *, write: bool) -> mmap.mmap:
    """Return shared memory as this process sees it."""
    access = mmap.PROT_READ | mmap.PROT_WRITE if write else mmap.PROT_READ
    return mmap.mmap(descriptor, size, mmap.MAP_SHARED, access)


@dataclass(frozen=True, slots=True)
class SharedSparse:
    """Shared memory with one split of sparse training rows; used as :class:`SharedSplits`.

    ``arrays`` has the type and the shape of each array: values, their columns, the beginnings of
    the rows, and the validation rows. ``prepare`` is what the sparse rows apply to a minibatch.
    """

    descriptor: int
    arrays: tuple[tuple[str, tuple[int, ...]], ...]
    width: int
    prepare: Prepare | None = None

    @classmethod
    def of(cls, split: Split) -> SharedSparse:
        """Return new memory with a copy of a split.

        Raises
        ------
        OSError
            If there is not enough memory.
        """
        rows: Any = split.train
        arrays = (*rows.csr, split.validation)
        kinds = tuple((array.dtype.str, array.shape) for array in arrays)
        shared = cls(nameless_memory(), kinds, rows.shape[1], rows.prepare)
        try:
            size_memory(shared.descriptor, shared._ends()[-1])
            for array, offset in zip(arrays, shared._ends(), strict=False):
                write_array(shared.descriptor, array, offset)
        except BaseException:
            shared.close()
            raise
        return shared

    @property
    def rows(self) -> tuple[int, int]:
        """Rows to train on and to validate with."""
        return self.arrays[2][1][0] - 1, self.arrays[-1][1][0]

    def map(self, *, write: bool = False) -> list[Split]:
        """Return the split, in a list, read-only unless ``write``."""
        data, indices, indptr, validation = self._mapped(write)
        train: Any = SparseRows(data, indices, indptr, self.width, self.prepare)
        return [Split(train, validation)]

    def close(self) -> None:
        """Close the descriptor; what is mapped stays."""
        os.close(self.descriptor)

    def _mapped(self, write: bool) -> Iterator[NDArray[Any]]:
        memory = mapped(self.descriptor, self._ends()[-1], write=write)
        for (dtype, shape), offset in zip(self.arrays, self._ends(), strict=False):
            yield np.ndarray(shape, np.dtype(dtype), memory, offset)

    def _ends(self) -> list[int]:
        """Return where each array begins, and where the last one ends."""
        ends = [0]
        for dtype, shape in self.arrays:
            size = np.dtype(dtype).itemsize * math.prod(shape)
            ends.append(ends[-1] + PAGE * max(math.ceil(size / PAGE), 1))
        return ends


def shared_data(data: Split) -> SharedSplits | SharedSparse:
    """Return new memory with a copy of the data.

    Raises
    ------
    OSError
        If there is not enough memory.
    """
    if isinstance(data.train, SparseRows):
        return SharedSparse.of(data)
    return SharedSplits.of(data)
