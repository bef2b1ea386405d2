"""Grids of examples: their shapes, what stands where, and the file they become."""

import sys

import numpy as np
import pytest
from PIL import Image
from randomconvolutions import convolutional_stack
from randomstacks import normal_stack

from syncpretrain.errors import DataError, SettingsError
from syncpretrain.plot import stacks
from syncpretrain.shapes import ConvolutionShape, DenseShape, ImageShape

READ, LONG = DenseShape(24, 5), "9" * 5000


class TestShape:
    def test_a_square_needs_no_text(self):
        assert stacks.image_shape(DenseShape(784, 9), None) == ImageShape(1, 28, 28)

    def test_a_convolution_needs_no_text(self):
        assert stacks.image_shape(ConvolutionShape(2, 3, 4, 5, 2), None) == ImageShape(2, 3, 4)

    @pytest.mark.parametrize(
        ("text", "shape"),
        [("4x6", (1, 4, 6)), ("24X1", (1, 24, 1)), ("3x4x2", (3, 4, 2)), ("1x4x6", (1, 4, 6))],
    )
    def test_height_comes_before_width(self, text, shape):
        assert stacks.image_shape(READ, text) == ImageShape(*shape)
        assert stacks.image_shape(ConvolutionShape(2, 3, 4, 5, 2), text) == ImageShape(*shape)

    @pytest.mark.parametrize(
        "text",
        [
            *("", "x", "4x", "5x5", "-4x-6", "4x6x1"),
            *("3x4x6", "4 x 6", "0x24", "24", "²x12"),
            LONG,
        ],
    )
    def test_another_text_is_refused(self, text):
        expected = "expected HxW with a product of 24, or 3xHxW in colour"
        with pytest.raises(SettingsError, match=expected):
            stacks.image_shape(READ, text)

    def test_no_square_asks_for_the_shape(self):
        with pytest.raises(SettingsError, match=r"^shape: got none, and 24 values make no square"):
            stacks.image_shape(READ, None)


class TestGrid:
    @pytest.mark.parametrize("count", [1, 3, 10, 11, 25])
    def test_every_pair_is_drawn_once_one_above_the_other(self, count):
        above = np.linspace(0.5, 0.7, count, dtype=np.float32)[:, None].repeat(6, axis=1)
        grid = stacks.image_grid(above, above + 0.3, shape=ImageShape(1, 2, 3))
        drawn = grid[grid != np.float32(stacks.BACKGROUND)]
        assert drawn.size == 2 * count * 6
        first = int(np.argmax(grid[:, 2] == above[0, 0]))
        np.testing.assert_array_equal(grid[first : first + 2, 2:5], above[0, 0])
        np.testing.assert_allclose(grid[first + 3 : first + 5, 2:5], above[0, 0] + 0.3)

    def test_colours_and_other_channels(self):
        images = np.random.default_rng(0).random((4, 24), dtype=np.float32)
        grid = stacks.image_grid(images, shape=ImageShape(3, 2, 4))
        assert grid.shape[2] == 3
        rows, columns = (grid[..., 0] != np.float32(stacks.BACKGROUND)).nonzero()
        assert rows.size == 4 * 2 * 4
        first = grid[rows.min() : rows.min() + 2, columns.min() : columns.min() + 4]
        np.testing.assert_array_equal(first.transpose(2, 0, 1), images[0].reshape(3, 2, 4))
        grid = stacks.image_grid(images, shape=ImageShape(2, 3, 4))
        drawn = grid[grid != np.float32(stacks.BACKGROUND)]
        means = images.reshape(4, 2, 12).mean(axis=1)
        np.testing.assert_allclose(np.sort(drawn), np.sort(means, axis=None), rtol=1e-6)


class TestFilters:
    def test_of_a_convolution_in_grey_and_in_colour(self):
        for channels in (1, 3):
            stack = convolutional_stack(f"{channels}x8x8,conv:5x3,4")
            (rows,), shape = stacks.filter_images(stack, 1, None)
            assert shape == ImageShape(channels, 3, 3)
            weight = stack.layers[0].weight
            pixels = rows.reshape(5, channels, 3, 3).transpose(2, 3, 1, 0)
            largest = np.abs(weight).max(axis=(0, 1, 2))
            np.testing.assert_allclose(pixels, 0.5 + weight / largest / 2, rtol=1e-5)

    def test_of_maps_each_alone(self):
        stack = convolutional_stack("1x8x8,conv:4x3,conv:5x2,6")
        images, shape = stacks.filter_images(stack, 2, None)
        assert shape == ImageShape(1, 2, 2)
        assert [rows.shape for rows in images] == [(5, 4)] * 4
        every = np.concatenate(images, axis=1)
        assert ((every.min(axis=1) == 0) | (every.max(axis=1) == 1)).all()

    def test_of_dense_units(self):
        stack = normal_stack((24, 5, 2))
        (rows,), shape = stacks.filter_images(stack, 1, ImageShape(1, 4, 6))
        assert (rows.shape, shape) == ((5, 24), ImageShape(1, 4, 6))

    @pytest.mark.parametrize(("layer", "message"), [(2, "a dense layer that reads"), (3, "1 to 2")])
    def test_what_makes_no_image(self, layer, message):
        with pytest.raises(SettingsError, match=message):
            stacks.filter_images(normal_stack((24, 5, 2)), layer, None)


class TestFile:
    def test_a_png_in_colour(self, tmp_path):
        grid = np.zeros((2, 3, 3), dtype=np.float32)
        grid[0, 1] = (1, 0.5, 0)
        stacks.save_png(grid, tmp_path / "grid.png", enlarge=2)
        with Image.open(tmp_path / "grid.png") as image:
            assert (image.mode, image.size) == ("RGB", (6, 4))
            assert image.getpixel((3, 1)) == (255, 128, 0)

    def test_a_png_opens_with_the_values_of_the_grid(self, tmp_path):
        grid = np.array([[0, 1, 0.5], [2, -1, 0]], dtype=np.float32)
        stacks.save_png(grid, tmp_path / "grid.png")
        with Image.open(tmp_path / "grid.png") as image:
            found = image.format, image.mode, image.size
            assert found == ("PNG", "L", (3 * stacks.ENLARGE, 2 * stacks.ENLARGE))
            pixels = np.asarray(image)[:: stacks.ENLARGE, :: stacks.ENLARGE]
        np.testing.assert_array_equal(pixels, [[0, 255, 128], [255, 0, 0]])

    def test_a_missing_pixel_has_the_colour_of_the_background(self, tmp_path):
        stacks.save_png(np.float32([[0, np.nan, 1]]), tmp_path / "grid.png", enlarge=1)
        with Image.open(tmp_path / "grid.png") as image:
            assert np.asarray(image).tolist() == [[0, 64, 255]]

    def test_without_pillow_it_says_what_to_install(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "PIL", None)
        with pytest.raises(DataError, match="needs Pillow: pip install"):
            stacks.save_png(np.zeros((2, 2), np.float32), tmp_path / "grid.png")
        assert not list(tmp_path.iterdir())
