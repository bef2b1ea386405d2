"""Whole steps of contrastive divergence on a GPU, in four launches each, from ``fused.cu``.

Hidden states are drawn with NumPy's numbers, but from means that may differ from NumPy's in their
last bits: where a number is as near to a mean as that, the state is the other one.

A step waits for nothing: its launches are on one stream, which runs them one after another. No
launch adds to what another wrote: each tile leaves its sums in its own place, and the last launch
adds them up in order, so the bits are the same every time.

For compute capability 8.0 or later; :mod:`syncpretrain.backends.fused_check` tries them first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from syncpretrain.backends.cuda_source import CudaSource, is_vector, layout
from syncpretrain.backends.fused import FusedArrays, Pace
from syncpretrain.units.kinds import kind_of

__all__ = [
    "FEW",
    "FUSED_FILES",
    "MANY",
    "PRODUCT_MEMORY",
    "PRODUCT_THREADS",
    "CudaFused",
    "tiles_of",
]

# Each file calls functions of the files before it.
FUSED_FILES = ("kernels.cu", "products.cu", "fused.cu")
# The blocks of products.cu: their threads and bytes of shared memory, and the rows and columns of
# their tiles, of a minibatch and of parameters (FUSED_THREADS, TILE_FLOATS, Few and Many there).
PRODUCT_THREADS, PRODUCT_MEMORY = 256, 61_440
FEW, MANY = (32, 32), (64, 64)

# Shared by all layers of the process: NVRTC compiles a source once for each precision and device.
_source = cache(CudaSource)


class CudaFused:
    """The steps of one layer; see :class:`syncpretrain.backends.base.FusedStep`.

    Parameters
    ----------
    cupy : module
        CuPy, or what stands in for it in a test.
    arrays : FusedArrays
        For which :meth:`supports` is true.
    now : callable
        Returns what a graph that is recorded takes its step, epoch and rows from, three uint64 on
        the device; None where nothing is recorded.
    """

    def __init__(
        self, cupy: Any, arrays: FusedArrays, now: Callable[[], Any] = lambda: None
    ) -> None:
        self._cupy, self._arrays, self._now = cupy, arrays, now
        self._source = _source(cupy, FUSED_FILES, arrays.precision)
        (self._batch_size, self._hidden), (_, self._visible) = arrays.states.shape, arrays.v.shape
        tiles = -(-self._batch_size // FEW[0])
        # What each row of tiles adds to the gradients of the biases, and each tile to the error. A
        # smaller minibatch has fewer tiles: the last launch reads no more than this step has
        # written.
        self._of_visible = cupy.empty((tiles, self._visible), dtype=np.float32)
        self._of_hidden = cupy.empty((tiles, self._hidden), dtype=np.float32)
        self._errors = cupy.empty(tiles_of(self._batch_size, self._visible), dtype=np.float64)

    @classmethod
    def supports(cls, cupy: Any, arrays: FusedArrays) -> bool:
        """Return whether there are kernels for these units, and arrays: float32, rows contiguous.

        Hidden units are to be binary.
        """
        known = _source(cupy, FUSED_FILES, arrays.precision).units
        if not (arrays.visible_units in known and arrays.hidden_units in known):
            return False
        (weight, *biases), (speed, *speeds) = arrays.parameters, arrays.velocities
        matrices = (weight, speed, arrays.v, arrays.h, arrays.states)
        vectors = all(is_vector(array, len(array)) for array in (*biases, *speeds))
        return (
            kind_of(arrays.hidden_units).is_binary
            and vectors
            and all(layout(matrix) is not None for matrix in matrices)
        )

    def takes(self, X: Any, rows: Any) -> bool:
        """Return whether it gathers such rows itself: arrays of the device, X of float32."""
        if not all(isinstance(array, self._cupy.ndarray) for array in (X, rows)):
            return False
        is_numbers = rows.dtype == np.int64 and rows.flags.c_contiguous
        return bool(is_numbers and X.ndim == 2 and layout(X[:1]) is not None)

    def __call__(self, X: Any, rows: Any, draws: Sequence[Sequence[int]], pace: Pace) -> Any:
        """Train on some rows of X, or on all; return their squared error."""
        n = len(X) if rows is None else len(rows)
        if n > self._batch_size:
            raise ValueError(f"rows: got {n}, expected at most {self._batch_size}")
        (W, a, b), arrays, now = self._arrays.parameters, self._arrays, self._now()
        v1, h0, h1 = arrays.v[n : 2 * n], arrays.h[:n], arrays.h[n : 2 * n]
        weight, states, sizes = _matrix(W), _matrix(arrays.states), (n, self._visible, self._hidden)
        data, units = (*_matrix(X), len(X) - 1, rows), self._source.units[arrays.visible_units]
        up, down = tiles_of(n, self._hidden), tiles_of(n, self._visible)
        for k, words in enumerate(draws):
            # The means of the data stay in h0 for the gradient: later draws leave theirs in h1.
            given, h = ((*_matrix(v1), 0, None), h1) if k else (data, h0)
            drawn, at = (*_matrix(h), *states), (np.uint64(word) for word in words)
            self._launch("draw_hidden", up, *given, *weight, b, *drawn, *sizes, *at, now)
            left = (*_matrix(v1), self._of_visible, self._errors)
            self._launch("reconstruct", down, *states, *weight, a, *data, *left, *sizes, units, now)
        found = (*_matrix(h0), h1, self._of_hidden)
        self._launch("find_hidden", up, *_matrix(v1), *weight, b, *found, *sizes)
        return self._move(n, data, pace)

    def _move(self, n: int, data: tuple[Any, ...], pace: Pace) -> Any:
        """Launch the step of all parameters; return the error."""
        arrays, error = self._arrays, self._cupy.empty((), dtype=np.float64)
        (W, a, b), (dW, da, db) = arrays.parameters, arrays.velocities
        momentum, rate, decay, l1 = pace
        numbers = (np.float32(x) for x in (1 / n, momentum, rate, rate * decay, rate * l1))
        self._launch(
            "move_parameters",
            tiles_of(self._visible, self._hidden, MANY),
            *(*data, *_matrix(arrays.v[n : 2 * n]), *_matrix(arrays.h[: 2 * n])),
            *(*_matrix(W), *_matrix(dW), a, da, self._of_visible, b, db, self._of_hidden),
            *(self._errors, error, n, self._visible, self._hidden, *numbers, self._now()),
        )
        return error

    def _launch(self, name: str, tiles: int, *args: Any) -> None:
        self._source.launch(name, (tiles,), (PRODUCT_THREADS,), *args, shared=PRODUCT_MEMORY)


def tiles_of(rows: int, columns: int, tile: tuple[int, int] = FEW) -> int:
    """Return the tiles that a product has."""
    return -(-rows // tile[0]) * -(-columns // tile[1])


def _matrix(array: Any) -> tuple[Any, int]:
    """Return a matrix, and its elements from row to row."""
    return array, array.strides[0] // 4
