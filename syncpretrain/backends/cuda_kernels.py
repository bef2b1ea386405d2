"""The fused forms of the equations on a GPU, one launch each, and a generator of its draws.

Each form has the signature of the equation of its name in :mod:`syncpretrain.kernels`, and refuses,
having done nothing, arrays that its kernel does not take: others than float32 with contiguous rows.
The differences: scratch that the equation overwrites is often left unchanged here, and errors are
zero-dimensional device arrays, not synchronized. Sums are float64 on the device, in an order of
their own, the same every time. The optimizers' steps are NumPy's result bit for bit, but for
numbers below 2^-126, which become 0. The forms of dense products are in
:mod:`syncpretrain.backends.cublas`.

A convolution is several launches, and refuses arrays that its kernels do not take. A kernel copies
what the filters see of some examples into a matrix; its product with the weights are the maps; one
pass over the maps pools them, adds the bias and takes the units' means. On the way back each number
of an image gathers and adds up its part of the product: no atomic additions, so the bits are the
same every time. The matrices in between are allocated anew each time, and nothing waits before they
are freed: CuPy hands freed memory on to the same stream only, where later work runs later.

Guarantees: a form queues its launches on the current stream and waits for nothing; threads may call
forms at the same time, each on a stream of its own. Assumption: the caller orders streams that
share arrays, by events or by waiting.

Several GPUs of one process read memory of each other. A sum has one order, whatever the number of
GPUs. The collectives of NCCL do not keep it, and NCCL warns of deadlocks where one process records
graphs for several GPUs. A kernel here reads what the memory of other devices holds when it runs:
the caller's events have to order it behind what fills that memory, and what writes there next
behind it. It has run on one GPU, and never between two.

The source is in ``kernels.cu``, ``errors.cu``, ``convolutions.cu`` and ``peers.cu``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np

from syncpretrain.backends import cuda_source as cuda
from syncpretrain.backends.cublas import Cublas, CudaProducts
from syncpretrain.backends.cuda_source import THREADS, TILE, CudaForms, CudaSource
from syncpretrain.errors import SettingsError
from syncpretrain.kernels.activations import activate
from syncpretrain.kernels.arrays import blocks_in
from syncpretrain.kernels.convolution import groups_of, of_group
from syncpretrain.kernels.optimizers import adam_numbers
from syncpretrain.kernels.precision import PRECISIONS
from syncpretrain.rng import Address
from syncpretrain.shapes import ConvolutionShape
from syncpretrain.units.kinds import kind_of

# Numbers of a lowered matrix or of maps, 128 MB of float32. A constant, and not the memory that is
# free: the gradient is added up chunk by chunk, so its bits depend on where chunks end.
COLUMNS_AT_ONCE = 2**25


class CudaConvolutions(CudaForms):
    """Forms of the equations in :mod:`syncpretrain.kernels.convolution`.

    Their arrays are float32 with contiguous rows.
    """

    def convolve(
        self,
        x: Any,
        weight: Any,
        bias: Any,
        out: Any,
        places: Any,
        scratch: Any,
        shape: ConvolutionShape,
        units: str,
        filters: slice = slice(None),
    ) -> None:
        """Fill ``out`` with the means of the units of some filters."""
        begin, end, _ = filters.indices(shape.filters)
        bias = _checked_vector("bias", bias[begin:end], end - begin)
        for rows in _examples_at_once(len(x), shape):
            maps, code = self._products(x[rows], weight, shape, filters), out[rows]
            kept = places[rows] if places.size else code  # a kernel takes no missing array
            arrays = (maps, bias, code, _row_step("out", code), kept, _row_step("places", kept))
            own = (*_code_sizes(shape), end - begin, shape.filters, begin)
            flags = (int(shape.has_places), int(places.size > 0), self._number(units))
            items = len(code) * (end - begin) * shape.output.height * shape.output.width
            self._source.flat("pool_maps", items, *arrays, len(code), *own, *flags)
        # Units that the source lacks were linear so far: see _number.
        if units not in self._source.units:
            activate(out.reshape(-1, shape.filters)[:, begin:end], units)

    def convolve_gradient(
        self,
        x: Any,
        delta: Any,
        places: Any,
        out: Any,
        scratch: Any,
        shape: ConvolutionShape,
        filters: slice = slice(None),
    ) -> None:
        """Fill ``out`` with the gradient of some filters' weights."""
        if not len(x):
            out[:, filters].fill(0)
        for rows in _examples_at_once(len(x), shape):
            maps = self._unpooled(delta[rows], places[rows] if places.size else None, shape)
            seen = self._lowered(x[rows], shape)
            multiply = PRECISIONS[shape.precision_back].multiply
            for own, read in groups_of(shape, filters):
                product = multiply(of_group(seen, read, shape).T, maps[:, own])
                # The first chunk overwrites: ``out`` holds the gradient of the step before.
                out[:, own] = product if rows.start == 0 else out[:, own] + product

    def convolve_back(
        self,
        delta: Any,
        places: Any,
        weight: Any,
        out: Any,
        scratch: Any,
        shape: ConvolutionShape,
        channels: slice = slice(None),
    ) -> None:
        """Fill the numbers of some channels of ``out``."""
        begin, end, _ = channels.indices(shape.channels)
        for rows in _examples_at_once(len(delta), shape):
            maps = self._unpooled(delta[rows], places[rows] if places.size else None, shape)
            columns, some = self._columns(maps, weight, shape), out[rows]
            items = len(some) * (end - begin) * shape.height * shape.width
            args = (columns, some, _row_step("out", some), len(some), *_image_sizes(shape))
            self._source.flat("raise_images", items, *args, begin, end)

    def convolve_at(
        self,
        x: Any,
        weight: Any,
        places: Any,
        out: Any,
        scratch: Any,
        shape: ConvolutionShape,
        filters: slice = slice(None),
    ) -> None:
        """Fill ``out`` with x W of some filters at the places of a code."""
        # Without a maximum nothing is chosen: what remains is a convolution with linear units.
        if not shape.has_places:
            bias, none = self._cupy.zeros(shape.filters, dtype=np.float32), places[:0]
            self.convolve(x, weight, bias, out, none, scratch, shape, "gaussian", filters)
            return
        begin, end, _ = filters.indices(shape.filters)
        for rows in _examples_at_once(len(x), shape):
            at, code = places[rows], out[rows]
            maps = self._products(x[rows], weight, shape, filters)
            args = (maps, at, _row_step("places", at), code, _row_step("out", code), len(code))
            own = (*_code_sizes(shape), end - begin, shape.filters, begin)
            items = len(code) * (end - begin) * shape.output.height * shape.output.width
            self._source.flat("choose_places", items, *args, *own)

    def visible_means(self, x: Any, bias: Any, shape: ConvolutionShape, units: str) -> Any:
        """Replace inputs of visible units by their means, with a bias a channel."""
        run = shape.height * shape.width if shape.channels_first else 1
        bias = _checked_vector("bias", bias, shape.channels)
        args = (x, _row_step("x", x), bias, *x.shape, run, shape.channels, self._number(units))
        self._source.flat("channel_means", x.size, *args)
        return x if units in self._source.units else activate(x, units)

    def sum_channels(self, x: Any, shape: ConvolutionShape, *, out: Any) -> Any:
        """Fill ``out`` with the sums of images over examples and positions."""
        if shape.channels_first:
            return np.sum(x.reshape(len(x), shape.channels, -1), axis=(0, 2), out=out)
        return np.sum(x.reshape(-1, shape.channels), axis=0, out=out)

    def block_means(self, maps: Any, shape: ConvolutionShape) -> Any:
        """Replace the inputs of binary units by the probabilities that they are on."""
        self._block_units(maps, maps, maps, shape, draws=0)
        return maps

    def draw_blocks(self, maps: Any, noise: Any, shape: ConvolutionShape, *, out: Any) -> Any:
        """Draw states into ``out``, and replace inputs by probabilities; ``noise`` is unchanged."""
        self._block_units(maps, noise, out, shape, draws=1)
        return out

    def block_sums(self, maps: Any, shape: ConvolutionShape, *, out: Any) -> Any:
        """Fill ``out`` with the sum of each block of maps."""
        args = (maps, _row_step("maps", maps), out, _row_step("out", out), len(maps))
        self._source.flat("block_sums", out.size, *args, *_code_sizes(shape), shape.filters)
        return out

    def _number(self, units: str) -> int:
        """Return the number of a kind of units in the source; that of linear ones for others."""
        return super()._number(units if units in self._source.units else "gaussian")

    def _products(
        self, x: Any, weight: Any, shape: ConvolutionShape, filters: slice = slice(None)
    ) -> Any:
        """Return the maps of some filters, of shape (B P, filters)."""
        seen, multiply = self._lowered(x, shape), PRECISIONS[shape.precision].multiply
        if shape.groups == 1:
            return multiply(seen, weight[:, filters])
        begin, end, _ = filters.indices(shape.filters)
        maps = self._cupy.empty((len(seen), end - begin), dtype=np.float32)
        for own, read in groups_of(shape, filters):
            some = slice(own.start - begin, own.stop - begin)
            maps[:, some] = multiply(of_group(seen, read, shape), weight[:, own])
        return maps

    def _columns(self, maps: Any, weight: Any, shape: ConvolutionShape) -> Any:
        """Return what maps say of what the filters see, of shape (B P, k k C)."""
        multiply = PRECISIONS[shape.precision_back].multiply
        if shape.groups == 1:
            return multiply(maps, weight.T)
        columns = self._cupy.empty((len(maps), shape.size**2, shape.channels), dtype=np.float32)
        for own, read in groups_of(shape):
            part = multiply(maps[:, own], weight[:, own].T)
            columns[:, :, read] = part.reshape(len(maps), shape.size**2, shape.reads)
        return columns.reshape(len(maps), -1)

    def _lowered(self, x: Any, shape: ConvolutionShape) -> Any:
        """Return what all filters see, of shape (B P, k k C)."""
        size = (len(x) * shape.positions, shape.size**2 * shape.channels)
        columns = self._cupy.empty(size, dtype=np.float32)
        args = (x, _row_step("x", x), columns, len(x), *_image_sizes(shape))
        self._source.flat("lower_images", columns.size, *args)
        return columns

    def _unpooled(self, delta: Any, places: Any, shape: ConvolutionShape) -> Any:
        """Return maps of shape (B P, F) with each number at its place, or spread evenly."""
        # Without pooling the deltas are the maps; callers read the result and never write to it.
        if shape.pool == 1 and delta.flags.c_contiguous:
            return delta.reshape(-1, shape.filters)
        maps = self._cupy.empty((len(delta) * shape.positions, shape.filters), dtype=np.float32)
        kept = delta if places is None else places  # a kernel takes no missing array
        args = (delta, _row_step("delta", delta), kept, _row_step("places", kept), maps, len(delta))
        flags = (shape.filters, int(shape.has_places and places is not None))
        self._source.flat("unpool_maps", maps.size, *args, *_code_sizes(shape), *flags)
        return maps

    def _block_units(
        self, maps: Any, noise: Any, out: Any, shape: ConvolutionShape, *, draws: int
    ) -> None:
        steps = (_row_step("maps", maps), _row_step("noise", noise), _row_step("out", out))
        arrays = (maps, steps[0], noise, steps[1], out, steps[2], len(maps))
        args = (*arrays, *_code_sizes(shape), shape.filters, draws)
        self._source.flat("block_units", len(maps) * shape.hidden, *args)


def _examples_at_once(examples: int, shape: ConvolutionShape) -> list[slice]:
    """Return slices of examples, each with a lowered matrix and maps that are not too large."""
    return blocks_in(slice(0, examples), max(1, COLUMNS_AT_ONCE // max(shape.lowered, shape.units)))


def _image_sizes(shape: ConvolutionShape) -> tuple[int, ...]:
    sizes = (shape.channels, shape.height, shape.width, shape.size, shape.pad)
    return (*sizes, int(shape.channels_first))


def _code_sizes(shape: ConvolutionShape) -> tuple[int, int, int]:
    return (shape.output.height, shape.output.width, shape.pool)


def _row_step(name: str, array: Any) -> int:
    """Return the elements from row to row of an array.

    Raises
    ------
    TypeError
        If it is not float32 with contiguous rows.
    """
    return _checked_layout(name, array, (2,))[2]


def _checked_layout(name: str, array: Any, axes: tuple[int, ...] = (1, 2)) -> tuple[int, ...]:
    found = cuda.layout(array)
    if found is None or array.ndim not in axes:
        raise TypeError(
            f"{name}: got {array.dtype} of shape {array.shape} and strides {array.strides},"
            " expected float32 with contiguous rows"
        )
    return found


def _checked_vector(name: str, array: Any, length: int) -> Any:
    if not cuda.is_vector(array, length):
        raise TypeError(
            f"{name}: got {array.dtype} of shape {array.shape}, expected {length} of float32"
        )
    return array


class CudaSteps(CudaForms):
    """Forms of the steps in :mod:`syncpretrain.kernels.optimizers`."""

    # A graph keeps a launch's arguments as they were recorded. So rates that change from step to
    # step are passed twice: as arguments, and in ``source.numbers``, a device array that is filled
    # before each launch of the graph and null outside of one; where it is there, kernels read it
    # instead.

    def momentum_step(self, parameter: Any, gradient: Any, velocity: Any, **rates: float) -> None:
        """Ascend: velocity = momentum velocity + rate (gradient - decay), then add it."""
        rows, columns, ldp, ldg, ldv = cuda.fitted(parameter, gradient, velocity)
        args = (parameter, ldp, gradient, ldg, velocity, ldv, rows, columns)
        self._source.flat("momentum_step", parameter.size, *args, *cuda.rates_of(**rates))

    def momentum_steps(
        self, parameters: Any, gradients: Any, velocities: Any, *, weights: int, **rates: float
    ) -> None:
        """Ascend with flat vectors; their first ``weights`` numbers decay."""
        n, vectors = len(parameters), (parameters, gradients, velocities)
        cuda.require_vectors(n, *vectors)
        self._source.flat("momentum_steps", n, *vectors, n, weights, *cuda.rates_of(**rates))

    def shrink(self, weights: Any, factor: float) -> None:
        """Multiply contiguous weights by a factor, in place."""
        cuda.require(weights.flags.c_contiguous, cuda.is_vector(weights.reshape(-1), weights.size))
        args = (weights, weights.size, np.float32(factor), self._source.numbers)
        self._source.flat("shrink", weights.size, *args)

    def sgd_step(
        self,
        *vectors: Any,
        learning_rate: float,
        scratch: Any = None,
        momentum: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        """Take one step of gradient descent with momentum, in place; ``scratch`` is not needed."""
        n = len(vectors[0])
        cuda.require_vectors(n, *(vectors if momentum else vectors[:2]))
        rates = (np.float32(learning_rate), np.float32(momentum))
        others = (n, *rates, int(nesterov), self._source.numbers)
        self._source.flat("sgd_step", n, *vectors, *others)

    def adam_step(self, *vectors: Any, scratch: Any = None, **numbers: Any) -> None:
        """Take one step of Adam in place; ``scratch`` is not needed."""
        n = len(vectors[0])
        cuda.require_vectors(n, *vectors)
        rates = (np.float32(number) for number in adam_numbers(**numbers))
        self._source.flat("adam_step", n, *vectors, n, *rates, self._source.numbers)


SOFTMAX_THREADS = 128  # SOFTMAX_THREADS of kernels.cu, which fixes the order of a row's sum
# As many blocks as the last of them has threads: each thread then adds at most one block's sum.
SUM_BLOCKS = 256


class DeviceDraws:
    """The numbers at an address, in float32 arrays on a device.

    Uniform numbers equal NumPy's. Normal numbers are the device's own: each pair is made of one
    word of the generator (Box and Muller 1958), where NumPy's ziggurat takes a varying number of
    words, one after another. See :meth:`syncpretrain.backends.base.Backend.generator`.

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


class CudaErrors(CudaForms):
    """Forms of the errors.

    An error is a device array of shape (), not synchronized; ``float()`` of it waits for the
    device, which a training loop does once in a while only.
    """

    def __init__(self, cupy: Any, source: CudaSource) -> None:
        super().__init__(cupy, source)
        # By device and stream. Never forgotten: recorded graphs add up there.
        self._rooms: dict[tuple[int, int], tuple[Any, Any]] = {}

    def squared_error(self, x: Any, y: Any, *, out: Any) -> Any:
        """Return |y - x|^2; leave y - x in ``out``."""
        rows, columns, ldx, ldy, ldo = cuda.fitted(x, y, out)
        args = (x, ldx, y, ldy, out, ldo, rows, columns)
        return self._summed("squared_error", x.size, (THREADS,), *args)

    def means_and_error(self, y: Any, bias: Any, units: str, x: Any, *, out: Any) -> Any:
        """Replace inputs y by means, leave y - x in ``out``, and return its square."""
        rows, columns, ldy, ldx, ldo = cuda.fitted(y, x, out)
        cuda.require(cuda.is_vector(bias, columns))
        args = (y, ldy, bias, x, ldx, out, ldo, rows, columns, self._number(units))
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
        (rows, columns, ldx, ldy, ldo), is_squared = cuda.fitted(x, y, out), loss == "squared"
        number = self._number(units if is_squared else "gaussian")  # slope 1
        if sums is None:
            sums = self._cupy.empty(columns, dtype=np.float32)
        cuda.require(x.ndim == 2, cuda.is_vector(sums, columns))
        scale = np.float32((2 if is_squared else 1) / rows)
        args = (x, ldx, y, ldy, out, ldo, rows, columns, number, scale, np.float32(share), sums)
        return self._summed("output_delta", columns * TILE[1], TILE, *args)

    def derivative_and_sums(
        self, delta: Any, a: Any, units: str = "bernoulli", *, sums: Any = None
    ) -> None:
        """Multiply ``delta`` by the derivative at the means ``a``, which are left unchanged."""
        rows, columns, ldd, lda = cuda.fitted(delta, a)
        cuda.require(delta.ndim == 2, sums is not None and cuda.is_vector(sums, columns))
        args = (delta, ldd, a, lda, rows, columns, self._number(units), sums)
        self._source.launch("derivative_and_sums", (-(-columns // TILE[0]),), TILE, *args)

    def count_errors(self, x: Any, y: Any) -> Any:
        """Count the rows in which x and y have their largest value at different places."""
        rows, columns, ldx, ldy = cuda.fitted(x, y)
        cuda.require(x.ndim == 2, columns > 0)
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
        runtime = self._cupy.cuda
        place = runtime.Device().id, runtime.get_current_stream().ptr
        if place not in self._rooms:
            partial = self._cupy.empty(SUM_BLOCKS, dtype=np.float64)
            self._rooms[place] = partial, self._cupy.zeros(1, dtype=np.uint32)
        return self._rooms[place]


MOST_LEAVES = 2**16  # LEVELS of peers.cu is 16: one register for each level of the tree
# cudaErrorPeerAccessAlreadyEnabled: CuPy enables access at its first copy between two devices, and
# so did any earlier run of this process.
ALREADY_ENABLED = 704


@dataclass(frozen=True, slots=True, eq=False)
class PeerVectors:
    """Vectors of one device or several, as kernels of one of them read them."""

    vectors: tuple[Any, ...]
    table: Any  # addresses of the vectors, on the device that reads them


def enable_access(cupy: Any, devices: Sequence[int]) -> None:
    """Let each of some devices read the memory of the others.

    Raises
    ------
    SettingsError
        If one cannot.
    """
    # Access has a direction, from the current device to another one: so both orders of each pair.
    runtime = cupy.cuda.runtime
    for device, peer in permutations(devices, 2):
        if not runtime.deviceCanAccessPeer(device, peer):
            raise SettingsError(
                f"replicas: got {len(devices)} GPUs for a layer, but GPU {device} cannot read the"
                f" memory of GPU {peer}. Take replicas 1 with the same number of shards, whose"
                " result is the same"
            )
        with cupy.cuda.Device(device):
            try:
                runtime.deviceEnablePeerAccess(peer)
            except runtime.CUDARuntimeError as error:
                if error.status != ALREADY_ENABLED:
                    raise


class CudaPeers(CudaForms):
    """Forms of what the devices of one layer do together."""

    def tree_steps(
        self,
        parameters: Any,
        gradients: Any,
        velocities: Any,
        *,
        part: slice,
        weights: int,
        **rates: float,
    ) -> None:
        """Move a part of flat vectors along the sum of gradients, of this device or others."""
        cuda.require(isinstance(gradients, PeerVectors))
        shards = len(gradients.vectors)
        cuda.require_vectors(len(parameters), parameters, velocities, *gradients.vectors)
        if shards > MOST_LEAVES:
            raise ValueError(f"shards: got {shards}, expected at most {MOST_LEAVES} on a GPU")
        length = part.stop - part.start
        args = (parameters, gradients.table, shards, velocities, part.start, length, weights)
        self._source.flat("tree_steps", length, *args, *cuda.rates_of(**rates))

    def sum_in_order(self, numbers: Any) -> Any:
        """Return the sum as a device array of shape (), not synchronized."""
        cuda.require(numbers.dtype == np.float64, numbers.ndim == 1, numbers.flags.c_contiguous)
        # One thread, so that the order is the vector's; the numbers are few, one a shard.
        total = self._cupy.empty((), dtype=np.float64)
        self._source.launch("sum_in_order", (1,), (1,), total, numbers, len(numbers))
        return total


def _words(address: Address) -> tuple[np.uint64, ...]:
    return tuple(np.uint64(word) for word in (*address.key, *address.counter))


class CudaUnits(CudaForms):
    """Forms of the means of units, of their states, and of the differences of both phases."""

    def means(self, x: Any, bias: Any, units: str) -> Any:
        """Replace the inputs x without their bias by the units' means, in place."""
        rows, columns, ld = cuda.fitted(x)
        cuda.require(cuda.is_vector(bias, columns))
        if kind_of(units).is_exclusive:
            if x.size:
                grid, block = cuda.grid_of(rows, 1), (SOFTMAX_THREADS,)
                self._source.launch("softmax_means", grid, block, x, ld, bias, rows, columns)
        else:
            self._source.flat("unit_means", x.size, x, ld, bias, rows, columns, self._number(units))
        return x

    def times_derivative(self, delta: Any, a: Any, units: str = "bernoulli") -> None:
        """Multiply ``delta`` by the derivative of the units at their means ``a``."""
        if kind_of(units).is_linear:
            return
        (rows, columns, ldd, lda), number = cuda.fitted(delta, a), self._number(units)
        self._source.flat("times_derivative", delta.size, delta, ldd, a, lda, rows, columns, number)

    def sample_states(
        self, x: Any, bias: Any, units: str, address: Address, *, noise: Any, out: Any
    ) -> Any:
        """Draw states into ``out`` at an address; replace inputs x without their bias by means.

        ``noise`` is not needed. The normal numbers of units that are not binary are the device's
        own; see :class:`syncpretrain.backends.cuda_kernels.DeviceDraws`.
        """
        (rows, columns, ldx, ldo), kind = cuda.fitted(x, out), kind_of(units)
        number = self._number(units)
        cuda.require(kind.noise is not None, cuda.is_vector(bias, columns))
        name, own = ("draw_bernoulli", ()) if kind.is_binary else ("draw_noisy", (number,))
        # A thread makes 4 states, of half a block of the generator: 8 a thread would leave some of
        # the multiprocessors without work at usual sizes.
        args = (x, ldx, bias, out, ldo, rows, columns, *own, *_words(address), self._source.now)
        self._source.flat(name, -(-x.size // 4), *args)
        return out

    def phase_differences(self, v: Any, h: Any, *, da: Any, db: Any, examples: int) -> None:
        """Fill the ascent direction of both biases, and prepare [v0; v1] for that of the weights.

        v of shape (2B, V), h of shape (2B, H). The sums run in another order than NumPy's.
        """
        self._differences("phase_differences", v, h, (), da, db, examples)

    def means_and_differences(
        self, v: Any, h: Any, bias: Any, units: str, *, da: Any, db: Any, examples: int
    ) -> None:
        """Do the same where h1 are inputs without bias, which become means."""
        cuda.require(cuda.is_vector(bias, h.shape[-1]))
        means = (bias, self._number(units))
        self._differences("means_and_differences", v, h, means, da, db, examples)

    def _differences(
        self, name: str, v: Any, h: Any, means: tuple[Any, ...], da: Any, db: Any, examples: int
    ) -> None:
        """Launch a kernel of differences; ``means`` are its bias and number of units, or empty."""
        (rows, visible, ldv), (_, hidden, ldh) = cuda.fitted(v), cuda.fitted(h)
        cuda.require(len(v) == len(h), v.ndim == 2)
        cuda.require(cuda.is_vector(da, visible), cuda.is_vector(db, hidden))
        grid = (-(-visible // TILE[0]) - (-hidden // TILE[0]),)
        scale, divisor = np.float32(1 / examples), np.float32(examples)
        args = (v, ldv, visible, h, ldh, hidden, *means, da, db, rows // 2, scale, divisor)
        self._source.launch(name, grid, TILE, *args)


class CudaKernels:
    """The forms of all equations: dense layers, steps and convolutions.

    Parameters
    ----------
    cupy : module
        CuPy, or what stands in for it in a test.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy, self.source, self.blas = cupy, CudaSource(cupy), Cublas(cupy)
        kinds = (CudaUnits, CudaErrors, CudaSteps, CudaConvolutions, CudaPeers)
        self._parts: list[CudaForms] = [kind(cupy, self.source) for kind in kinds]
        self._parts.append(CudaProducts(cupy, self.source, self.blas))
        self._flat = self.source.flat

    def forms(self) -> dict[str, Callable[..., Any]]:
        """Return the forms by the names of their equations."""
        return {name: form for part in self._parts for name, form in part.forms().items()}

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
        rows, columns, ld = _checked_layout("out", out)
        if out.size:
            # A block of Philox has 8 numbers; the first and the last one may be needed in part.
            blocks = -(-(skip + out.size) // 8) - skip // 8
            words = (np.uint64(skip), *_words(address))
            self._flat(f"fill_{kind}", blocks, out, ld, rows, columns, *words, self.source.now)

    def gather(self, X: Any, rows: Any, out: Any, *, are_bytes: bool) -> bool:
        """Copy rows of X, numbered by int64 on the device; return whether that was done.

        X is float32, or bytes (uint8) that are divided by 255.
        """
        if X.ndim != 2 or rows.dtype != np.int64 or not rows.flags.c_contiguous:
            return False
        # The first row alone: X may have more elements than 31 bits count, and this kernel, unlike
        # others, computes addresses in 64.
        of_x, of_out = cuda.layout(X[:1]), cuda.layout(out)
        is_fit = are_bytes if of_x is None else not are_bytes
        if not is_fit or of_out is None or out.shape != (len(rows), X.shape[1]):
            return False
        # With the last row's number the kernel clips, as np.take does with mode "clip".
        step = () if of_x is None else of_x[2:]
        args = (X, *step, len(X) - 1, rows, out, of_out[2], len(rows), X.shape[1])
        self._flat("gather_bytes" if are_bytes else "gather_rows", out.size, *args, self.source.now)
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
