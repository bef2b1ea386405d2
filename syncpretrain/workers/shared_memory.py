"""Arrays in memory that several processes share: a file descriptor without a name.

A file without a name ends with the last process that has it open or mapped, however that process
ended, and its size is not limited by ``/dev/shm``. Pages are allocated when they are first touched.
Only a descriptor is kept open; a mapping lives as long as an array on it.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import Prepare
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.errors import SettingsError
from syncpretrain.parallel.descriptors import nameless_memory, page_offsets, size_memory
from syncpretrain.workers.activations import Split

FLOAT = np.dtype(np.float32).str
AT_ONCE = 1 << 24  # bytes written in a call: a signal is handled between two calls


def check_runtime(name: str) -> None:
    """Refuse the runtime ``processes`` on a system without nameless memory.

    Raises
    ------
    SettingsError
        On any system but Linux and FreeBSD.
    """
    if name == "processes" and not hasattr(os, "memfd_create"):
        raise SettingsError(
            "runtime: got processes, which need memfd_create of Linux; take threads"
        )


def write_array(descriptor: int, array: NDArray[Any], offset: int) -> None:
    """Write an array to shared memory, as bytes from an offset on.

    Raises
    ------
    OSError
        If there is not enough memory.
    """
    # Written, not copied into a mapping: without memory a write fails with an error, while a store
    # to a mapped page ends the process with a signal.
    left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    while len(left):
        written = os.pwrite(descriptor, left[:AT_ONCE], offset)
        left, offset = left[written:], offset + written


Kind = tuple[str, tuple[int, ...]]  # dtype and shape of an array


@dataclass(frozen=True, slots=True)
class SharedArrays:
    """Shared memory for some arrays.

    Can be sent to another process that has the descriptor under the same number. Each array has one
    writer at a time, and so no lock: a reader may see the old value of a number of 8 bytes, never
    half of a new one, since an aligned store is whole.
    """

    descriptor: int
    kinds: tuple[Kind, ...]

    @classmethod
    def create(cls, *kinds: Kind, arrays: Sequence[NDArray[Any]] = ()) -> SharedArrays:
        """Return new memory with a copy of ``arrays``, the rest 0.

        Pages of zeros are allocated when they are first touched.
        """
        # Until this returns, nobody else can close the descriptor.
        shared = cls(nameless_memory(), kinds)
        try:
            size_memory(shared.descriptor, shared._ends()[-1])
            for array, offset in zip(arrays, shared._ends(), strict=False):
                write_array(shared.descriptor, array, offset)
        except BaseException:
            shared.close()
            raise
        return shared

    @classmethod
    def of(cls, *arrays: NDArray[Any]) -> SharedArrays:
        """Return new memory with a copy of some arrays.

        Raises
        ------
        OSError
            If there is not enough memory.
        """
        return cls.create(*((array.dtype.str, array.shape) for array in arrays), arrays=arrays)

    def map(self, *, write: bool = False) -> list[NDArray[Any]]:
        """Return the arrays, read-only unless ``write``."""
        access = mmap.PROT_READ | mmap.PROT_WRITE if write else mmap.PROT_READ
        memory = mmap.mmap(self.descriptor, self._ends()[-1], mmap.MAP_SHARED, access)
        # The ends have one entry more than the arrays: not strict.
        places = zip(self.kinds, self._ends(), strict=False)
        return [np.ndarray(shape, np.dtype(kind), memory, at) for (kind, shape), at in places]

    def close(self) -> None:
        """Close the descriptor; mapped arrays stay."""
        os.close(self.descriptor)

    def _ends(self) -> list[int]:
        """Return the offset at which each array begins, and the end of the last array."""
        sizes = (np.dtype(kind).itemsize * math.prod(shape) for kind, shape in self.kinds)
        return page_offsets(sizes)


@dataclass(frozen=True, slots=True)
class SharedSplits:
    """Shared memory for several splits of the same shape, or for one with sparse training rows.

    ``sparse_width`` is the width of sparse rows, None for dense rows; ``prepare`` is the function
    that sparse rows apply to every minibatch.
    """

    arrays: SharedArrays
    sparse_width: int | None = None
    prepare: Prepare | None = None

    @classmethod
    def create(cls, rows: tuple[int, int], width: int, splits: int) -> SharedSplits:
        """Return new memory for splits of dense training and validation rows."""
        kinds: list[Kind] = [(FLOAT, (n, width)) for n in rows]
        return cls(SharedArrays.create(*kinds * splits))

    @classmethod
    def of(cls, split: Split) -> SharedSplits:
        """Return new memory with a copy of one split.

        Raises
        ------
        OSError
            If there is not enough memory.
        """
        rows: Any = split.train
        if not isinstance(rows, SparseRows):
            return cls(SharedArrays.of(*split))
        return cls(SharedArrays.of(*rows.csr, split.validation), rows.shape[1], rows.prepare)

    @property
    def descriptor(self) -> int:
        """Descriptor of the memory."""
        return self.arrays.descriptor

    def map(self, *, write: bool = False) -> list[Split]:
        """Return the splits, read-only unless ``write``."""
        found = self.arrays.map(write=write)
        if self.sparse_width is not None:
            data, indices, indptr, validation = found
            train: Any = SparseRows(data, indices, indptr, self.sparse_width, self.prepare)
            return [Split(train, validation)]
        return [Split(*pair) for pair in zip(found[::2], found[1::2], strict=True)]

    def close(self) -> None:
        """Close the descriptor; mapped arrays stay."""
        self.arrays.close()
