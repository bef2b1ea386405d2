"""The check of a GPU: what CuPy lacks to compute on it, and how to get that."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np

INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver: also where there is no driver at all
# Environment variables of CuPy and of cuBLAS that change products, and that no run records.
ROUNDING = ("CUPY_TF32", "NVIDIA_TF32_OVERRIDE")
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


def has_gpu() -> bool:
    """Return whether CuPy is installed and finds a GPU, fit to compute or not."""
    try:
        runtime = import_cupy().cuda.runtime
    except ImportError:
        return False
    try:
        return bool(runtime.getDeviceCount())
    except runtime.CUDARuntimeError:
        return False


def missing(device: int | None = None) -> str | None:
    """Return what CuPy lacks to compute on a device, and how to get it; None if it lacks nothing.

    Without a number, any device will do.
    """
    try:
        cupy = import_cupy()
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
        why = "is not installed" if is_absent else f"cannot be imported: {error}"
        return f"CuPy {why}; {INSTALL}"
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
    for name in ROUNDING:
        if os.environ.get(name, "0") not in ("", "0"):
            return (
                f"{name} is set, which rounds the factors of all products to 11 bits; unset it, or"
                " take --precision tf32 instead"
            )
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
    """Multiply on the device, and launch a kernel, as training does.

    This needs cuBLAS, NVRTC and some memory.
    """
    from syncpretrain.backends.cuda_kernels import kernels_of  # spared where there is no GPU

    # In CuPy a failed compilation is no RuntimeError, and a full GPU raises a MemoryError: either
    # must end in a sentence, and in NumPy where the backend is auto.
    failures = ImportError, RuntimeError, OSError, MemoryError, cupy.cuda.compiler.CompileException
    try:
        with cupy.cuda.Device(device):
            forms = kernels_of(cupy).forms()
            ones = cupy.ones((2, 2), dtype=np.float32)
            product = forms["multiply"](ones, ones)
            if product is NotImplemented:  # cuBLAS has another name than usual
                product = ones @ ones
            found = float(forms["squared_error"](ones, product, out=cupy.empty_like(ones)))
    except failures as error:
        return (
            f"CuPy finds GPU {device} but cannot compute there: {error}; if CUDA's libraries are"
            " missing, pip install 'cupy-cuda12x[ctk]' (or 'cupy-cuda13x[ctk]')"
        )
    # Ones of 2 x 2: their product has 2 everywhere, which is 1 too much in four places.
    return None if found == 4.0 else f"GPU {device} computes {found} where 4 is right"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
