"""Whole steps of fine-tuning dense layers on a GPU, from ``tuning.cu``.

A step is a launch for each layer on the way up, one for each but the first on the way down, and one
that moves all parameters: 16 for 8 layers. Softmax units, which need a whole row, make their means
and delta in launches of their own. All are on one stream, which runs them one after another, so
none waits; every delta is made before the last launch moves the weights that it is made of.

For compute capability 8.0 or later; :mod:`syncpretrain.backends.tuning_check` tries them first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from syncpretrain.backends.cuda_fused import (
    FEW,
    MANY,
    PRODUCT_MEMORY,
    PRODUCT_THREADS,
    tiles_of,
)
from syncpretrain.backends.cuda_source import CudaSource, is_vector, layout
from syncpretrain.backends.fused_tuning import Rule, TunedArrays
from syncpretrain.kernels.activations import affine
from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.kernels.backprop import output_delta
from syncpretrain.kernels.losses import count_errors
from syncpretrain.kernels.precision import PRECISIONS
from syncpretrain.units.kinds import kind_of

__all__ = ["TUNING_FILES", "CudaTuning"]

# Each file calls functions of the files before it.
TUNING_FILES = ("kernels.cu", "products.cu", "tuning.cu")
BETAS = (0.9, 0.999)  # Adam's, as in its equation

# Shared by all networks of the process: NVRTC compiles a source once for each precision and device.
_source = cache(CudaSource)


class CudaTuning:
    """The steps of one network; see :class:`syncpretrain.backends.fused_tuning.FusedTuning`.

    Parameters
    ----------
    cupy : module
        CuPy, or what stands in for it in a test.
    arrays : TunedArrays
        For which :meth:`supports` is true.
    rule : Rule
    """

    def __init__(self, cupy: Any, arrays: TunedArrays, rule: Rule) -> None:
        self._cupy, self._arrays, self._rule = cupy, arrays, rule
        self._source = _source(cupy, TUNING_FILES, arrays.precision)
        self._widths = [len(arrays.chain[0][0]), *(len(bias) for _, bias in arrays.chain)]
        self._is_exclusive = kind_of(arrays.units[-1]).is_exclusive
        self._batch_size = size = len(arrays.deltas[0])
        rows = -(-size // FEW[0])
        # What each row of tiles adds to the gradients of biases, and each tile to the error. Zeros,
        # because softmax units fill the first row alone, and the last launch adds up all rows.
        self._sums = [cupy.zeros((rows, width), dtype=np.float32) for width in self._widths[1:]]
        self._errors = cupy.empty(tiles_of(size, self._widths[-1]), dtype=np.float64)
        self._table, self._tiles = self._described()

    @classmethod
    def supports(cls, cupy: Any, arrays: TunedArrays) -> bool:
        """Return whether there are kernels for these units, and arrays: float32, contiguous."""
        known, (*units, last) = _source(cupy, TUNING_FILES, arrays.precision).units, arrays.units
        kind, count = kind_of(last), len(arrays.parameters)
        if not all(name in known for name in units) or not (last in known or kind.is_exclusive):
            return False
        if arrays.loss != "squared" and kind.loss != arrays.loss:
            return False
        vectors = (arrays.parameters, *arrays.moments)
        matrices = (*(weight for weight, _ in arrays.chain), *arrays.activations, *arrays.deltas)
        # The kernel knows where a layer's weights begin, and looks for its bias right behind them.
        if any(bias.data.ptr != weight.data.ptr + weight.nbytes for weight, bias in arrays.chain):
            return False
        return all(is_vector(vector, count) for vector in vectors) and all(
            matrix.flags.c_contiguous and layout(matrix) is not None for matrix in matrices
        )

    def takes(self, x: Any, target: Any) -> bool:
        """Return whether it computes with such rows: float32 of the device, as wide as needed."""
        return all(
            isinstance(array, self._cupy.ndarray)
            and array.ndim == 2
            and 0 < len(array) <= self._batch_size
            and array.shape[1] == width
            and layout(array) is not None
            for array, width in ((x, self._widths[0]), (target, self._widths[-1]))
        )

    def __call__(self, x: Any, target: Any, numbers: Sequence[float]) -> Any:
        """Train on a minibatch; return its error."""
        arrays, n = self._arrays, len(x)
        read = x
        for layer in range(len(arrays.chain) - 1):
            out, units = arrays.activations[layer], self._source.units[arrays.units[layer]]
            self._launch("forward_layer", layer + 1, n, *self._up(layer, read, n, out, units))
            read = out[:n]
        error = (self._exclusive if self._is_exclusive else self._output)(read, target)
        for layer in range(len(arrays.chain) - 1, 0, -1):
            weight, below = arrays.chain[layer][0], layer - 1
            given = (arrays.deltas[layer], weight, arrays.activations[below], arrays.deltas[below])
            units = self._source.units[arrays.units[below]]
            sizes = (n, *self._widths[layer : layer + 2], units)
            self._launch("delta_of_layer", layer, n, *given, self._sums[below], *sizes)
        self._move(x, error, numbers)
        return error

    def _up(self, layer: int, read: Any, n: int, *others: Any) -> tuple[Any, ...]:
        """Return the arguments of a layer on the way up: arrays, sizes and units."""
        *arrays, units = others
        sizes = (n, *self._widths[layer : layer + 2])
        return (read, _step(read), *self._arrays.chain[layer], *arrays, *sizes, units)

    def _output(self, read: Any, target: Any) -> Any:
        """Fill delta of the last layer; return the squared error, which is known after the step."""
        arrays, n = self._arrays, len(target)
        out = (target, _step(target), arrays.deltas[-1], self._sums[-1], self._errors)
        units, is_squared = self._source.units[arrays.units[-1]], arrays.loss == "squared"
        args = self._up(len(arrays.chain) - 1, read, n, *out, units)
        scale = np.float32((2 if is_squared else 1) / n)
        self._launch("forward_output", len(arrays.chain), n, *args, int(is_squared), scale)
        return self._cupy.empty((), dtype=np.float64)

    def _exclusive(self, read: Any, target: Any) -> Any:
        """Fill delta of softmax units by the equations; return how many classes are wrong."""
        arrays, n = self._arrays, len(target)
        (weight, bias), units = arrays.chain[-1], arrays.units[-1]
        y, delta, sums = arrays.activations[-1][:n], arrays.deltas[-1][:n], self._sums[-1][0]
        affine(read, weight, bias, units, out=y, multiply=PRECISIONS[arrays.precision].multiply)
        count = count_errors(target, y)
        squared = output_delta(target, y, units, arrays.loss, out=delta, sums=sums)
        # 0 times infinity is NaN: so an output that is not finite shows in the count too.
        return count + 0 * squared

    def _move(self, x: Any, error: Any, numbers: Sequence[float]) -> None:
        """Launch the step of all parameters, which fills the squared error."""
        rule, arrays, n = self._rule, self._arrays, len(x)
        first, second = (*arrays.moments, None, None)[:2]
        is_adam = rule.name == "adam"
        beta1, beta2 = BETAS if is_adam else (rule.momentum, 0.0)
        size, shrink, floor = (*numbers, 0.0)[:3]
        rates = (np.float32(number) for number in (beta1, beta2, size, floor, shrink))
        count = 0 if self._is_exclusive else tiles_of(n, self._widths[-1])
        self._source.launch(
            *("move_network", (self._tiles,), (PRODUCT_THREADS,), x, _step(x), self._table),
            *(len(arrays.chain), n, arrays.parameters, first, second, self._errors, count, error),
            *(int(is_adam), int(rule.nesterov), *rates, self._source.numbers),
            shared=PRODUCT_MEMORY,
        )

    def _described(self) -> tuple[Any, int]:
        """Return the table of the layers that ``move_network`` reads, and its number of tiles."""
        # Addresses, which stay right: the arrays are held by self._arrays, and CuPy moves none.
        arrays, rows, tiles = self._arrays, [], 0
        first = arrays.parameters.data.ptr
        for layer, (weight, _) in enumerate(arrays.chain):
            read = arrays.activations[layer - 1].data.ptr if layer else 0
            places = read, arrays.deltas[layer].data.ptr
            start = (weight.data.ptr - first) // FLOAT_BYTES
            rows.append((*places, *weight.shape, start, self._sums[layer].data.ptr, tiles))
            tiles += tiles_of(len(weight), weight.shape[1], MANY)
        return self._cupy.asarray(np.array(rows, dtype=np.int64)), tiles

    def _launch(self, name: str, makes: int, n: int, *args: Any) -> None:
        """Launch a kernel that makes n rows as wide as a layer; layers are counted from 1."""
        tiles = tiles_of(n, self._widths[makes])
        self._source.launch(name, (tiles,), (PRODUCT_THREADS,), *args, shared=PRODUCT_MEMORY)


def _step(matrix: Any) -> int:
    """Return the elements from row to row."""
    return layout(matrix)[2]  # type: ignore[index]
