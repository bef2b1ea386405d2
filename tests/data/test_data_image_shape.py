"""Examples of a file whose own axes contradict the images that the layers read."""

import numpy as np
import pytest
from PIL import Image

from syncpretrain.data import load_dataset
from syncpretrain.data.images import check_image_shape
from syncpretrain.errors import DataError
from syncpretrain.shapes import ImageShape

FITTING = [(64,), (8, 8), (1, 8, 8), (8, 8, 1), (64, 1)]
OTHERS = [(4, 16), (16, 4), (4, 4, 4), (2, 4, 8), (2, 2, 4, 4)]


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("shape", [*FITTING, *OTHERS])
def test_axes_that_contradict_the_images_are_refused(tmp_path, shape, mapped):
    X = np.random.default_rng(0).random((6, *shape))
    np.save(tmp_path / "x.npy", X)
    options = {"mapped": mapped, "validation": 0.0, "images": ImageShape(1, 8, 8)}
    if shape in FITTING:
        train = np.asarray(load_dataset(tmp_path / "x.npy", **options).train[:])
        assert np.array_equal(train, X.reshape(6, 64).astype(np.float32))
    else:
        with pytest.raises(DataError, match="expected images of 1x8x8, as the layers read them"):
            load_dataset(tmp_path / "x.npy", **options)


@pytest.mark.parametrize(
    ("channels", "shape"),
    [
        *((3, shape) for shape in ((192,), (3, 64), (24, 8), (3, 8, 8), (1, 3, 8, 8))),
        *((1, shape) for shape in ((60,), (60, 1))),  # which the layers refuse
    ],
)
def test_neighbouring_axes_may_be_one_and_flat_values_of_any_number(channels, shape):
    check_image_shape(shape, ImageShape(channels, 8, 8), "x")


ANYWAY = "save X.reshape(len(X), -1) if its rows are such images all the same"


@pytest.mark.parametrize(
    ("shape", "images", "advice"),
    [
        # images of another number of values
        ((3, 6, 8), (1, 6, 8), "layers of these begin with 3x6x8"),
        ((28, 28), (1, 6, 8), "layers of these begin with 1x28x28"),
        ((6, 8, 3), (1, 6, 8), "save X.transpose(0, 3, 1, 2), for layers that begin with 3x6x8"),
        # images of as many
        ((5, 4, 3), (3, 5, 4), f"save X.transpose(0, 3, 1, 2), or {ANYWAY}"),
        ((3, 4, 5), (3, 5, 4), f"layers of these begin with 3x4x5, or {ANYWAY}"),
        ((12, 5), (3, 5, 4), f"layers of these begin with 1x12x5, or {ANYWAY}"),
        ((3, 5, 2, 2), (3, 5, 4), f"save one image a row, or {ANYWAY}"),
    ],
)
def test_a_refusal_says_what_to_do(shape, images, advice):
    with pytest.raises(DataError) as caught:
        check_image_shape(shape, ImageShape(*images), "x.npy")
    axes, expected = ("x".join(map(str, own)) for own in (shape, images))
    got = f"got examples of {axes}, expected images of {expected}, as the layers read them"
    assert str(caught.value) == f"x.npy: {got}; {advice}"


def test_a_test_part_and_a_folder_are_judged_too(tmp_path):
    X = np.zeros((6, 5, 4, 3), dtype=np.uint8)
    np.save(tmp_path / "last.npy", X)
    np.save(tmp_path / "first.npy", X.transpose(0, 3, 1, 2))
    images = ImageShape(3, 5, 4)
    with pytest.raises(DataError, match=r"last.npy: got examples of 5x4x3"):
        load_dataset(tmp_path / "first.npy", test=tmp_path / "last.npy", images=images)
    folder = tmp_path / "folder"
    folder.mkdir()
    for i, image in enumerate(X):
        Image.fromarray(image).save(folder / f"{i}.png")
    assert load_dataset(folder, images=images).width == 60
    with pytest.raises(DataError, match=r"folder: got examples of 3x5x4, .* begin with 3x5x4"):
        load_dataset(folder, images=ImageShape(3, 4, 5))


@pytest.mark.parametrize(
    ("name", "images", "own"),
    [
        ("digits", ImageShape(4, 4, 4), "1x8x8"),
        ("mnist", ImageShape(1, 14, 56), "1x28x28"),
        ("cifar10", ImageShape(32, 32, 3), "3x32x32"),
    ],
)
def test_published_data_have_axes_too(name, images, own):
    with pytest.raises(DataError, match=f"^{name}: got .*; layers of these begin with {own}, or"):
        load_dataset(name, images=images)


def test_published_data_of_the_right_axes_are_loaded():
    assert load_dataset("digits", images=ImageShape(1, 8, 8)).width == 64
