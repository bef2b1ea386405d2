"""A user's own files: targets, parts to test with, unlabelled examples, and formats."""

import re
import shutil
import struct
import sys
import zlib
from datetime import date

import numpy as np
import pytest
from sparsematrices import csr

from syncpretrain.data import load_dataset
from syncpretrain.data.dataset import UNLABELLED
from syncpretrain.errors import DataError

N = 60


@pytest.fixture
def folder(tmp_path):
    """A folder with a table of 60 rows in three classes, and others like it."""
    draws = np.random.default_rng(0)
    kinds = [("a", "u"), ("b", "v"), ("c", "w")] * (N // 3)
    rows = [f"{draws.random():.3f},{draws.integers(2)},{a},{u}" for a, u in kinds]
    (tmp_path / "t.csv").write_text("\n".join(["x,b,colour,kind", *rows]) + "\n")
    (tmp_path / "few.csv").write_text("x,b,kind\n0.5,1,u\n0.25,0,w\n")
    (tmp_path / "more.csv").write_text("b,x\n1,0.5\n0,0.25\n")
    return tmp_path


def load(folder, **options):
    return load_dataset(folder / "t.csv", **{"target": "kind", "drop": "colour", **options})


def load_cells(folder, cells, **options):
    """Load a table of numbers in [0, 1] whose target has these cells."""
    lines = [f"{i / 100},{cell}" for i, cell in enumerate(cells)]
    (folder / "x.csv").write_text("\n".join(["a,y", *lines]))
    return load_dataset(folder / "x.csv", target="y", validation=0, **options)


class TestTarget:
    def test_texts_are_classes(self, folder):
        data = load(folder, validation=0)
        assert data.train.shape == (N, 2)
        assert data.train_labels.tolist() == [i % 3 for i in range(N)]
        assert data.targets("train")[:4].tolist() == ["u", "v", "w", "u"]
        assert data.columns.target.classes == ("u", "v", "w")

    @pytest.mark.parametrize("target", ["kind", "4", -1])
    @pytest.mark.parametrize("drop", ["colour", "3", ["colour"], "x,colour"])
    def test_by_name_and_by_number(self, folder, target, drop):
        data = load(folder, target=target, drop=drop)
        assert data.columns.target.name == "kind"
        assert data.width == (1 if drop == "x,colour" else 2)

    @pytest.mark.parametrize(
        ("cells", "task", "labels"),
        [
            ("3,1,3,,2", None, [3, 1, 3, UNLABELLED, 2]),
            ("3,1,3,,2", "regression", [3, 1, 3, np.nan, 2]),
            ("0.5,1,2,,2", None, [0.5, 1, 2, np.nan, 2]),
            ("1.0,0.0,1.0,nan,0.0", None, [1, 0, 1, UNLABELLED, 0]),
            ("-1,0,1,2,1", None, [UNLABELLED, 0, 1, 2, 1]),
            ("yes,no,yes,None,no", None, [1, 0, 1, UNLABELLED, 0]),
            ("true,false,true,false,true", None, [1, 0, 1, 0, 1]),
        ],
    )
    def test_numbers_and_missing_labels(self, tmp_path, cells, task, labels):
        data = load_cells(tmp_path, cells.split(","), task=task)
        np.testing.assert_array_equal(data.train_labels, np.array(labels))
        kind = np.float32 if data.columns.target.task == "regression" else np.int64
        assert data.train_labels.dtype == kind

    @pytest.mark.parametrize(
        ("text", "options", "words"),
        [
            ("a,y\n1,u\n0,v\n", {"target": "z"}, "^target: got 'z', which is no column"),
            ("a,y\n1,u\n0,v\n", {"target": "y", "drop": "y"}, "^drop: got 'y', the target"),
            ("a,y\n1,u\n0,v\n", {"target": "y", "drop": "q"}, "^drop: got 'q', which is no"),
            ("a,y\n1,u\n0,3\n", {"target": "y"}, "^target: .*two types.*number 3 .*text 'u'"),
            ("a,y\n1,\n0,\n", {"target": "y"}, "^target: .*'y'.*no value in any row"),
            ("a,y\n1,u\n0,v\n", {"target": "y", "task": "regression"}, "^task: got regression"),
            ("a,y\n1,.5\n0,1\n", {"target": "y", "task": "classification"}, "not whole numbers"),
            ("a,y\n1,-1\n0,1\n", {"target": "y"}, "-1 and 1, where -1 stands for no label"),
            ("a,y\n1,u\n0,v\n", {"target": "y", "drop": "a"}, "no column to train on"),
            ("a,class\n1,0\n0,1\n", {}, "^target: got none .*named 'class'; give target=class"),
            ("a,Label\n1,0\n0,1\n", {}, "^target: got none .*named 'Label'"),
            ("a,y\n1,u\n0,v\n", {}, "^target: got none .*'y', holds text such as 'u'"),
            ("a,my y\n1,u\n0,v\n", {}, "give target='my y' if .* or drop='my y' to leave it out"),
            ("a,b,y\n1,u,0\n0,v,1\n", {"target": "y"}, "^visible_units: .* column 'b' holds text"),
            ("a,b\n2,1\n0,1\n", {}, "got 2 at row 0 .*, column 'a', expected values in"),
        ],
    )
    def test_refusals(self, tmp_path, text, options, words):
        (tmp_path / "x.csv").write_text(text)
        with pytest.raises(DataError, match=words) as caught:
            load_dataset(tmp_path / "x.csv", **options)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("cells", "words"),
        [
            ("0,1,,2,0,1,,2", ["column 'y': 2 of 8 rows have no label"]),
            ("-1,0,1,-1,0,1", ["column 'y': 2 of 6 rows have no label", "the label|since their"]),
            ("-1," * 9 + "0,1,2", ["column 'y': 9 of 12 rows have no label"]),
            ("-2,-1,0" + ",-1" * 9, ["10 of 12 rows have no label", "though -2 is a class"]),
            ("0.5,nan,1.5", ["column 'y': 1 of 3 rows have no label"]),
            ("a,b,,a", ["column 'y': 1 of 4 rows have no label"]),
            ("0,1,0,1", []),
        ],
    )
    def test_rows_without_a_label_are_counted(self, tmp_path, cells, words):
        notices = load_cells(tmp_path, cells.split(",")).notices
        assert len(notices) == len(words)
        for notice, own in zip(notices, words, strict=True):
            assert re.search(own, notice)

    @pytest.mark.parametrize(
        ("cell", "task", "words"),
        [("{}", None, "--task regression"), ("n{}", None, "another"), ("{}", "regression", "")],
    )
    def test_a_class_for_nearly_every_row_is_doubted(self, tmp_path, cell, task, words):
        cells = [cell.format(1000 + min(i, 77)) for i in range(80)]
        notices = load_cells(tmp_path, cells, task=task).notices
        expected = ["78 classes in 80 rows, so that nearly every row is a class"] if words else []
        assert [expected[0] in one and words in one for one in notices] == [True] * len(expected)

    @pytest.mark.parametrize("name", ["digits", "x.npy"])
    def test_data_without_columns(self, tmp_path, monkeypatch, name):
        monkeypatch.chdir(tmp_path)
        np.save("x.npy", np.eye(4))
        with pytest.raises(DataError, match=r"^target: got 'y' for (digits|x.npy)"):
            load_dataset(name, target="y")

    def test_categories_where_they_are_asked_for(self, folder):
        data = load(folder, drop=(), encode=True)
        assert data.width == 5
        assert data.columns.visible_units() == "gaussian:1,bernoulli:1,softmax:1x3"

    def test_the_names_of_the_classes_are_a_part_of_the_hash(self, folder):
        before = load(folder).sha256
        (folder / "t.csv").write_text((folder / "t.csv").read_text().replace(",w\n", ",z\n"))
        assert load(folder).sha256 != before


class TestParts:
    def test_a_fraction_to_test_with(self, folder):
        data = load(folder, test=0.2)
        assert (len(data.train), len(data.validation), len(data.test)) == (44, 4, 12)
        assert np.bincount(data.test_labels).tolist() == [4, 4, 4]
        np.testing.assert_array_equal(load(folder, test="0.2").test, data.test)
        assert load(folder, test=0.2, seed=1).test.tolist() != data.test.tolist()

    def test_no_example_is_in_two_parts(self, tmp_path):
        np.save(tmp_path / "x.npy", np.arange(N, dtype=np.float32)[:, None] / N)
        data = load_dataset(tmp_path / "x.npy", test=0.3, validation=0.2)
        parts = [data.train, data.validation, data.test]
        assert sorted(np.concatenate(parts)[:, 0]) == np.load(tmp_path / "x.npy")[:, 0].tolist()

    def test_a_test_part_of_another_width_is_named(self, tmp_path):
        np.savez(tmp_path / "x.npz", X_train=np.zeros((9, 3)), X_test=np.zeros((9, 2)))
        with pytest.raises(DataError, match=r"^test: X_test of .*x.npz has 2 values an example, "):
            load_dataset(tmp_path / "x.npz")

    def test_one_example_is_named_in_the_singular(self, tmp_path):
        for shape, words in (((1, 2), "the 1 example of x"), ((2, 2), "the 2 examples of x")):
            np.save(tmp_path / "x.npy", np.zeros(shape, dtype=np.float32))
            np.savez(tmp_path / "x.npz", X=np.zeros(shape, dtype=np.float32))
            for name, mapped in (("x.npy", False), ("x.npy", True), ("x.npz", False)):
                data = load_dataset(tmp_path / name, validation=0, mapped=mapped)
                assert data.source.replace(str(tmp_path / name), "x") == words

    def test_a_file_to_test_with(self, folder):
        data = load(folder, test=folder / "few.csv")
        assert (data.test.tolist(), data.test_labels.tolist()) == ([[0.5, 1], [0.25, 0]], [0, 2])
        data = load(folder, test=folder / "more.csv")
        assert data.test.tolist() == [[0.5, 1], [0.25, 0]], "by the names of the columns"
        assert data.test_labels.tolist() == [UNLABELLED] * 2

    def test_unlabelled_examples(self, folder):
        data = load(folder, unlabelled=folder / "more.csv", validation=0)
        assert len(data.train) == N + 2
        assert data.train_labels[-2:].tolist() == [UNLABELLED] * 2
        assert "2 without labels" in data.source

    def test_arrays_of_all_parts(self, tmp_path):
        X, y = np.eye(6, dtype=np.float32), np.arange(6) % 2
        np.savez(tmp_path / "x.npz", X_train=X, y_train=y, X_test=X[:2], y_test=y[:2])
        data = load_dataset(tmp_path / "x.npz", validation=0)
        np.testing.assert_array_equal(data.train, X)
        np.testing.assert_array_equal(data.test, X[:2])
        assert data.test_labels.tolist() == [0, 1]
        with pytest.raises(DataError, match=r"^test: got 0.5, but .* test part of its own"):
            load_dataset(tmp_path / "x.npz", test=0.5)

    def test_labels_of_every_part_are_counted(self, folder):
        y = np.arange(60) % 3 - 1
        arrays = {"X": np.eye(60), "y": y, "X_test": np.eye(60)[:9], "y_test": y[:9]}
        np.savez(folder / "a.npz", **arrays)
        found = [notice.split(": ", 1)[1] for notice in load_dataset(folder / "a.npz").notices]
        assert found[0] == "labels: 20 of 60 rows have no label"
        assert found[2] == "the test part: labels: 3 of 9 rows have no label"
        (folder / "t2.csv").write_text("x,b,kind\n0.5,1,u\n0.25,0,\n")
        (notice,) = load(folder, test=folder / "t2.csv").notices
        assert notice.endswith("t2.csv: column 'kind': 1 of 2 rows have no label")

    def test_bytes_mean_the_same_in_all_parts(self, tmp_path):
        X = np.array([[0, 255], [1, 0], [1, 1], [0, 1]], dtype=np.uint8)
        np.savez(tmp_path / "x.npz", X=X, X_test=X[2:])
        data = load_dataset(tmp_path / "x.npz", validation=0)
        np.testing.assert_array_equal(data.test, X[2:] / np.float32(255))
        np.savez(tmp_path / "x.npz", X=X[1:], X_test=X[2:])
        data = load_dataset(tmp_path / "x.npz", validation=0)
        np.testing.assert_array_equal(data.test, X[2:])

    def test_texts_as_labels_of_arrays(self, tmp_path):
        X = np.eye(4)
        np.savez(tmp_path / "x.npz", X=X, y=[*list("bab"), ""], X_test=X[:1], y_test=["a"])
        data = load_dataset(tmp_path / "x.npz", validation=0)
        assert data.train_labels.tolist() == [1, 0, 1, UNLABELLED]
        assert data.targets("train").tolist() == ["b", "a", "b", ""]
        assert data.test_labels.tolist() == [0]

    @pytest.mark.parametrize("count", [3, 10, 30])
    def test_some_of_the_examples(self, folder, count):
        data = load(folder, validation=0, examples=count)
        assert len(data.train) == count
        sizes = np.bincount(data.train_labels, minlength=3)
        assert sizes.max() - sizes.min() <= 1
        rows = load(folder, validation=0).train.tolist()
        places = [rows.index(row) for row in data.train.tolist()]
        assert places == sorted(places)
        again = load(folder, validation=0, examples=count)
        np.testing.assert_array_equal(again.train, data.train)
        assert again.sha256 == data.sha256 != load(folder, validation=0).sha256

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"test": 0}, "^test: got 0, expected a fraction"),
            ({"test": "1"}, "^test: got 1, expected a fraction"),
            ({"test": "no.csv"}, "^test: got 'no.csv', which is neither"),
            ({"unlabelled": "no.csv"}, "^unlabelled: got 'no.csv'"),
            ({"examples": 0}, "^examples: got 0, expected 1 to 54"),
            ({"examples": 55}, "^examples: got 55, expected 1 to 54"),
        ],
    )
    def test_refusals(self, folder, options, words):
        with pytest.raises(DataError, match=words):
            load(folder, **options)

    def test_parts_that_do_not_fit(self, folder):
        (folder / "other.csv").write_text("x,c\n0.5,1\n")
        with pytest.raises(DataError, match=r"other.csv: lacks the column 'b' that was trained on"):
            load(folder, test=folder / "other.csv")
        np.save(folder / "x.npy", np.eye(4))
        np.save(folder / "y.npy", np.eye(5))
        with pytest.raises(DataError, match=r"^test: .*y.npy has 5 values an example, expected 4"):
            load_dataset(folder / "x.npy", test=folder / "y.npy")
        with pytest.raises(DataError, match=r"^unlabelled: .*has no labels either"):
            load_dataset(folder / "x.npy", unlabelled=folder / "x.npy")
        (folder / "few.csv").write_text("x,b,kind\n0.5,1,z\n")
        with pytest.raises(DataError, match=r"holds 'z', a class that was not trained on"):
            load(folder, test=folder / "few.csv")


class TestSparse:
    def arrays(self, dense, form="csr"):
        own = vars(csr(dense if form == "csr" else dense.T, np.float64))
        return own | {"shape": np.array(dense.shape), "format": np.array(form.encode())}

    DRAWS = np.random.default_rng(1)
    DENSE = DRAWS.random((7, 5)) * (DRAWS.random((7, 5)) < 0.4)

    @pytest.mark.parametrize("form", ["csr", "csc"])
    def test_rows_and_labels_without_scipy(self, tmp_path, form, monkeypatch):
        monkeypatch.setitem(sys.modules, "scipy", None)
        np.savez(tmp_path / "x.npz", **self.arrays(self.DENSE, form), y=np.arange(7) % 2)
        data = load_dataset(tmp_path / "x.npz", validation=0)
        np.testing.assert_array_equal(data.train[:], self.DENSE.astype(np.float32))
        assert data.train_labels.tolist() == [0, 1, 0, 1, 0, 1, 0]

    @pytest.mark.parametrize("form", ["csr", "csc"])
    def test_what_scipy_writes(self, tmp_path, sparse, form):
        sparse.save_npz(tmp_path / "x.npz", sparse.csr_matrix(self.DENSE).asformat(form))
        data = load_dataset(tmp_path / "x.npz", validation=0)
        np.testing.assert_array_equal(data.train[:], self.DENSE.astype(np.float32))

    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("format", np.array(b"coo"), "format 'coo', expected csr"),
            ("shape", np.array([7, 2]), "do not fit each other"),
            ("shape", np.array([8, 5]), "do not fit each other"),
            ("shape", np.array([7]), "of shape"),
            ("indptr", np.zeros(8, dtype=int), "do not fit each other"),
            ("data", np.ones(2), "do not fit each other"),
            ("data", np.array(["text"]), "expected numbers"),
            ("data", np.full(np.count_nonzero(DENSE), np.nan), "got nan at row 0, column 1"),
        ],
    )
    def test_damaged_ones(self, tmp_path, name, value, words):
        np.savez(tmp_path / "x.npz", **(self.arrays(self.DENSE) | {name: value}))
        with pytest.raises(DataError, match=words):
            load_dataset(tmp_path / "x.npz")


INK = np.array([[1, 0, 0, 1], [0, 1, 1, 0], [1, 1, 0, 0]], dtype=bool)
SHADES = np.where(INK, 40, 7).astype(np.uint8)  # of which 7 is transparent


def _image(pixels, mode=None):
    image = pytest.importorskip("PIL.Image", reason="images need Pillow").fromarray(pixels)
    return image if mode is None else image.convert(mode)


def _with_alpha(channels):
    return _image(np.stack([*[SHADES] * channels, 255 * INK.astype(np.uint8)], axis=-1))


def _of_palette(*, alpha):
    image = _image(INK.astype(np.uint8))
    image.putpalette([7] * 3 + [40] * 3)
    if alpha:
        image.putalpha(_image(255 * INK.astype(np.uint8)))
    return image


TRANSPARENT = {  # file, image and options of Pillow, by what says which pixels are transparent
    "LA": lambda: ("2.png", _with_alpha(1), {}),
    "RGBA": lambda: ("2.png", _with_alpha(3), {}),
    "RGBA of TIFF": lambda: ("2.TIF", _with_alpha(3), {}),
    "WebP": lambda: ("2.webp", _with_alpha(3), {"lossless": True}),
    "PA": lambda: ("2.tif", _of_palette(alpha=True), {}),
    "P, tRNS": lambda: ("2.png", _of_palette(alpha=False), {"transparency": 0}),
    "P, tRNS of bytes": lambda: ("2.png", _of_palette(alpha=False), {"transparency": b"\0\xff"}),
    "P of GIF": lambda: ("2.gif", _of_palette(alpha=False), {"transparency": 0}),
    "L, tRNS": lambda: ("2.png", _image(SHADES), {"transparency": 7}),
    "RGB, tRNS": lambda: ("2.png", _image(SHADES, "RGB"), {"transparency": (7, 7, 7)}),
    "16 bits, tRNS": lambda: ("2.png", _image(np.uint16(SHADES) * 257), {"transparency": 7 * 257}),
}


def png_of_16_bits(pixels):
    """A PNG of pixels of shape (height, width, 3), which Pillow does not write."""

    def chunk(kind, content):
        whole = kind + content
        return struct.pack(">I", len(content)) + whole + struct.pack(">I", zlib.crc32(whole))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


WHITE_ON_NOTHING = np.full((3, 4, 2), 255, np.uint8)
WHITE_ON_NOTHING[0, 0, 1] = 0
NOTHING = np.arange(3 * 4 * 4, dtype=np.uint8).reshape(3, 4, 4)
NOTHING[..., 3] = 0


class TestImages:
    @pytest.fixture
    def folder(self, tmp_path):
        for number, name in enumerate(["cat/1.png", "cat/2.png", "dog/1.png"]):
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            _image(np.arange(12, dtype=np.uint8).reshape(3, 4) + 10 * number).save(path)
        return tmp_path

    @pytest.fixture
    def read(self, folder):
        """Return a function that saves pixels as one more image, and reads all of them."""

        def read(pixels, name="2.png"):
            _image(pixels).save(folder / "dog" / name)
            return load_dataset(folder, validation=0)

        return read

    def test_subfolders_are_classes(self, folder):
        data = load_dataset(folder, validation=0)
        assert data.targets("train").tolist() == ["cat", "cat", "dog"]
        np.testing.assert_array_equal(data.train[2], (np.arange(12) + 20).astype("f4") / 255)
        assert "3 images of 1x3x4" in data.notices[0]

    def test_colours_come_channel_by_channel(self, read):
        pixels = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
        data = read(pixels)
        assert data.width == 36
        expected = pixels.transpose(2, 0, 1).ravel()
        np.testing.assert_array_equal(np.rint(data.train[3] * 255), expected)

    def test_images_of_16_bits_keep_their_shades(self, read):
        deep = np.linspace(0, 65535, 12).astype(np.uint16).reshape(3, 4)
        data = read(deep)
        np.testing.assert_array_equal(data.train[3], deep.ravel() / np.float32(65535))
        np.testing.assert_array_equal(data.train[0], np.arange(12, dtype=np.float32) / 255)
        colours = read(np.zeros((3, 4, 3), np.uint8), "3.png").train[3].reshape(3, 12)
        np.testing.assert_array_equal(colours, [data.train[3]] * 3)

    @pytest.mark.parametrize("name", ["dim.png", "dim.tif", "dim.TIFF", "dim.pgm"])
    def test_shades_of_12_bits_mean_the_same_beside_brighter_ones(self, folder, read, name):
        dim = (np.arange(12) * 370).astype(np.uint16).reshape(3, 4)
        if name.endswith("pgm"):
            (folder / "dog" / name).write_bytes(b"P5 4 3 65535\n" + dim.astype(">u2").tobytes())
            alone = load_dataset(folder, validation=0)
        else:
            alone = read(dim, name)
        words = "no pixel of 16 bits is above 4,070 of 65,535, as of a camera with 12"
        assert words in str(alone.notices)
        np.testing.assert_array_equal(alone.train[3], dim.ravel() / np.float32(65535))
        beside = read(dim * 16, "e.png")
        np.testing.assert_array_equal(beside.train[3], alone.train[3])
        assert "16 bits" not in str(beside.notices)

    def test_colours_of_16_bits_are_counted(self, folder):
        (folder / "dog" / "2.png").write_bytes(png_of_16_bits(np.full((3, 4, 3), 0x1234, ">u2")))
        data = load_dataset(folder, validation=0)
        assert (np.rint(data.train[3] * 255) == 0x12).all()
        assert "1 image with colours of 16 bits, of which the upper 8 are read" in data.notices[1]

    @pytest.mark.parametrize("kind", sorted(TRANSPARENT))
    def test_transparent_pixels_are_read_as_on_white(self, folder, kind):
        name, image, options = TRANSPARENT[kind]()
        image.save(folder / "dog" / name, **options)
        data = load_dataset(folder, validation=0)
        seen = np.where(INK, 40, 255).ravel() / np.float32(255)
        for channel in data.train[3].reshape(-1, 12):
            np.testing.assert_allclose(channel, seen, rtol=1e-6)
        assert "1 image with transparent pixels, read as on white" in str(data.notices)

    def test_opaque_pixels_are_read_as_they_were(self, read):
        pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 4), dtype=np.uint8)
        pixels[..., 3] = 255
        data = read(pixels)
        expected = pixels[..., :3].transpose(2, 0, 1).ravel() / np.float32(255)
        np.testing.assert_array_equal(data.train[3], expected)
        assert "transparent" not in str(data.notices)

    @pytest.mark.parametrize(
        ("pixels", "name", "words"),
        [
            (WHITE_ON_NOTHING, "2.png", r"2.png: got white on a transparent ground"),
            (NOTHING, "2.png", r"2.png: got colours that are transparent everywhere"),
            (np.zeros((3, 4), np.float32), "2.tif", r"2.tif: got pixels of 32 bits"),
            (np.zeros((2, 2), np.uint8), "2.png", "2 x 2 pixels, expected 4 x 3"),
        ],
    )
    def test_pixels_that_do_not_fit_are_refused(self, read, pixels, name, words):
        with pytest.raises(DataError, match=words):
            read(pixels, name)

    @pytest.mark.parametrize("orientation", range(1, 9))
    @pytest.mark.parametrize("suffix", ["png", "JPG", "webp"])
    def test_images_are_turned_as_their_exif_says(self, tmp_path, orientation, suffix):
        from PIL import Image, ImageOps

        exif = Image.Exif()
        exif[274] = orientation
        pixels = (np.arange(16 * 8) * 2).astype(np.uint8).reshape(16, 8)
        lossless = {"lossless": True} if suffix == "webp" else {}
        path = tmp_path / f"1.{suffix}"
        Image.fromarray(pixels).save(path, exif=exif, **lossless)
        with Image.open(path) as image:
            upright = np.asarray(ImageOps.exif_transpose(image).convert("L"))
        data = load_dataset(tmp_path, validation=0)
        found = np.rint(data.train[0].reshape(-1, *upright.shape)[0] * 255)
        np.testing.assert_array_equal(found, upright)

    def test_damaged_exif_turns_nothing(self, folder):
        from PIL import Image

        with Image.open(folder / "cat" / "1.png") as image:
            image.save(folder / "cat" / "1.png", exif=b"Exif\0\0no header of TIFF")
        assert load_dataset(folder, validation=0).train[0, 1] == np.float32(1 / 255)

    @pytest.mark.parametrize("suffix", ["tif", "gif", "png"])
    def test_pages_and_frames_behind_the_first_are_counted(self, folder, suffix):
        pages = [_image(np.full((3, 4), 10 * n, np.uint8)) for n in range(3)]
        pages[0].save(folder / "dog" / f"2.{suffix}", save_all=True, append_images=pages[1:])
        data = load_dataset(folder, validation=0)
        assert data.train[3].max() == 0
        said = "1 image with several pages or frames, of which the first is read"
        assert f"{said}, such as dog/2.{suffix}" in data.notices[1]

    def test_what_is_left_out_is_counted(self, folder):
        image = _image(np.zeros((3, 4), np.uint8))
        for name in (".ipynb_checkpoints/1.png", "cat/._1.png", "cat/old/1.png", "cat/old/2.PNG"):
            (folder / name).parent.mkdir(exist_ok=True)
            image.save(folder / name, format="png")
        (folder / "bird").mkdir()
        (folder / "cat" / ".DS_Store").touch()
        (folder / "cat" / "notes.txt").touch()
        (folder / "dog" / "link.png").symlink_to("gone.png")
        data = load_dataset(folder, validation=0)
        assert data.targets("train").tolist() == ["cat", "cat", "dog"]
        assert [notice.removeprefix(f"{folder}: ") for notice in data.notices] == [
            "3 images of 1x3x4 in 2 classes: cat 2, dog 1",
            "left out: 2 images under names that begin with a dot, such as"
            " .ipynb_checkpoints/1.png",
            "left out: 2 images in folders below those of classes, such as cat/old/1.png",
            "left out: 2 other files, such as cat/notes.txt",
            "left out: 1 folder without images of its own, such as bird",
        ]

    def test_a_class_without_a_text_for_its_name_is_refused(self, folder):
        (folder / "dog").rename(folder / "\udcff")
        with pytest.raises(DataError, match=r"got a folder '\\udcff', a name that is no text"):
            load_dataset(folder)

    @pytest.mark.parametrize("place", [".dog/1.png", "dog/old/1.png"])
    def test_a_folder_whose_images_are_all_left_out_is_refused(self, folder, place):
        new = folder / "new" / place
        new.parent.mkdir(parents=True)
        (folder / "dog" / "1.png").rename(new)
        with pytest.raises(DataError, match="or a folder with images in it or in its subfolders"):
            load_dataset(folder / "new")

    def test_a_link_to_a_folder_is_a_class(self, folder, tmp_path_factory):
        elsewhere = tmp_path_factory.mktemp("birds")
        (folder / "dog" / "1.png").rename(elsewhere / "1.png")
        (folder / "dog").rmdir()
        (folder / "bird").symlink_to(elsewhere)
        data = load_dataset(folder, validation=0)
        assert data.targets("train").tolist() == ["bird", "cat", "cat"]

    def test_a_test_folder_without_a_class_keeps_their_numbers(self, folder, tmp_path_factory):
        test = tmp_path_factory.mktemp("test")
        for name in ("dog", "fox"):
            shutil.copytree(folder / "dog", test / name)
        data = load_dataset(folder, test=test, validation=0)
        assert data.test_labels.tolist() == [1, -1]
        assert "no class of their folder's name was trained on: 1 (of fox)" in str(data.notices)

    @pytest.mark.parametrize(
        ("option", "words"),
        [
            ({"target": "class"}, "its subfolders are the classes"),
            ({"drop": "1"}, "its subfolders are the classes"),
            ({"weights": "1"}, "expected a .csv or .parquet file$"),
        ],
    )
    def test_they_have_no_columns(self, folder, option, words):
        with pytest.raises(DataError, match=f"no named columns; {words}"):
            load_dataset(folder, **option)

    def test_no_image(self, folder):
        (folder / "dog" / "2.png").write_text("no image")
        with pytest.raises(DataError, match=r"2.png: got no image that can be read"):
            load_dataset(folder)


class TestParquet:
    @pytest.fixture
    def write(self, folder):
        pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
        from pyarrow import parquet

        def write(columns, names=None, file="x.parquet"):
            parquet.write_table(pyarrow.table(columns, names=names), folder / file)
            return folder / file

        return write

    def test_target(self, write):
        path = write({"x": [0.5, 0.25, 1.0], "b": [True, False, True], "kind": ["u", None, "w"]})
        data = load_dataset(path, target="kind", validation=0)
        assert data.train.tolist() == [[0.5, 1], [0.25, 0], [1, 1]]
        assert data.train_labels.tolist() == [0, UNLABELLED, 1]

    def test_a_frame_with_an_index(self, write, folder, pandas):
        pandas.DataFrame({"x": [0.5, 0.25, 1.0]}, index=[7, 5, 3]).to_parquet(folder / "x.parquet")
        data = load_dataset(folder / "x.parquet", validation=0)
        assert data.train.tolist() == [[0.5], [0.25], [1]]
        assert "left out '__index_level_0__', the index" in data.notices[0]

    def test_a_column_that_is_dropped(self, write):
        path = write({"x": [0.5, 1], "day": [date(2020, 1, 1)] * 2})
        with pytest.raises(DataError, match=r"'day' holds values of type datetime64.* drop=day$"):
            load_dataset(path)
        data = load_dataset(path, drop="day", validation=0)
        assert data.train.tolist() == [[0.5], [1]]
        assert load_dataset(path, columns=data.columns, validation=0).train.shape == (2, 1)

    def test_no_rows_to_test_with(self, write):
        some, none = (
            write({"a": np.arange(n) / 9, "k": ["u", "v", "w"] * (n // 3)}, file=f"{n}.parquet")
            for n in (9, 0)
        )
        with pytest.raises(DataError, match=r"0.parquet: got no rows, expected one example or mo"):
            load_dataset(some, target="k", test=none)

    def test_two_columns_of_one_name(self, write):
        path = write([[0.5, 1.0]] * 2, names=["a", "a"])
        with pytest.raises(DataError, match="got two columns of the name 'a'"):
            load_dataset(path)


def test_parquet_without_its_package(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (folder / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="needs the package pyarrow"):
        load_dataset(folder / "x.parquet")
