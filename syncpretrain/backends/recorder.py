"""Blocks of training steps, recorded as CUDA graphs and launched again with other rows.

A step is some ten launches, each some microseconds of the interpreter's time, which threads take
from each other. A graph of 50 steps is one launch. What differs from block to block is read from
the device: the step and epoch that numbers are drawn at, the row numbers, and where the rows begin.

The first block of a kind is worked launch by launch, so that all is compiled and allocated; the
second is recorded. What cannot be recorded is worked launch by launch throughout; what CUDA refuses
may be refused for a while only, and is tried once more.

A graph writes to memory that its arrays had while it was recorded, long after they are gone. So
that memory is of a pool of the recorder, which never gives it back: CuPy's pool would where the
device has no more, but not on a MemoryError, which is what :func:`_new_memory` raises.

Guarantees: a block has the same bits recorded or not; a recorded block is launched without a wait
for the device; several threads may record at the same time. Assumptions: one thread queues all
blocks of a recorder, on one stream; X and the rows may change from block to block, but the arrays
that steps write to keep their places; the caller queues the copy of a block's error before the next
block.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.base import TrainStep
from syncpretrain.backends.cublas import Cublas
from syncpretrain.backends.cuda_source import CudaSource
from syncpretrain.backends.device_rows import DeviceRows
from syncpretrain.kernels.arrays import ordered_sum

__all__ = ["Recorder"]

# A layer has whole blocks and an epoch's last one, each with the old momentum and with the new.
MOST_GRAPHS = 4
# Errors that one launch adds up, and numbers that one brings: parameters of sum_errors,
# set_numbers.
MOST_GIVEN = 16
WORD_NUMBERS = 2**64
OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
# Blocks, some 50 ms: by then others may have freed memory, or ended a wait for the whole device.
AGAIN_AFTER = 10


class _Block(NamedTuple):
    """Steps to be worked; see :meth:`syncpretrain.backends.base.Recorder.train`."""

    work: TrainStep
    X: Any
    rows: Any
    batch_size: int
    epoch: int
    step: int
    numbers: NDArray[np.float32] | None

    def key(self, constants: Hashable) -> Hashable:
        """Return the key of a block: blocks with the same key may be one graph."""
        # Not X itself: versions take turns in some buffers, and a graph is told where X is now.
        X, numbers = self.X, self.numbers
        rows = None if X is None else (type(X), X.shape, getattr(X, "strides", None))
        table = None if numbers is None else numbers.shape
        return rows, len(self.rows), self.batch_size, table, constants


@dataclass(frozen=True)
class _Recorded:
    """A graph, the arrays from which it reads a block's rows and numbers, and its error.

    The block's ``work`` and rows are not kept: a learner has the recorder, and ``work`` the
    learner.
    """

    graph: Any
    step: int
    epoch: int
    # The graph has their addresses in it. Held here, no other array gets their memory.
    rows: Any
    numbers: Any
    error: Any


class Recorder:
    """The blocks of one learner, or of a network that is fine-tuned, all on one stream.

    Parameters
    ----------
    cupy : module
        CuPy, or what stands in for it in a test.
    source : CudaSource
    blas : Cublas

    Attributes
    ----------
    reason : str or None
        Reason why blocks are not recorded, once one is known.
    """

    def __init__(self, cupy: Any, source: CudaSource, blas: Cublas) -> None:
        self._cupy, self._source, self._blas = cupy, source, blas
        # Nothing but this recorder's graphs gets the memory that a graph computes in. The graphs
        # share it: they run one after another on one stream, and what one needs of another, as the
        # error, is in arrays that are held. A block that is worked as it is has other memory: it
        # may make what is kept, such as the operations of a minibatch of another size, and a graph
        # would write over that.
        self._pool = cupy.cuda.MemoryPool(partial(_new_memory, cupy))
        # 0 is no limit: a pool that reaches one, as the environment may set, gives memory back too.
        self._pool.set_limit(size=0)
        self._graphs: dict[Hashable, _Recorded | None] = {}  # None: seen once
        self._now: Any = None
        self._blocks = 0  # worked so far
        self._again: int | None = None  # the block at which to try once more
        self.reason: str | None = None
        self._told: str | None = None

    def slow(self) -> str | None:
        """Return, once, why steps are not recorded, and how they are worked; else None."""
        if self._told == self.reason:
            return None
        self._told = self.reason
        return (
            "worked launch by launch, not by recorded blocks of minibatches, which would be faster:"
            f" {self.reason}"
        )

    def train(
        self,
        work: TrainStep,
        X: Any,
        rows: Any,
        *,
        batch_size: int,
        epoch: int,
        step: int,
        constants: Hashable,
        numbers: NDArray[np.float32] | None = None,
    ) -> Any:
        """Queue a block of steps; see :meth:`syncpretrain.backends.base.Recorder.train`.

        The error is overwritten by the next block.
        """
        block = _Block(work, X, rows, batch_size, epoch, step, numbers)
        # The first block of a kind is worked, and only the next one recorded: by then kernels are
        # compiled and loaded, and what is kept from step to step is there.
        key, is_due = block.key(constants), self._again is None or self._blocks >= self._again
        self._blocks += 1
        if self.reason is None and key in self._graphs:
            recorded = self._graphs[key] or (self._record(block) if is_due else None)
            if recorded is not None:
                self._graphs[key] = recorded
                return self._launch(recorded, block)
        error = self._work(block)
        self._remember(key)
        return error

    def _work(self, block: _Block) -> Any:
        """Queue the steps of a block one after another; recorded ones read the block's numbers."""
        work, X, rows, size, epoch, step, numbers = block
        errors, source = [], self._source
        for number, start in enumerate(range(0, len(rows), size)):
            if source.now is not None and numbers is not None:
                source.numbers = numbers[number]
            own = rows[start : start + size]
            errors.append(work(X, own, epoch=epoch, step=step + number))
        return self._sum_of(errors)

    def _record(self, block: _Block) -> _Recorded | None:
        """Record a block without working it; None if that fails."""
        # Before the capture: zeros are a launch, which the graph would repeat.
        own = self._with_own_arrays(block)
        stream, source = self._cupy.cuda.get_current_stream(), self._source
        failure = error = graph = None
        # CuPy captures in the relaxed mode: other threads may allocate and wait meanwhile, as they
        # do when their layers train, and only calls on this stream enter the graph.
        try:
            stream.begin_capture()
        except RuntimeError as caught:
            self._fail(caught)
            return None
        source.now = self._now
        try:
            with self._cupy.cuda.using_allocator(self._pool.malloc):
                error = self._work(own)
        except (RuntimeError, MemoryError) as caught:  # of CuPy, cuBLAS, or NotRecordedError
            failure = caught
        finally:
            source.now = source.numbers = None
            # Also after a failure: until its capture ends, a stream works nothing that is queued.
            try:
                graph = stream.end_capture()
            except RuntimeError as caught:
                # A capture that went wrong ends with an error, and the stream is as before. The
                # first failure says more: what follows it is its consequence.
                failure = failure or caught
        if failure is not None:
            self._fail(failure)
            return None
        return _Recorded(graph, own.step, own.epoch, own.rows, own.numbers, error)

    def _fail(self, failure: Exception) -> None:
        """Keep why a recording failed; of what CUDA refuses only if it does so again."""
        may_pass = isinstance(failure, (MemoryError, self._cupy.cuda.runtime.CUDARuntimeError))
        # A full device, or another thread's wait for the whole device, passes. What cannot be
        # recorded never will be.
        if may_pass and self._again is None:
            self._again = self._blocks + AGAIN_AFTER
            return
        # Without cuBLAS products are CuPy's own, which it refuses to record.
        without = "" if self._blas.is_there else "cuBLAS is not found by its usual name: "
        self.reason = f"{without}{failure}"

    def _with_own_arrays(self, block: _Block) -> _Block:
        """Return the block with device arrays in place of its row numbers and its numbers."""
        if self._now is None:
            self._now = self._cupy.zeros(3, dtype=np.uint64)
        own = block._replace(rows=self._cupy.empty(len(block.rows), dtype=np.int64))
        if block.numbers is None:
            return own
        return own._replace(numbers=self._cupy.empty(block.numbers.shape, dtype=np.float32))

    def _launch(self, recorded: _Recorded, block: _Block) -> Any:
        """Queue a graph for another block; return its error."""
        # A recorded launch has its arguments for good: step and epoch as they were then. Its
        # kernels add what ``now`` says to these. A difference may be negative, as after going back
        # to an earlier epoch; words have 64 bits and wrap round, so it is taken modulo 2^64 and
        # recorded + (step - recorded) is the step all the same.
        #
        # X is told by its address and not by a difference: versions take turns in several buffers,
        # and X of this block may lie elsewhere than that of the recorded one. 0 means that nothing
        # moves: the rows are always in the recorded place.
        X = block.X.numbers if isinstance(block.X, DeviceRows) else block.X
        place = 0 if X is None else X.data.ptr
        moved = (block.step - recorded.step, block.epoch - recorded.epoch, place)
        words = (np.uint64(number % WORD_NUMBERS) for number in moved)
        # All of it is queued on the stream of the graph: what is filled here is filled after the
        # last launch of the graph has read it, and before this one does. So nothing waits.
        self._source.launch("set_now", (1,), (1,), self._now, *words)
        recorded.rows[...] = block.rows
        if block.numbers is not None:
            self._set(recorded.numbers, block.numbers)
        recorded.graph.launch()
        return recorded.error

    def _sum_of(self, errors: Sequence[Any]) -> Any:
        """Return the sum of device arrays of shape () in their order."""
        # One launch for 16 errors, and the same order as one after another: the same bits. Errors
        # that no own kernel made may have another type.
        if any(error.dtype != np.float64 for error in errors):
            return ordered_sum(errors[1:], errors[0])
        total = self._cupy.empty((), dtype=np.float64)
        for first in range(0, len(errors), MOST_GIVEN):
            some = errors[first : first + MOST_GIVEN]
            missing = [None] * (MOST_GIVEN - len(some))
            self._source.launch("sum_errors", (1,), (1,), total, int(first > 0), *some, *missing)
        return total

    def _set(self, table: Any, numbers: NDArray[np.float32]) -> None:
        """Fill a table on the device with numbers of the host, and wait for nothing."""
        # As arguments of a launch, which CUDA copies at the call: a copy from the host's memory
        # would need it pinned, and kept until the copy is done.
        flat, own = numbers.reshape(-1), table.reshape(-1)
        for first in range(0, len(flat), MOST_GIVEN):
            some = flat[first : first + MOST_GIVEN]
            missing = [np.float32(0)] * (MOST_GIVEN - len(some))
            self._source.launch("set_numbers", (1,), (1,), own[first:], len(some), *some, *missing)

    def _remember(self, key: Hashable) -> None:
        """Remember that a block of this kind was worked, and forget the oldest kind."""
        # A graph that is dropped may still run. Its arrays go back to the pool of this stream,
        # where the next user's work is queued behind it.
        self._graphs.setdefault(key, None)
        while len(self._graphs) > MOST_GRAPHS:
            del self._graphs[next(iter(self._graphs))]


def _new_memory(cupy: Any, size: int) -> Any:
    """Return new memory of the device; if it is full, free what the default pool keeps unused.

    Raises
    ------
    MemoryError
        If there is none.
    """
    # A MemoryError, and not CUDA's error: at that, the recorder's pool would give back memory that
    # graphs write to, and try again.
    cuda, failure = cupy.cuda, None
    for _ in range(2):
        try:
            return cuda.MemoryPointer(cuda.Memory(size), 0)
        except cuda.runtime.CUDARuntimeError as error:
            if error.status != OUT_OF_MEMORY:
                raise
            failure = error
        cupy.get_default_memory_pool().free_all_blocks()
    raise MemoryError(f"the GPU has no {size:,} bytes left") from failure
