"""The data in memory that several processes see: dense rows, or sparse ones as they are kept."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import Prepare
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.parallel.descriptors import PAGE, nameless_memory, size_memory
from syncpretrain.pretraining.runtime.shared_activations import SharedSplits, mapped, write_array
from syncpretrain.pretraining.runtime.split import Split

__all__ = ["SharedSparse", "shared_data"]


@dataclass(frozen=True, slots=True)
class SharedSparse:
    """Shared memory with one split, whose training rows are sparse; as :class:`SharedSplits`.

    ``arrays`` has type and shape of each array: values, their columns and where rows begin, and the
    validation rows. ``prepare`` is that of the sparse rows.
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
