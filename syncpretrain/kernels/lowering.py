"""The memory in which the compiled forms of convolutions compute."""

from __future__ import annotations

from dataclasses import replace

from syncpretrain.shapes import ConvolutionShape

__all__ = ["scratch_size"]

# As in the C headers.
VECTOR = 16  # floats read or written at once, also behind the end of an array
WINDOWS = 24  # windows that are multiplied at once, at least about
IMAGES_SIZE = 2**14  # floats of images and lists


def scratch_size(shape: ConvolutionShape) -> int:
    """Return the numbers that the compiled forms compute in, however many examples there are."""
    shape = replace(shape, channels=shape.reads, groups=1)  # the groups take turns
    filters, padded = shape.filters, _padded(shape.filters)
    height, width = shape.output.height, shape.output.width
    size = shape.size + shape.pool - 1  # of the filters whose product is the mean over a block
    run = size * shape.channels
    image = _image(shape)
    halves, laid, codes = _rounded(shape, image)
    needed = [
        _parts(image, size * run * padded, height * width * padded, laid // 2, laid),
        _parts(
            *(image, size * run * filters, run * filters, size * filters * _padded(run)),
            *(height * width, height * width, codes, 0),
        ),
    ]
    if not shape.has_places:
        windows = min(1 + WINDOWS // width, height) * width
        means = size * run * filters if shape.pool > 1 else 0
        needed.append(_parts(image, windows * padded, means, size * run * padded, windows, halves))
        return max(needed)
    windows = shape.pool * shape.map_width
    windows *= min(1 + WINDOWS // windows, height)
    blocks = height * width
    images = max(IMAGES_SIZE // (image + 2 * blocks * filters), 1)
    needed += [
        _parts(image, windows * padded, 0, shape.fan_in * padded, windows, halves),
        _patches(shape, images, filters, images * blocks),
        _patches(shape, 1, shape.positions, filters),
    ]
    return max(needed)


def _padded(size: int) -> int:
    """Return the numbers of as many vectors as a size needs."""
    return -(-size // VECTOR) * VECTOR


def _parts(*sizes: int) -> int:
    """Return the numbers of parts that begin with a cache line, with room behind each."""
    return VECTOR + sum(_padded(size) + VECTOR for size in sizes)


def _image(shape: ConvolutionShape) -> int:
    """Return the numbers of a padded image."""
    padded = (shape.height + 2 * shape.pad) * (shape.width + 2 * shape.pad)
    return _padded(padded * shape.channels) + VECTOR


def _rounded(shape: ConvolutionShape, image: int) -> tuple[int, int, int]:
    """Return the numbers in whose place rounded ones are, two for one.

    Those of a padded image; of one with the next position beside each; of a code.
    """
    laid, codes = (image, (shape.hidden + 1) // 2) if shape.rounds_back else (0, 0)
    return image // 2 if shape.rounds else 0, laid, codes


def _patches(shape: ConvolutionShape, images: int, lists: int, most: int) -> int:
    """Return the numbers of lists of patches or filters, of at most ``most`` each."""
    sums = shape.filters * shape.size * _padded(shape.size * shape.channels)
    listed, row = lists * most, shape.output.width * shape.filters
    return _parts(images * _image(shape), sums, lists, listed, listed, shape.pool**2, row, row)
