"""The fused forms of the equations on a GPU, one launch each, and a generator of its draws.

Each form has the signature of the equation of its name in :mod:`syncpretrain.kernels`, and returns
``NotImplemented``, having done nothing, for arrays that its kernel does not take: others than
float32 with contiguous rows. The differences: scratch that the equation overwrites is often left
unchanged here, and errors are zero-dimensional device arrays, not synchronized. Sums are float64 on
the device, in an order of their own, the same every time. The forms of products, of steps and of
convolutions are in modules of their own.

Guarantees: a form queues its launches on the current stream and waits for nothing; threads may call
forms at the same time, each on a stream of its own. Assumption: the caller orders streams that
share arrays, by events or by waiting.

The source is in ``kernels.cu`` and ``errors.cu``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from syncpretrain.backends.cublas import Cublas, CudaProducts
from syncpretrain.backends.cuda_convolutions import CudaConvolutions
from syncpretrain.backends.cuda_peers import CudaPeers
from syncpretrain.backends.cuda_source import THREADS, TILE, CudaSource, grid_of, is_vector, layout
from syncpretrain.backends.cuda_steps import CudaSteps
from syncpretrain.rng import Address
from syncpretrain.units.kinds import kind_of

__all__ = ["CudaErrors", "CudaKernels", "DeviceDraws", "kernels_of"]

SOFTMAX_THREADS = 128  # SOFTMAX_THREADS of kernels.cu, which fixes the order of a row's sum
# As many blocks as the last of them has threads: each thread then adds at most one block's sum.
SUM_BLOCKS = 256


class DeviceDraws:
    """The numbers at an address, in float32 arrays on a device.

    Uniform numbers equal NumPy's. Normal numbers are the device's own: each pair is made of one
    word of the generator (Box and Muller 1958), where NumPy's ziggurat takes a varying number of
    words, one after another. See :class:`syncpretrain.backends.base.Draws`.

    Parameters
    ----------
    cupy : module
        CuPy, or what stands in for it in a test.
    address : Address
    fill : callable
        Fills an array with the "uniform" or "normal" numbers of an address from a given one on.
    """

    def __init__(
        self, cupy: Any, address: Address, fill: Callable[[str, Any, Address, int], None]
    ) -> None:
        self._cupy, self._address, self._fill = cupy, address, fill
        self._drawn = 0  # numbers so far

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """Return or fill an array of uniform draws in [0, 1).

        Raises
        ------
        TypeError
            If they are not to be float32.
        """
        return self._filled("uniform", size, dtype, out)

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """Return or fill an array of standard normal draws.

        Raises
        ------
        TypeError
            If they are not to be float32.
        """
        # A word makes two uniform numbers or two normal ones: a half that is left of it is skipped.
        self._drawn += self._drawn % 2
        return self._filled("normal", size, dtype, out)

    def _filled(self, kind: str, size: Any, dtype: Any, out: Any) -> Any:
        given = np.dtype(dtype) if out is None else out.dtype
        if np.dtype(dtype) != np.float32 or given != np.float32:
            raise TypeError(f"dtype: got {given}, expected float32: the draws of a device are that")
        if out is None:
            out = self._cupy.empty(() if size is None else size, dtype=np.float32)
        self._fill(kind, out, self._address, self._drawn)
        self._drawn += out.size
        return out


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
        # By device and stream. Never forgotten: recorded graphs add up there.
        self._rooms: dict[tuple[int, int], tuple[Any, Any]] = {}

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
        self, delta: Any, a: Any, units: str = "bernoulli", *, sums: Any = None
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
        """Count the rows in which x and y have their largest value at different places."""
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
        """Return room for the sums of blocks, and the counter of finished blocks.

        Both belong to the current stream, which uses them for one launch after another.
        """
        # One a stream: launches of two streams overlap, and would count each other's blocks. The
        # last block of a launch sets the counter back to 0, so the next launch need not. No lock:
        # only the thread of a stream asks for its key.
        cuda = self._cupy.cuda
        place = cuda.Device().id, cuda.get_current_stream().ptr
        if place not in self._rooms:
            partial = self._cupy.empty(SUM_BLOCKS, dtype=np.float64)
            self._rooms[place] = partial, self._cupy.zeros(1, dtype=np.uint32)
        return self._rooms[place]


def _words(address: Address) -> tuple[np.uint64, ...]:
    return tuple(np.uint64(word) for word in (*address.key, *address.counter))


class CudaKernels:
    """The forms of all equations: dense layers, steps and convolutions.

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
        own; see :class:`syncpretrain.backends.cuda_kernels.DeviceDraws`.
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
        # A thread makes 4 states, of half a block of the generator: 8 a thread would leave some of
        # the multiprocessors without work at usual sizes.
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
            # A block of Philox has 8 numbers; the first and the last one may be needed in part.
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
        """Launch a kernel of differences; ``means`` are its bias and number of units, or empty."""
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
        """Copy rows of X, numbered by int64 on the device; return whether that was done."""
        if X.ndim != 2 or rows.dtype != np.int64 or not rows.flags.c_contiguous:
            return False
        # The first row alone: X may have more elements than 31 bits count, and this kernel, unlike
        # others, computes addresses in 64.
        of_x, of_out = layout(X[:1]), layout(out)
        if of_x is None or of_out is None or out.shape != (len(rows), X.shape[1]):
            return False
        # With the last row's number the kernel clips, as np.take does with mode "clip".
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


# One a process: graphs compute in the workspaces of cuBLAS's handles and in the rooms of sums, so
# these must outlive every backend.
kernels_of = cache(CudaKernels)
