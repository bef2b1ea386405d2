"""Convolutions by definition: as the dense matrix that a filter at every position makes."""

import numpy as np

from syncpretrain.shapes import ConvolutionShape


def matrix_of(shape: ConvolutionShape, weight: np.ndarray) -> np.ndarray:
    """Return the weights of shape (visible, positions * filters) of every hidden unit, float64."""
    matrix = np.zeros((shape.visible, shape.map_height, shape.map_width, shape.filters))
    for visible, row, column, place in connections(shape):
        matrix[visible, row, column] += weight[place]
    return matrix.reshape(shape.visible, -1)


def filters_of(shape: ConvolutionShape, matrix: np.ndarray) -> np.ndarray:
    """Return the sums of a matrix over all positions of each weight: ``matrix_of`` transposed."""
    by_place = matrix.reshape(shape.visible, shape.map_height, shape.map_width, shape.filters)
    weight = np.zeros((shape.size, shape.size, shape.channels, shape.filters))
    for visible, row, column, place in connections(shape):
        weight[place] += by_place[visible, row, column]
    return weight


def connections(shape: ConvolutionShape):
    """Yield number of a visible unit, position of a map, and place of the weight between them."""
    for row, column in np.ndindex(shape.map_height, shape.map_width):
        for i, j, channel in np.ndindex(shape.size, shape.size, shape.channels):
            y, x = row + i - shape.pad, column + j - shape.pad
            if 0 <= y < shape.height and 0 <= x < shape.width:
                yield number_of(shape, channel, y, x), row, column, (i, j, channel)


def number_of(shape: ConvolutionShape, channel: int, y: int, x: int) -> int:
    if shape.channels_first:
        return (channel * shape.height + y) * shape.width + x
    return (y * shape.width + x) * shape.channels + channel


def channel_of(shape: ConvolutionShape) -> np.ndarray:
    """Return the channel of each visible unit."""
    channels = np.empty(shape.visible, dtype=int)
    for channel, y, x in np.ndindex(shape.channels, shape.height, shape.width):
        channels[number_of(shape, channel, y, x)] = channel
    return channels


def pooled(shape: ConvolutionShape, maps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return codes without bias, and by how much each number of a map counts for its own."""
    maps = maps.reshape(-1, shape.map_height, shape.map_width, shape.filters)
    code = np.empty((len(maps), shape.output.height, shape.output.width, shape.filters))
    counts = np.zeros_like(maps)
    for n, row, column, k in np.ndindex(code.shape):
        rows, columns = (slice(shape.pool * i, shape.pool * (i + 1)) for i in (row, column))
        block = n, rows, columns, k
        if shape.pooling == "mean":
            counts[block] = 1 / shape.pool**2
        else:
            counts[block].flat[maps[block].argmax()] = 1  # the first of equal ones
        code[n, row, column, k] = (maps[block] * counts[block]).sum()
    return code.reshape(len(maps), -1), counts.reshape(len(maps), -1)


def unpooled(shape: ConvolutionShape, code: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return maps with each number of a code where it came from."""
    parts = code.reshape(-1, shape.output.height, shape.output.width, shape.filters)
    return np.kron(parts, np.ones((1, shape.pool, shape.pool, 1))).reshape(counts.shape) * counts
