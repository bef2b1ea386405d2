"""Images: a folder of them, with subfolders as classes, and the check of examples' shape.

A convolution reads images of one shape, channel by channel. Examples with other axes are refused.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.array_formats import check_memory, reason_of
from syncpretrain.data.dataset import Rows
from syncpretrain.errors import DataError, needed
from syncpretrain.shapes import ImageShape

SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
WHITE = 65_535  # largest pixel of 16 bits
DIM_BITS = 15  # if all pixels of 16 bits fit into these, the camera is likely to have had fewer
OF_16_BITS = ("PNG", "PPM")  # Pillow keeps their 16 bits in a mode of 32
ORIENTATION = 274  # the number of this entry in EXIF
LISTED = 8  # classes in a notice
TRANSPARENCY = ("LA", "La", "PA", "RGBA", "RGBa")
COLOUR_CHANNELS = (3, 4)  # channels of an image in colour
COLOURS_LAST = (  # format with a path and a shape
    "{}: got images of shape {} with their colours last, which pictures and convolutions read"
    " channel by channel; save X.transpose(0, 3, 1, 2)"
)


class _Picture(NamedTuple):
    """Pixels of shape (height, width), or with colours (..., 3), and the properties of their file.

    Grey pixels of 16 bits are uint16, all others uint8. ``narrowed`` says that the file has colours
    of 16 bits: Pillow reads 8 of them.
    """

    pixels: NDArray[Any]
    transparent: bool
    pages: int
    narrowed: bool


def is_image_folder(path: Path) -> bool:
    """Return whether a path is a folder with images in it, or in its subfolders.

    Raises
    ------
    DataError
        If a subfolder cannot be read.
    """
    try:
        return path.is_dir() and bool(_images(path))
    except PermissionError as error:
        raise DataError(f"{error.filename}: cannot be read: {reason_of(error)}") from error
    except OSError:
        return False


def read_image_folder(path: Path) -> Rows:
    """Read the images of a folder, in the order of their names.

    An image is turned as its EXIF says, and transparent pixels are read as on white. One channel
    where all images are grey, else red, green and blue. The values are bytes; if a grey image has
    16 bits, they are float32, shares of white. So the other images do not change a picture's
    meaning.

    Returns
    -------
    Rows
        With notices of the shape, the classes, and the files that were left out; the labels are
        the classes, if there are any.

    Raises
    ------
    DataError
        If the package Pillow is missing, an image cannot be read, or is of another size.
    """
    text = "a folder of images needs the package pillow, which is not installed; install it, or"
    needed("PIL.Image", DataError(f"{path}: {text} save the images as an array in .npy"))
    files = _images(path)
    shape, deep, said = _survey(path, files)
    check_memory(path, (4 if deep else 1) * len(files) * int(np.prod(shape)))
    X = np.empty((len(files), *shape), dtype=np.float32 if deep else np.uint8)
    for image, file in zip(X, files, strict=True):
        pixels = _read(file).pixels
        if deep:
            pixels = pixels / np.float32(np.iinfo(pixels.dtype).max)
        image[...] = pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    notice = f"{path}: {len(files):,} images of {'x'.join(map(str, shape))}"
    within = [file.parent.name for file in files if file.parent != path]
    if not within:
        return Rows(X, notices=(notice, *said))
    if len(within) < len(files):
        raise DataError(
            f"{path}: got images beside subfolders of images; put each into the folder of its class"
        )
    return Rows(X, np.array(within), (f"{notice} in {_counted(within)}", *said))


def check_image_shape(shape: Sequence[int], images: ImageShape | None, name: str) -> None:
    """Refuse examples if their axes differ from the axes of the images that the layers read.

    Parameters
    ----------
    shape : sequence of int
        Shape of one example. Axes of length 1 do not count, and neighbouring axes may be joined:
        flat examples fit all images of as many values.
    images : ImageShape or None
        Images that the layers read; None for layers that read no images, which take all examples.
    name : str
        Name of the examples in errors.

    Raises
    ------
    DataError
        Not for flat examples: the layers refuse a wrong number of values themselves.
    """
    axes = [number for number in shape if number != 1]
    if images is None or len(axes) < 2 or 0 in axes:
        return
    fits = math.prod(axes) == images.values
    if fits and _ends(axes) <= _ends((images.channels, images.height, images.width)):
        return
    anyway = ", or save X.reshape(len(X), -1) if its rows are such images all the same"
    raise DataError(
        f"{name}: got examples of {'x'.join(map(str, shape))}, expected images of {images}, as the"
        f" layers read them; {_advice(shape, axes, images)}{anyway if fits else ''}"
    )


def check_axes(shape: tuple[int, ...], images: ImageShape | None, path: Path) -> tuple[str, ...]:
    """Check the axes of a file's examples by :func:`check_image_shape`.

    Return a notice if they are images with their colours in the last axis.
    """
    check_image_shape(shape[1:], images, str(path))
    if len(shape) != 4 or shape[-1] not in COLOUR_CHANNELS or shape[1] in (1, *COLOUR_CHANNELS):
        return ()
    return (COLOURS_LAST.format(path, shape),)


def _advice(shape: Sequence[int], axes: Sequence[int], images: ImageShape) -> str:
    """Return advice for the user; ``axes`` leaves out axes of length 1."""
    if len(axes) > 3:
        return "save one image a row"
    if len(shape) == 3:
        turned = ImageShape(shape[2], *shape[:2])
        if turned == images:
            return "save X.transpose(0, 3, 1, 2)"
        if shape[2] in COLOUR_CHANNELS and shape[0] not in (1, *COLOUR_CHANNELS):
            return f"save X.transpose(0, 3, 1, 2), for layers that begin with {turned}"
    return f"layers of these begin with {ImageShape(*(1,) * (3 - len(axes)), *axes)}"


def _ends(axes: Sequence[int]) -> set[int]:
    """Return the numbers of values, counted from the last one, at which an axis ends."""
    return set(accumulate(reversed(axes), lambda a, b: a * b, initial=1))


def _counted(classes: Sequence[str]) -> str:
    """Return how many classes there are, and how many images each has."""
    counts = sorted(Counter(classes).items())
    shown = ", ".join(f"{name} {count:,}" for name, count in counts[:LISTED])
    more = ", ..." if len(counts) > LISTED else ""
    return f"{len(counts):,} class{'es' if len(counts) > 1 else ''}: {shown}{more}"


def _survey(path: Path, files: Sequence[Path]) -> tuple[tuple[int, int, int], bool, list[str]]:
    """Return the shape of all images, whether one is grey with 16 bits, and notices."""
    size, colour, deep, brightest = None, False, False, 0
    transparent, paged, narrowed = [], [], []
    for file in files:
        picture = _read(file)
        own = picture.pixels.shape[1::-1]
        if size is not None and own != size:
            raise DataError(
                f"{file}: got an image of {own[0]} x {own[1]} pixels, expected {size[0]} x"
                f" {size[1]}, as {files[0].name} has; resize them to one size"
            )
        size, colour = own, colour or picture.pixels.ndim == 3
        transparent += [file] * picture.transparent
        paged += [file] * (picture.pages > 1)
        narrowed += [file] * picture.narrowed
        if picture.pixels.dtype != np.uint8:
            deep, brightest = True, max(brightest, int(picture.pixels.max()))
    assert size is not None
    said = _dim(path, brightest) if deep else []
    for kind, found in (
        (" with transparent pixels, read as on white", transparent),
        (" with several pages or frames, of which the first is read", paged),
        (" with colours of 16 bits, of which the upper 8 are read", narrowed),
    ):
        said += [f"{path}: {_number_of(found, path, 'image', kind)}"] if found else []
    return (3 if colour else 1, size[1], size[0]), deep, [*said, *_left_out(path, files)]


def _dim(path: Path, brightest: int) -> list[str]:
    """Return a notice about images that use only the lower part of 16 bits."""
    bits = max(brightest.bit_length(), 1)
    if bits > DIM_BITS:
        return []
    return [
        f"{path}: no pixel of 16 bits is above {brightest:,} of {WHITE:,}, as of a camera with"
        f" {bits} bits, so that no value is above {brightest / WHITE:.2g}; take visible_units"
        f" gaussian, which standardizes, or save pixels times {1 << (16 - bits):,}"
    ]


def _number_of(found: Sequence[Path], path: Path, what: str, kind: str) -> str:
    """Return a phrase with the number of files or folders of a kind, and the first of them."""
    plural = "" if len(found) == 1 else "s"
    return f"{len(found):,} {what}{plural}{kind}, such as {found[0].relative_to(path)}"


def _left_out(path: Path, files: Sequence[Path]) -> list[str]:
    """Return notices of the files and folders that are not read."""
    read = set(files)
    hidden, deeper, others, empty = (list[Path]() for _ in range(4))
    for place in sorted(_everything(path)):
        parts = place.relative_to(path).parts
        is_image = place.suffix.lower() in SUFFIXES
        if any(part.startswith(".") for part in parts):
            hidden += [place] * is_image
        elif place.is_dir():
            empty += [place] * (len(parts) == 1 and not any(x.parent == place for x in read))
        elif place not in read:
            (deeper if is_image and len(parts) > 2 else others).append(place)
    said = []
    for found, what, their in (
        (hidden, "image", " under names that begin with a dot"),
        (deeper, "image", " in folders below those of classes"),
        (others, "other file", ""),
        (empty, "folder", " without images of its own"),
    ):
        if found:
            said.append(f"{path}: left out: {_number_of(found, path, what, their)}")
    return said


def _everything(path: Path) -> Iterable[Path]:
    """Yield all files and folders below a folder, however deep."""
    for entry in path.iterdir():
        yield entry
        for folder, _, names in os.walk(entry):  # yields nothing for a file
            yield from (Path(folder, name) for name in names)


def _images(path: Path) -> list[Path]:
    """Return the images in a folder and its subfolders, sorted; hidden ones are left out."""
    inside = _shown(path)
    found = [*inside, *(file for folder in inside if folder.is_dir() for file in _shown(folder))]
    return sorted(file for file in found if file.suffix.lower() in SUFFIXES and file.is_file())


def _shown(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def _read(file: Path) -> _Picture:
    """Read an image.

    Raises
    ------
    DataError
        If the image is damaged, or the range of its pixels is not known.
    """
    from PIL import Image

    try:
        with Image.open(file) as image:
            stored, pages = str(getattr(image, "tile", "")), getattr(image, "n_frames", 1)
            image.load()
            if image.mode == "F" or (image.mode == "I" and image.format not in OF_16_BITS):
                raise DataError(
                    f"{file}: got pixels of 32 bits, whose range is not known; save them with 8 or"
                    " 16 bits, or all images as an array in .npy"
                )
            pixels, transparent = _on_white(image, file)
            pixels = _upright(pixels, image)
    except DataError:
        raise
    except Exception as error:  # Pillow raises many kinds over damaged files
        raise DataError(f"{file}: got no image that can be read ({error})") from error
    return _Picture(pixels, transparent, pages, pixels.dtype == np.uint8 and ";16" in stored)


def _on_white(image: Any, file: Path) -> tuple[NDArray[Any], bool]:
    """Return the pixels of an image as they are seen on white, and whether some are transparent."""
    clear = image.info.get("transparency")
    if image.mode.startswith("I"):
        deep = np.asarray(image).astype(np.uint16)
        holes = deep == (clear if isinstance(clear, int) else -1)
        return np.where(holes, np.uint16(WHITE), deep), bool(holes.any())
    is_grey = image.mode in ("1", "L", "LA", "La")
    if clear is None and image.mode not in TRANSPARENCY:
        return np.asarray(image.convert("L" if is_grey else "RGB")), False
    if image.mode == "1":
        image = image.convert("L")
        image.info["transparency"] = 255 * bool(clear)
    both = np.asarray(image.convert("LA" if is_grey else "RGBA")).astype(np.uint16)
    ink, alpha = both[..., :-1], both[..., -1:]
    if not alpha.any() and ink.min() < ink.max():
        raise DataError(
            f"{file}: got colours that are transparent everywhere, and cannot be seen on white, as"
            " such images are read; save them without transparency"
        )
    seen = ((ink * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    if seen.min() == 255 and alpha.min() < alpha.max():
        raise DataError(
            f"{file}: got white on a transparent ground, which cannot be seen on white, as such"
            " images are read; save them on a ground of another colour"
        )
    return (seen[..., 0] if is_grey else seen), bool(alpha.min() < 255)


def _upright(pixels: NDArray[Any], image: Any) -> NDArray[Any]:
    """Return pixels turned and mirrored as the image's EXIF asks for."""
    orientation = 1
    with suppress(Exception):  # EXIF that is damaged says nothing
        orientation = int(image.getexif().get(ORIENTATION, 1))
    if not 2 <= orientation <= 8:
        return pixels
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels
