"""The fused forms of the equations on a GPU: one launch each, from the source in ``kernels.cu``.

Each form has the signature of the equation of its name in :mod:`syncpretrain.kernels`, and returns
``NotImplemented``, having done nothing, for arrays that its kernel does not take: others than
float32 whose rows are contiguous. The differences: scratch that the equation overwrites is often
left unchanged here, and :func:`squared_error` returns a zero-dimensional device array, not
synchronized.

It has never run on a GPU; see :mod:`syncpretrain.backends.cuda_source`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from syncpretrain.backends.cuda_convolutions import CudaConvolutions
from syncpretrain.backends.cuda_source import (
    MOST_ELEMENTS,
    THREADS,
    CudaSource,
    grid_of,
    is_vector,
    layout,
)
from syncpretrain.backends.device_draws import DeviceDraws
from syncpretrain.rng import Address
from syncpretrain.units.kinds import kind_of

__all__ = ["CudaKernels"]

SUM_BLOCKS = 256  # of a sum: as many as the threads of the block that sums up theirs
SOFTMAX_THREADS = 128
TILE = (32, 8)  # columns and rows, of the sums over examples


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
        self.source = CudaSource(cupy)
        self._convolutions = CudaConvolutions(cupy, self.source)
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
                self.squared_error,
                self.momentum_step,
                self.sgd_step,
                self.adam_step,
            )
        }
        return own | self._convolutions.forms()

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

        Binary units use no ``noise``. The normal noise of others is drawn by NumPy on the host:
        its ziggurat takes a varying number of draws, one after another.
        """
        found, kind = layout(x, noise, out), kind_of(units)
        known = units in self.source.units and kind.noise is not None
        if found is None or not known or not is_vector(bias, x.shape[-1]):
            return NotImplemented
        rows, columns, ldx, ldn, ldo = found
        if kind.is_binary:
            blocks = -(-x.size // 8)
            args = (x, ldx, bias, out, ldo, rows, columns, *_words(address))
            self._flat("draw_bernoulli", blocks, *args)
        else:
            self.generator(address).standard_normal(out=noise, dtype=np.float32)
            args = (x, ldx, bias, noise, ldn, out, ldo, rows, columns, self.source.units[units])
            self._flat("draw_noisy", x.size, *args)
        return out

    def generator(self, address: Address) -> DeviceDraws:
        """Return the generator that begins at an address."""
        return DeviceDraws(self._cupy, address, self.fill_uniform)

    def fill_uniform(self, out: Any, address: Address, skip: int = 0) -> None:
        """Fill a float32 array with the draws at an address, from number ``skip`` on.

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
            args = (out, ld, rows, columns, np.uint64(skip), *_words(address))
            self._flat("fill_uniform", blocks, *args)

    def phase_differences(self, v: Any, h: Any, *, da: Any, db: Any, examples: int) -> Any:
        """Fill the ascent direction of both biases, and prepare [v0; v1] for that of the weights.

        v of shape (2B, V), h of shape (2B, H). The sums run in another order than NumPy's.
        """
        of_v, of_h = layout(v), layout(h)
        if of_v is None or of_h is None or len(v) != len(h) or v.ndim != 2:
            return NotImplemented
        if not (is_vector(da, v.shape[1]) and is_vector(db, h.shape[1])):
            return NotImplemented
        (rows, visible, ldv), (_, hidden, ldh) = of_v, of_h
        grid = (-(-visible // TILE[0]) - (-hidden // TILE[0]),)
        scale, divisor = np.float32(1 / examples), np.float32(examples)
        args = (v, ldv, visible, h, ldh, hidden, da, db, rows // 2, scale, divisor)
        self._launch("phase_differences", grid, TILE, *args)
        return None

    def squared_error(self, x: Any, y: Any, *, out: Any) -> Any:
        """Return |y - x|^2 as a device array of shape (), float64; leave y - x in ``out``.

        ``float()`` of it waits for the device, which a training loop does once in a while only.
        """
        found = layout(x, y, out)
        if found is None:
            return NotImplemented
        if not x.size:
            return self._cupy.zeros((), dtype=np.float64)
        rows, columns, ldx, ldy, ldo = found
        blocks = min(SUM_BLOCKS, -(-x.size // THREADS))
        sums = self._cupy.empty(blocks + 1, dtype=np.float64)
        args = (x, ldx, y, ldy, out, ldo, rows, columns, sums[1:])
        self._launch("subtract_and_square", (blocks,), (THREADS,), *args)
        self._launch("sum_up", (1,), (THREADS,), sums[1:], blocks, sums)
        return sums[0]

    def momentum_step(
        self,
        parameter: Any,
        gradient: Any,
        velocity: Any,
        *,
        momentum: float,
        learning_rate: float,
        weight_decay: float = 0.0,
        l1: float = 0.0,
    ) -> Any:
        """Ascend: velocity = momentum velocity + rate (gradient - decay), then add it."""
        found = layout(parameter, gradient, velocity)
        if found is None:
            return NotImplemented
        rows, columns, ldp, ldg, ldv = found
        numbers = (momentum, learning_rate, learning_rate * weight_decay, learning_rate * l1)
        rates = (np.float32(number) for number in numbers)
        args = (parameter, ldp, gradient, ldg, velocity, ldv, rows, columns, *rates)
        self._flat("momentum_step", parameter.size, *args)
        return None

    def sgd_step(
        self,
        parameters: Any,
        gradient: Any,
        velocity: Any,
        *,
        learning_rate: float,
        scratch: Any,
        momentum: float = 0.0,
        nesterov: bool = False,
    ) -> Any:
        """Take one step of gradient descent with momentum, in place; ``scratch`` is not needed."""
        n = len(parameters)
        vectors = (parameters, gradient, *((velocity,) if momentum else ()))
        if n > MOST_ELEMENTS or not all(is_vector(array, n) for array in vectors):
            return NotImplemented
        rates = (np.float32(learning_rate), np.float32(momentum))
        self._flat("sgd_step", n, parameters, gradient, velocity, n, *rates, int(nesterov))
        return None

    def adam_step(
        self,
        parameters: Any,
        gradient: Any,
        first: Any,
        second: Any,
        *,
        step: int,
        learning_rate: float,
        scratch: Any,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
    ) -> Any:
        """Take one step of Adam in place; ``scratch`` is not needed."""
        n, vectors = len(parameters), (parameters, gradient, first, second)
        if n > MOST_ELEMENTS or not all(is_vector(array, n) for array in vectors):
            return NotImplemented
        scale1 = (1 - beta1) / (1 - beta1**step)
        scale2 = math.sqrt((1 - beta2) / (1 - beta2**step))
        numbers = (beta1, beta2, learning_rate * scale1 / scale2, epsilon / scale2)
        self._flat("adam_step", n, *vectors, n, *(np.float32(number) for number in numbers))
        return None

    def gather_rows(self, X: Any, rows: Any, out: Any) -> bool:
        """Copy rows of X, whose numbers are int64 on the device; return whether that was done."""
        if X.ndim != 2 or rows.dtype != np.int64 or not rows.flags.c_contiguous:
            return False
        of_x, of_out = layout(X[:1]), layout(out)  # X may be larger than what other kernels index
        if of_x is None or of_out is None or out.shape != (len(rows), X.shape[1]):
            return False
        args = (X, of_x[2], len(X) - 1, rows, out, of_out[2], len(rows), X.shape[1])
        self._flat("gather_rows", out.size, *args)
        return True
