"""Products of matrices by cuBLAS, called through ctypes, and the forms of each precision.

CuPy refuses its own products while a stream is recorded (its issue 6290); cuBLAS itself may be
recorded. A handle with a workspace of its own also has the same bits every time, whatever other
streams do, and CuPy would set the workspace back before each product. Whether factors are rounded
to TF32 is said with each product; ``CUPY_TF32`` makes no difference.

Factors are rounded to bfloat16 by a kernel, bit for bit as the CPU rounds them, into arrays of
float32, and their product is taken in TF32: TF32 has three binary digits more and loses nothing of
bfloat16, however cuBLAS may round. This costs two launches a product, and is no faster than TF32;
for that, products would have to read arrays of bfloat16.

Guarantees: threads may multiply at the same time, each on a stream of its own; the same product has
the same bits every time; a product may be recorded once :meth:`Cublas.prepare` was called on the
stream. Assumptions: a stream is used by one thread at a time, and a handle lives as long as the
process, since graphs compute in its workspace.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from syncpretrain.backends.cuda_source import CudaForms, CudaSource, layout

# Bytes: what NVIDIA recommends for compute capability 9.0, the most of all.
WORKSPACE = 32 << 20
TRANSPOSITIONS = {"as it is": 0, "transposed": 1}  # cublasOperation_t
DEFAULT_MATH, TF32_MATH = 0, 3  # cublasMath_t: no rounding of factors, and to TF32


class CublasError(RuntimeError):
    """A call of cuBLAS that did not succeed."""


@dataclass(slots=True)
class _Handle:
    """A handle, the workspace that it uses as long as there are both, and its arithmetic."""

    handle: ctypes.c_void_p
    workspace: Any
    math: int | None = None  # none is set yet


def load_library(cupy: Any) -> Any:
    """Return cuBLAS, which CuPy has loaded; None if it is not found by its usual name.

    The name is that of the CUDA release that CuPy is built for.
    """
    # CuPy knows where the library lies, perhaps in a wheel that is on no search path. Once it has
    # loaded it, the loader finds the library in memory by its bare name.
    cupy.cuda.device.get_cublas_handle()
    major = cupy.cuda.runtime.runtimeGetVersion() // 1000
    name = f"cublas64_{major}.dll" if sys.platform == "win32" else f"libcublas.so.{major}"
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


class Cublas:
    """A handle for each stream that products are queued on.

    Parameters
    ----------
    cupy : module
        CuPy, or what stands in for it in a test.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._library: Any = None
        self._is_loaded = False
        # One a stream, by device and stream. Products of two streams run at the same time, and in
        # one workspace would overwrite each other. No lock: only the thread of a stream asks for
        # its key.
        self._handles: dict[tuple[int, int], _Handle] = {}
        # cuBLAS reads these on the host during a call, so threads share them, and graphs keep the
        # values and not the addresses.
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)

    @property
    def is_there(self) -> bool:
        """Whether the library was found."""
        # Two threads may both load it and find the same. The library is assigned first, so a thread
        # that sees _is_loaded sees it too.
        if not self._is_loaded:
            self._library, self._is_loaded = load_library(self._cupy), True
        return self._library is not None

    def multiply(self, a: Any, b: Any, *, out: Any = None, tf32: bool = False) -> Any:
        """Return the product of two matrices of float32, the first perhaps a row, in ``out``.

        With ``tf32`` the factors are rounded to TF32 on devices with tensor cores for it; NVIDIA
        does not document how.

        Return ``NotImplemented``, having done nothing, for what cuBLAS does not take: arrays of
        another type, without elements, or with gaps between the elements along both axes.

        Raises
        ------
        CublasError
        """
        if a.ndim == 1:  # a row
            row = None if out is None else out.reshape(1, -1)
            found = self.multiply(a.reshape(1, -1), b, out=row, tf32=tf32)
            return found if found is NotImplemented else found.reshape(-1)
        if out is None and a.ndim == b.ndim == 2:
            out = self._cupy.empty((len(a), b.shape[1]), dtype=np.float32)
        factors = [_factor(array) for array in (a, b, out)]
        if None in factors or not self.is_there:
            return NotImplemented
        (of_a, lda), (of_b, ldb), (of_out, ldo) = factors  # type: ignore[misc]
        rows, inner, columns = len(a), a.shape[1], b.shape[1]
        if of_out != "as it is" or len(b) != inner or out.shape != (rows, columns):
            return NotImplemented
        handle = self._handle(TF32_MATH if tf32 else DEFAULT_MATH)
        # cuBLAS counts by columns: to it these are the transposed arrays, and out^T = b^T a^T.
        self._call(
            *("cublasSgemm_v2", handle, TRANSPOSITIONS[of_b], TRANSPOSITIONS[of_a]),
            *(columns, rows, inner, ctypes.byref(self._one), _pointer(b), ldb),
            *(_pointer(a), lda, ctypes.byref(self._zero), _pointer(out), ldo),
        )
        return out

    def prepare(self) -> None:
        """Make the handle of the current stream, if it has none.

        It may wait for the device, and CUDA refuses that while a stream of the device is recorded.
        So handles are made before layers train.
        """
        if self.is_there:
            self._handle(DEFAULT_MATH)

    def _handle(self, math: int) -> ctypes.c_void_p:
        """Return the handle of the current stream, set to a kind of arithmetic."""
        stream = self._cupy.cuda.get_current_stream()
        key = self._cupy.cuda.Device().id, stream.ptr
        if key not in self._handles:
            self._handles[key] = self._new_handle(stream.ptr)
        own = self._handles[key]
        # cuBLAS reads the mode on the host when a product is queued: those queued before keep
        # theirs.
        if own.math != math:
            self._call("cublasSetMathMode", own.handle, math)
            own.math = math
        return own.handle

    def _new_handle(self, stream: int) -> _Handle:
        """Return a handle of a stream, with a workspace of its own."""
        handle = ctypes.c_void_p()
        workspace = self._cupy.empty(WORKSPACE, dtype=np.uint8)
        self._call("cublasCreate_v2", ctypes.byref(handle))
        self._call("cublasSetStream_v2", handle, ctypes.c_void_p(stream))
        # After the stream: setting a stream puts cuBLAS's default workspace back.
        self._call("cublasSetWorkspace_v2", handle, _pointer(workspace), ctypes.c_size_t(WORKSPACE))
        return _Handle(handle, workspace)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CublasError(f"{name} of cuBLAS: got status {status}, expected 0")


def _pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.data.ptr)


def _factor(array: Any) -> tuple[str, int] | None:
    """Return how a matrix lies, by rows or transposed, and how far its rows or columns are apart.

    None if cuBLAS cannot read it.
    """
    if array.dtype != np.float32 or array.ndim != 2 or not array.size:
        return None
    # Along an axis of length 1 NumPy may give any stride, and cuBLAS refuses one that is less than
    # the row is long: there the least that is allowed takes its place.
    (rows, columns), (down, right) = array.shape, array.strides
    by_rows, by_columns = (right, columns, down, rows), (down, rows, right, columns)
    for how, (near, length, far, count) in zip(TRANSPOSITIONS, (by_rows, by_columns), strict=True):
        step = far if count > 1 else 4 * length
        if (near == 4 or length == 1) and step % 4 == 0 and step >= 4 * length:
            return how, step // 4
    return None


class CudaProducts(CudaForms):
    """Forms of the dense products.

    Parameters
    ----------
    cupy, source
        See :class:`syncpretrain.backends.cuda_source.CudaForms`.
    blas : Cublas
    """

    def __init__(self, cupy: Any, source: CudaSource, blas: Cublas) -> None:
        super().__init__(cupy, source)
        self._blas, self.multiply = blas, blas.multiply

    def multiply_tf32(self, a: Any, b: Any, *, out: Any = None) -> Any:
        """Return the product of two factors, which cuBLAS rounds to TF32."""
        return self._blas.multiply(a, b, out=out, tf32=True)

    def multiply_bfloat16(self, a: Any, b: Any, *, out: Any = None) -> Any:
        """Return the product of two factors rounded to bfloat16."""
        rounded = [self._rounded(factor) for factor in (a, b)]
        if any(factor is None for factor in rounded):
            return NotImplemented
        return self._blas.multiply(*rounded, out=out, tf32=True)

    def _rounded(self, factor: Any) -> Any:
        """Return a factor rounded, transposed if it is; None for what is no matrix of float32."""
        found, is_transposed = layout(factor), False
        if found is None and factor.ndim == 2:
            found, is_transposed = layout(factor.T), True
        if found is None or not factor.size:
            return None
        rows, columns, step = found
        out = self._cupy.empty((rows, columns), dtype=factor.dtype)
        self._source.flat("round_factor", out.size, factor, step, out, rows, columns)
        return out.T if is_transposed else out.reshape(factor.shape)
