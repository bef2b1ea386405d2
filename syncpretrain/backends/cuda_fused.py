"""Whole steps of training on a GPU: contrastive divergence, and fine-tuning of dense layers.

A step of contrastive divergence is four launches, from ``fused.cu``. Hidden states are drawn with
NumPy's numbers, but from means that may differ from NumPy's in their last bits: where a number
is as near to a mean as that, the state is the other one.

A step of fine-tuning, from ``tuning.cu``, is a launch for each layer on the way up, one for each
but the first on the way down, and one that moves all parameters: 16 for 8 layers. Softmax units,
which need a whole row, make their means and delta in launches of their own. Every delta is made
before the last launch moves the weights that it is made of.

A step waits for nothing: its launches are on one stream, which runs them one after another. No
launch adds to what another wrote: each tile leaves its sums in its own place, and the last launch
adds them up in order, so the bits are the same every time.

For compute capability 8.0 or later; :mod:`syncpretrain.backends.fused_check` tries the steps first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from syncpretrain.backends.cuda_source import CudaSource, is_vector, layout
from syncpretrain.backends.fused import FusedArrays, Pace, Rule, TunedArrays
from syncpretrain.kernels.activations import affine
from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.kernels.backprop import count_errors, output_delta
from syncpretrain.kernels.optimizers import BETAS
from syncpretrain.kernels.precision import PRECISIONS
from syncpretrain.units.kinds import kind_of

# Each file calls functions of the files before it.
FUSED_FILES = ("kernels.cu", "products.cu", "fused.cu")
TUNING_FILES = ("kernels.cu", "products.cu", "tuning.cu")
# The blocks of products.cu: their threads and bytes of shared memory, and the rows and columns of
# their tiles, of a minibatch and of parameters (FUSED_THREADS, TILE_FLOATS, Few and Many there).
PRODUCT_THREADS, PRODUCT_MEMORY = 256, 61_440
FEW, MANY = (32, 32), (64, 64)

# Shared by all layers and networks of the process: NVRTC compiles a source once for each
# precision and device.
_source = cache(CudaSource)


class CudaFused:
    """The steps of contrastive divergence of one layer, each made as a whole.

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
        """Train by CD-k on some rows of X.

        Parameters
        ----------
        X : array of shape (examples, V)
        rows : array of int64, or None
            The numbers of the rows; None for all rows.
        draws : sequence of k sequences of int
            The key and the counter of the numbers that hidden states are drawn with.
        pace : Pace

        Returns
        -------
        error : device array of shape (), float64
            The squared error of the last reconstruction, not synchronized.

        Raises
        ------
        ValueError
            If these are more rows than there is room for.
        """
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


class CudaTuning:
    """The steps of fine-tuning of one network, each made as a whole.

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
        """Train on a minibatch.

        Parameters
        ----------
        x, target : arrays of shape (n, inputs) and (n, outputs)
        numbers : sequence of float
            Numbers that the optimizer computes with; see
            :meth:`syncpretrain.finetuning.optimizers.Optimizer.numbers`.

        Returns
        -------
        error : device array of shape (), float64
            The squared error before the step, or how many classes are wrong; NaN where the output
            is not finite. Not synchronized.
        """
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
