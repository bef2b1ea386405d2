"""Published data sets by name, fetched from a server on this machine; the network is not used."""

import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from folders import names_in
from msgspec.structs import replace

from syncpretrain.data import DATASETS, load_dataset
from syncpretrain.data.catalogue import CATALOGUE
from syncpretrain.data.fetch import fetch, folder_of, is_here, named_data
from syncpretrain.data.named import vocabulary
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.errors import DataError
from syncpretrain.settings import read_settings

NAMES = ("fashion-mnist", "kmnist", "cifar10", "20newsgroups")
SECONDS = 20  # of every wait


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return gzip.compress(head + array.astype(np.uint8).tobytes(), mtime=0)


def archive(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return out.getvalue()


def messages():
    """Six groups' messages in a shuffled order; a word of the header names the group."""
    found = {}
    for part, numbers in (("train", range(6)), ("test", range(6, 9))):
        for n in numbers:
            group = ("sci.space", "alt.atheism")[n % 2]
            words = "rocket orbit rocket" if n % 2 == 0 else "belief reason"
            words += f" a {n} word{'s' * n}" + f" two{'o' * (n % 3)}" * (2 if n in (2, 8) else 1)
            body = f"Newsgroups: {group}\nSubject: header\n\n{words}\n"
            found[f"20news-bydate-{part}/{group}/{50_000 - n}"] = body.encode("latin-1")
    found["20news-bydate-train/sci.space/1"] = b"From: x\n\n1 2 3\n"  # without a word
    return dict(reversed(found.items()))


RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.integers(0, 256, (40, 28, 28)), np.arange(40) % 10
RECORDS = {n: RNG.integers(0, 256, (4, 3073)).astype(np.uint8) for n in range(6)}
for record in RECORDS.values():
    record[:, 0] = (1, 2, 3, 4)
CIFAR_NAMES = [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
IDX_FILES = {
    "train-images-idx3-ubyte.gz": idx(IMAGES[:30]),
    "train-labels-idx1-ubyte.gz": idx(LABELS[:30]),
    "t10k-images-idx3-ubyte.gz": idx(IMAGES[30:]),
    "t10k-labels-idx1-ubyte.gz": idx(LABELS[30:]),
}
CONTENTS = {
    "mnist": IDX_FILES,
    "fashion-mnist": IDX_FILES,
    "kmnist": IDX_FILES,
    "cifar10": {
        "cifar-10-binary.tar.gz": archive(
            {f"cifar-10-batches-bin/{CIFAR_NAMES[n]}": RECORDS[n].tobytes() for n in (5, *range(5))}
        )
    },
    "20newsgroups": {"20news-bydate.tar.gz": archive(messages())},
}


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder; a file called X.cut is announced whole, and half of it sent."""

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        cut = Path(self.translate_path(self.path) + ".cut")
        if not cut.exists():
            super().do_GET()
            return
        content = cut.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])


@pytest.fixture
def server(tmp_path):
    """The address and the folder of a server with all files, each set in a folder of its name."""
    root = tmp_path / "served"
    for name, files in CONTENTS.items():
        (root / name).mkdir(parents=True)
        for file, content in files.items():
            (root / name / file).write_bytes(content)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root))) as served:
        thread = threading.Thread(target=partial(served.serve_forever, poll_interval=0.02))
        thread.start()
        try:
            yield f"http://127.0.0.1:{served.server_port}", root
        finally:
            served.shutdown()
            thread.join(SECONDS)
            assert not thread.is_alive()


@pytest.fixture
def small(monkeypatch, tmp_path):
    """The catalogue with sums of the small files, and an empty folder for them."""
    for name, files in CONTENTS.items():
        found = []
        for file in CATALOGUE[name].files:
            content = files[file.name]
            raw = gzip.decompress(content) if file.unpacked else content
            found.append(replace(file, sha256=hashlib.sha256(raw).hexdigest(), bytes=len(content)))
        monkeypatch.setitem(CATALOGUE, name, replace(CATALOGUE[name], files=tuple(found)))
    monkeypatch.setenv("SYNCPRETRAIN_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("SYNCPRETRAIN_OFFLINE", raising=False)
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("syncpretrain.data.fetch.CONNECT_SECONDS", 2.0)
    monkeypatch.setattr("syncpretrain.data.fetch.READ_SECONDS", SECONDS)
    return tmp_path / "data"


class TestCatalogue:
    def test_every_name_is_one_of_data(self):
        assert {*CATALOGUE} | {"digits"} == {*DATASETS}

    @pytest.mark.parametrize("named", CATALOGUE.values(), ids=CATALOGUE)
    def test_an_entry_is_whole(self, named):
        assert named.licence
        assert named.source.startswith("http")
        for file in named.files:
            assert len(bytes.fromhex(file.sha256)) == 32
            assert all(url.startswith("http") for url in named.urls(file))
            assert named.urls(file, "http://x/y/") == [f"http://x/y/{file.name}"]

    def test_no_sum_is_there_twice(self):
        sums = [file.sha256 for named in CATALOGUE.values() for file in named.files]
        assert len(sums) == len(set(sums)) == 14

    def test_an_unknown_name(self):
        with pytest.raises(DataError, match="name: got 'minst', expected one of mnist, fashion"):
            named_data("minst")


class TestFetch:
    @pytest.mark.parametrize("name", CONTENTS)
    def test_all_files_once(self, server, small, name):
        address, _ = server
        reported = []
        named = named_data(name)
        assert not is_here(named, folder_of(named))
        new = fetch(named, mirror=f"{address}/{name}", report=lambda file, n: reported.append(n))
        assert [file.name for file in new] == [*CONTENTS[name]]
        assert max(reported) == max(len(content) for content in CONTENTS[name].values())
        assert is_here(named, folder_of(named))
        assert fetch(named, mirror="http://127.0.0.1:1/nowhere") == []
        assert names_in(small / name) == sorted(CONTENTS[name])

    def test_a_damaged_file_is_fetched_again(self, server, small):
        named = named_data("cifar10")
        (small / "cifar10").mkdir(parents=True)
        (small / "cifar10" / "cifar-10-binary.tar.gz").write_bytes(b"damaged")
        assert len(fetch(named, mirror=f"{server[0]}/cifar10")) == 1

    @pytest.mark.parametrize("damage", ["other bytes", "more bytes", "cut off", "missing"])
    def test_wrong_bytes_leave_nothing(self, server, small, damage):
        address, root = server
        path = root / "kmnist" / "t10k-images-idx3-ubyte.gz"
        whole = path.read_bytes()
        if damage == "missing":
            path.unlink()
        elif damage == "cut off":
            path.rename(path.with_name(path.name + ".cut"))
        else:
            path.write_bytes(whole[:-1] + b"?" if damage == "other bytes" else whole * 3)
        with pytest.raises(DataError) as failed:
            fetch(named_data("kmnist"), mirror=f"{address}/kmnist")
        message = str(failed.value)
        assert message.startswith("name: kmnist could not be fetched: t10k-images-idx3-ubyte.gz: ")
        assert ("expected " in message) == (damage == "other bytes")
        assert "--mirror URL" in message
        assert "\n" not in message
        assert names_in(small / "kmnist") == [*IDX_FILES][:2]

    def test_a_stop_leaves_nothing(self, server, small):
        stop = Mock(side_effect=KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch(named_data("cifar10"), mirror=f"{server[0]}/cifar10", report=stop)
        assert not (small / "cifar10").exists()

    def test_the_next_address_is_tried(self, server, small, monkeypatch):
        addresses = ("http://127.0.0.1:1/", f"{server[0]}/kmnist/")
        assert len(fetch(replace(named_data("kmnist"), addresses=addresses))) == 4

    def test_offline(self, small, monkeypatch):
        monkeypatch.setenv("SYNCPRETRAIN_OFFLINE", "1")
        with pytest.raises(DataError, match="kmnist cannot be fetched: SYNCPRETRAIN_OFFLINE"):
            fetch(named_data("kmnist"))

    @pytest.mark.parametrize("mirror", ["ftp://x", "/folder", "http://", "kmnist"])
    def test_a_mirror_that_is_no_address(self, small, mirror):
        with pytest.raises(DataError, match=r"mirror: got .*, expected an address"):
            fetch(named_data("kmnist"), mirror=mirror)

    def test_a_folder_that_cannot_be_written(self, small):
        small.write_text("a file")
        with pytest.raises(DataError, match="cannot be written to"):
            fetch(named_data("kmnist"), mirror="http://127.0.0.1:1")


class TestLoad:
    @pytest.fixture
    def here(self, small):
        for name, files in CONTENTS.items():
            (small / name).mkdir(parents=True)
            for file, content in files.items():
                (small / name / file).write_bytes(content)
        return small

    @pytest.mark.parametrize("name", ["fashion-mnist", "kmnist"])
    def test_images(self, here, name):
        data = load_dataset(name)
        assert (len(data.train), len(data.validation), len(data.test)) == (25, 5, 10)
        shares = IMAGES[30:].reshape(10, 784).astype(np.float32) / np.float32(255)
        np.testing.assert_array_equal(data.test, shares)
        np.testing.assert_array_equal(data.test_labels, LABELS[30:])
        assert str(here / name) in data.source

    def test_cifar_by_channels(self, here):
        data = load_dataset("cifar10", validation=0)
        assert (len(data.train), len(data.validation), len(data.test)) == (20, 0, 4)
        assert data.train_labels.tolist() == [1, 2, 3, 4] * 5
        first = RECORDS[0][0, 1:].astype(np.float32) / np.float32(255)
        np.testing.assert_array_equal(data.train[0], first)
        np.testing.assert_array_equal(data.test[3], RECORDS[5][3, 1:] / np.float32(255))

    def test_newsgroups_as_counts(self, here):
        data = load_dataset("20newsgroups", validation=0, bounded=False)
        assert isinstance(data.train, SparseRows)
        assert (len(data.train), len(data.test)) == (6, 3)
        # Of 7 messages, words in 3 of them are too usual. Each has a word of its own and one that
        # another one has too; those are the most frequent ones, and all that test messages share.
        assert data.train.shape[1] == 6 + 3
        shared = [1, 1, 1, 1, 2, 1]  # one message has it twice
        np.testing.assert_array_equal(data.train.toarray()[:, :3].sum(axis=1), shared)
        np.testing.assert_array_equal(data.train.toarray()[:, 3:].sum(axis=1), 1)
        np.testing.assert_array_equal(data.test.toarray(), [[1], [2], [1]] * np.eye(9)[[2, 0, 1]])
        assert data.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
        with pytest.raises(DataError):
            load_dataset("20newsgroups", validation=0)  # counts are not in [0, 1]

    def test_the_vocabulary_is_the_most_frequent_words_that_few_documents_have(self):
        documents = [Counter(usual=9, rocket=2), Counter(usual=1, orbit=2), Counter(usual=1)]
        documents += [Counter(belief=1) for _ in range(2)] + [Counter(rare=1)] * 5
        words = vocabulary(documents)
        assert [*words][:3] == ["usual", "belief", "orbit"]
        assert "rare" not in words, "half of the documents have it"

    @pytest.mark.parametrize("name", NAMES)
    def test_nothing_stands_in_for_a_set_that_is_not_here(self, small, name):
        with pytest.raises(DataError, match=f"syncpretrain data fetch {name}"):
            load_dataset(name)

    @pytest.mark.parametrize("name", NAMES)
    def test_a_damaged_file_is_refused(self, here, name):
        path = here / name / named_data(name).files[0].name
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        with pytest.raises(DataError, match=f"SHA-256 .*syncpretrain data fetch {name}"):
            load_dataset(name)

    def test_options_of_files_are_refused(self, here):
        with pytest.raises(DataError, match="has labels and a test part of its own"):
            load_dataset("kmnist", test=0.2)


class TestCommands:
    def test_list(self, call, small, server):
        fetch(named_data("kmnist"), mirror=f"{server[0]}/kmnist")
        rows = json.loads(call("data", "list", "--json")[0])["data"]
        assert [row["name"] for row in rows] == [*CATALOGUE]
        assert [row["name"] for row in rows if row["here"]] == ["kmnist"]
        text, _ = call("data", "list")
        for named in CATALOGUE.values():
            assert f"source: {named.source}; licence: {named.licence}" in text
        assert f"in {small / 'kmnist'}" in text

    def test_fetch_and_train(self, call, small, server, tmp_path):
        out, _ = call("data", "fetch", "kmnist", "--mirror", f"{server[0]}/kmnist")
        assert out.startswith("kmnist: 4 of 4 files fetched; all are right, in ")
        assert "licence: CC BY-SA 4.0" in out
        again, _ = call("data", "fetch", "kmnist", "--mirror", "http://127.0.0.1:1")
        assert again.startswith("kmnist: nothing was fetched")
        own = ("--data", "kmnist", "--epochs", 1, "--batch-size", 5)
        report, _ = call("train", "--layers", "784,3", *own, "--out", tmp_path / "run", "--json")
        assert json.loads(report)["data"]["name"] == "kmnist"
        evaluated, _ = call("evaluate", tmp_path / "run", "--json")
        assert json.loads(evaluated)["data"] == json.loads(report)["data"]

    def test_counts_of_words_choose_their_units(self, call, small, server, tmp_path):
        fetch(named_data("20newsgroups"), mirror=f"{server[0]}/20newsgroups")
        own = ("--data", "20newsgroups", "--validation", 0, "--epochs", 1, "--batch-size", 2)
        call("train", "--hidden", 3, *own, "--out", tmp_path / "run", "--quiet")
        assert read_settings(tmp_path / "run" / "config.toml").pretrain.visible_units == "counts:9"

    def test_refusals_come_before_any_fetch(self, call, small):
        _, err = call("data", "fetch", "kmnist", "minst", status=2)
        assert err.startswith("Error: name: got 'minst', expected one of ")
        _, err = call("data", "fetch", "kmnist", "--mirror", "x", status=2)
        assert err.startswith("Error: mirror: got 'x', expected an address")
        assert call("data", "fetch", status=2)[1].count("\n") == 1
        assert not small.exists()

    @pytest.mark.parametrize("command", ["train", "compare"])
    def test_embedded_digits_stand_in_by_default_alone(self, call, monkeypatch, tmp_path, command):
        monkeypatch.delenv("SYNCPRETRAIN_DATA", raising=False)
        monkeypatch.setenv("SYNCPRETRAIN_OFFLINE", "1")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.chdir(tmp_path)
        own = ("--layers", "784,3", "--data", "mnist", "--finetune", "reconstruction")
        _, err = call(command, *own, status=2)
        assert err.startswith("Error: --data: got mnist, whose 70,000 digits are not here, as SYNC")
        assert "syncpretrain data fetch mnist" in err
        assert [path.name for path in tmp_path.iterdir() if path.name == "runs"] == []
