"""Convolutions and pooling: the three products of a step, their pieces, and their scratch memory.

Symbols: B examples; an image has C channels, a filter k x k weights a channel; F filters make maps
of P positions each, which pooling makes Q. The weights are a matrix of shape (k k C, F) with rows
ordered by place in the filter, then by channel. Maps are arrays of shape (B P, F). In G groups
the first F / G filters read the first C / G channels, and so on: the matrix has k k C / G rows.
The code of a layer has shape (B, Q F), ordered by position, then by filter. Its units read the
pooled maps: f(pool(x W) + b), which for the maximum is the pooled f(x W + b).

As in all networks that are called so, the filters are not turned round: a convolution here is
a cross-correlation. All functions take float32 or float64, one kind at a time.

Probabilistic max pooling (Lee et al. 2009) lets at most one unit of a block be on. With the inputs
I of the units of a block, unit k is on with probability exp(I_k) / (1 + sum_j exp(I_j)), and none
with 1 over that sum. The pooled unit is on if one of them is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from syncpretrain.kernels.activations import activate, means
from syncpretrain.kernels.arrays import LONG_BLOCK, Array, blocks_in, slices_of
from syncpretrain.kernels.dispatch import accelerated
from syncpretrain.kernels.native import extension, shape_numbers
from syncpretrain.kernels.precision import factors
from syncpretrain.shapes import ConvolutionShape


@accelerated
def convolve(
    x: Array,
    weight: Array,
    bias: Array,
    out: Array,
    places: Array,
    scratch: Array,
    shape: ConvolutionShape,
    units: str,
    filters: slice = slice(None),
) -> None:
    """Fill ``out`` with the means of the units of some filters, f(pool(x W) + b).

    Parameters
    ----------
    x : ndarray of shape (B, visible units)
    weight : ndarray of shape (k k C, F)
    bias : ndarray of shape (F,)
    out : ndarray of shape (B, Q F)
    places : ndarray of shape (B, Q F), or of no size
        As of :func:`pool`.
    scratch : ndarray of shape (scratch_size(shape),)
        Scratch memory of the compiled form; overwritten.
    shape : ConvolutionShape
    units : str
    filters : slice
        The filters that are computed; what belongs to others is left as it is.
    """
    maps = _products(x, weight, shape, filters)
    if not maps.size:
        return
    part = replace(shape, filters=maps.shape[1], groups=1)
    pooled = np.empty((len(x), part.hidden), dtype=out.dtype)
    found = np.empty(pooled.shape if places.size else 0, dtype=out.dtype)
    pool(maps, part, out=pooled, places=found)
    means(pooled.reshape(-1, part.filters), bias[filters], units)
    _by_filter(out, shape)[..., filters] = _by_filter(pooled, part)
    if places.size:
        _by_filter(places, shape)[..., filters] = _by_filter(found, part)


@accelerated
def convolve_gradient(
    x: Array,
    delta: Array,
    places: Array,
    out: Array,
    scratch: Array,
    shape: ConvolutionShape,
    filters: slice = slice(None),
) -> None:
    """Fill ``out`` of shape (k k C, F) with the gradient of some filters' weights.

    Parameters
    ----------
    x : ndarray of shape (B, visible units)
        The input of the layer.
    delta : ndarray of shape (B, Q F)
        The derivative of the loss with respect to the pooled inputs of the units.
    places, scratch, shape, filters
        As of :func:`convolve`. Without places the numbers are spread evenly.
    """
    maps = unpool(delta, places, shape)
    maps, seen = factors(maps, lowered(x, shape), precision=shape.precision_back)
    for own, read in groups_of(shape, filters):
        out[:, own] = np.matmul(of_group(seen, read, shape).T, maps[:, own])


@accelerated
@np.errstate(invalid="ignore")  # see activations.product
def convolve_back(
    delta: Array,
    places: Array,
    weight: Array,
    out: Array,
    scratch: Array,
    shape: ConvolutionShape,
    channels: slice = slice(None),
) -> None:
    """Fill the numbers of some channels of ``out`` of shape (B, visible units).

    With the derivative of the loss with respect to what the layer read; or, of codes, with
    the inputs of the visible units without their bias.

    Parameters
    ----------
    delta : ndarray of shape (B, Q F)
    places, weight, scratch, shape
        As of :func:`convolve`. Without places the numbers are spread evenly.
    channels : slice
    """
    maps = unpool(delta, places, shape)
    maps, weight = factors(maps, weight, precision=shape.precision_back)
    back = np.empty((len(delta), shape.visible), dtype=out.dtype)
    parts = [np.matmul(maps[:, own], weight[:, own].T) for own, _ in groups_of(shape)]
    by_place = [part.reshape(len(maps), shape.size**2, shape.reads) for part in parts]
    columns = by_place[0] if len(by_place) == 1 else np.concatenate(by_place, axis=2)
    raised(columns, shape, out=back)
    _images(out, shape)[..., channels] = _images(back, shape)[..., channels]


@accelerated
def convolve_at(
    x: Array,
    weight: Array,
    places: Array,
    out: Array,
    scratch: Array,
    shape: ConvolutionShape,
    filters: slice = slice(None),
) -> None:
    """Fill ``out`` with x W at the places of a code: the transposed of ``convolve_back``.

    With a decoder's delta the result is the derivative of the loss by the code.

    Parameters
    ----------
    x : ndarray of shape (B, visible units)
    weight : ndarray of shape (k k C, F)
    places : ndarray of shape (B, Q F)
        As :func:`syncpretrain.kernels.convolution.pool` fills them.
    out : ndarray of shape (B, Q F)
    scratch : ndarray of shape (n,)
        As for ``convolve``, for this shape and for the shape without pooling; overwritten.
    shape : ConvolutionShape
        With ``mean``, the means of the blocks are taken.
    filters : slice
        The filters that are computed; what belongs to others is left as it is.
    """
    none, no_bias = np.empty(0, dtype=x.dtype), np.zeros(shape.filters, dtype=x.dtype)
    if not shape.has_places:
        convolve(x, weight, no_bias, out, none, scratch, shape, "gaussian", filters)
        return
    whole = shape.unpooled
    step = max(1, LONG_BLOCK // whole.hidden)
    maps = np.empty((step, whole.hidden), dtype=x.dtype)
    for some in blocks_in(slice(0, len(x)), step):
        part = maps[: len(x[some])]
        convolve(x[some], weight, no_bias, part, none, scratch, whole, "gaussian", filters)
        _choose(part, places[some], shape, filters, out=out[some])


@accelerated
def visible_means(x: Array, bias: Array, shape: ConvolutionShape, units: str) -> Array:
    """Replace inputs of visible units by their means, with a bias a channel; return them."""
    images = _images(x, shape)
    np.add(images, bias, out=images)
    return activate(x, units)


@accelerated
def sum_channels(x: Array, shape: ConvolutionShape, *, out: Array) -> Array:
    """Fill ``out`` of shape (C,) with the sums of images over examples and positions."""
    np.sum(_images(x, shape), axis=(0, 1, 2), out=out)
    return out


def lowered(x: Array, shape: ConvolutionShape) -> Array:
    """Return what the filters see: an array of shape (B P, k k C), a row a position.

    ``x`` of shape (B, visible units) holds images.
    """
    images = np.pad(_images(x, shape), ((0, 0), (shape.pad,) * 2, (shape.pad,) * 2, (0, 0)))
    views = np.lib.stride_tricks.sliding_window_view(images, (shape.size,) * 2, axis=(1, 2))
    # (B, rows, columns, C, k, k) to (B, rows, columns, k, k, C)
    lying = np.ascontiguousarray(np.moveaxis(views, 3, -1))
    return lying.reshape(-1, shape.size**2 * shape.channels)


def raised(columns: Array, shape: ConvolutionShape, *, out: Array) -> Array:
    """Add up what each filter says of a number of the images: the transposed of :func:`lowered`.

    ``columns`` has shape (B P, k k C), ``out`` of shape (B, visible units) is filled.
    """
    pad, size, rows, width = shape.pad, shape.size, shape.map_height, shape.map_width
    parts = columns.reshape(-1, rows, width, size, size, shape.channels)
    around = len(parts), shape.height + 2 * pad, shape.width + 2 * pad, shape.channels
    padded = np.zeros(around, dtype=columns.dtype)
    for i in range(size):
        for j in range(size):
            padded[:, i : i + rows, j : j + width] += parts[:, :, :, i, j]
    np.copyto(_images(out, shape), padded[:, pad : pad + shape.height, pad : pad + shape.width])
    return out


def pool(maps: Array, shape: ConvolutionShape, *, out: Array, places: Array) -> Array:
    """Fill ``out`` with the largest number of each block of a map, or with their mean.

    Parameters
    ----------
    maps : ndarray of shape (B P, F)
    shape : ConvolutionShape
    out : ndarray of shape (B, Q F)
    places : ndarray of shape (B, Q F), or of no size
        Filled with the place of the largest number in its block, row by row, the first of equals;
        with 0 where there is no choice.
    """
    blocks = _blocks(maps, shape)
    if not shape.has_places:
        places.fill(0)
        np.mean(blocks, axis=-1, out=out.reshape(blocks.shape[:-1]))
        return out
    if places.size:
        largest = blocks.argmax(axis=-1)
        np.copyto(places.reshape(largest.shape), largest)
    np.max(blocks, axis=-1, out=out.reshape(blocks.shape[:-1]))
    return out


def unpool(delta: Array, places: Array, shape: ConvolutionShape) -> Array:
    """Return maps of shape (B P, F) with each number of ``delta`` at its place, zeros elsewhere.

    The transposed of :func:`pool`: with ``mean``, and where no places are kept, each number is
    spread evenly over its block.
    """
    pooled, is_spread = _pooled(shape, len(delta)), not (shape.has_places and places.size)
    maps = np.empty((len(delta), shape.positions * shape.filters), dtype=delta.dtype)
    parts, numbers = _block_places(maps, shape), delta.reshape(pooled)
    if is_spread:
        numbers = numbers / delta.dtype.type(len(parts))
    for place, part in enumerate(parts):
        np.multiply(numbers, is_spread or places.reshape(pooled) == place, out=part)
    return maps.reshape(-1, shape.filters)


@accelerated
def block_means(maps: Array, shape: ConvolutionShape) -> Array:
    """Replace the inputs of binary units by the probabilities that they are on; return them.

    ``maps`` of shape (B, P F) holds inputs with bias.
    """
    parts = _block_places(maps, shape)
    largest = np.zeros_like(parts[0])  # the input of a block in which no unit is on
    for part in parts:
        np.maximum(largest, part, out=largest)
    total = np.exp(-largest)
    for part in parts:
        part -= largest
        np.exp(part, out=part)
        total += part
    for part in parts:
        part /= total
    return maps


@accelerated
def draw_blocks(maps: Array, noise: Array, shape: ConvolutionShape, *, out: Array) -> Array:
    """Draw states into ``out``, and replace inputs as :func:`block_means` does.

    ``noise`` of shape (B, Q F) holds uniform draws, one a block, and is used up. The probabilities
    of a block's units cut [0, 1) into shares, place after place: the unit is on that has the draw
    in its share, and none if the draw lies behind all.
    """
    block_means(maps, shape)
    left = noise.reshape(len(maps), shape.output.height, shape.output.width, shape.filters)
    for mean, state in zip(_block_places(maps, shape), _block_places(out, shape), strict=True):
        np.copyto(state, (left >= 0) & (left < mean))
        left -= mean
    return out


@accelerated
def block_sums(maps: Array, shape: ConvolutionShape, *, out: Array) -> Array:
    """Fill ``out`` of shape (B, Q F) with the sum of each block of ``maps`` of shape (B, P F).

    The sum of means is the probability that one unit of the block is on.
    """
    sums = out.reshape(len(maps), shape.output.height, shape.output.width, shape.filters)
    sums.fill(0)
    for part in _block_places(maps, shape):
        sums += part
    return out


def groups_of(shape: ConvolutionShape, filters: slice = slice(None)) -> list[tuple[slice, slice]]:
    """Return each group's part of some filters, and the channels that they read."""
    if shape.groups == 1:
        return [(filters, slice(None))]
    begin, end, _ = filters.indices(shape.filters)
    groups = zip(
        slices_of(shape.filters, shape.groups), slices_of(shape.channels, shape.groups), strict=True
    )
    own = [(max(begin, f.start), min(end, f.stop), read) for f, read in groups]
    found = [(slice(start, stop), read) for start, stop, read in own if start < stop]
    return found or [(slice(begin, begin), slice(0, shape.reads))]


def of_group(seen: Array, read: slice, shape: ConvolutionShape) -> Array:
    """Return what the filters of a group see of what is :func:`lowered`."""
    if shape.groups == 1:
        return seen
    parts: Array = seen.reshape(len(seen), shape.size**2, shape.channels)[:, :, read]
    return parts.reshape(len(seen), shape.fan_in)


def _products(x: Array, weight: Array, shape: ConvolutionShape, filters: slice) -> Array:
    """Return the maps of some filters, before pooling."""
    seen, weight = factors(lowered(x, shape), weight, precision=shape.precision)
    groups = groups_of(shape, filters)
    parts = [np.matmul(of_group(seen, read, shape), weight[:, own]) for own, read in groups]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _choose(
    maps: Array, places: Array, shape: ConvolutionShape, filters: slice, *, out: Array
) -> None:
    """Fill ``out`` with the number at the place of each block of the maps of some filters."""
    code, at = (x.reshape(_pooled(shape, len(out)))[..., filters] for x in (out, places))
    code.fill(0)
    for place, part in enumerate(_block_places(maps, shape)):
        chosen = (at == place).astype(maps.dtype)
        chosen *= part[..., filters]
        code += chosen


def _images(x: Array, shape: ConvolutionShape) -> Array:
    """Return rows as images of shape (B, height, width, C), a view."""
    channels, height, width = shape.channels, shape.height, shape.width
    first = (channels, height, width) if shape.channels_first else (height, width, channels)
    images: Array = x.reshape(len(x), *first)
    return np.moveaxis(images, 1, 3) if shape.channels_first else images


def _by_filter(out: Array, shape: ConvolutionShape) -> Array:
    return out.reshape(len(out), shape.hidden // shape.filters, shape.filters)


def _pooled(shape: ConvolutionShape, examples: int) -> tuple[int, int, int, int]:
    return examples, shape.output.height, shape.output.width, shape.filters


def _blocks(maps: Array, shape: ConvolutionShape) -> Array:
    """Return maps as an array of shape (B, rows, columns, F, block)."""
    size, rows, width = shape.pool, shape.output.height, shape.output.width
    parts = maps.reshape(-1, rows, size, width, size, shape.filters).transpose(0, 1, 3, 5, 2, 4)
    blocks: Array = parts.reshape(-1, rows, width, shape.filters, size**2)
    return blocks


def _block_places(maps: Array, shape: ConvolutionShape) -> list[Array]:
    """Return for each place in a block its numbers, of shape (B, rows, columns, F), a view."""
    size, rows, columns = shape.pool, shape.output.height, shape.output.width
    blocks = maps.reshape(len(maps), rows, size, columns, size, shape.filters)
    return [blocks[:, :, i, :, j] for i in range(size) for j in range(size)]


def scratch_size(shape: ConvolutionShape) -> int:
    """Return the numbers that the compiled forms compute in, however many examples there are.

    NumPy's forms need none, where nothing is compiled or a shape is too large to be.
    """
    return 1 if extension is None else max(1, extension.scratch_size(shape_numbers(shape)))
