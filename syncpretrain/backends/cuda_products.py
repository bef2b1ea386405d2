"""The forms of products of matrices on a GPU, in each precision: cuBLAS's, of rounded factors.

Factors are rounded to bfloat16 by a kernel, bit for bit as the CPU rounds them, into arrays of
float32 whose product is taken in TF32: that has three digits more and loses nothing of them,
however cuBLAS may round. This costs two launches a product, and is no faster than TF32; for that,
products would have to read arrays of bfloat16.

It has never run on a GPU; see :mod:`syncpretrain.backends.cuda_source`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from syncpretrain.backends.cublas import Cublas
from syncpretrain.backends.cuda_source import CudaSource, layout

__all__ = ["CudaProducts"]


class CudaProducts:
    """The forms, of the signatures of the equations in :mod:`syncpretrain.kernels`.

    Parameters
    ----------
    cupy : module
        CuPy, or what stands in for it in a test.
    source : CudaSource
    blas : Cublas
    """

    def __init__(self, cupy: Any, source: CudaSource, blas: Cublas) -> None:
        self._cupy, self._source, self._blas = cupy, source, blas

    def forms(self) -> dict[str, Callable[..., Any]]:
        """Return the forms by the names of their equations."""
        return {
            "multiply": self._blas.multiply,
            "multiply_tf32": self.multiply_tf32,
            "multiply_bfloat16": self.multiply_bfloat16,
        }

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
