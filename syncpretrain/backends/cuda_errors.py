"""The forms of errors and of the derivatives of losses on a GPU: one launch each.

Sums are float64 on the device, in an order of their own, the same every time. The source is in
``errors.cu``; see :mod:`syncpretrain.backends.cuda_kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from syncpretrain.backends.cuda_source import THREADS, TILE, CudaSource, is_vector, layout

__all__ = ["CudaErrors"]

SUM_BLOCKS = 256  # of a sum: as many as the threads of the block that adds up those of all


class CudaErrors:
    """The forms, of the signatures of the equations in :mod:`syncpretrain.kernels`.

    An error is a device array of shape (), not synchronized; ``float()`` of it waits for the
    device, which a training loop does once in a while only.

    Parameters
    ----------
    cupy : module
        CuPy, or what stands in for it in a test.
    source : CudaSource
    """

    def __init__(self, cupy: Any, source: CudaSource) -> None:
        self._cupy, self._source = cupy, source
        self._rooms: dict[tuple[int, int], tuple[Any, Any]] = {}  # by device and stream

    def forms(self) -> dict[str, Callable[..., Any]]:
        """Return the forms by the names of their equations."""
        return {
            "squared_error": self.squared_error,
            "means_and_error": self.means_and_error,
            "output_delta": self.output_delta,
            "derivative_and_sums": self.derivative_and_sums,
            "count_errors": self.count_errors,
        }

    def squared_error(self, x: Any, y: Any, *, out: Any) -> Any:
        """Return |y - x|^2; leave y - x in ``out``."""
        found = layout(x, y, out)
        if found is None:
            return NotImplemented
        rows, columns, ldx, ldy, ldo = found
        args = (x, ldx, y, ldy, out, ldo, rows, columns)
        return self._summed("squared_error", x.size, (THREADS,), *args)

    def means_and_error(self, y: Any, bias: Any, units: str, x: Any, *, out: Any) -> Any:
        """Replace inputs y by means, leave y - x in ``out``, and return its square."""
        found = layout(y, x, out)
        if found is None or units not in self._source.units or not is_vector(bias, y.shape[-1]):
            return NotImplemented
        rows, columns, ldy, ldx, ldo = found
        args = (y, ldy, bias, x, ldx, out, ldo, rows, columns, self._source.units[units])
        return self._summed("means_and_error", x.size, (THREADS,), *args)

    def output_delta(
        self,
        x: Any,
        y: Any,
        units: str = "bernoulli",
        loss: str = "squared",
        *,
        out: Any,
        share: float = 1.0,
        sums: Any = None,
    ) -> Any:
        """Fill ``out`` with the delta of the output and ``sums`` with its sums; y is unchanged."""
        found, is_squared = layout(x, y, out), loss == "squared"
        number = self._source.units.get(units if is_squared else "gaussian")  # slope 1
        if sums is None:
            sums = self._cupy.empty(x.shape[-1], dtype=np.float32)
        if found is None or x.ndim != 2 or number is None or not is_vector(sums, x.shape[1]):
            return NotImplemented
        rows, columns, ldx, ldy, ldo = found
        scale = np.float32((2 if is_squared else 1) / rows)
        args = (x, ldx, y, ldy, out, ldo, rows, columns, number, scale, np.float32(share), sums)
        return self._summed("output_delta", columns * TILE[1], TILE, *args)

    def derivative_and_sums(
        self,
        delta: Any,
        a: Any,
        units: str = "bernoulli",
        *,
        sums: Any = None,
        scratch: Any = None,
    ) -> Any:
        """Multiply ``delta`` by the derivative at the means ``a``, which are left unchanged."""
        found = layout(delta, a)
        if found is None or delta.ndim != 2 or units not in self._source.units:
            return NotImplemented
        if sums is None or not is_vector(sums, delta.shape[1]):
            return NotImplemented
        rows, columns, ldd, lda = found
        args = (delta, ldd, a, lda, rows, columns, self._source.units[units], sums)
        self._source.launch("derivative_and_sums", (-(-columns // TILE[0]),), TILE, *args)
        return None

    def count_errors(self, x: Any, y: Any) -> Any:
        """Return how many rows of y have their largest value elsewhere than those of x."""
        found = layout(x, y)
        if found is None or x.ndim != 2 or not x.shape[1]:
            return NotImplemented
        rows, columns, ldx, ldy = found
        return self._summed("wrong", rows, (THREADS,), x, ldx, y, ldy, rows, columns)

    def _summed(self, name: str, items: int, block: tuple[int, ...], *args: Any) -> Any:
        """Launch a kernel with a thread for each item, and return the sum that it makes."""
        if not items:
            return self._cupy.zeros((), dtype=np.float64)
        total = self._cupy.empty((), dtype=np.float64)
        blocks = min(SUM_BLOCKS, -(-items // THREADS))
        self._source.launch(name, (blocks,), block, *args, *self._room(), total)
        return total

    def _room(self) -> tuple[Any, Any]:
        """Return room for the sums of blocks, and the counter of those that are finished.

        Those of the current stream, whose launches use them one after another.
        """
        cuda = self._cupy.cuda
        place = cuda.Device().id, cuda.get_current_stream().ptr
        if place not in self._rooms:
            partial = self._cupy.empty(SUM_BLOCKS, dtype=np.float64)
            self._rooms[place] = partial, self._cupy.zeros(1, dtype=np.uint32)
        return self._rooms[place]
