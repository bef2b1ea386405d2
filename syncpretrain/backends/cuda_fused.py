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

For compute capability 8.0 or later. The steps are tried first: some are compared with the same
steps in float64, with the factors of products rounded as the precision says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.base import FusedArrays, Pace, Rule, TunedArrays
from syncpretrain.backends.cuda_source import CudaSource, is_vector, layout
from syncpretrain.kernels.activations import affine, times_derivative
from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.kernels.backprop import count_errors, output_delta
from syncpretrain.kernels.optimizers import BETAS
from syncpretrain.kernels.precision import PRECISIONS, factors
from syncpretrain.rng import Address, Purpose
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
    """

    def __init__(self, cupy: Any, arrays: FusedArrays) -> None:
        self._cupy, self._arrays = cupy, arrays
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
        (W, a, b), arrays, now = self._arrays.parameters, self._arrays, self._source.now
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
            *(self._errors, error, n, self._visible, self._hidden, *numbers, self._source.now),
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
        return (*_matrix(read), *self._arrays.chain[layer], *arrays, *sizes, units)

    def _output(self, read: Any, target: Any) -> Any:
        """Fill delta of the last layer; return the squared error, which is known after the step."""
        arrays, n = self._arrays, len(target)
        out = (*_matrix(target), arrays.deltas[-1], self._sums[-1], self._errors)
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
            *("move_network", (self._tiles,), (PRODUCT_THREADS,), *_matrix(x), self._table),
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


LEAST_CAPABILITY = 80  # that has tensor cores for TF32, and copies to shared memory
# Examples, visible and hidden units: with alignment, and more of each than a tile has; without, and
# with sums so long that it shows where tensor cores, which round toward zero, take them whole.
TRIAL_SIZES = ((70, 76, 68), (9, 2001, 3))
# Of means and parameters. Of long sums in float32, whole ones of tensor cores are off by 9e-6, in
# TF32 and bfloat16 by 3e-5 at most. Factors that are rounded otherwise are off by 8e-4 at least.
MOST_OFF = {"float32": 5e-6, "tf32": 8e-5, "bfloat16": 8e-5}
PACE = Pace(0.5, 0.1, 0.01, 0.001)
# Multiplications of a product up to which whole steps are the faster, as measured on an H200: few
# launches gain more there than the tiles of cuBLAS, which are larger. By the sizes alone, and not
# by a time: steps in parts have other bits.
MOST_OF_STEPS = {"float32": 4.5e8, "tf32": 1.2e8, "bfloat16": 4.5e8}
MOST_OF_TUNING = {"float32": 1.2e9, "tf32": 4.8e8, "bfloat16": 7.5e8}  # in the mean of the layers


def has_fused_steps(
    cupy: Any, device: int, precision: str, multiplications: float, *, tunes: bool = False
) -> bool:
    """Return whether a device has fused steps that passed their trial, and such sizes gain by.

    The steps are of contrastive divergence, or of fine-tuning (``tunes``).
    """
    most = (MOST_OF_TUNING if tunes else MOST_OF_STEPS)[precision]
    if not has_tensor_cores(cupy, device) or multiplications > most:
        return False
    return why_not_fused(cupy, device, precision, tunes=tunes) is None


@cache
def why_not_fused(
    cupy: Any, device: int, precision: str = "float32", *, tunes: bool = False
) -> str | None:
    """Return what is wrong with the fused steps of a device that should have them; else None.

    They are tried once a process.
    """
    if not has_tensor_cores(cupy, device):
        return None
    trial: tuple[str, Callable[..., float], Sequence[Any], dict[str, float]]
    trial = "steps", _difference, TRIAL_SIZES, MOST_OFF
    if tunes:
        trial = "steps of fine-tuning", _tuning_difference, TRIED_STEPS, MOST_AWAY
    what, difference, tried, most = trial
    failures = (RuntimeError, OSError, MemoryError, cupy.cuda.compiler.CompileException)
    try:
        with cupy.cuda.Device(device):
            off = float(np.max([difference(cupy, precision, *given) for given in tried]))
    except failures as error:
        return f"GPU {device} makes its {what} in parts, since whole ones fail: {error}"
    if not off <= most[precision]:
        return f"GPU {device} makes its {what} in parts, since whole ones are off by {off:.1g}"
    return None


def has_tensor_cores(cupy: Any, device: int) -> bool:
    """Return whether a device has the tensor cores that whole steps are made with."""
    return int(cupy.cuda.Device(device).compute_capability) >= LEAST_CAPABILITY


def _difference(cupy: Any, precision: str, n: int, visible: int, hidden: int) -> float:
    """Return the largest difference of a parameter after one step."""
    draws, address = np.random.default_rng(0), Address(1, Purpose.HIDDEN, 1, 2, 3)
    X, rows = draws.random((n + 5, visible), dtype=np.float32), draws.permutation(n + 5)[:n]
    shapes = (visible, hidden), (visible,), (hidden,)
    W, a, b = (draws.standard_normal(shape, dtype=np.float32) for shape in shapes)
    # Terms of one sign add up to some 24. Biases make units of that which are neither on nor off.
    W = np.abs(W) * np.float32(60 / visible)
    before = [W, a - W.sum(axis=1) / 2, b - W.sum(axis=0) / 2]
    arrays = FusedArrays(
        parameters=tuple(cupy.asarray(parameter) for parameter in before),
        velocities=tuple(cupy.zeros(shape, dtype=np.float32) for shape in shapes),
        v=cupy.empty((2 * n, visible), dtype=np.float32),
        h=cupy.empty((2 * n, hidden), dtype=np.float32),
        states=cupy.empty((n, hidden), dtype=np.float32),
        visible_units="bernoulli",
        hidden_units="bernoulli",
        precision=precision,
    )
    step = CudaFused(cupy, arrays)
    words = (*address.key, *address.counter)
    found = step(cupy.asarray(X), cupy.asarray(rows), [words], PACE)
    states, means = arrays.states.get(), arrays.h.get()[:n]
    drawn = address.generator().random((n, hidden), dtype=np.float32)
    after, right_means, error = _step(before, X[rows].astype(np.float64), states, precision)
    pairs: list[tuple[Any, Any]] = [(states, drawn < means), (found.get() / error, 1.0)]
    pairs.append((means, right_means))
    pairs += [(array.get(), right) for array, right in zip(arrays.parameters, after, strict=True)]
    return float(np.max([np.abs(ours - right).max() for ours, right in pairs]))  # NaN if one is


def _product_in(precision: str) -> Callable[..., NDArray[np.float64]]:
    """Return the product in float64 of factors that are rounded as a precision says."""

    def product(x: Any, y: Any, *, out: Any = None) -> NDArray[np.float64]:
        x, y = map(np.float64, factors(x, y, precision=precision))
        return np.matmul(x, y, out=out)  # type: ignore[no-any-return]

    return product


def _step(before: list[Any], v0: Any, states: Any, precision: str) -> tuple[list[Any], Any, float]:
    """Return parameters after a step in float64 without velocity, hidden means, and its error."""
    W, a, b = (parameter.astype(np.float64) for parameter in before)
    product = _product_in(precision)
    h0 = affine(v0, W, b, multiply=product)
    v1 = affine(states, W.T, a, multiply=product)
    h1 = affine(v1, W, b, multiply=product)
    dW = product(v0.T, h0) - product(v1.T, h1)
    da, db = (v0 - v1).sum(axis=0), (h0 - h1).sum(axis=0)
    _, rate, decay, l1 = PACE
    W = W + rate * (dW / len(v0) - decay * W - l1 * np.sign(W))
    after = [W, a + rate * da / len(v0), b + rate * db / len(v0)]
    return after, h0, float(np.square(v1 - v0).sum())


TRIED_UNITS = ("tanh", "relu", "bernoulli")
# An optimizer, examples, and the sizes of a chain. In the first rows begin at multiples of 16
# bytes, which kernels load at once, and there are more examples and units than a tile has; in the
# second neither is so.
TRIED_STEPS = (
    (Rule("adam"), 70, (36, 76, 12, 68)),
    (Rule("sgd", 0.5, nesterov=True), 9, (5, 3, 2, 5)),
)
SHRINK, SIZE, FLOOR = 0.99, 0.05, 0.5
# Largest difference of parameters and moments near 1. Factors rounded in another way are off by
# more. A number that differs in its last bit may be rounded to its neighbour.
MOST_AWAY = {"float32": 1e-5, "tf32": 3e-5, "bfloat16": 3e-4}


def _tuning_difference(
    cupy: Any, precision: str, rule: Rule, n: int, sizes: Sequence[int]
) -> float:
    """Return the largest difference of a parameter or a moment after one step."""
    draws, shapes = np.random.default_rng(0), list(pairwise(sizes))
    count = sum((inputs + 1) * outputs for inputs, outputs in shapes)
    before = [draws.random(count, dtype=np.float32) for _ in range(3 if rule.name == "adam" else 2)]
    before[0] -= np.float32(0.5)
    x, target = (draws.random((n, width), dtype=np.float32) for width in (sizes[0], sizes[-1]))
    vectors = [cupy.asarray(vector) for vector in before]
    room = [[cupy.empty((n, width), dtype=np.float32) for width in sizes[1:]] for _ in range(2)]
    parameters, *moments = vectors
    chain, (activations, deltas) = _views(parameters, shapes), room
    arrays = TunedArrays(
        parameters,
        tuple(moments),
        chain,
        activations,
        deltas,
        units=TRIED_UNITS,
        loss="squared",
        precision=precision,
    )
    numbers = (SIZE, SHRINK, FLOOR)
    found = CudaTuning(cupy, arrays, rule)(cupy.asarray(x), cupy.asarray(target), numbers)
    after, error = _tuned(precision, rule, shapes, [np.float64(v) for v in before], x, target)
    off = [np.abs(ours.get() - right).max() for ours, right in zip(vectors, after, strict=True)]
    return float(np.max([*off, abs(found.get() / error - 1)]))  # NaN if one of them is


def _views(vector: Any, shapes: Sequence[tuple[int, int]]) -> list[tuple[Any, Any]]:
    views, at = [], 0
    for inputs, outputs in shapes:
        middle = at + inputs * outputs
        end = middle + outputs
        views.append((vector[at:middle].reshape(inputs, outputs), vector[middle:end]))
        at = end
    return views


def _tuned(
    precision: str,
    rule: Rule,
    shapes: Sequence[tuple[int, int]],
    vectors: list[NDArray[np.float64]],
    x: NDArray[np.float32],
    target: NDArray[np.float32],
) -> tuple[list[NDArray[np.float64]], float]:
    """Return parameters and moments after a step in float64, and its error."""
    product = _product_in(precision)
    chain, activations = _views(vectors[0], shapes), [np.float64(x)]
    for (weight, bias), units in zip(chain, TRIED_UNITS, strict=True):
        activations.append(affine(activations[-1], weight, bias, units, multiply=product))
    difference = activations[-1] - target
    delta, gradient = 2 / len(x) * difference, np.empty_like(vectors[0])
    for layer in reversed(range(len(shapes))):
        times_derivative(delta, activations[layer + 1], TRIED_UNITS[layer])
        dW, db = _views(gradient, shapes)[layer]
        dW[...], db[...] = product(activations[layer].T, delta), delta.sum(axis=0)
        delta = product(delta, chain[layer][0].T)
    for weight, _ in chain:
        weight *= SHRINK
    parameters, first, *second = vectors
    if second:
        first[:] = BETAS[0] * first + gradient
        second[0][:] = BETAS[1] * second[0] + gradient**2
        parameters -= SIZE * first / (np.sqrt(second[0]) + FLOOR)
    else:
        first[:] = rule.momentum * first - SIZE * gradient
        parameters += rule.momentum * first - SIZE * gradient
    return vectors, float(np.square(difference).sum())
