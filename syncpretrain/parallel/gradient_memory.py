"""The memory that the workers share: counters, reasons, weights, parameters, a gradient a shard.

On Linux it is a file without a name, which is gone with the last process that has it open or
mapped, however that ended, and which ``/dev/shm`` does not bound. Elsewhere it is plain memory,
which the threads of one process share.
"""

from __future__ import annotations

import math
import mmap
import multiprocessing
import os
from dataclasses import dataclass
from io import FileIO
from multiprocessing import reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import AveragingError
from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.descriptors import nameless_memory

__all__ = ["GradientMemory", "Layout"]

PAGE = 4096  # where each array begins, so that it is aligned as others are
FLOATS_A_LINE = 16  # of 64 bytes, as processors cache them
TEXT_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Layout:
    """Where in the memory what is found.

    ``counters`` is how many numbers the barrier needs, ``error_texts`` how many reasons.
    """

    shapes: tuple[tuple[int, ...], ...]
    shards: int
    counters: int
    error_texts: int

    @property
    def numbers(self) -> int:
        """The parameters' count n: the flat vector is all arrays, raveled, one after another."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def row(self) -> int:
        """How many float32 numbers from one flat vector to the next: n in whole cache lines."""
        return FLOATS_A_LINE * math.ceil(max(self.numbers, 1) / FLOATS_A_LINE)

    def offsets(self) -> list[int]:
        """Return the offsets of counters, error texts, weights and floats, and of the end."""
        floats = 4 * self.row * (1 + self.shards)
        offsets = [0]
        for size in (8 * self.counters, TEXT_BYTES * self.error_texts, 8 * self.shards, floats):
            offsets.append(offsets[-1] + PAGE * math.ceil(size / PAGE))
        return offsets

    def slices(self, workers: int) -> list[slice]:
        """Return each worker's part of the flat vector, in whole cache lines but for its end."""
        lines = self.row // FLOATS_A_LINE
        ends = [FLOATS_A_LINE * (lines * rank // workers) for rank in range(workers)]
        return [slice(a, b) for a, b in zip(ends, [*ends[1:], self.numbers], strict=True)]

    def arrays(self, flat: Array) -> list[Array]:
        """Return the flat vector as views of the shapes."""
        views, start = [], 0
        for shape in self.shapes:
            size = math.prod(shape)
            views.append(flat[start : start + size].reshape(shape))
            start += size
        return views


class GradientMemory:
    """The memory, mapped. It travels as an argument of a process that is being started.

    Attributes
    ----------
    layout : Layout
    counters : array of int64
    error_texts : array of uint8, one row a reason
    weights : array of shape (shards,), float64
    parameters : array of shape (n,), float32
    gradients : list of one array of shape (n,) a shard, float32
    """

    def __init__(self, layout: Layout, memory: mmap.mmap, file: FileIO | None) -> None:
        self.layout, self._file = layout, file
        counters, error_texts, weights, floats, _ = layout.offsets()
        shape = (layout.error_texts, TEXT_BYTES)
        self.counters: NDArray[np.int64] = np.ndarray(
            (layout.counters,), np.int64, memory, counters
        )
        self.error_texts: NDArray[np.uint8] = np.ndarray(shape, np.uint8, memory, error_texts)
        self.weights: NDArray[np.float64] = np.ndarray(
            (layout.shards,), np.float64, memory, weights
        )
        rows: Array = np.ndarray((1 + layout.shards, layout.row), np.float32, memory, floats)
        self.parameters, *self.gradients = (row[: layout.numbers] for row in rows)

    @classmethod
    def create(cls, layout: Layout) -> GradientMemory:
        """Return new memory, all 0.

        Raises
        ------
        OSError
            If there is not enough of it.
        """
        size = layout.offsets()[-1]
        if not hasattr(os, "memfd_create"):
            return cls(layout, mmap.mmap(-1, size), None)
        file = FileIO(nameless_memory(), "r+")
        try:
            # Allocated now: without memory this is an error, not a signal at the first touch.
            os.posix_fallocate(file.fileno(), 0, size)
            return cls(layout, mmap.mmap(file.fileno(), size), file)
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        """Close the descriptor; the mapping lives as long as an array on it."""
        if self._file is not None:
            self._file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if not hasattr(os, "memfd_create"):
            raise AveragingError(
                "a worker cannot go to another process here: that needs memfd_create of Linux; "
                "let the workers be threads"
            )
        if multiprocessing.context.get_spawning_popen() is None:
            raise AveragingError(
                "a worker was pickled, which only the start of a process can do; pass it in "
                'args of multiprocessing.get_context("spawn").Process'
            )
        if self._file is None or self._file.closed:
            raise AveragingError(
                "a worker was passed on by a process that did not make the averager, or after the "
                "averager's with block; start the processes inside it, where it was made"
            )
        return _received, (self.layout, reduction.DupFd(self._file.fileno()))


def _received(layout: Layout, passed: Any) -> GradientMemory:
    """Map what another process made."""
    with FileIO(passed.detach(), "r+") as file:
        return GradientMemory(layout, mmap.mmap(file.fileno(), layout.offsets()[-1]), None)
