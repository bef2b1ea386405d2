"""Grids of examples as images."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import DataError, SettingsError
from syncpretrain.storage import write_atomically

__all__ = ["image_grid", "image_shape", "save_png"]

COLUMNS = 10
MARGIN = 2  # pixels between images; twice as many between pairs
ENLARGE = 3
BACKGROUND = 0.25


def image_shape(units: int, text: str | None) -> tuple[int, int]:
    """Return height and width of an example's image.

    Raises
    ------
    SettingsError
        If the text is not HxW with a product of ``units``, or there is none and no square fits.
    """
    if text is None:
        side = math.isqrt(units)
        if side * side != units:
            raise SettingsError(
                f"shape: got none, and {units} values make no square; expected HxW with a product"
                f" of {units}"
            )
        return side, side
    found = re.fullmatch(r"([0-9]{1,9})x([0-9]{1,9})", text.lower())
    height, width = map(int, found.groups()) if found else (0, 0)
    if height * width != units:
        raise SettingsError(f"shape: got {text!r}, expected HxW with a product of {units}")
    return height, width


def image_grid(*images: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """Lay images out in rows, each with its counterparts under it; values in [0, 1].

    Parameters
    ----------
    *images : ndarray of shape (n, height * width)
        All of one n: the upper images, then what belongs under each.
    """
    count, deep = len(images[0]), len(images)
    columns = min(COLUMNS, count)
    rows = math.ceil(count / columns)
    block = deep * (height + MARGIN // 2) + 2 * MARGIN
    grid = np.full(
        (rows * block + MARGIN, columns * (width + MARGIN) + MARGIN), BACKGROUND, dtype=np.float32
    )
    for i, column in enumerate(zip(*images, strict=True)):
        left = MARGIN + (i % columns) * (width + MARGIN)
        top = 2 * MARGIN + (i // columns) * block
        for image in column:
            grid[top : top + height, left : left + width] = image.reshape(height, width)
            top += height + MARGIN // 2
    return grid


def save_png(grid: NDArray[np.float32], path: Path) -> None:
    """Write a grid of values in [0, 1] as a grey PNG, enlarged.

    Raises
    ------
    DataError
        If Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise DataError('a PNG needs Pillow: pip install "syncpretrain[plot]"') from None
    pixels = np.round(np.clip(grid, 0, 1) * 255).astype(np.uint8)
    image = Image.fromarray(pixels.repeat(ENLARGE, axis=0).repeat(ENLARGE, axis=1))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    write_atomically(path, buffer.getvalue())
