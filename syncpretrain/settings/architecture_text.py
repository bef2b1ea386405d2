"""The reading of the text that stands for the layers of a stack."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from syncpretrain.errors import SettingsError
from syncpretrain.shapes import POOLINGS, ConvolutionShape, DenseShape, ImageShape, LayerShape

__all__ = ["MAX_UNITS", "layer_text", "read_architecture"]

MAX_UNITS = 1_000_000  # of a layer; more is a slip of the keyboard
COUNT = "(0*[1-9][0-9]{0,17})"
CONV = re.compile(rf"conv:{COUNT}x{COUNT}(?::(same|[0-9]{{1,18}}))?(?:/{COUNT})?")
POOL = re.compile(rf"pool:{COUNT}(?::({'|'.join(POOLINGS)}))?")
IMAGE = re.compile(rf"{COUNT}x{COUNT}x{COUNT}")
AN_IMAGE = "CHANNELSxHEIGHTxWIDTH, such as 1x28x28 or 3x32x32"
SAME = "same"
MOST_LISTED = 16  # groups that a refusal names


def layer_text(shape: LayerShape) -> str:
    """Return the text of a layer, such as ``conv:20x5,pool:2`` or ``500``."""
    if isinstance(shape, DenseShape):
        return str(shape.hidden)
    pad = f":{shape.pad}" if shape.pad else ""
    kind = "" if shape.pooling == "max" else f":{shape.pooling}"
    pool = f",pool:{shape.pool}{kind}" if shape.pool > 1 else ""
    groups = f"/{shape.groups}" if shape.groups > 1 else ""
    return f"conv:{shape.filters}x{shape.size}{pad}{groups}{pool}"


def read_architecture(text: str) -> tuple[int, tuple[LayerShape, ...]]:
    """Return the numbers of an example, and the shapes of the layers.

    Raises
    ------
    SettingsError
        If the text has another form, or a size does not fit what is below.
    """
    reader = _Reader()
    for part in text.split(","):
        reader.read(part.strip())
    for shape in reader.shapes:
        if isinstance(shape, ConvolutionShape) and shape.hidden > MAX_UNITS:
            raise SettingsError(
                f"layers: got {layer_text(shape)} of {shape.hidden} units, expected at"
                f" most {MAX_UNITS} a layer; take fewer filters, or pool larger blocks"
            )
    return reader.width, tuple(reader.shapes)


class _Reader:
    """What was read so far of a text's parts, from the lowest layer up.

    ``width`` is of an example. ``images`` is the shape of what the next layer reads, None if it
    is no images.
    """

    def __init__(self) -> None:
        self.shapes: list[LayerShape] = []
        self.images: ImageShape | None = None
        self.width = 0

    def read(self, part: str) -> None:
        """Take one part more."""
        if part.startswith("conv"):
            self._convolution(part)
        elif part.startswith("pool"):
            self._pooling(part)
        elif re.fullmatch(r"[0-9]+x[0-9x]*", part):
            self._image(part)
        else:
            self._dense(part)

    def _image(self, part: str) -> None:
        found = IMAGE.fullmatch(part)
        if found is None:
            raise SettingsError(f"layers: got {part}, expected {AN_IMAGE}")
        if self.width:
            raise SettingsError(
                f"layers: got {part} behind other layers, expected the shape of the images first"
            )
        self.images = ImageShape(*map(int, found.groups()))
        self.width = self.images.values
        if self.width > MAX_UNITS:
            raise SettingsError(
                f"layers: got {part} of {self.width} numbers, expected at most {MAX_UNITS}"
            )

    def _dense(self, part: str) -> None:
        units = _units(part)
        if self.width:
            below = self.shapes[-1].hidden if self.shapes else self.width
            self.shapes.append(DenseShape(below, units))
        else:
            self.width = units
        self.images = None

    def _convolution(self, part: str) -> None:
        found = CONV.fullmatch(part)
        if found is None:
            raise SettingsError(
                f"layers: got {part}, expected conv:FILTERSxSIZE of at least 1, such as conv:20x5,"
                " behind it :PAD or :same for zeros around the images, and /2 for two groups"
            )
        images = self.images
        if images is None:
            raise SettingsError(self._no_images(part))
        filters, size = map(int, found.groups()[:2])
        if filters > MAX_UNITS:
            raise SettingsError(
                f"layers: got {filters} filters in {part}, expected at most {MAX_UNITS}"
            )
        pad = _pad(part, size, found.group(3))
        most = min(images.height, images.width) + 2 * pad
        if size > most:
            raise SettingsError(
                f"layers: got {part} on images of {images}"
                + (f" with {pad} zeros around them" if pad else "")
                + f", expected filters of at most {most} x {most}"
            )
        groups = int(found.group(4) or 1)
        _check_groups(part, groups, filters, images)
        shape = ConvolutionShape(
            images.channels,
            images.height,
            images.width,
            filters,
            size,
            pad,
            channels_first=not self.shapes,
            groups=groups,
        )
        if shape.positions > MAX_UNITS:  # of zeros almost all
            raise SettingsError(
                f"layers: got {part} with maps of {shape.map_height}x{shape.map_width}, expected at"
                f" most {MAX_UNITS} places; take a smaller pad"
            )
        self.shapes.append(shape)
        self.images = shape.output

    def _no_images(self, part: str) -> str:
        if not self.shapes:
            before = f"{self.width} before {part}" if self.width else f"{part} first"
            return f"layers: got {before}, expected the shape of the images before it, {AN_IMAGE}"
        return (
            f"layers: got {part} behind {self.shapes[-1].hidden} dense units, expected all"
            " convolutions before the dense layers"
        )

    def _pooling(self, part: str) -> None:
        found = POOL.fullmatch(part)
        if found is None:
            raise SettingsError(
                f"layers: got {part}, expected pool:SIZE of at least 1, such as pool:2, or"
                " pool:2:mean for the mean in place of the maximum, or pool:2:prob of RBMs"
            )
        below = self.shapes[-1] if self.shapes else None
        if not isinstance(below, ConvolutionShape):
            raise SettingsError(
                f"layers: got {part} without a convolution right before it, expected it behind one,"
                f" such as conv:20x5,{part}"
            )
        if below.pool != 1:
            raise SettingsError(
                f"layers: got {part} behind pool:{below.pool}, expected one pooling a convolution"
            )
        pool = int(found.group(1))
        common = math.gcd(below.map_height, below.map_width)
        if common % pool:
            fitting = [str(size) for size in range(2, common + 1) if common % size == 0]
            raise SettingsError(
                f"layers: got {part} on maps of {below.map_height}x{below.map_width}, expected a"
                f" size that divides both: {' or '.join(fitting) or '1 alone'}; or another filter"
                " or pad"
            )
        pooling = found.group(2) if pool > 1 and found.group(2) else "max"
        self.shapes[-1] = shape = replace(below, pool=pool, pooling=pooling)
        self.images = shape.output


def _check_groups(part: str, groups: int, filters: int, images: ImageShape) -> None:
    """Refuse groups of filters that are not of one size, or do not read as many channels."""
    common = math.gcd(filters, images.channels)
    if common % groups:
        counts = range(1, min(common, MOST_LISTED) + 1)
        fitting = " or ".join(str(count) for count in counts if common % count == 0)
        raise SettingsError(
            f"layers: got {part} on images of {images}, expected a number of groups that divides"
            f" {filters} filters and {images.channels} channels, such as {fitting}"
        )


def _pad(part: str, size: int, text: str | None) -> int:
    """Return the zeros around an image."""
    if text == SAME and size % 2 == 0:
        raise SettingsError(
            f"layers: got {part}, expected an odd size with same, or the number of zeros on each"
            " side in its place"
        )
    pad = size // 2 if text == SAME else int(text or 0)
    if pad >= size:
        raise SettingsError(
            f"layers: got {part}, expected a pad below the size {size}; filters that see nothing"
            " but zeros learn nothing"
        )
    return pad


def _units(part: str) -> int:
    """Return a number of units."""
    try:
        units = int(part)
    except ValueError:
        raise SettingsError(
            f"layers: got {part!r}, expected a whole number, conv:FILTERSxSIZE or pool:SIZE,"
            f" the first of all a number or {AN_IMAGE}"
        ) from None
    if units < 1:
        raise SettingsError(f"layers: got {units}, expected a whole number of at least 1")
    return units
