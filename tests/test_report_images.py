"""Grids of examples: their shapes, what stands where, and the file they become."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from PIL import Image

from syncpretrain.errors import DataError, SettingsError
from syncpretrain.runs.report.images import BACKGROUND, ENLARGE, image_grid, image_shape, save_png


class TestShape:
    def test_a_square_needs_no_text(self):
        assert image_shape(784, None) == (28, 28)

    @pytest.mark.parametrize(("text", "shape"), [("4x6", (4, 6)), ("24X1", (24, 1))])
    def test_height_comes_first(self, text, shape):
        assert image_shape(24, text) == shape

    @pytest.mark.parametrize(
        "text", ["", "x", "4x", "5x5", "-4x-6", "4x6x1", "4 x 6", "0x24", "24", "²x12", "9" * 5000]
    )
    def test_another_text_is_refused(self, text):
        with pytest.raises(SettingsError, match="expected HxW with a product of 24"):
            image_shape(24, text)

    def test_no_square_asks_for_the_shape(self):
        with pytest.raises(SettingsError, match=r"^shape: got none, and 24 values make no square"):
            image_shape(24, None)


class TestGrid:
    @pytest.mark.parametrize("count", [1, 3, 10, 11, 25])
    def test_every_pair_is_drawn_once_one_above_the_other(self, count):
        above = np.linspace(0.5, 0.7, count, dtype=np.float32)[:, None].repeat(6, axis=1)
        grid = image_grid(above, above + 0.3, height=2, width=3)
        drawn = grid[grid != np.float32(BACKGROUND)]
        assert drawn.size == 2 * count * 6
        first = int(np.argmax(grid[:, 2] == above[0, 0]))
        np.testing.assert_array_equal(grid[first : first + 2, 2:5], above[0, 0])
        np.testing.assert_allclose(grid[first + 3 : first + 5, 2:5], above[0, 0] + 0.3)


class TestFile:
    def test_a_png_opens_with_the_values_of_the_grid(self, tmp_path):
        grid = np.array([[0, 1, 0.5], [2, -1, 0]], dtype=np.float32)
        save_png(grid, tmp_path / "grid.png")
        with Image.open(tmp_path / "grid.png") as image:
            assert (image.format, image.mode) == ("PNG", "L")
            assert image.size == (3 * ENLARGE, 2 * ENLARGE)
            pixels = np.asarray(image)[::ENLARGE, ::ENLARGE]
        np.testing.assert_array_equal(pixels, [[0, 255, 128], [255, 0, 0]])

    def test_without_pillow_it_says_what_to_install(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "PIL", None)
        with pytest.raises(DataError, match="needs Pillow: pip install"):
            save_png(np.zeros((2, 2), np.float32), tmp_path / "grid.png")
        assert not list(tmp_path.iterdir())
