"""The layers of a stack, dense and convolutional, as shapes and as text.

``1x28x28,conv:20x5,pool:2,500`` takes images of 1 channel, 28 rows and 28 columns: 20 filters of
5 x 5 with maps that are pooled by the maximum of 2 x 2, then 500 dense units. A convolution and the
pooling behind it are one layer.

Convolutions may be divided into columns, which see each other only at one middle layer and at the
top. Krizhevsky et al. 2012 trained two columns on two devices, which is the model parallelism of
Yadan et al. 2013. All columns read the image; the middle convolution and the dense layers read all
columns, every other convolution only its own. So a column is a group of filters in each of these
convolutions. The settings keep the text of the layers with their groups, since the groups change
the result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from syncpretrain.errors import SettingsError
from syncpretrain.shapes import POOLINGS, ConvolutionShape, DenseShape, ImageShape, LayerShape

MAX_UNITS = 1_000_000  # units of a layer; more is a slip of the keyboard
COUNT = "(0*[1-9][0-9]{0,17})"
CONV = re.compile(rf"conv:{COUNT}x{COUNT}(?::(same|[0-9]{{1,18}}))?(?:/{COUNT})?")
POOL = re.compile(rf"pool:{COUNT}(?::({'|'.join(POOLINGS)}))?")
IMAGE = re.compile(rf"{COUNT}x{COUNT}x{COUNT}")
AN_IMAGE = "CHANNELSxHEIGHTxWIDTH, such as 1x28x28 or 3x32x32"
SAME = "same"
MOST_LISTED = 16  # groups that a refusal names


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution, as ``layers=`` takes it: ``Conv(20, 5)`` stands for ``conv:20x5``.

    Attributes
    ----------
    filters, size : int
        Number of filters, and their height and width.
    pad : int or "same"
        Zeros around each image; "same" keeps the image's height and width.
    groups : int
        Number of groups of filters; each group reads its own part of the channels.
    """

    filters: int
    size: int
    pad: int | str = 0
    groups: int = 1

    def __str__(self) -> str:
        pad = "" if self.pad == 0 else f":{self.pad}"
        groups = "" if self.groups == 1 else f"/{self.groups}"
        return f"conv:{self.filters}x{self.size}{pad}{groups}"


@dataclass(frozen=True, slots=True)
class Pool:
    """Pooling of the convolution before it, as ``layers=`` takes it: ``Pool(2)`` is ``pool:2``.

    Attributes
    ----------
    size : int
        Height and width of the blocks, which do not overlap.
    pooling : str
        "max" or "mean", or "prob" for RBMs.
    """

    size: int
    pooling: str = "max"

    def __str__(self) -> str:
        return f"pool:{self.size}" + ("" if self.pooling == "max" else f":{self.pooling}")


def architecture_of(layers: Any) -> tuple[Any, str]:
    """Return the widths of a stack's layers, and the text of its convolutions.

    Parameters
    ----------
    layers : str, or sequence of int, str, ImageShape, Conv and Pool
        Any other value is returned as it is, for others to refuse.

    Returns
    -------
    layers : tuple of int
        Number of values in an example, then in the output of each layer.
    architecture : str
        Text of the layers in its standard form; empty for dense layers alone.

    Raises
    ------
    SettingsError
        If the text has another form, or a size does not fit the layer below.
    """
    if isinstance(layers, str):
        return _parsed(layers)
    texts = (str, ImageShape, Conv, Pool)
    if isinstance(layers, (list, tuple)) and any(isinstance(part, texts) for part in layers):
        return _parsed(",".join(map(str, layers)))
    return layers, ""


def in_columns(layers: Any, columns: Any) -> Any:
    """Return layers with their convolutions in columns.

    Parameters
    ----------
    layers : str, or sequence of int, str, ImageShape, Conv and Pool
    columns : int
        Number of columns; 1 returns the layers as they are.

    Raises
    ------
    SettingsError
        If there are fewer than two convolutions, one has groups already, or the number does not
        divide the channels and filters of a convolution in columns.
    """
    if isinstance(columns, bool) or not isinstance(columns, int) or columns < 1:
        raise SettingsError(f"columns: got {columns!r}, expected a whole number of at least 1")
    if columns == 1:
        return layers
    text = architecture_of(layers)[1]
    shapes = list(read_architecture(text)[1]) if text else []
    places = [i for i, shape in enumerate(shapes) if isinstance(shape, ConvolutionShape)]
    if len(places) < 2:
        raise SettingsError(
            f"columns: got {columns} with {len(places)} convolutions in the layers, expected two or"
            " more, such as 1x28x28,conv:20x5,pool:2,conv:50x5,pool:2,500; or leave it out"
        )
    for place in places[1:]:
        shape = shapes[place]
        assert isinstance(shape, ConvolutionShape)
        if shape.groups > 1:
            raise SettingsError(
                f"columns: got {columns} beside {layer_text(shape)}, which says itself what its"
                " filters read; leave one of the two out"
            )
        if place == places[(len(places) - 1) // 2]:
            continue
        if shape.channels % columns or shape.filters % columns:
            raise SettingsError(
                f"columns: got {columns} for {layer_text(shape)} on images of {shape.images},"
                f" expected a number that divides its {shape.channels} channels and its"
                f" {shape.filters} filters"
            )
        shapes[place] = replace(shape, groups=columns)
    return text_of(shapes)


@lru_cache(maxsize=64)
def shapes_of(layers: tuple[int, ...], architecture: str) -> tuple[LayerShape, ...]:
    """Return the shape of each layer of checked settings."""
    if architecture:
        return read_architecture(architecture)[1]
    return tuple(DenseShape(below, above) for below, above in pairwise(layers))


def text_of(shapes: Sequence[LayerShape]) -> str:
    """Return the text of layers in its standard form."""
    first = shapes[0]
    width = first.images if isinstance(first, ConvolutionShape) else first.visible
    return ",".join([str(width), *map(layer_text, shapes)])


def check_architecture(layers: tuple[int, ...], architecture: str) -> None:
    """Refuse a text of other widths, or not in its standard form.

    Raises
    ------
    SettingsError
    """
    if not architecture:
        return
    widths, text = _parsed(architecture)
    if widths != layers:
        raise SettingsError(
            f"architecture: got {architecture}, whose layers are {_listed(widths)}, with layers"
            f" {_listed(layers)}; leave one of the two out"
        )
    if text != architecture:
        raise SettingsError(
            f"architecture: got {architecture}, expected {text or 'nothing'}, the form that is"
            " kept; or name it layers"
        )


def check_width(shapes: Sequence[LayerShape], values: int) -> None:
    """Refuse examples with another number of values than the lowest layer reads.

    Raises
    ------
    SettingsError
        Naming both numbers, and the first number that ``layers`` should have.
    """
    first = shapes[0]
    if values == first.visible:
        return
    if isinstance(first, DenseShape):
        raise SettingsError(
            f"layers: the first number is {first.visible}, but an example has {values} values;"
            f" begin with {values}"
        )
    side, rest = math.isqrt(values // first.channels), values % first.channels
    fits = not rest and side**2 * first.channels == values
    raise SettingsError(
        f"layers: images of {first.images} have {first.visible} values, but an example has"
        f" {values}; begin with"
        + (f" {ImageShape(first.channels, side, side)}" if fits else f" images of {values} values")
    )


def layer_text(shape: LayerShape) -> str:
    """Return the text of a layer, such as ``conv:20x5,pool:2`` or ``500``."""
    if isinstance(shape, DenseShape):
        return str(shape.hidden)
    conv = Conv(shape.filters, shape.size, shape.pad, shape.groups)
    return f"{conv},{Pool(shape.pool, shape.pooling)}" if shape.pool > 1 else str(conv)


def read_architecture(text: str) -> tuple[int, tuple[LayerShape, ...]]:
    """Return the number of values in an example, and the shapes of the layers.

    Raises
    ------
    SettingsError
        If the text has another form, or a size does not fit the layer below.
    """
    reader = _Reader()
    for part in text.split(","):
        reader.read(part.strip())
    for shape in reader.shapes:
        if isinstance(shape, ConvolutionShape) and shape.hidden > MAX_UNITS:
            raise _refused(
                f"{layer_text(shape)} of {shape.hidden} units, expected at"
                f" most {MAX_UNITS} a layer; take fewer filters, or pool larger blocks"
            )
    return reader.width, tuple(reader.shapes)


class _Reader:
    """Reader of a text's parts, from the lowest layer up.

    ``width`` is the number of values in an example, ``images`` the shape of the images that the
    next layer reads, or None if it reads no images.
    """

    def __init__(self) -> None:
        self.shapes: list[LayerShape] = []
        self.images: ImageShape | None = None
        self.width = 0

    def read(self, part: str) -> None:
        """Read one more part."""
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
            raise _refused(f"{part}, expected {AN_IMAGE}")
        if self.width:
            raise _refused(f"{part} behind other layers, expected the shape of the images first")
        self.images = ImageShape(*map(int, found.groups()))
        self.width = self.images.values
        if self.width > MAX_UNITS:
            raise _refused(f"{part} of {self.width} numbers, expected at most {MAX_UNITS}")

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
            raise _refused(
                f"{part}, expected conv:FILTERSxSIZE of at least 1, such as conv:20x5,"
                " behind it :PAD or :same for zeros around the images, and /2 for two groups"
            )
        images = self.images
        if images is None:
            raise self._no_images(part)
        filters, size = map(int, found.groups()[:2])
        if filters > MAX_UNITS:
            raise _refused(f"{filters} filters in {part}, expected at most {MAX_UNITS}")
        pad = _pad(part, size, found.group(3))
        most = min(images.height, images.width) + 2 * pad
        if size > most:
            raise _refused(
                f"{part} on images of {images}"
                + (f" with {pad} zeros around them" if pad else "")
                + f", expected filters of at most {most} x {most}"
            )
        groups = int(found.group(4) or 1)
        _check_groups(part, groups, filters, images)
        own = asdict(images) | {"filters": filters, "size": size, "pad": pad, "groups": groups}
        shape = ConvolutionShape(**own, channels_first=not self.shapes)
        if shape.positions > MAX_UNITS:  # nearly all of them in the zeros around the image
            raise _refused(
                f"{part} with maps of {shape.map_height}x{shape.map_width}, expected at"
                f" most {MAX_UNITS} places; take a smaller pad"
            )
        self.shapes.append(shape)
        self.images = shape.output

    def _no_images(self, part: str) -> SettingsError:
        if not self.shapes:
            before = f"{self.width} before {part}" if self.width else f"{part} first"
            return _refused(f"{before}, expected the shape of the images before it, {AN_IMAGE}")
        return _refused(
            f"{part} behind {self.shapes[-1].hidden} dense units, expected all"
            " convolutions before the dense layers"
        )

    def _pooling(self, part: str) -> None:
        found = POOL.fullmatch(part)
        if found is None:
            raise _refused(
                f"{part}, expected pool:SIZE of at least 1, such as pool:2, or"
                " pool:2:mean for the mean in place of the maximum, or pool:2:prob of RBMs"
            )
        below = self.shapes[-1] if self.shapes else None
        if not isinstance(below, ConvolutionShape):
            raise _refused(
                f"{part} without a convolution right before it, expected it behind one,"
                f" such as conv:20x5,{part}"
            )
        if below.pool != 1:
            raise _refused(f"{part} behind pool:{below.pool}, expected one pooling a convolution")
        pool = int(found.group(1))
        common = math.gcd(below.map_height, below.map_width)
        if common % pool:
            fitting = [str(size) for size in range(2, common + 1) if common % size == 0]
            raise _refused(
                f"{part} on maps of {below.map_height}x{below.map_width}, expected a"
                f" size that divides both: {' or '.join(fitting) or '1 alone'}; or another filter"
                " or pad"
            )
        pooling = found.group(2) if pool > 1 and found.group(2) else "max"
        self.shapes[-1] = shape = replace(below, pool=pool, pooling=pooling)
        self.images = shape.output


def _check_groups(part: str, groups: int, filters: int, images: ImageShape) -> None:
    """Refuse groups of filters of different sizes, or with different numbers of channels."""
    common = math.gcd(filters, images.channels)
    if common % groups:
        counts = range(1, min(common, MOST_LISTED) + 1)
        fitting = " or ".join(str(count) for count in counts if common % count == 0)
        raise _refused(
            f"{part} on images of {images}, expected a number of groups that divides"
            f" {filters} filters and {images.channels} channels, such as {fitting}"
        )


def _pad(part: str, size: int, text: str | None) -> int:
    """Return the number of zeros around an image."""
    if text == SAME and size % 2 == 0:
        raise _refused(
            f"{part}, expected an odd size with same, or the number of zeros on each"
            " side in its place"
        )
    pad = size // 2 if text == SAME else int(text or 0)
    if pad >= size:
        raise _refused(
            f"{part}, expected a pad below the size {size}; filters that see nothing"
            " but zeros learn nothing"
        )
    return pad


def _units(part: str) -> int:
    """Return the number of units that a part of the text stands for."""
    try:
        units = int(part)
    except ValueError:
        raise _refused(
            f"{part!r}, expected a whole number, conv:FILTERSxSIZE or pool:SIZE,"
            f" the first of all a number or {AN_IMAGE}"
        ) from None
    if units < 1:
        raise _refused(f"{units}, expected a whole number of at least 1")
    return units


def _refused(got: str) -> SettingsError:
    return SettingsError(f"layers: got {got}")


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _parsed(text: str) -> tuple[tuple[int, ...], str]:
    """Return the widths of a text, and its standard form."""
    width, shapes = read_architecture(text)
    has_convolutions = any(isinstance(shape, ConvolutionShape) for shape in shapes)
    return (width, *(shape.hidden for shape in shapes)), text_of(shapes) if has_convolutions else ""
