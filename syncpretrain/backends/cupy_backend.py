"""CuPy on one NVIDIA GPU: its arrays, its streams, and events, which are marks in their queues.

Never run on a GPU so far: tested with a stand-in for CuPy that runs the same kernels' source on the
CPU, refuses to mix arrays of host and device, and can do the work of each stream as late as its
waits permit.

Launches go onto the layer's stream, in pretraining as graphs of 50 steps
(:mod:`syncpretrain.backends.recorder`), and nothing in a step waits for the device.

A stream works what is queued on it in order; two streams know nothing of each other. An event marks
the end of what its stream had by then. Another stream that waits for it goes on once that is done,
and the host that queued the wait goes on at once.

Guarantees: an array of one stream is safe to use there at once; :meth:`CupyBackend.tohost` and an
upload from the host return when they are done. A stream has one user at a time; a stream that comes
back may still have work, which is done before the next user's. A wait is for the mark that the
event had when the wait was queued: recording the event again changes no wait that is queued
already, so one event serves a whole run. An event that was never recorded holds nobody up.

Assumptions: who reads an array on another stream has waited for the one that writes it; an array is
let go of when the other streams that read it are done, because CuPy gives its memory to the next
array of the stream that allocated it, without a look at others. One thread at a time queues work on
a stream, and the host calls record before it calls the wait that is meant for that mark.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from syncpretrain.backends import base
from syncpretrain.backends.base import Backend, Event, FusedArrays, Rule, Stream, TunedArrays
from syncpretrain.backends.cuda_fused import CudaFused, CudaTuning, has_fused_steps
from syncpretrain.backends.cuda_kernels import CudaKernels, PeerVectors, enable_access, kernels_of
from syncpretrain.backends.recorder import GraphRecorder
from syncpretrain.backends.rows import DeviceRows, HostRows, OrderedRows
from syncpretrain.data.blocks import ByteRows, bytes_of, in_bytes
from syncpretrain.rng import Address

# At 0.1 ms a step, one launch and one look at the error in 5 ms.
STEPS_AT_ONCE = 50
# The device works one block while the host looks at the error of the block before. With 0 the
# device would stand still during each look; with more a failure is noticed later, and nothing is
# gained.
BLOCKS_BEHIND = 1
LARGE_BYTES = 1 << 24  # an array of this size is uploaded without pinned memory of its size


class CupyBackend(Backend):
    """One GPU.

    Parameters
    ----------
    cupy : module
        CuPy, or what stands in for it in a test.
    device : int
        The GPU of this backend's arrays.
    devices : tuple of int, optional
        The GPUs that layers are dealt to; all by default.
    kernels : CudaKernels, optional
        Kernels of another device's backend, which are compiled for each device anyway.
    """

    def __init__(
        self,
        cupy: Any,
        device: int = 0,
        devices: tuple[int, ...] | None = None,
        *,
        kernels: CudaKernels | None = None,
    ) -> None:
        self.xp = cupy
        self.device = device
        self.name = f"cupy:{device}"
        self.array_type: type = cupy.ndarray
        self.steps_at_once, self.blocks_behind = STEPS_AT_ONCE, BLOCKS_BEHIND
        self._devices = devices or tuple(range(cupy.cuda.runtime.getDeviceCount()))
        self._group: tuple[int, ...] = (device, *(each for each in self._devices if each != device))
        self._places: tuple[tuple[int, ...], ...] = ()  # of the layers that were dealt
        self._kernels = kernels or kernels_of(cupy)
        self.forms: Mapping[str, Callable[..., Any]] = self._kernels.forms()

    def devices(self) -> tuple[int, ...]:
        """Return the GPUs that layers are dealt to."""
        return self._devices

    def group(self) -> tuple[int, ...]:
        """Return the GPUs of the layer that this is the backend of, this one first."""
        return self._group

    def dealt(self, costs: Sequence[float], replicas: Sequence[int]) -> CupyBackend:
        """Return a backend that deals its layers to the GPUs by their costs."""
        return self._on(self._group, base.deal(costs, self._devices, replicas))

    def for_layer(self, layer: int) -> CupyBackend:
        """Return the backend of a layer: its own GPU, as dealt, or round-robin."""
        if layer <= len(self._places):
            return self._on(self._places[layer - 1])
        own = base.device_of(layer, self._devices)
        return self._on((own, *(device for device in self._devices if device != own)))

    def for_replicas(self, replicas: int) -> list[CupyBackend]:
        """Return the GPUs of a layer's workers, this one first, which read each other's memory."""
        enable_access(self.xp, self._group[:replicas])
        return [self._on((device,)) for device in self._group[:replicas]]

    def peers(self, vectors: Sequence[Any]) -> PeerVectors:
        """Return vectors of the GPUs of a layer as a kernel of this one takes them."""
        # Every GPU of a process has the same address space, so an address says the device too.
        places = np.array([vector.data.ptr for vector in vectors], dtype=np.uint64)
        return PeerVectors(tuple(vectors), self.asarray(places))

    def _on(self, group: tuple[int, ...], places: tuple[tuple[int, ...], ...] = ()) -> CupyBackend:
        own = CupyBackend(self.xp, group[0], self._devices, kernels=self._kernels)
        own._group, own._places = group, places or self._places
        return own

    def fused_step(self, arrays: FusedArrays) -> CudaFused | None:
        """Return the step of contrastive divergence as a whole; None without one for the arrays."""
        with self.xp.cuda.Device(self.device):
            count = arrays.states.size * len(arrays.parameters[0])
            has_steps = has_fused_steps(self.xp, self.device, arrays.precision, count)
            if has_steps and CudaFused.supports(self.xp, arrays):
                return CudaFused(self.xp, arrays)
        return None

    def fused_tuning(self, arrays: TunedArrays, rule: Rule) -> CudaTuning | None:
        """Return the step of fine-tuning as a whole; None without one for the arrays."""
        with self.xp.cuda.Device(self.device):
            weights = sum(weight.size for weight, _ in arrays.chain)
            count = len(arrays.deltas[0]) * weights / len(arrays.chain)
            own = self.xp, self.device, arrays.precision, count
            if has_fused_steps(*own, tunes=True) and CudaTuning.supports(self.xp, arrays):
                return CudaTuning(self.xp, arrays, rule)
        return None

    def asarray(self, array: Any) -> Any:
        """Return an array of this GPU: itself, a copy from another GPU, or from the host."""
        # CuPy allocates on the current device, and each thread begins with device 0.
        with self.xp.cuda.Device(self.device):
            if isinstance(array, ByteRows):
                return self._kernels.values_of_bytes(self.asarray(array.numbers))
            if isinstance(array, self.xp.ndarray):
                # From another GPU peer to peer, queued on this GPU's stream: the caller has waited
                # for the stream that fills the array (syncpretrain/backends/base.py).
                return array if array.device.id == self.device else array.copy()
            self._kernels.source.require_no_recording("an array is copied from the host")
            if isinstance(array, np.ndarray) and array.nbytes >= LARGE_BYTES:
                return self._uploaded(np.ascontiguousarray(array))
            return self.xp.asarray(array)

    def to_device_if_fits(self, X: Any) -> Any:
        """Copy rows of another GPU to this one, if they fit; else return them as they are."""
        # One copy at the full speed of the link. A caller that reads them chunk by chunk would else
        # make a copy of each chunk, with a launch and an allocation of its own.
        kept = X.numbers if isinstance(X, DeviceRows) else X
        is_far = isinstance(kept, self.xp.ndarray) and kept.device.id != self.device
        if not is_far or kept.nbytes > self._free_of(self.device):
            return X
        copy = self.asarray(kept)
        return copy if kept is X else DeviceRows(copy, self)

    def examples(self, X: Any, beside: int = 0) -> Any:
        """Return examples on this GPU, or on the host if the GPU has no room for them.

        On the GPU they are kept as bytes where every value is one divided by 255. ``beside`` are
        bytes that are still to be allocated, on all GPUs alike.
        """
        kept = in_bytes(X)
        if bytes_of(kept) > self._free_of(self.device) - beside // len(self._devices):
            return HostRows(X, self)
        if not isinstance(kept, ByteRows):
            return self.asarray(X)
        return DeviceRows(self.asarray(kept.numbers), self)

    def order(self, X: Any, rows: NDArray[np.intp]) -> Any:
        """Return the row numbers of an epoch: on the GPU, and also on the host if X lies there."""
        return X.in_order(rows) if isinstance(X, HostRows) else self.asarray(rows)

    def _uploaded(self, array: NDArray[Any]) -> Any:
        """Return a copy of an array of the host, on the current stream, and wait for it.

        CuPy would copy through pinned memory of the array's size, and keep that.
        """
        # From memory that is not pinned CUDA copies piece by piece through buffers of its own, and
        # may return before it has read all of it.
        copy = self.xp.empty(array.shape, dtype=array.dtype)
        copy.data.copy_from_host_async(ctypes.c_void_p(array.ctypes.data), array.nbytes)
        self.xp.cuda.get_current_stream().synchronize()  # then the caller may let go of the array
        return copy

    def tohost(self, array: Any) -> NDArray[Any]:
        """Return a NumPy array with the same contents; waits for the current stream."""
        if not isinstance(array, self.xp.ndarray):
            return np.asarray(array)
        self._kernels.source.require_no_recording("an array is copied to the host")
        with self.xp.cuda.Device(self.device):
            host: NDArray[Any] = array.get()
        return host

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> Any:
        """Return a new array, its contents undefined."""
        with self.xp.cuda.Device(self.device):
            return self.xp.empty(shape, dtype=dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> Any:
        """Return a new array of zeros."""
        with self.xp.cuda.Device(self.device):
            return self.xp.zeros(shape, dtype=dtype)

    def gather(self, X: Any, rows: Any, *, out: Any) -> Any:
        """Copy some rows of X into ``out`` and return it.

        Raises
        ------
        TypeError
            If X, or what it is to be copied into, is not float32 with contiguous rows.
        """
        if isinstance(X, HostRows):
            self._kernels.source.require_no_recording("rows come from the host, a block at a time")
            X.gather(rows, out)
            return out
        rows = rows.on_device if isinstance(rows, OrderedRows) else self.asarray(rows)
        are_bytes = isinstance(X, DeviceRows)
        given = X.numbers if are_bytes else X
        if not self._kernels.gather(given, rows, out, are_bytes=are_bytes):
            raise TypeError(
                f"rows: got {rows.dtype} of {X.dtype} of shape {X.shape}, into {out.dtype} of"
                f" shape {out.shape}; expected int64 of float32, both with contiguous rows"
            )
        return out

    def generator(self, address: Address) -> Any:
        """Return the generator that begins at an address; its arrays are on the GPU."""
        return self._kernels.generator(address)

    def recorder(self) -> GraphRecorder:
        """Return what works steps on the current stream, as graphs where it can."""
        # The first recording comes later, when other streams may be recorded as well.
        self._kernels.blas.prepare()
        return GraphRecorder(self.xp, self._kernels.source, self._kernels.blas)

    def later(self, number: Any) -> Callable[[], float]:
        """Return a function that returns a number of shape () as it is after what is queued now."""
        if not isinstance(number, self.xp.ndarray):
            return lambda: number
        # Pinned, because a copy to other memory would make the host wait for the stream. The next
        # block may overwrite the number on the device: it is queued behind this copy.
        copy = np.frombuffer(self.xp.cuda.alloc_pinned_memory(number.nbytes), number.dtype, 1)
        number.data.copy_to_host_async(ctypes.c_void_p(copy.ctypes.data), number.nbytes)
        copied = self.xp.cuda.Event(disable_timing=True)
        copied.record()

        def value() -> float:
            # Not the stream: the next block is queued there, and the host would wait for that too.
            copied.synchronize()
            return float(copy[0])

        return value

    def stream(self, priority: int = 0) -> Stream:
        """Return a new non-blocking stream of the GPU."""
        return DeviceStream(self.xp, self.device, priority)

    def event(self) -> Event:
        """Return a new event of the GPU."""
        return DeviceEvent(self.xp, self.device)

    def send(self, array: Any, *, out: Any) -> None:
        """Copy a contiguous array into one of any GPU, peer to peer, on the current stream."""
        # Without a block of the device of ``out``: CuPy has a current stream for each device, and
        # the caller orders the copy on the one that is current now.
        out.data.copy_from_device_async(array.data, array.nbytes)

    def free_bytes(self) -> int:
        """Return the memory of this backend's group of GPUs that new arrays can have."""
        return sum(map(self._free_of, self._group))

    def free_unused(self) -> None:
        """Give memory back, of pinned buffers too: CuPy would keep it for this process."""
        # Arrays in a circle of references are free only after a collection.
        gc.collect()
        # After an error of a kernel every call fails. This runs while that first error is being
        # raised, and must not take its place.
        with suppress(self.xp.cuda.runtime.CUDARuntimeError):
            for device in self._devices:
                with self.xp.cuda.Device(device):
                    self.xp.get_default_memory_pool().free_all_blocks()
            self.xp.get_default_pinned_memory_pool().free_all_blocks()

    def _free_of(self, device: int) -> int:
        # What CuPy's pool keeps unused is not free to CUDA, but to new arrays it is.
        with self.xp.cuda.Device(device) as own:
            return int(own.mem_info[0] + self.xp.get_default_memory_pool().free_bytes())

    def synchronize(self) -> None:
        """Wait for all streams of the GPU."""
        self.xp.cuda.Device(self.device).synchronize()


class _Streams:
    """Streams of the devices, each lent to one user at a time.

    CuPy keeps the memory that was freed on a stream for that stream, and hands it to no other when
    the stream is gone. With new streams each run would leave its memory behind.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._free: dict[tuple[int, int], list[Any]] = {}

    def lend(self, device: int, priority: int, user: object) -> Any:
        """Return a non-blocking stream of a device; it comes back when its user is no more."""
        # No lock: the interpreter works setdefault, pop and append each as a whole. A look whether
        # the list is empty, and then a pop, would be two steps: another thread may take the last
        # one.
        free = self._free.setdefault((device, priority), [])
        try:
            stream = free.pop()
        except IndexError:
            with self._cupy.cuda.Device(device):
                stream = self._cupy.cuda.Stream(non_blocking=True, priority=priority)
        # At the end of the process nobody lends streams any more.
        weakref.finalize(user, free.append, stream).atexit = False
        return stream


# One a process, so that the next run gets the streams of the one before, and their memory.
_streams = cache(_Streams)


class DeviceStream(Stream):
    """A non-blocking stream of one device; its block sets the device too.

    Parameters
    ----------
    cupy : module
    device : int
    priority : int
        Priority, lower first; see :meth:`syncpretrain.backends.base.Backend.stream`.
    """

    def __init__(self, cupy: Any, device: int, priority: int) -> None:
        self._cupy, self._device = cupy, device
        self._stream = _streams(cupy).lend(device, priority, self)
        # A stack, because blocks of one stream may lie in each other.
        self._entered: list[ExitStack] = []

    def __enter__(self) -> DeviceStream:
        # The device first: CuPy keeps a current stream for each device, and refuses another
        # device's. If the stream cannot be entered, pop_all is not reached, and the device is left
        # again.
        with ExitStack() as stack:
            stack.enter_context(self._cupy.cuda.Device(self._device))
            stack.enter_context(self._stream)
            self._entered.append(stack.pop_all())
        return self

    def __exit__(self, *error: object) -> None:
        self._entered.pop().close()

    def synchronize(self) -> None:
        """Wait until all that was queued here is done."""
        self._stream.synchronize()


class DeviceEvent(Event):
    """A mark in the queue of a stream.

    Parameters
    ----------
    cupy : module
    device : int
        The event is recorded on streams of this device.
    """

    def __init__(self, cupy: Any, device: int) -> None:
        self._cupy = cupy
        # Without a time to note, CUDA records and waits faster.
        with cupy.cuda.Device(device):
            self._event = cupy.cuda.Event(disable_timing=True)

    def record(self) -> None:
        """Mark the end of what is queued on the current stream by now."""
        self._event.record()

    def wait(self) -> None:
        """Make the current stream wait for the mark before the work that is queued from now on."""
        self._cupy.cuda.get_current_stream().wait_event(self._event)
