"""The forms of convolutions on a GPU: lowering by an own kernel, and products of cuBLAS.

A kernel copies what the filters see of some examples into a matrix; its product with the weights
are the maps; one pass over the maps pools them, adds the bias and takes the units' means. On the
way back each number of an image gathers and adds up its part of the product: no atomic additions,
so the bits are the same every time.

The matrices in between are allocated anew each time, and nothing waits before they are freed: CuPy
hands freed memory on to the same stream only, where later work runs later. The ``scratch`` of the
equations is not needed.

The source is in ``convolutions.cu``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from syncpretrain.backends.cuda_source import CudaSource, is_vector, layout
from syncpretrain.kernels.activations import activate
from syncpretrain.kernels.arrays import blocks_in
from syncpretrain.kernels.convolution import groups_of, of_group
from syncpretrain.kernels.precision import PRECISIONS
from syncpretrain.shapes import ConvolutionShape

__all__ = ["CudaConvolutions"]

# Numbers of a lowered matrix or of maps, 128 MB of float32. A constant, and not the memory that is
# free: the gradient is added up chunk by chunk, so its bits depend on where chunks end.
COLUMNS_AT_ONCE = 2**25


class CudaConvolutions:
    """The forms, of the signatures of the equations in :mod:`syncpretrain.kernels`.

    Their arrays are float32 with contiguous rows.

    Parameters
    ----------
    cupy : module
        CuPy, or what stands in for it in a test.
    source : CudaSource
    """

    def __init__(self, cupy: Any, source: CudaSource) -> None:
        self._cupy, self._source = cupy, source

    def forms(self) -> dict[str, Callable[..., Any]]:
        """Return the forms by the names of their equations."""
        return {
            "convolve": self.convolve,
            "convolve_gradient": self.convolve_gradient,
            "convolve_back": self.convolve_back,
            "convolve_at": self.convolve_at,
            "visible_means": self.visible_means,
            "sum_channels": self.sum_channels,
            "block_means": self.block_means,
            "draw_blocks": self.draw_blocks,
            "block_sums": self.block_sums,
        }

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
        bias = _vector("bias", bias[begin:end], end - begin)
        for rows in _at_once(len(x), shape):
            maps = self._products(x[rows], weight, shape, filters)
            kept = places[rows] if places.size else None
            self._pooled(maps, bias, out[rows], kept, shape, units, begin)
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
        part = out[:, filters]
        if not len(x):
            part.fill(0)
        for rows in _at_once(len(x), shape):
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
        for rows in _at_once(len(delta), shape):
            maps = self._unpooled(delta[rows], places[rows] if places.size else None, shape)
            columns, some = self._columns(maps, weight, shape), out[rows]
            items = len(some) * (end - begin) * shape.height * shape.width
            args = (columns, some, _step("out", some), len(some), *_images(shape), begin, end)
            self._source.flat("raise_images", items, *args)

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
        for rows in _at_once(len(x), shape):
            at, code = places[rows], out[rows]
            maps = self._products(x[rows], weight, shape, filters)
            args = (maps, at, _step("places", at), code, _step("out", code), len(code))
            own = (*_code(shape), end - begin, shape.filters, begin)
            items = len(code) * (end - begin) * shape.output.height * shape.output.width
            self._source.flat("choose_places", items, *args, *own)

    def visible_means(self, x: Any, bias: Any, shape: ConvolutionShape, units: str) -> Any:
        """Replace inputs of visible units by their means, with a bias a channel."""
        run = shape.height * shape.width if shape.channels_first else 1
        bias = _vector("bias", bias, shape.channels)
        args = (x, _step("x", x), bias, *x.shape, run, shape.channels, self._number(units))
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
        args = (maps, _step("maps", maps), out, _step("out", out), len(maps))
        self._source.flat("block_sums", out.size, *args, *_code(shape), shape.filters)
        return out

    def _number(self, units: str) -> int:
        """Return the number of a kind of units in the source; that of linear ones for others."""
        return self._source.units.get(units, self._source.units["gaussian"])

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
        args = (x, _step("x", x), columns, len(x), *_images(shape))
        self._source.flat("lower_images", columns.size, *args)
        return columns

    def _pooled(
        self,
        maps: Any,
        bias: Any,
        out: Any,
        places: Any,
        shape: ConvolutionShape,
        units: str,
        begin: int,
    ) -> None:
        """Fill the codes of some filters, from number ``begin`` on, and their places."""
        kept = out if places is None else places
        arrays = (maps, bias, out, _step("out", out), kept, _step("places", kept), len(out))
        own = maps.shape[1]
        flags = (int(shape.has_places), int(places is not None), self._number(units))
        items = len(out) * own * shape.output.height * shape.output.width
        args = (*arrays, *_code(shape), own, shape.filters, begin, *flags)
        self._source.flat("pool_maps", items, *args)

    def _unpooled(self, delta: Any, places: Any, shape: ConvolutionShape) -> Any:
        """Return maps of shape (B P, F) with each number at its place, or spread evenly."""
        # Without pooling the deltas are the maps; callers read the result and never write to it.
        if shape.pool == 1 and delta.flags.c_contiguous:
            return delta.reshape(-1, shape.filters)
        size = (len(delta) * shape.positions, shape.filters)
        maps = self._cupy.empty(size, dtype=np.float32)
        kept, has_places = places, shape.has_places and places is not None
        # A kernel takes no missing array: it gets one that it does not read.
        if places is None:
            kept = delta
        args = (delta, _step("delta", delta), kept, _step("places", kept), maps, len(delta))
        flags = (shape.filters, int(has_places))
        self._source.flat("unpool_maps", maps.size, *args, *_code(shape), *flags)
        return maps

    def _block_units(
        self, maps: Any, noise: Any, out: Any, shape: ConvolutionShape, *, draws: int
    ) -> None:
        steps = (_step("maps", maps), _step("noise", noise), _step("out", out))
        arrays = (maps, steps[0], noise, steps[1], out, steps[2], len(maps))
        args = (*arrays, *_code(shape), shape.filters, draws)
        self._source.flat("block_units", len(maps) * shape.hidden, *args)


def _at_once(examples: int, shape: ConvolutionShape) -> list[slice]:
    """Return slices of examples, each with a lowered matrix and maps that are not too large."""
    step = max(1, COLUMNS_AT_ONCE // max(shape.lowered, shape.units))
    return blocks_in(slice(0, examples), step)


def _images(shape: ConvolutionShape) -> tuple[int, ...]:
    sizes = (shape.channels, shape.height, shape.width, shape.size, shape.pad)
    return (*sizes, int(shape.channels_first))


def _code(shape: ConvolutionShape) -> tuple[int, int, int]:
    return (shape.output.height, shape.output.width, shape.pool)


def _step(name: str, array: Any) -> int:
    """Return the elements from row to row of an array.

    Raises
    ------
    TypeError
        If it is not float32 with contiguous rows.
    """
    found = layout(array)
    if found is None or array.ndim != 2:
        raise TypeError(
            f"{name}: got {array.dtype} of shape {array.shape} and strides {array.strides},"
            " expected float32 with contiguous rows"
        )
    return found[2]


def _vector(name: str, array: Any, length: int) -> Any:
    if not is_vector(array, length):
        raise TypeError(
            f"{name}: got {array.dtype} of shape {array.shape}, expected {length} of float32"
        )
    return array
