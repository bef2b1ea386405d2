"""Blocks of training steps, recorded as CUDA graphs and launched again with other rows.

A step is some ten launches, each some microseconds of the interpreter's time, which threads take
from each other. A graph of 50 steps is one launch. What differs from block to block is read from
the device: the step and epoch that numbers are drawn at, the row numbers, and where the rows begin.

The first block of a kind is worked launch by launch, so that all is compiled and allocated; the
second is recorded. If its work cannot be recorded, all blocks are worked launch by launch. If CUDA
refuses a recording, the reason may pass, such as a full device: it is tried once more, later.

A graph writes to the addresses that its arrays had while it was recorded, long after these arrays
are gone. So their memory comes from a pool of the recorder's own, which must never give memory back
to the device. CuPy's pools do so when CUDA reports a full device, but not after a MemoryError:
that is why :func:`_new_memory` raises one.

Guarantees: a block has the same bits recorded or not; a recorded block is launched without a wait
for the device; several threads may record at the same time.

Duties of the caller: one thread must queue all blocks of a recorder, on one stream. Each block may
have another X and other rows, but the arrays that steps write to must stay at their addresses. The
copy of a block's error must be queued before the next block.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.base import Recorder, StepBlock
from syncpretrain.backends.cublas import Cublas
from syncpretrain.backends.cuda_source import CudaSource
from syncpretrain.backends.rows import DeviceRows
from syncpretrain.kernels.arrays import ordered_sum

# Around a change of the momentum a layer needs 2 x 2: for whole blocks and for the shorter last
# block of an epoch, each with the momentum before and after.
MOST_GRAPHS = 4
# Parameters of the kernels sum_errors and set_numbers: the errors, or numbers, of one launch.
GIVEN_A_LAUNCH = 16
WORD_NUMBERS = 2**64
OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
# Blocks until a refused recording is tried again. They take some 50 ms: by then other threads may
# have freed memory, or ended a wait for the whole device.
AGAIN_AFTER = 10


def _key_of(block: StepBlock) -> Hashable:
    """Return the key of a block: blocks with the same key may be one graph."""
    # The form of X, not X itself: versions take turns in some buffers, and each launch tells the
    # graph where X is.
    X, numbers = block.X, block.numbers
    form = None if X is None else (type(X), X.shape, getattr(X, "strides", None))
    shape = None if numbers is None else numbers.shape
    return form, len(block.rows), block.batch_size, shape, block.constants


@dataclass(frozen=True)
class _Recorded:
    """A graph, the arrays from which it reads a block's rows and numbers, and its error.

    The block's ``work`` is not kept: it refers to the learner, and the learner to the recorder. In
    such a cycle the arrays would live on until the garbage collector finds it.
    """

    graph: Any
    step: int
    epoch: int
    # The graph holds the addresses of these three. They live here, so no other array gets their
    # memory.
    rows: Any
    numbers: Any
    error: Any


class GraphRecorder(Recorder):
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
        # Only this recorder's graphs compute in the memory of this pool. They share it, since they
        # run one after another on one stream, and what outlives a graph, as its error, is in arrays
        # that _Recorded holds. A block worked launch by launch takes memory elsewhere: it may make
        # arrays that are kept, as for a minibatch of another size, and a graph would overwrite
        # them.
        self._pool = cupy.cuda.MemoryPool(partial(_new_memory, cupy))
        # No limit, even if the environment sets one: at its limit a pool gives memory back too.
        self._pool.set_limit(size=0)
        # By the key of a block; None after the first one, which was not recorded.
        self._graphs: dict[Hashable, _Recorded | None] = {}
        self._now: Any = None  # on the device: the three numbers of CudaSource.now
        self._blocks = 0  # worked so far
        self._again: int | None = None  # the block at which to try once more
        self.reason: str | None = None
        self._told: str | None = None  # the reason that was last returned

    def take_notice(self) -> str | None:
        """Return how steps are worked that are not recorded, and why; None if it was returned."""
        if self._told == self.reason:
            return None
        self._told = self.reason
        return (
            "worked launch by launch, not by recorded blocks of minibatches, which would be faster:"
            f" {self.reason}"
        )

    def train(self, block: StepBlock) -> Any:
        """Queue a block of steps; return the sum of their errors, which the next overwrites."""
        # The first block of a kind is worked, and only the next one recorded: by then kernels are
        # compiled and loaded, and what is kept from step to step is there.
        key, is_due = _key_of(block), self._again is None or self._blocks >= self._again
        self._blocks += 1
        if self.reason is None and key in self._graphs:
            recorded = self._graphs[key] or (self._record(block) if is_due else None)
            if recorded is not None:
                self._graphs[key] = recorded
                return self._launch(recorded, block)
        error = self._work(block)
        self._remember(key)
        return error

    def _work(self, block: StepBlock) -> Any:
        """Queue the steps of a block one after another; return the sum of their errors.

        While they are recorded, each step is given its row of the block's numbers on the device.
        """
        source, errors = self._source, []
        for number, work in enumerate(block.steps()):
            if source.now is not None and block.numbers is not None:
                source.record(source.now, block.numbers[number])
            errors.append(work())
        return self._sum_of(errors)

    def _record(self, block: StepBlock) -> _Recorded | None:
        """Record a block without working it; return None if that fails."""
        # Before the capture: setting an array to zeros is a launch, which the graph would repeat.
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
        source.record(self._now)
        try:
            with self._cupy.cuda.using_allocator(self._pool.malloc):
                error = self._work(own)
        except (RuntimeError, MemoryError) as caught:  # of CuPy, cuBLAS, or NotRecordedError
            failure = caught
        finally:
            source.record(None)
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
        """Give up recording and keep the reason, or choose a later block for a second attempt."""
        may_pass = isinstance(failure, (MemoryError, self._cupy.cuda.runtime.CUDARuntimeError))
        # A full device, or another thread's wait for the whole device, passes. Work that cannot be
        # recorded never can.
        if may_pass and self._again is None:
            self._again = self._blocks + AGAIN_AFTER
            return
        # Where we do not find cuBLAS, CuPy makes the products, and refuses to do so in a recording.
        without = "" if self._blas.is_there else "cuBLAS is not found by its usual name: "
        self.reason = f"{without}{failure}"

    def _with_own_arrays(self, block: StepBlock) -> StepBlock:
        """Return the block with device arrays in place of its row numbers and its numbers."""
        if self._now is None:
            self._now = self._cupy.zeros(3, dtype=np.uint64)
        own = block._replace(rows=self._cupy.empty(len(block.rows), dtype=np.int64))
        if block.numbers is None:
            return own
        return own._replace(numbers=self._cupy.empty(block.numbers.shape, dtype=np.float32))

    def _launch(self, recorded: _Recorded, block: StepBlock) -> Any:
        """Queue a graph for another block; return its error."""
        # A recorded launch has its arguments for good: step and epoch as they were then. Its
        # kernels add the differences in ``now`` to these. A difference may be negative, as after
        # going back to an earlier epoch; words have 64 bits and wrap round, so it is taken modulo
        # 2^64 and recorded + (step - recorded) is the step all the same.
        #
        # X is given by its address and not by a difference: versions take turns in several buffers,
        # and X of this block may lie elsewhere than that of the recorded one. Address 0 means that
        # the rows are always in the recorded place.
        X = block.X.numbers if isinstance(block.X, DeviceRows) else block.X
        address = 0 if X is None else X.data.ptr
        now = (block.step - recorded.step, block.epoch - recorded.epoch, address)
        words = (np.uint64(number % WORD_NUMBERS) for number in now)
        # These arrays are filled on the stream of the graph: after its last launch has read them,
        # and before this one does. So nothing waits.
        self._source.launch("set_now", (1,), (1,), self._now, *words)
        recorded.rows[...] = block.rows
        if block.numbers is not None:
            self._copy_to_device(block.numbers, recorded.numbers)
        recorded.graph.launch()
        return recorded.error

    def _sum_of(self, errors: Sequence[Any]) -> Any:
        """Return the sum of device arrays of shape () in their order."""
        # One launch adds 16 errors in the order of one after another: the bits are the same. The
        # errors of CuPy's own kernels may have another type, which sum_errors does not take.
        if any(error.dtype != np.float64 for error in errors):
            return ordered_sum(errors[1:], errors[0])
        total = self._cupy.empty((), dtype=np.float64)
        for first in range(0, len(errors), GIVEN_A_LAUNCH):
            some = errors[first : first + GIVEN_A_LAUNCH]
            missing = [None] * (GIVEN_A_LAUNCH - len(some))
            adds = int(first > 0)  # to the total; the first launch sets it
            self._source.launch("sum_errors", (1,), (1,), total, adds, *some, *missing)
        return total

    def _copy_to_device(self, numbers: NDArray[np.float32], table: Any) -> None:
        """Copy numbers of the host to a table on the device, and wait for nothing."""
        # As arguments of a launch, which CUDA copies at the call: a copy from the host's memory
        # would need it pinned, and kept until the copy is done.
        flat, own = numbers.reshape(-1), table.reshape(-1)
        for first in range(0, len(flat), GIVEN_A_LAUNCH):
            some = flat[first : first + GIVEN_A_LAUNCH]
            missing = [np.float32(0)] * (GIVEN_A_LAUNCH - len(some))
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
        If the device is full nevertheless.
    """
    # Not CUDA's error for a full device: at that error the recorder's pool would give back memory
    # that graphs write to, and ask again.
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
