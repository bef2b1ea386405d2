"""Stands in for cuBLAS where there is no GPU: what is called of it, by its own names and rules.

It gets addresses, and counts by columns. Work is queued on the stream of the handle, whatever
stream is the current one. With TF32 it leaves out the last 13 bits of factors, without rounding:
NVIDIA does not say what cuBLAS does, and this is the worst.
"""

import ctypes
import itertools
from typing import Any

import fakecupy
import numpy as np

NOT_INITIALIZED, INVALID_VALUE = 1, 7  # cublasStatus_t
DEFAULT_MATH, TF32_MATH = 0, 3  # cublasMath_t
handles: dict[int, dict[str, Any]] = {}
_numbers = itertools.count(1)


def seen(pointer: ctypes.c_void_p, rows: int, columns: int, apart: int) -> np.ndarray:
    """Return a matrix that lies by columns."""
    floats = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))
    flat = np.ctypeslib.as_array(floats, ((columns - 1) * apart + rows,))
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (4, 4 * apart))


def cut(x: np.ndarray) -> np.ndarray:
    """Return numbers without their last 13 bits."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def cublasCreate_v2(handle) -> int:  # noqa: N802 - cuBLAS's names
    if any(device == fakecupy.current_device() for device, _ in fakecupy._graphs):
        return NOT_INITIALIZED  # it may wait for the device
    number = next(_numbers)  # two threads may ask at the same time
    handles[number] = {"device": fakecupy.current_device(), "workspace": None}
    ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = number
    return 0


def cublasSetStream_v2(handle: ctypes.c_void_p, stream: ctypes.c_void_p) -> int:  # noqa: N802
    own = handles[handle.value]
    own["stream"] = fakecupy.stream_names[stream.value or 0]
    own["workspace"] = None
    return 0


def cublasSetWorkspace_v2(handle, workspace, size):  # noqa: N802
    handles[handle.value]["workspace"] = workspace.value, size.value
    return 0


def cublasSetMathMode(handle: ctypes.c_void_p, mode: int) -> int:  # noqa: N802
    handles[handle.value]["math"] = mode
    return 0 if mode in (DEFAULT_MATH, TF32_MATH) else INVALID_VALUE


def cublasSgemm_v2(handle: ctypes.c_void_p, *given) -> int:  # noqa: N802
    of_a, of_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc = given
    own = handles.get(handle.value)
    if own is None or own["workspace"] is None or "math" not in own:
        return NOT_INITIALIZED
    sizes = [(m, k)[:: -1 if of_a else 1], (k, n)[:: -1 if of_b else 1], (m, n)]
    if any(apart < rows for (rows, _), apart in zip(sizes, (lda, ldb, ldc), strict=True)):
        return INVALID_VALUE
    assert alpha._obj.value == 1 and beta._obj.value == 0, "the stand-in only multiplies"
    x, y, out = (
        seen(pointer, *size, apart)
        for pointer, size, apart in zip((a, b, c), sizes, (lda, ldb, ldc), strict=True)
    )

    # Freed memory comes back to its stream only, so that it is there when the stream needs it.
    kept = [
        next(each for each in fakecupy.recently_asked() if each.ctypes.data == pointer.value)
        for pointer in (a, b, c)
    ]

    is_tf32 = own["math"] == TF32_MATH

    def work(kept: list[np.ndarray] = kept) -> None:
        # By rows, and so with the bits of numpy.matmul of the arrays that were given.
        left, right = y if of_b else y.T, x if of_a else x.T
        if is_tf32:
            left, right = cut(left), cut(right)
        np.matmul(left, right, out=out.T)

    fakecupy.note("tf32 sgemm" if is_tf32 else "sgemm")
    fakecupy.queue(work, own["device"], own["stream"])
    return 0
