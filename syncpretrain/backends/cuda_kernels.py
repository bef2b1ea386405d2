"""The fused forms of the equations on a GPU: one launch each, from the source in ``kernels.cu``.

Each form has the signature of the equation of its name in :mod:`syncpretrain.kernels`, and returns
``NotImplemented``, having done nothing, for arrays that its kernel does not take: others than
float32 whose rows are contiguous. The differences: scratch that the equation overwrites is often
left unchanged here, and errors are zero-dimensional device arrays, not synchronized. Those of
errors, of steps and of convolutions are in modules of their own.

It has never run on a GPU; see :mod:`syncpretrain.backends.cuda_source`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from syncpretrain.backends.cublas import Cublas
from syncpretrain.backends.cuda_convolutions import CudaConvolutions
from syncpretrain.backends.cuda_errors import CudaErrors
from syncpretrain.backends.cuda_peers import CudaPeers
from syncpretrain.backends.cuda_products import CudaProducts
from syncpretrain.backends.cuda_source import TILE, CudaSource, grid_of, is_vector, layout
from syncpretrain.backends.cuda_steps import CudaSteps
from syncpretrain.backends.device_draws import DeviceDraws
from syncpretrain.rng import Address
from syncpretrain.units.kinds import kind_of

__all__ = ["CudaKernels", "kernels_of"]

SOFTMAX_THREADS = 128


def _words(address: Address) -> tuple[np.uint64, ...]:
    return tuple(np.uint64(word) for word in (*address.key, *address.counter))


class CudaKernels:
    """The forms of the equations of dense layers and of steps, and those of convolutions.

    Parameters
    ----------
    cupy : module
        CuPy, or what stands in for it in a test.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self.source, self.blas = CudaSource(cupy), Cublas(cupy)
        source = self.source
        self._parts = (
            *(CudaErrors(cupy, source), CudaSteps(source), CudaConvolutions(cupy, source)),
            *(CudaProducts(cupy, source, self.blas), CudaPeers(cupy, source)),
        )
        self._launch, self._flat = self.source.launch, self.source.flat

    def forms(self) -> dict[str, Callable[..., Any]]:
        """Return the forms by the names of their equations."""
        own = {
            form.__name__: form
            for form in (
                self.means,
                self.times_derivative,
                self.sample_states,
                self.phase_differences,
                self.means_and_differences,
            )
        }
        for part in self._parts:
            own |= part.forms()
        return own

    def means(self, x: Any, bias: Any, units: str) -> Any:
        """Replace the inputs x without their bias by the units' means, in place."""
        found = layout(x)
        if found is None or not is_vector(bias, x.shape[-1]):
            return NotImplemented
        rows, columns, ld = found
        if kind_of(units).is_exclusive:
            if x.size:
                grid, block = grid_of(rows, 1), (SOFTMAX_THREADS,)
                self._launch("softmax_means", grid, block, x, ld, bias, rows, columns)
        elif units in self.source.units:
            self._flat("unit_means", x.size, x, ld, bias, rows, columns, self.source.units[units])
        else:
            return NotImplemented
        return x

    def times_derivative(self, delta: Any, a: Any, units: str = "bernoulli") -> Any:
        """Multiply ``delta`` by the derivative of the units at their means ``a``."""
        if kind_of(units).is_linear:
            return None
        found = layout(delta, a)
        if found is None or units not in self.source.units:
            return NotImplemented
        rows, columns, ldd, lda = found
        number = self.source.units[units]
        self._flat("times_derivative", delta.size, delta, ldd, a, lda, rows, columns, number)
        return None

    def sample_states(
        self, x: Any, bias: Any, units: str, address: Address, *, noise: Any, out: Any
    ) -> Any:
        """Draw states into ``out`` at an address; replace inputs x without their bias by means.

        ``noise`` is not needed. The normal numbers of units that are not binary are the device's
        own; see :class:`syncpretrain.backends.device_draws.DeviceDraws`.
        """
        found, kind = layout(x, out), kind_of(units)
        known = units in self.source.units and kind.noise is not None
        if found is None or not known or not is_vector(bias, x.shape[-1]):
            return NotImplemented
        rows, columns, ldx, ldo = found
        name, own = (
            ("draw_bernoulli", ())
            if kind.is_binary
            else ("draw_noisy", (self.source.units[units],))
        )
        args = (x, ldx, bias, out, ldo, rows, columns, *own, *_words(address), self.source.now)
        self._flat(name, -(-x.size // 4), *args)
        return out

    def generator(self, address: Address) -> DeviceDraws:
        """Return the generator that begins at an address."""
        return DeviceDraws(self._cupy, address, self.fill)

    def fill(self, kind: str, out: Any, address: Address, skip: int = 0) -> None:
        """Fill a float32 array with the draws at an address, from number ``skip`` on.

        ``kind`` is that of their distribution, "uniform" or "normal".

        Raises
        ------
        TypeError
            If it is no float32 array of contiguous rows.
        """
        found = layout(out)
        if found is None:
            raise TypeError(
                f"out: got {out.dtype} of shape {out.shape} and strides {out.strides}, expected"
                " float32 with contiguous rows"
            )
        rows, columns, ld = found
        if out.size:
            blocks = -(-(skip + out.size) // 8) - skip // 8
            words = (np.uint64(skip), *_words(address))
            self._flat(f"fill_{kind}", blocks, out, ld, rows, columns, *words, self.source.now)

    def phase_differences(self, v: Any, h: Any, *, da: Any, db: Any, examples: int) -> Any:
        """Fill the ascent direction of both biases, and prepare [v0; v1] for that of the weights.

        v of shape (2B, V), h of shape (2B, H). The sums run in another order than NumPy's.
        """
        return self._differences("phase_differences", v, h, (), da, db, examples)

    def means_and_differences(
        self, v: Any, h: Any, bias: Any, units: str, *, da: Any, db: Any, examples: int
    ) -> Any:
        """Do the same where h1 are inputs without bias, which become means."""
        if units not in self.source.units or not is_vector(bias, h.shape[-1]):
            return NotImplemented
        means = (bias, self.source.units[units])
        return self._differences("means_and_differences", v, h, means, da, db, examples)

    def _differences(
        self, name: str, v: Any, h: Any, means: tuple[Any, ...], da: Any, db: Any, examples: int
    ) -> Any:
        """Launch one of both, of which the second takes the bias and the number of the units."""
        of_v, of_h = layout(v), layout(h)
        if of_v is None or of_h is None or len(v) != len(h) or v.ndim != 2:
            return NotImplemented
        if not (is_vector(da, v.shape[1]) and is_vector(db, h.shape[1])):
            return NotImplemented
        (rows, visible, ldv), (_, hidden, ldh) = of_v, of_h
        grid = (-(-visible // TILE[0]) - (-hidden // TILE[0]),)
        scale, divisor = np.float32(1 / examples), np.float32(examples)
        args = (v, ldv, visible, h, ldh, hidden, *means, da, db, rows // 2, scale, divisor)
        self._launch(name, grid, TILE, *args)
        return None

    def gather_rows(self, X: Any, rows: Any, out: Any) -> bool:
        """Copy rows of X, whose numbers are int64 on the device; return whether that was done."""
        if X.ndim != 2 or rows.dtype != np.int64 or not rows.flags.c_contiguous:
            return False
        of_x, of_out = layout(X[:1]), layout(out)  # X may be larger than what other kernels index
        if of_x is None or of_out is None or out.shape != (len(rows), X.shape[1]):
            return False
        args = (X, of_x[2], len(X) - 1, rows, out, of_out[2], len(rows), X.shape[1])
        self._flat("gather_rows", out.size, *args, self.source.now)
        return True

    def gather_bytes(self, numbers: Any, rows: Any, out: Any) -> bool:
        """Gather rows as :meth:`gather_rows` does, of bytes (uint8) that are divided by 255."""
        if rows.dtype != np.int64 or not rows.flags.c_contiguous:
            return False
        of_out = layout(out)
        if of_out is None or out.shape != (len(rows), numbers.shape[1]):
            return False
        args = (numbers, len(numbers) - 1, rows, out, of_out[2], len(rows), numbers.shape[1])
        self._flat("gather_bytes", out.size, *args, self.source.now)
        return True

    def values_of_bytes(self, numbers: Any) -> Any:
        """Return bytes (uint8) divided by 255, in a new float32 array.

        Raises
        ------
        TypeError
            If they are not contiguous.
        """
        if not numbers.flags.c_contiguous:
            raise TypeError(f"numbers: got strides {numbers.strides}, expected contiguous rows")
        out = self._cupy.empty(numbers.shape, dtype=np.float32)
        self._flat("values_of_bytes", out.size, numbers, out, out.size)
        return out


# Of this process. Graphs compute in the workspaces of cuBLAS's handles, one a stream, so that these
# must not end with a backend.
kernels_of = cache(CudaKernels)
