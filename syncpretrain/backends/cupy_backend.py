"""CuPy on one NVIDIA GPU.

Never run on a GPU so far: tested with a stand-in for CuPy that runs the same kernels' source on the
CPU, and that refuses to mix arrays of host and device.

A step is not captured as a CUDA graph: CuPy refuses cuBLAS while it captures (its issue 6290), and
a product of our own is not to be written unmeasured. Launches go one by one onto the layer's
stream, and nothing in a step waits for the device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from syncpretrain.backends.base import Draws, Stream, device_of
from syncpretrain.backends.cuda_kernels import CudaKernels
from syncpretrain.rng import Address

__all__ = ["CupyBackend", "import_cupy", "missing"]

STEPS_BETWEEN_CHECKS = 50  # of the error: at 0.1 ms a step, one wait in 5 ms
INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver: also where there is no driver at all
INSTALL = "pip install 'syncpretrain[cuda12]', or [cuda13] if nvidia-smi says CUDA 13"


def import_cupy() -> Any:
    """Return CuPy; where it finds no driver it warns, which :func:`missing` says better.

    Raises
    ------
    ImportError
        If it is not installed, or not as it should be.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import cupy
    return cupy


def missing(device: int | None = None) -> str | None:
    """Return what CuPy lacks to compute on a device, and how to get it; None if it lacks nothing.

    Without a number, any device will do.
    """
    try:
        cupy = import_cupy()
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            return f"CuPy cannot be imported: {error}; {INSTALL}"
        return f"CuPy is not installed; {INSTALL}"
    except ImportError as error:
        return f"CuPy cannot be imported: {error}; {INSTALL}"
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        return _without_driver(runtime, error)
    if count == 0:
        return "the driver finds no NVIDIA GPU; nvidia-smi -L lists those that there are"
    if device is not None and device >= count:
        there = ", ".join(f"cupy:{i}" for i in range(count))
        return f"there is no GPU number {device}, expected {there}"
    return _without_libraries(cupy, device or 0)


def _without_driver(runtime: Any, error: Exception) -> str:
    driver, needed = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    if driver == 0:
        return (
            "CuPy is installed, but no NVIDIA driver is found; install the driver of the GPU, or"
            " give the container access to it (docker run --gpus all), until nvidia-smi answers"
        )
    if getattr(error, "status", None) == INSUFFICIENT_DRIVER:
        return (
            f"the NVIDIA driver is too old: it knows CUDA up to {_version(driver)}, and CuPy is"
            f" built for {_version(needed)}; update the driver, or install CuPy for an older CUDA"
        )
    return f"the GPUs cannot be asked for: {error}; see what nvidia-smi says"


def _without_libraries(cupy: Any, device: int) -> str | None:
    """Multiply on the device: it takes cuBLAS, and compiles a kernel, which takes NVRTC."""
    try:
        with cupy.cuda.Device(device):
            ones = cupy.ones((2, 2), dtype=np.float32)
            product = float((ones @ ones).sum())
    except (ImportError, RuntimeError, OSError) as error:
        return (
            f"CuPy finds GPU {device} but cannot compute there: {error}; if CUDA's libraries are"
            " missing, pip install 'cupy-cuda12x[ctk]' (or 'cupy-cuda13x[ctk]')"
        )
    if product != 8.0:
        return f"GPU {device} gives {product} for a product whose elements sum up to 8"
    return None


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


class _DeviceStream:
    """A non-blocking stream of one device; its block sets the device too."""

    def __init__(self, cupy: Any, device: int) -> None:
        self._cupy, self._device = cupy, device
        with cupy.cuda.Device(device):
            self._stream = cupy.cuda.Stream(non_blocking=True)
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
            return self.xp.asarray(array)

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

    def synchronize(self) -> None:
        """Wait for all streams of the GPU."""
        self.xp.cuda.Device(self.device).synchronize()
