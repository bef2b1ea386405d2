"""A folder of images of one size; its subfolders are classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.columns import Columns, Target
from syncpretrain.data.idx import check_memory
from syncpretrain.errors import DataError

__all__ = ["is_image_folder", "read_image_folder"]

DEEP = ("I", "F")  # modes of 32 bits
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff"})


def is_image_folder(path: Path) -> bool:
    """Return whether a path is a folder with images in it, or in its subfolders."""
    try:
        return path.is_dir() and any(_images(path))
    except OSError:
        return False


def read_image_folder(
    path: Path,
) -> tuple[NDArray[np.uint8], NDArray[np.int64] | None, tuple[str, ...], Columns | None]:
    """Read the images of a folder, in the order of their names.

    Returns
    -------
    X : uint8 array of shape (n_images, channels, height, width)
        One channel where all images are grey, else red, green and blue.
    labels : int64 array of shape (n_images,), or None
        The numbers of the subfolders, where there are any.
    notices : tuple of str
        The shape of the images.
    columns : Columns or None
        The names of the classes.

    Raises
    ------
    DataError
        If the package Pillow is missing, an image cannot be read, or is of another size.
    """
    try:
        from PIL import Image
    except ImportError:
        raise DataError(
            f"{path}: a folder of images needs the package pillow, which is not installed; install"
            " it, or save the images as an array in .npy"
        ) from None
    files = _images(path)
    size, colour = _size(files, Image)
    channels = 3 if colour else 1
    check_memory(path, len(files) * channels * size[0] * size[1])
    X = np.empty((len(files), channels, size[1], size[0]), dtype=np.uint8)
    for image, file in zip(X, files, strict=True):
        with Image.open(file) as opened:
            pixels = _bytes_of(opened)
        if pixels.ndim == 2 and colour:
            pixels = np.repeat(pixels[:, :, None], 3, axis=2)
        image[...] = pixels.reshape(size[1], size[0], channels).transpose(2, 0, 1)
    notice = f"{path}: {len(files):,} images of {channels}x{size[1]}x{size[0]}"
    classes = sorted({file.parent.name for file in files if file.parent != path})
    if not classes:
        return X, None, (notice,), None
    if any(file.parent == path for file in files):
        raise DataError(
            f"{path}: got images beside subfolders of images; put each into the folder of its class"
        )
    labels = np.array([classes.index(file.parent.name) for file in files], dtype=np.int64)
    target = Target("class", "classification", tuple(classes))
    return X, labels, (notice,), Columns((), False, target)


def _is_grey(image: Any) -> bool:
    return image.mode in ("1", "L", "LA") or image.mode.startswith("I;16")


def _bytes_of(image: Any) -> NDArray[np.uint8]:
    """Return the pixels of an image, of shape (height, width), or with colours (..., 3)."""
    if not image.mode.startswith("I;16"):
        return np.asarray(image.convert("L" if _is_grey(image) else "RGB"))
    deep = np.asarray(image).astype(np.uint32)  # Pillow itself would clip what is above 255
    return ((deep + 128) // 257).astype(np.uint8)


def _images(path: Path) -> list[Path]:
    """Return the images in a folder and in its subfolders, sorted."""
    inside = sorted(path.iterdir())
    found = [*inside, *(file for folder in inside if folder.is_dir() for file in folder.iterdir())]
    return sorted(file for file in found if file.suffix.lower() in SUFFIXES and file.is_file())


def _size(files: list[Path], Image: Any) -> tuple[tuple[int, int], bool]:
    """Return the width and height of all images, and whether one has colours."""
    size, first, colour = None, files[0], False
    for file in files:
        try:
            with Image.open(file) as image:
                image.load()
                own = image.size
                mode, colour = image.mode, colour or not _is_grey(image)
        except Exception as error:  # Pillow raises many kinds over damaged files
            raise DataError(f"{file}: got no image that can be read ({error})") from error
        if mode in DEEP:
            raise DataError(
                f"{file}: got pixels of 32 bits, whose range is not known; save them with 8 or 16"
                " bits, or all images as an array in .npy"
            )
        if size is not None and own != size:
            raise DataError(
                f"{file}: got an image of {own[0]} x {own[1]} pixels, expected {size[0]} x"
                f" {size[1]}, as {first.name} has; resize them to one size"
            )
        size = own
    assert size is not None
    return size, colour
