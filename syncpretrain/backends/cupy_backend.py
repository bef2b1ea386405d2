"""CuPy on one NVIDIA GPU.

Never run on a GPU so far: tested with a stand-in for CuPy that runs the same kernels' source on the
CPU, refuses to mix arrays of host and device, and can do the work of each stream as late as its
waits permit.

A step is not captured as a CUDA graph: CuPy refuses cuBLAS while it captures (its issue 6290), and
a product of our own is not to be written unmeasured. Launches go one by one onto the layer's
stream, and nothing in a step waits for the device.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from syncpretrain.backends.base import Draws, Stream, device_of
from syncpretrain.backends.cuda_kernels import CudaKernels
from syncpretrain.rng import Address

__all__ = ["CupyBackend"]

STEPS_BETWEEN_CHECKS = 50  # of the error: at 0.1 ms a step, one wait in 5 ms
LARGE_BYTES = 1 << 24  # of an array that is uploaded without pinned memory of its size


class _Streams:
    """Streams of the devices, each lent to one user at a time.

    CuPy keeps the memory that was freed on a stream for that stream, and never hands on that of a
    stream which is no more.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._free: dict[int, list[Any]] = {}

    def lend(self, device: int, user: object) -> Any:
        """Return a non-blocking stream of a device; it comes back when its user is no more."""
        free = self._free.setdefault(device, [])
        try:
            stream = free.pop()
        except IndexError:
            with self._cupy.cuda.Device(device):
                stream = self._cupy.cuda.Stream(non_blocking=True)
        weakref.finalize(user, free.append, stream).atexit = False
        return stream


_streams = cache(_Streams)  # of this process


class _DeviceStream:
    """A non-blocking stream of one device; its block sets the device too."""

    def __init__(self, cupy: Any, device: int) -> None:
        self._cupy, self._device = cupy, device
        self._stream = _streams(cupy).lend(device, self)
        self._entered: list[ExitStack] = []

    def __enter__(self) -> _DeviceStream:
        with ExitStack() as stack:
            stack.enter_context(self._cupy.cuda.Device(self._device))
            stack.enter_context(self._stream)
            self._entered.append(stack.pop_all())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered.pop().close()

    def synchronize(self) -> None:
        """Wait until all that was queued here is done."""
        self._stream.synchronize()


class CupyBackend:
    """One GPU; see :class:`syncpretrain.backends.base.Backend`.

    Parameters
    ----------
    cupy : module
        CuPy, or what stands in for it in a test.
    device : int
        The GPU of this backend's arrays.
    devices : tuple of int, optional
        The GPUs that layers are dealt to; all by default.
    kernels : CudaKernels, optional
        Those of another device's backend, which are compiled for each device anyway.
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
        self.steps_between_checks = STEPS_BETWEEN_CHECKS
        self._devices = devices or tuple(range(cupy.cuda.runtime.getDeviceCount()))
        self._kernels = kernels or CudaKernels(cupy)
        self.forms: Mapping[str, Callable[..., Any]] = self._kernels.forms()

    def devices(self) -> tuple[int, ...]:
        """Return the GPUs that layers are dealt to."""
        return self._devices

    def for_layer(self, layer: int) -> CupyBackend:
        """Return the backend of a layer: its own GPU, dealt round-robin."""
        device = device_of(layer, self._devices)
        return CupyBackend(self.xp, device, self._devices, kernels=self._kernels)

    def asarray(self, array: Any) -> Any:
        """Return an array of this GPU: itself, a copy from another GPU, or from the host."""
        with self.xp.cuda.Device(self.device):
            if isinstance(array, self.xp.ndarray):
                return array if array.device.id == self.device else array.copy()  # peer to peer
            if isinstance(array, np.ndarray) and array.nbytes >= LARGE_BYTES:
                return self._uploaded(np.ascontiguousarray(array))
            return self.xp.asarray(array)

    def _uploaded(self, array: NDArray[Any]) -> Any:
        """Return a copy of an array of the host, on the current stream, and wait for it.

        CuPy would copy through pinned memory of the array's size, and keep that.
        """
        copy = self.xp.empty(array.shape, dtype=array.dtype)
        copy.data.copy_from_host_async(ctypes.c_void_p(array.ctypes.data), array.nbytes)
        self.xp.cuda.get_current_stream().synchronize()  # the host's memory may be let go of
        return copy

    def tohost(self, array: Any) -> NDArray[Any]:
        """Return a NumPy array with the same contents; waits for the current stream."""
        if not isinstance(array, self.xp.ndarray):
            return np.asarray(array)
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
        rows = self.asarray(rows)
        if not self._kernels.gather_rows(X, rows, out):
            raise TypeError(
                f"rows: got {rows.dtype} of {X.dtype} of shape {X.shape}, into {out.dtype} of"
                f" shape {out.shape}; expected int64 of float32, both with contiguous rows"
            )
        return out

    def generator(self, address: Address) -> Draws:
        """Return the generator that begins at an address; its arrays are on the GPU."""
        return self._kernels.generator(address)

    def stream(self) -> Stream:
        """Return a new non-blocking stream of the GPU."""
        return _DeviceStream(self.xp, self.device)

    def free_bytes(self) -> int:
        """Return the memory of all GPUs that are in use here which new arrays can have."""
        free = 0
        for device in self._devices:
            with self.xp.cuda.Device(device) as own:
                free += own.mem_info[0] + self.xp.get_default_memory_pool().free_bytes()
        return free

    def synchronize(self) -> None:
        """Wait for all streams of the GPU."""
        self.xp.cuda.Device(self.device).synchronize()
