"""Examples of a run with a device: kept there as bytes, or left on the host.

Rows that the device has no room for stay on the host, and come a block at a time. The order of an
epoch is known at its beginning, so the block after the one that is trained on is copied meanwhile:
from one of two pinned buffers, into one of two buffers of the device, on a stream of its own. Two
events of each buffer keep this right, in whatever order host and device get there:

* ``copied``: the copy is done before the host writes to the pinned buffer again, and before the
  layer's stream reads the device's buffer.
* ``used``: the layer's stream has read the device's buffer before the next copy into it begins.

Guarantee: a minibatch has the rows that its numbers say. Assumptions: one thread reads, on one
stream; the minibatches of an order come in that order, each block once (another order of reading is
right too, but copies blocks again).

Any other rows are gathered on the host and copied at once.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.base import Backend
from syncpretrain.data.blocks import ByteRows, StoredRows
from syncpretrain.kernels.arrays import FLOAT_BYTES

# Bytes of a buffer: some 10,000 rows of 784. Its copy takes a millisecond or more, so that
# the microseconds of events and waits do not count.
BLOCK_BYTES = 1 << 25
BUFFERS = 2  # one is trained on, one is filled


@dataclass(frozen=True, slots=True)
class DeviceRows(ByteRows):
    """Rows of a device, of values that are bytes divided by 255.

    A slice is a new float32 array of the device, filled on the current stream; ``Backend.gather``
    makes minibatches. Another device gets a run of the bytes by its ``Backend.asarray``, and
    divides there.
    """

    backend: Backend

    def __getitem__(self, key: slice) -> Any:
        return self.backend.asarray(self.run(key))


def buffer_bytes(rows: int, width: int) -> int:
    """Return the bytes of a device's memory that rows of the host need."""
    return BUFFERS * _block_of(rows, width) * width * FLOAT_BYTES


def _block_of(rows: int, width: int) -> int:
    """Return the rows of a block."""
    return max(1, min(BLOCK_BYTES // (width * FLOAT_BYTES), rows))


class _Buffer:
    """Pinned memory for a block of rows, and an array of a device that it is copied to."""

    def __init__(self, backend: Backend, rows: int, width: int) -> None:
        cuda = backend.xp.cuda
        self._memory = cuda.alloc_pinned_memory(rows * width * FLOAT_BYTES)
        flat = np.frombuffer(self._memory, dtype=np.float32, count=rows * width)
        self.pinned = flat.reshape(rows, width)
        self.rows = backend.empty((rows, width))
        self.copied = cuda.Event(disable_timing=True)
        self.used = cuda.Event(disable_timing=True)
        self.holds: tuple[object, int] | None = None  # an order, and the number of its block


@dataclass(frozen=True, slots=True, eq=False)
class _Order:
    """The rows of an epoch in their order, on the host and on the device."""

    numbers: NDArray[np.intp]
    on_device: Any


@dataclass(frozen=True, slots=True, eq=False)
class OrderedRows:
    """Row numbers of an epoch, or of a minibatch of it, and their place in its order."""

    order: _Order
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, part: slice) -> OrderedRows:
        start, stop, _ = part.indices(len(self))
        return OrderedRows(self.order, self.start + start, self.start + max(start, stop))

    @property
    def numbers(self) -> NDArray[np.intp]:
        """The row numbers, on the host."""
        return self.order.numbers[self.start : self.stop]

    @property
    def on_device(self) -> Any:
        """The row numbers, on the device."""
        return self.order.on_device[self.start : self.stop]


class HostRows:
    """Rows of the host, an array or in a file, that are float32 arrays of a device when read.

    One thread gathers minibatches from them, on one stream.

    Parameters
    ----------
    X : array or StoredRows of shape (n, width), float32
    backend : Backend
        Backend of the device.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, X: Any, backend: Backend) -> None:
        self._X, self._backend = X, backend
        self.shape: tuple[int, int] = X.shape
        self._block = _block_of(*X.shape)
        self._buffers: list[_Buffer] = []
        self._stream = backend.stream()

    @property
    def is_stored(self) -> bool:
        """Whether they are kept in another form than an array, as in a file."""
        return isinstance(self._X, StoredRows)

    @property
    def nbytes(self) -> int:
        """Bytes of the device's memory that the buffers take."""
        return buffer_bytes(*self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice) -> Any:
        return self._backend.asarray(self._X[key])

    def run(self, rows: slice) -> Any:
        """Return consecutive rows, on the host still."""
        return self._X[rows]

    def in_order(self, numbers: NDArray[np.intp]) -> OrderedRows:
        """Return the row numbers of an epoch; :meth:`gather` takes slices and copies ahead."""
        return OrderedRows(_Order(numbers, self._backend.asarray(numbers)), 0, len(numbers))

    def gather(self, rows: Any, out: Any) -> None:
        """Copy some rows into ``out``, on the current stream."""
        if not isinstance(rows, OrderedRows):
            numbers = self._backend.tohost(rows)
            out[...] = self._backend.asarray(np.take(self._X, numbers, axis=0, mode="clip"))
            return
        # A minibatch may begin in one block and end in the next. Block n is in buffer n modulo 2:
        #
        #   trained on        n-1 |     n     |    n+1
        #   copied meanwhile   n  |    n+1    |    n+2
        #
        # The buffer of n+1 held n-1, and all that reads n-1 was queued before the first row of n.
        order, done = rows.order, 0
        while done < len(rows):
            number, first = divmod(rows.start + done, self._block)
            more = min(self._block - first, len(rows) - done)
            buffer = self._buffer_of(order, number)
            # The layer's stream waits, the host does not: it goes on and queues the next steps.
            self._backend.xp.cuda.get_current_stream().wait_event(buffer.copied)
            out[done : done + more] = buffer.rows[first : first + more]
            done += more
            if (number + 1) * self._block < len(order.numbers):
                # At the block's first minibatch this queues the copy; at others it finds it queued.
                self._buffer_of(order, number + 1)

    def _buffer_of(self, order: _Order, number: int) -> _Buffer:
        """Return the buffer of a block, with its copy queued."""
        if not self._buffers:
            rows, width = self._block, self.shape[1]
            # Allocated on the copies' stream: CuPy hands freed memory to that stream alone, and
            # its later work comes after a copy that still writes there.
            with self._stream:
                self._buffers += [_Buffer(self._backend, rows, width) for _ in range(BUFFERS)]
        buffer = self._buffers[number % BUFFERS]
        if buffer.holds != (order, number):
            # Reading a file may fail half-way: the buffer then holds no block.
            buffer.holds = None
            self._copy(buffer, order.numbers[number * self._block : (number + 1) * self._block])
            buffer.holds = order, number
        return buffer

    def _copy(self, buffer: _Buffer, numbers: NDArray[np.intp]) -> None:
        """Fill a buffer with some rows, and queue their copy to the device."""
        # The current stream is the layer's: what reads this buffer's last block is queued there.
        buffer.used.record()
        # The one wait of the host: for a copy that was queued a block ago, and is done as a rule.
        # An event that was never recorded, as at first, does not wait.
        buffer.copied.synchronize()
        rows = buffer.pinned[: len(numbers)]
        # With mode "raise" NumPy would gather into a buffer of its own first.
        np.take(self._X, numbers, axis=0, out=rows, mode="clip")
        with self._stream:
            self._backend.xp.cuda.get_current_stream().wait_event(buffer.used)
            # Pinned memory, so the call returns while the copy runs; ``copied`` says when it is
            # over.
            target = buffer.rows[: len(numbers)].data
            target.copy_from_host_async(ctypes.c_void_p(rows.ctypes.data), rows.nbytes)
            buffer.copied.record()
