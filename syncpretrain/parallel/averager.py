"""Data parallelism in shared memory: each worker computes its shards' gradients, all are averaged.

One step of two workers with two shards each, where each row is a worker::

    gradients of shards 0, 1  |  mean of the lower half  ->  update of that half  |  next step
    gradients of shards 2, 3  |  mean of the upper half  ->  update of that half  |  next step
                           barrier                                             barrier

Guarantees:

* After the first barrier all gradients are complete. After the second no rank reads them any more,
  and every rank sees the new parameters.
* No lock is held, so a worker that is killed leaves none locked. Between two barriers each number
  has one writer: a gradient and its weight its shard's worker, a parameter the worker of its slice.
* On Linux the memory is a file without a name: it is gone with the last process that has it open
  or mapped, however that process ended, and ``/dev/shm`` does not bound it. Elsewhere it is plain
  memory, which the threads of one process share.

Assumptions: all workers call :meth:`Worker.average` equally often, and an update computes each
element from that element alone.
"""

from __future__ import annotations

import math
import mmap
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from multiprocessing import reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import AveragingError, SettingsError
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.averaging import tree_mean
from syncpretrain.parallel.available_memory import available_bytes
from syncpretrain.parallel.barrier import Barrier, abort, counters_for, described
from syncpretrain.parallel.descriptors import nameless_memory, page_offsets

TIMEOUT_SECONDS = 60.0
Update = Callable[[Array, Array, slice], object]
"""Moves a slice of the flat parameters, given (parameters, mean gradient, the slice)."""


class GradientAverager:
    """Parameters and gradients that several threads or processes share.

    Parameters
    ----------
    arrays : sequence of arrays or of shapes
        The parameters begin as copies of the arrays, rounded to float32. A shape, which is a tuple
        of integers, stands for zeros.
    shards : int
        Number of parts of every minibatch. The results depend on it.
    workers : int
        Number of threads or processes that share them, at most ``shards``. The results do not
        depend on it.
    timeout : float
        Seconds that a worker waits for the others before all give up.

    Raises
    ------
    SettingsError
        For arrays that are not of floats, or numbers out of range; or if there is less memory
        than (2 + shards) times the parameters' size.
    OSError
        If the system refuses the memory all the same.
    """

    def __init__(
        self,
        arrays: Sequence[NDArray[Any] | tuple[int, ...]],
        *,
        shards: int,
        workers: int,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        _check(arrays, shards, workers, timeout)
        shapes = tuple(a if isinstance(a, tuple) else a.shape for a in arrays)
        self._workers, self._timeout = workers, timeout
        layout = Layout(shapes, shards, counters=counters_for(workers), error_texts=workers + 1)
        _check_memory(layout)
        self._memory: GradientMemory | None = GradientMemory.create(layout)
        for own, given in zip(self.parameters, arrays, strict=True):
            if not isinstance(given, tuple):
                own[...] = given

    def __enter__(self) -> GradientAverager:
        self._opened()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self.abort(f"the creator of the averager failed: {described(error)}")
        self.close()

    @property
    def parameters(self) -> list[Array]:
        """Views of the shared memory; copy them to keep them behind the averager's ``with`` block.

        Raises
        ------
        AveragingError
            Behind that block.
        """
        memory = self._opened()
        return memory.layout.arrays(memory.parameters)

    def worker(self, rank: int) -> Handle:
        """Return the worker of a rank from 0, to be entered by the thread or process that is it.

        Raises
        ------
        SettingsError
            If there is no such rank.
        AveragingError
            Behind the ``with`` block.
        """
        if not 0 <= rank < self._workers:
            raise SettingsError(f"rank: got {rank}, expected 0 to {self._workers - 1}")
        return Handle(self._opened(), rank, self._workers, self._timeout)

    def abort(self, reason: str) -> None:
        """Make all workers raise AveragingError with this reason, as soon as they wait.

        Call this when a process ended before it became its rank: no rank can detect that.
        """
        memory = self._opened()
        abort(memory.counters, memory.error_texts, self._workers, reason)

    def close(self) -> None:
        """Give the memory back, as far as no worker and no view uses it; abort who still waits."""
        if self._memory is not None:
            self.abort("the with block of the averager has ended")
            self._memory.close()
            self._memory = None

    def _opened(self) -> GradientMemory:
        if self._memory is None:
            raise AveragingError(
                "the averager is closed; use it, and copy its parameters, inside its with block"
            )
        return self._memory


class Handle:
    """A rank not yet bound to a thread or process; ``with handle as worker`` binds the thread.

    It may be an argument of a thread, or of a process that is being started.
    """

    def __init__(self, memory: GradientMemory, rank: int, workers: int, timeout: float) -> None:
        self._memory, self._rank, self._workers, self._timeout = memory, rank, workers, timeout
        self._barrier = Barrier(memory.counters, memory.error_texts, rank, workers, timeout)

    def __enter__(self) -> Worker:
        self._barrier.join()
        return Worker(self._memory, self._barrier, self._rank, self._workers)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._barrier.fail(error)
        self._barrier.leave()

    def __reduce__(self) -> tuple[Any, ...]:
        return _take_handle, (self._memory, self._rank, self._workers, self._timeout)


class Worker:
    """One of the threads or processes.

    Attributes
    ----------
    rank : int
    shards : range
        This worker's parts of every minibatch.
    parameters : list of arrays, float32
        Shared by all workers. They change in :meth:`average` only.
    gradients : mapping of a shard to a list of arrays like the parameters
        To be filled before each :meth:`average`, for this worker's shards. Each keeps its values
        until it is filled again.
    slice : slice
        The part of the flat vector that this worker updates; it may be empty. The flat vector is
        all arrays raveled, one after another.
    """

    def __init__(self, memory: GradientMemory, barrier: Barrier, rank: int, workers: int) -> None:
        layout = memory.layout
        self.rank = rank
        self.shards = range(layout.shards * rank // workers, layout.shards * (rank + 1) // workers)
        self.parameters = layout.arrays(memory.parameters)
        self.gradients: Mapping[int, list[Array]] = {
            shard: layout.arrays(memory.gradients[shard]) for shard in self.shards
        }
        self.slice = layout.slices(workers)[rank]
        self._barrier, self._weights = barrier, memory.weights
        self._own = memory.parameters[self.slice]
        self._parts = [gradient[self.slice] for gradient in memory.gradients]
        self._mean = np.empty_like(self._own)

    def average(self, update: Update, *, weights: Sequence[float] | None = None) -> None:
        """Average all shards' gradients, and move this worker's slice of the parameters.

        All workers call this equally often. It returns when the parameters are moved as a whole.

        Parameters
        ----------
        update : callable
            Is called with this worker's slice of the flat parameters, to be changed in place; the
            same slice of the mean gradient, which it may overwrite; and the slice itself. It is
            not called for an empty slice. It must compute each element from that element alone,
            or results will depend on the number of workers.
        weights : sequence of numbers, optional
            The weight of the gradient of each of this worker's shards, such as its number of
            examples, if the gradients are means of unequal parts. A shard of weight 0 is left out.
            Default: 1 each.

        Raises
        ------
        AveragingError
            If another worker failed, died, left, or did not come in time. It says which and why.
        ValueError
            For weights that are negative, not finite, too many or too few, or 0 for all shards.
        """
        try:
            # Before the barrier, so that every worker reads every weight behind it.
            self._weights[self.shards.start : self.shards.stop] = self._checked(weights)
            self._barrier.wait()
            if len(self._own):
                every = self._weights.tolist()
                update(self._own, tree_mean(self._parts, out=self._mean, weights=every), self.slice)
            # A worker may fill its next gradients only when no other reads these.
            self._barrier.wait()
        except BaseException as error:
            # A caller that caught this and went on would be one barrier behind the others.
            self._barrier.fail(error)
            raise

    def _checked(self, weights: Sequence[float] | None) -> Sequence[float]:
        if weights is None:
            return [1.0] * len(self.shards)
        if len(weights) != len(self.shards) or not all(0 <= w < math.inf for w in weights):
            raise ValueError(
                f"weights: got {list(weights)}, expected {len(self.shards)} finite numbers >= 0, "
                f"one for each of this worker's shards"
            )
        return weights


FLOATS_A_LINE = 16  # of 64 bytes, as processors cache them
TEXT_BYTES = 1024  # of a reason, which is cut there: memory is laid out before any error is known


@dataclass(frozen=True, slots=True)
class Layout:
    """Byte offsets of the shared arrays.

    ``counters`` is the number of the barrier's counters, ``error_texts`` the number of its reasons.
    """

    shapes: tuple[tuple[int, ...], ...]
    shards: int
    counters: int
    error_texts: int

    @property
    def numbers(self) -> int:
        """The number n of parameters: the flat vector is all arrays, raveled, one after another."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def row(self) -> int:
        """The float32 numbers from one flat vector to the next: n in whole cache lines."""
        return FLOATS_A_LINE * math.ceil(max(self.numbers, 1) / FLOATS_A_LINE)

    def offsets(self) -> list[int]:
        """Return the offsets of counters, error texts, weights and floats, and of the end."""
        floats = 4 * self.row * (1 + self.shards)
        sizes = 8 * self.counters, TEXT_BYTES * self.error_texts, 8 * self.shards, floats
        return page_offsets(sizes)

    def slices(self, workers: int) -> list[slice]:
        """Return each worker's part of the flat vector, in whole cache lines but for its end."""
        # Two workers never write to one cache line: it would travel between their cores.
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
    """The memory that the workers share, mapped; an argument of a process that is being started.

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
        self.counters: NDArray[np.int64] = np.ndarray(layout.counters, np.int64, memory, counters)
        self.error_texts: NDArray[np.uint8] = np.ndarray(shape, np.uint8, memory, error_texts)
        self.weights: NDArray[np.float64] = np.ndarray(layout.shards, np.float64, memory, weights)
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
        return _map_memory, (self.layout, reduction.DupFd(self._file.fileno()))


def _check(arrays: Sequence[object], shards: int, workers: int, timeout: float) -> None:
    if not 1 <= workers <= shards:
        raise SettingsError(
            f"workers: got {workers} for {shards} shards, expected 1 to {shards}; "
            "each worker needs a shard"
        )
    if not 0 < timeout < math.inf:
        raise SettingsError(f"timeout: got {timeout}, expected a number of seconds above 0")
    if not arrays:
        raise SettingsError("arrays: got none; give at least one array or shape")
    for i, given in enumerate(arrays):
        if isinstance(given, tuple) and all(isinstance(n, int) and n >= 0 for n in given):
            continue
        if not (isinstance(given, np.ndarray) and np.issubdtype(given.dtype, np.floating)):
            got = f"an array of {given.dtype}" if isinstance(given, np.ndarray) else repr(given)
            raise SettingsError(
                f"arrays[{i}]: got {got}, expected an array of floats, or a shape as a tuple"
            )


def _check_memory(layout: Layout) -> None:
    """Refuse arrays that cannot fit into the memory."""
    # Where the system grants memory on trust, it would kill a process at the first touch instead.
    means = 4 * layout.numbers  # of the workers' slices, together
    needed, available = layout.offsets()[-1] + means, available_bytes()
    if needed > available:
        raise SettingsError(
            f"arrays: {layout.numbers} numbers with the gradients of {layout.shards} shards need"
            f" about {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB are free; take smaller"
            " arrays or fewer shards"
        )


def _take_handle(memory: GradientMemory, rank: int, workers: int, timeout: float) -> Handle:
    """Take over a rank in another process, which has it from now on."""
    # Before the with block, so that the others see it if this process ends on its way there.
    handle = Handle(memory, rank, workers, timeout)
    handle._barrier.claim()
    return handle


def _map_memory(layout: Layout, passed: Any) -> GradientMemory:
    """Map the memory that another process made."""
    with FileIO(passed.detach(), "r+") as file:
        return GradientMemory(layout, mmap.mmap(file.fileno(), layout.offsets()[-1]), None)
