"""Data in a file that is larger than the memory, or given by an iterable, for streamed runs."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from largerdata import LAYERS, ROWS, STREAM, Blocking, example_rows, mapped
from trialruns import notices_of

from syncpretrain import Minibatches, finetune, load, pretrain
from syncpretrain.data import load_dataset, own_data
from syncpretrain.data.file_rows import FileRows, rows_in_file
from syncpretrain.data.order import MIXED_BLOCKS, PassOrder, minibatches
from syncpretrain.errors import (
    DataError,
    DivergedError,
    SettingsError,
    WorkerError,
)
from syncpretrain.events import EpochFinished
from syncpretrain.runs.run import resume_run, train_run
from syncpretrain.settings import settings_from, write_settings

MB = 1 << 20
LARGE = 400 * MB, 1024  # bytes of the file, values of an example
ALLOWED = LARGE[0] // 4
LIMITED = """
import json, resource, sys
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from syncpretrain import pretrain
from syncpretrain.runs.run import train_run
from syncpretrain.settings import read_settings

def kilobytes(name):
    table = dict(row.split(":", 1) for row in Path("/proc/self/status").read_text().splitlines())
    return int(table[name].split()[0])

# Threads, buffers of BLAS and modules are there before the limit is set.
pretrain(np.eye(64), layers=(64, 9, 4), handoff="minibatch", epochs=1, batch_size=8)
limit = 1024 * kilobytes("VmData") + int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
report = train_run(read_settings(Path(sys.argv[1])), out=Path(sys.argv[2]))
print(json.dumps([report["parameters_sha256"], kilobytes("VmHWM") * 1024]))
"""


@pytest.fixture
def never_whole(monkeypatch):
    """Fail where rows of a file become an array as a whole."""

    def refuse(self, dtype=None, copy=None):
        assert len(self) < ROWS // 2, "all rows were read into memory"
        return self[:]

    monkeypatch.setattr(FileRows, "__array__", refuse)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    size, width = LARGE
    shape = (size // 4 // width, width)
    X = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, shape)
    some = np.random.default_rng(0).random((500, width), dtype=np.float32)
    for start in range(0, shape[0], 2000):  # the rest are holes, which take no place
        X[start : start + 500] = some[: shape[0] - start]
    del X
    yield folder
    (folder / "x.npy").unlink()


class TestMemory:
    """A file of 4 times the memory that a process may have."""

    def limited(self, folder: Path, **settings) -> subprocess.CompletedProcess[str]:
        run = settings_from(
            (LARGE[1], 16, 8),
            data={"name": str(folder / "x.npy"), "validation": 0.01},
            epochs=1,
            batch_size=250,
            workers=2,
            **settings,
        )
        write_settings(run, folder / "config.toml")
        out = folder / settings["handoff"]
        command = [sys.executable, "-c", LIMITED, folder / "config.toml", out, str(ALLOWED)]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "2"},
        )

    @pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts what is allocated")
    def test_a_stream_trains_on_it_to_the_bits_of_rows_in_memory(self, large):
        done = self.limited(large, handoff="minibatch", shuffle="blocks:500")
        assert done.returncode == 0, done.stderr
        sha256, peak = json.loads(done.stdout)
        assert peak < ALLOWED, "the whole process, interpreter and libraries included"
        data = load_dataset(large / "x.npy", validation=0.01)
        assert not isinstance(data.train, FileRows)
        stack = pretrain(
            data.train,
            layers=(LARGE[1], 16, 8),
            validation=data.validation,
            handoff="minibatch",
            shuffle="blocks:500",
            epochs=1,
            batch_size=250,
        )
        assert stack.parameters_sha256 == sha256

    @pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts what is allocated")
    def test_whole_epochs_need_more_than_there_is(self, large):
        done = self.limited(large, handoff="epoch")
        assert done.returncode
        assert "MemoryError" in done.stderr


class TestBits:
    @pytest.mark.parametrize("shuffle", ["rows", "blocks:7", "blocks:40"])
    @pytest.mark.parametrize(
        "dtype", ["float32", "float64", ">f4", "float16", "uint8", "?", "int64"]
    )
    def test_they_do_not_depend_on_where_the_rows_lie(self, tmp_path, never_whole, dtype, shuffle):
        X = example_rows(dtype if dtype != "int64" else "?").astype(dtype)
        options = {**STREAM, "shuffle": shuffle}
        inside = pretrain(X, validation=X[:80], **options)
        outside = pretrain(mapped(tmp_path, X), validation=X[:80], **options)
        assert inside.parameters_sha256 == outside.parameters_sha256

    @pytest.mark.parametrize("visible_bias", ["zero", "log-odds"])
    @pytest.mark.parametrize("units", ["bernoulli", "gaussian"])
    def test_nor_does_what_is_measured_before(self, tmp_path, never_whole, units, visible_bias):
        X = example_rows("float32", 70_000) * np.float32(1 if units == "bernoulli" else 9)
        assert X.size > 2 * MB, "several blocks"
        options = {**STREAM, "epochs": 1, "batch_size": 2000}
        options |= {"visible_units": units, "visible_bias": visible_bias, "learning_rate": 0.01}
        stacks = [pretrain(rows, **options) for rows in (X, mapped(tmp_path, X))]
        assert stacks[0].parameters_sha256 == stacks[1].parameters_sha256

    @pytest.mark.parametrize("units", ["bernoulli", "gaussian"])
    def test_nor_in_processes(self, tmp_path, never_whole, units):
        X = example_rows("uint8")
        options = {**STREAM, "visible_units": units, "visible_bias": "log-odds"}
        options |= {"shuffle": "blocks:20", "delay": 0.5, "validation": X[:80]}
        inside = pretrain(X, **options).parameters_sha256
        for rows in (X, mapped(tmp_path, X)):
            assert pretrain(rows, runtime="processes", **options).parameters_sha256 == inside

    def test_nor_in_fine_tuning(self, tmp_path, never_whole):
        X = example_rows("uint8")
        stack = pretrain(X, **STREAM)
        options = {"epochs": 2, "seed": 1, "backend": "numpy"}
        y = np.arange(ROWS) % 3 - 1
        for targets in (None, y):
            tuned = [finetune(stack, rows, targets, **options) for rows in (X, mapped(tmp_path, X))]
            assert tuned[0].parameters_sha256 == tuned[1].parameters_sha256

    def test_whole_epochs_take_a_mapped_file_into_memory(self, tmp_path):
        X = example_rows("uint8")
        options = {**STREAM, "handoff": "epoch"}
        stacks = [pretrain(rows, **options) for rows in (X, mapped(tmp_path, X))]
        assert stacks[0].parameters_sha256 == stacks[1].parameters_sha256

    @pytest.mark.parametrize(("row", "value"), [(0, np.nan), (1002, np.inf), (500, 1.5)])
    def test_a_bad_value_anywhere_is_refused_before_work(self, tmp_path, row, value):
        X = example_rows("float32")
        X[row, 4] = value
        with pytest.raises(DataError, match=rf"^X: got {value} at row {row}, column 4"):
            pretrain(mapped(tmp_path, X), **STREAM)


class TestOrder:
    @pytest.mark.parametrize("block", [0, 1, 3, 10, 200, 1000])
    @pytest.mark.parametrize(("rows", "batch"), [(1, 1), (100, 7), (997, 100), (160, 160)])
    def test_every_row_comes_once_and_any_minibatch_can_be_asked_for(self, rows, batch, block):
        def order():
            return PassOrder(rows, batch, seed=1, number=2, block=block)

        steps = range(-(-rows // batch))
        one = order()
        found = [one.minibatch(step) for step in steps]
        assert sorted(np.concatenate(found)) == list(range(rows))
        for step in reversed(steps):
            np.testing.assert_array_equal(order().minibatch(step), found[step])

    def test_without_blocks_it_is_that_of_whole_epochs(self):
        order = PassOrder(50, 7, seed=4, number=3)
        for step, rows in enumerate(minibatches(50, 7, seed=4, layer=1, epoch=3)):
            np.testing.assert_array_equal(order.minibatch(step), rows)

    def test_a_minibatch_is_of_few_blocks_which_lie_anywhere(self):
        block, rows = 20, 8000
        order = PassOrder(rows, 100, seed=0, number=1, block=block)
        found = np.concatenate([order.minibatch(step) for step in range(rows // 100)])
        window = MIXED_BLOCKS * block
        for start in range(0, rows, window):
            here = np.unique(found[start : start + window] // block)
            assert len(here) == MIXED_BLOCKS
            assert here.max() - here.min() > MIXED_BLOCKS * 4, "far from each other"
        other = PassOrder(rows, 100, seed=0, number=2, block=block)
        assert set(order.minibatch(0)) != set(other.minibatch(0))

    def test_the_blocks_of_a_group_are_named(self):
        order = PassOrder(95, 10, seed=0, number=1, block=3)
        groups = list(itertools.takewhile(bool, map(order.blocks, itertools.count())))
        assert len(groups) == 2
        rows = [row for group in groups for run in group for row in range(run.start, run.stop)]
        assert sorted(rows) == list(range(95))

    @pytest.mark.parametrize(
        "text", ["blocks", "blocks:0", "blocks:-1", "blocks:1.5", "rows:3", "x"]
    )
    def test_another_word_is_refused(self, text):
        with pytest.raises(SettingsError, match=r"^shuffle: got .* expected rows, or blocks:N"):
            settings_from(LAYERS, handoff="minibatch", shuffle=text)

    def test_whole_epochs_have_no_blocks(self):
        with pytest.raises(SettingsError, match="shuffle: got blocks:5 with handoff epoch"):
            settings_from(LAYERS, shuffle="blocks:5")


class TestRows:
    """Rows of a file in the place of an array."""

    def test_they_are_those_of_the_array(self, tmp_path):
        X = example_rows("float64").astype(np.float32)
        rows = rows_in_file(mapped(tmp_path, X))
        keys = [slice(3, 50), slice(None), slice(5, 5), slice(0, 40, 7), np.array([5, 1, 900])]
        keys += [np.arange(20, 60), np.zeros(0, dtype=int), X[:, 0] < 0.5]
        for key in keys:
            np.testing.assert_array_equal(rows[key], X[key])
        some = np.arange(1, ROWS, 3)
        part = rows.subset(some).subset(np.arange(7, 100))
        np.testing.assert_array_equal(np.asarray(part), X[some][7:100])
        np.testing.assert_array_equal(part.whole()[:], X)
        np.testing.assert_array_equal(np.concatenate(list(rows.blocks())), X)
        out = np.empty((3, LAYERS[0]), dtype=np.float32)
        assert np.take(rows, [4, 2, 9], axis=0, out=out, mode="clip") is out
        np.testing.assert_array_equal(out, X[[4, 2, 9]])

    def test_a_part_of_a_mapping_is_found_in_its_file(self, tmp_path):
        X = example_rows("uint8")
        rows = rows_in_file(mapped(tmp_path, X)[100:200])
        np.testing.assert_array_equal(rows[:], X[100:200] / np.float32(255))

    def test_they_can_be_sent_to_another_process(self, tmp_path):
        X = example_rows("float32")
        rows = rows_in_file(mapped(tmp_path, X)).subset(np.arange(10, 60))
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(rows))[:], X[10:60])

    def test_what_is_not_a_row_at_a_time_in_a_file_is_none(self, tmp_path):
        X = example_rows("float32")
        file = mapped(tmp_path, X)
        assert rows_in_file(X) is None
        assert rows_in_file(X.tolist()) is None
        assert rows_in_file(file[:, :5]) is None
        assert rows_in_file(file.T) is None
        assert rows_in_file(np.load(tmp_path / "x.npy", mmap_mode="c")) is None
        assert rows_in_file(np.load(tmp_path / "x.npy", mmap_mode="r+")) is None
        np.save(tmp_path / "other.npy", 1 - X)
        (tmp_path / "other.npy").replace(tmp_path / "x.npy")
        assert rows_in_file(file) is None, "the file is another one now"

    def test_a_file_that_is_cut_off_meanwhile_is_named(self, tmp_path):
        file = tmp_path / "x.npy"
        rows = rows_in_file(mapped(tmp_path, example_rows("float32")))
        whole = file.stat().st_size
        os.truncate(file, 6000)
        message = (
            rf"x\.npy: got a file of 6000 bytes with 48 whole rows, expected at least {whole} bytes"
            r" with 1003 rows; it has become shorter since the run began, put the whole file back,"
        )
        with pytest.raises(DataError, match=message):
            rows[:]

    @pytest.mark.parametrize("runtime", ["serial", "threads", "processes"])
    def test_so_is_one_that_is_cut_off_in_training(self, tmp_path, runtime):
        X = mapped(tmp_path, example_rows("float32"))

        def cut(event):
            if isinstance(event, EpochFinished):
                os.truncate(tmp_path / "x.npy", 6000)

        options = {**STREAM, "epochs": 300, "runtime": runtime, "observers": [cut]}
        message = r"layer 1 failed in epoch \d+: DataError: .*x\.npy: got a file of 6000 bytes"
        with pytest.raises(WorkerError, match=message) as end:
            pretrain(X, **options)
        assert isinstance(end.value.__cause__, DataError)
        assert end.value.stack is not None


class TestWrittenTo:
    """Data into which something writes while it is trained on."""

    def damaged(self, path, rows, value, after=(1, 1)):
        """Return an observer that writes a value after an epoch of a layer."""
        file = np.load(path, mmap_mode="r+")

        def damage(event):
            if isinstance(event, EpochFinished) and (event.layer, event.epoch) == after:
                file[rows, 4] = value
                file.flush()

        return damage

    @pytest.mark.parametrize("runtime", ["serial", "threads", "processes"])
    @pytest.mark.parametrize("value", [np.nan, np.inf, 7.0])
    def test_a_bad_value_in_a_file_is_blamed_on_the_file(self, tmp_path, value, runtime):
        X = mapped(tmp_path, example_rows("float32"))
        observers = [self.damaged(tmp_path / "x.npy", 517, value)]
        message = (
            rf"layer 1 failed in epoch \d+: DataError: X, mapped from .*x\.npy: got {value:g} at"
            r" row 517, column 4 \(counted from 0\), expected the values that it had when the run"
            " began; let nothing write to it"
        )
        options = {**STREAM, "epochs": 100, "runtime": runtime, "observers": observers}
        with pytest.raises(WorkerError, match=message) as end:
            pretrain(X, **options)
        assert isinstance(end.value.__cause__, DataError)
        assert all(np.isfinite(layer.weight).all() for layer in end.value.stack.layers)

    def test_all_rows_of_a_minibatch_are_counted(self, tmp_path):
        X = mapped(tmp_path, example_rows("float64"))
        observers = [self.damaged(tmp_path / "x.npy", slice(500, 600), np.nan)]
        options = {**STREAM, "runtime": "serial", "epochs": 9, "shuffle": "blocks:40"}
        message = r"got nan at row 5\d\d, column 4 \(counted from 0\), and bad values in \d+ more"
        with pytest.raises(WorkerError, match=message):
            pretrain(X, observers=observers, **options)

    def test_so_is_one_that_only_layers_above_train_on(self, tmp_path):
        X = mapped(tmp_path, example_rows("float32"))
        observers = [self.damaged(tmp_path / "x.npy", slice(None), np.nan)]
        options = {**STREAM, "runtime": "serial", "epochs": (1, 9), "observers": observers}
        with pytest.raises(WorkerError, match=r"layer 1 failed .*x\.npy: got nan at row"):
            pretrain(X, **options)

    @pytest.mark.parametrize("epochs", [9, (1, 9)])
    @pytest.mark.parametrize("is_mapped", [False, True])
    def test_so_is_one_in_memory(self, tmp_path, is_mapped, epochs):
        X = example_rows("float32")
        if is_mapped:
            mapped(tmp_path, X)
            X = np.load(tmp_path / "x.npy", mmap_mode="r+")

        def damage(event):
            if isinstance(event, EpochFinished) and (event.layer, event.epoch) == (1, 1):
                X[517, 4] = np.nan

        options = {**STREAM, "runtime": "serial", "epochs": epochs, "observers": [damage]}
        message = "layer 1 failed in epoch .: DataError: X: got nan at row 517, column 4 .*expected"
        with pytest.raises(WorkerError, match=message):
            pretrain(X, **options)

    def test_a_layer_that_diverges_is_still_blamed(self, tmp_path):
        X = mapped(tmp_path, example_rows("float32"))
        options = {**STREAM, "visible_units": "gaussian", "learning_rate": 1e6}
        with pytest.raises(DivergedError, match="layer 1 diverged"):
            pretrain(X, **options)

    def test_a_row_is_that_of_the_part_that_was_given(self, tmp_path):
        X = mapped(tmp_path, example_rows("float32"))[300:]
        observers = [self.damaged(tmp_path / "x.npy", 517, np.nan)]
        with pytest.raises(WorkerError, match="got nan at row 217, column 4"):
            pretrain(X, **{**STREAM, "epochs": 100, "observers": observers})


def in_order(X: np.ndarray, size: int = 32):
    """Return a function that gives the passes of a run on X in memory."""

    def one_pass(number):
        order = PassOrder(len(X), size, seed=STREAM["seed"], number=number)
        return (X[order.minibatch(step)] for step in range(-(-len(X) // size)))

    return one_pass


class Pairs:
    """Like a DataLoader: each iter() begins a pass over examples and labels."""

    def __init__(self, X, size):
        self.arrays = [X[i : i + size] for i in range(0, len(X), size)]

    def __iter__(self):
        return iter([[x, np.zeros(len(x))] for x in self.arrays])


def flawed(number, item):
    """Return passes of two arrays of 20 rows, one of which is another thing."""
    good = np.full((20, LAYERS[0]), 0.5)

    def one_pass(now):
        yield good
        yield item if now == number else good

    return one_pass


class TestIterable:
    def test_it_trains_like_the_same_rows_in_memory(self):
        X = example_rows("uint8")
        expected = pretrain(X, **STREAM).parameters_sha256
        for n_examples in (None, ROWS):
            source = Minibatches(in_order(X), n_examples=n_examples)
            for workers in (1, 3):
                assert pretrain(source, workers=workers, **STREAM).parameters_sha256 == expected

    @pytest.mark.parametrize("size", [1, 31, 500, ROWS])
    def test_the_sizes_of_its_arrays_do_not_count(self, size):
        X = example_rows("float32")
        options = {**STREAM, "visible_units": "gaussian", "visible_bias": "log-odds"}
        options |= {"learning_rate": 0.01, "validation": X[:50], "delay": 0.5}
        found = pretrain(Pairs(X, size), **options).parameters_sha256
        assert found == pretrain(Pairs(X, 32), **options).parameters_sha256

    def test_what_is_beyond_the_examples_of_a_pass_is_not_asked_for(self):
        def endless(number):
            draws = np.random.default_rng(number)
            while True:
                yield draws.random((10, LAYERS[0]))

        events = []
        pretrain(Minibatches(endless, n_examples=95), observers=[events.append], **STREAM)
        assert events[0].examples == 95

    def test_an_iterator_will_do_where_one_pass_is_enough(self):
        X = example_rows("float32", 100)
        options = {**STREAM, "epochs": 1}
        once = Minibatches(iter([X[:70], X[70:]]), n_examples=100)
        again = Minibatches(Pairs(X, 32), n_examples=100)
        assert (
            pretrain(once, **options).parameters_sha256
            == pretrain(again, **options).parameters_sha256
        )

    @pytest.mark.parametrize(
        ("options", "n_examples", "passes"),
        [
            ({}, 40, "for 2 passes;"),
            ({"epochs": 1}, None, "for 2 passes, one of them for lack of n_examples;"),
            ({"epochs": 1, "delay": 0.5}, 40, "for 2 passes;"),
            ({"epochs": 1, "visible_bias": "log-odds"}, 40, "for 2 passes;"),
            ({"visible_units": "gaussian"}, 40, "for 3 passes;"),
        ],
    )
    def test_one_that_cannot_begin_anew_is_refused(self, options, n_examples, passes):
        read = []
        source = Minibatches((read.append(1) for _ in range(9)), n_examples=n_examples)
        with pytest.raises(
            DataError, match=f"^X: got generator, which can be read once, {passes}"
        ) as end:
            pretrain(source, **{**STREAM, **options})
        assert not read
        measures = {"visible_bias", "visible_units"} & options.keys()
        told = "or 1 epoch a layer with delay=0 and n_examples, which need one pass only"
        assert (told in str(end.value)) is not bool(measures), "standardization reads it once more"

    @pytest.mark.parametrize(
        ("item", "message"),
        [
            (np.ones((3, 7)), r"got shape \(3, 7\), expected \(any number, 30\)"),
            (np.ones(30), r"got shape \(30,\), expected"),
            (np.full((2, 30), np.nan), "got nan at row 0, column 0"),
            (np.full((2, 30), 2.0), "got 2 at row 0, column 0"),
            (np.ones((0, 30)), "got no values"),
            ("text", "got values of type"),
        ],
    )
    def test_what_cannot_be_trained_on_is_named(self, item, message):
        place = "X: array 2 of pass {}, for minibatch 2 of layer 1: "
        options = {**STREAM, "batch_size": 16}
        with pytest.raises(DataError, match=place.format(1) + message):
            pretrain(flawed(1, item), **options)
        with pytest.raises(WorkerError, match=place.format(2) + message) as end:
            pretrain(Minibatches(flawed(2, item), n_examples=40), **options)
        assert end.value.stack is not None

    @pytest.mark.parametrize("runtime", ["serial", "threads"])
    @pytest.mark.parametrize(("after", "place"), [(0, "array 1"), (1, "array 2"), (2, "array 3")])
    def test_what_it_raises_is_told_with_its_place(self, runtime, after, place):
        lost = ConnectionError("no route to host")

        def one_pass(number):
            for i in range(3):
                if (number, i) == (2, after):
                    raise lost
                yield np.full((20, LAYERS[0]), 0.5)

        options = {**STREAM, "batch_size": 16, "runtime": runtime}
        message = f"X: {place} of pass 2.*: the iterable raised ConnectionError: no route to host"
        with pytest.raises(WorkerError, match=message) as end:
            pretrain(Minibatches(one_pass, n_examples=60), **options)
        assert end.value.__cause__ is lost
        assert end.value.stack is not None

    @pytest.mark.parametrize("after", [0, 1])
    def test_so_is_what_it_raises_before_training(self, after):
        lost = ConnectionError("no route to host")

        def one_pass(number):
            for i in range(2):
                if i == after:
                    raise lost
                yield np.full((20, LAYERS[0]), 0.5)

        message = rf"^X: array {after + 1} of pass 1, for minibatch {after + 1} of layer 1: the"
        with pytest.raises(DataError, match=message) as end:
            pretrain(one_pass, **{**STREAM, "batch_size": 16})
        assert end.value.__cause__ is lost

    def test_so_is_what_its_function_raises(self):
        def no_pass(number):
            raise FileNotFoundError("x.bin")

        message = "X: array 1 of pass 1, for minibatch 1 of layer 1: .*FileNotFoundError: x.bin"
        with pytest.raises(DataError, match=message):
            pretrain(no_pass, **STREAM)

    def test_a_pass_that_ends_early_is_named(self):
        X = example_rows("float32", 80)
        short = Minibatches(lambda n: [X] if n == 1 else [X[:70]])
        message = "X: pass 2 ended after 70 examples, in minibatch 3 of layer 1, expected 80"
        with pytest.raises(WorkerError, match=message):
            pretrain(short, **STREAM)

    @pytest.mark.parametrize(
        ("X", "error", "message"),
        [
            (lambda n: [], DataError, "X: got no array in the first pass"),
            (lambda n: 5, DataError, "X: got int for pass 1, expected an iterable of arrays"),
            (lambda n: [np.ones((5, 30))], SettingsError, "batch_size: got 32, expected at most 5"),
            (range(3), DataError, "X: array 1 of pass 1, .*: got shape"),
            ("text", DataError, "X: got values of type"),
            (5, DataError, r"X: got shape \(\)"),
        ],
    )
    def test_what_gives_no_examples_is_refused(self, X, error, message):
        with pytest.raises(error, match=f"^{message}"):
            pretrain(X, **STREAM)

    def test_another_process_takes_none(self):
        X = Minibatches(in_order(example_rows("float32")), n_examples=ROWS)
        with pytest.raises(SettingsError, match="runtime: got processes with an iterable as X"):
            pretrain(X, runtime="processes", **STREAM)

    def test_whole_epochs_take_none(self):
        with pytest.raises(DataError, match="got Pairs with handoff epoch, expected an array"):
            pretrain(Pairs(example_rows("float32"), 10), **{**STREAM, "handoff": "epoch"})

    @pytest.mark.parametrize(("source", "n"), [(5, None), (Pairs, 0), (Pairs, -3)])
    def test_wrong_arguments_are_refused(self, source, n):
        with pytest.raises(DataError, match="got"):
            Minibatches(source, n_examples=n)


class TestBlocking(Blocking):
    """An iterable that waits for something, such as a socket, when the run is to stop."""


class TestRun:
    """A run by the command line on a .npy file that stays on the disk."""

    @pytest.fixture
    def file(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(own_data, "RECENT_NS", 0)  # or a new file has no stamp
        np.save("x.npy", example_rows("float32"))
        return tmp_path / "x.npy"

    @pytest.fixture
    def reads(self, monkeypatch):
        """How often the file was read as a whole for a check."""
        found, raw = [], FileRows.raw_blocks
        monkeypatch.setattr(FileRows, "raw_blocks", lambda rows: (found.append(1), raw(rows))[1])
        return found

    def options(self, **more):
        return settings_from(
            LAYERS,
            data={"name": "x.npy"},
            handoff="minibatch",
            epochs=3,
            batch_size=32,
            shuffle="blocks:20",
            run={"checkpoint_every": "1"},
            **more,
        )

    def died(self):
        """Leave a run that died after an epoch of its second layer."""
        program = (
            "import os\n"
            "from pathlib import Path\n"
            "from syncpretrain.events import EpochFinished\n"
            "from syncpretrain.data import own_data\n"
            "from syncpretrain.runs.run import train_run\n"
            "from syncpretrain.settings import read_settings\n"
            "own_data.RECENT_NS = 0\n"
            "def die(event):\n"
            "    if isinstance(event, EpochFinished) and (event.layer, event.epoch) == (2, 2):\n"
            "        os.kill(os.getpid(), 9)\n"
            "settings = read_settings(Path('whole/config.toml'))\n"
            "train_run(settings, out=Path('run'), observers=[die])\n"
        )
        died = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
        assert died.returncode == -9

    def test_one_that_was_killed_is_resumed_to_the_same_bits(self, file, never_whole, reads):
        whole = train_run(self.options(), out=Path("whole"))
        assert len(reads) == 1, "for checks and hash at once"
        self.died()
        report = resume_run(Path("run"))
        assert report["parameters_sha256"] == whole["parameters_sha256"]
        assert report["data"]["sha256"] == whole["data"]["sha256"]
        assert len(reads) == 1, "it has not been written to"

    def test_a_bad_value_that_is_written_meanwhile_is_named(self, file, call):
        X = np.load(file, mmap_mode="r+")

        def damage(event):
            if isinstance(event, EpochFinished) and (event.layer, event.epoch) == (1, 1):
                X[:, 7] = np.nan

        message = r"layer 1 failed in epoch .: DataError: x\.npy: got nan at row \d+, column 7"
        with pytest.raises(WorkerError, match=message):
            train_run(self.options(runtime="serial"), out=Path("run"), observers=[damage])
        X[:] = example_rows("float32")
        report = resume_run(Path("run"))
        whole = train_run(self.options(), out=Path("whole"))
        assert report["parameters_sha256"] == whole["parameters_sha256"], "the values were put back"

    def test_a_copy_is_read_again_and_accepted(self, file, reads):
        whole = train_run(self.options(), out=Path("whole"))
        self.died()
        Path("copy.npy").write_bytes(file.read_bytes())
        Path("copy.npy").replace(file)
        assert resume_run(Path("run"))["parameters_sha256"] == whole["parameters_sha256"]
        assert len(reads) == 2

    @pytest.mark.parametrize("row", [0, 517, ROWS - 1])
    def test_a_value_that_was_changed_is_noticed(self, file, row):
        train_run(self.options(), out=Path("whole"))
        self.died()
        times = file.stat()
        X = np.load(file, mmap_mode="r+")
        X[row, 3] = 0.5
        X.flush()
        del X
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # as some programs do
        with pytest.raises(SettingsError, match="cannot go on to the same bits: its data was"):
            resume_run(Path("run"))

    def test_a_file_that_was_just_written_is_read_again(self, file, reads, monkeypatch):
        monkeypatch.setattr(own_data, "RECENT_NS", 10**12)
        train_run(self.options(), out=Path("whole"))
        assert json.loads(Path("whole/run.json").read_text())["stamp"] is None

    def test_all_that_follows_works_by_blocks(self, file, never_whole, call, reads):
        tuned = {"objective": "reconstruction", "epochs": 1, "patience": 1}
        report = train_run(self.options(finetune=tuned), out=Path("run"))
        whole = load_dataset("x.npy")
        stack = load("run")
        expected = np.square(whole.validation - stack.reconstruct(whole.validation)).sum(axis=1)
        assert report["reconstruction_error"]["validation"] == pytest.approx(expected.mean())
        out, err = call("evaluate", "run", "--json")
        assert json.loads(out)["reconstruction_error"] == pytest.approx(
            report["reconstruction_error"]
        )
        assert "trained on other data" not in err
        out, err = call("encode", "run", "--out", "z.npy")
        assert not err
        np.testing.assert_array_equal(np.load("z.npy"), stack.encode(np.load("x.npy")))
        call("reconstruct", "run", "--shape", "5x6", "--part", "train")
        assert len(reads) == 1

    def test_one_that_a_plan_streams_has_the_hash_of_a_stream(self, file, call, monkeypatch):
        """It was loaded into memory for the plan; a resume maps it."""

        def planned(settings, data):
            assert not isinstance(data.train, FileRows)
            plan = SimpleNamespace(choice=SimpleNamespace(name="x"), reason="", settings={})
            return self.options(), plan

        monkeypatch.setattr("syncpretrain.cli.train.planned", planned)
        monkeypatch.setattr("syncpretrain.planning.choice.option_text", str)
        options = ("--layers", "30,12,5", "--data", "x.npy", "--schedule", "auto", "--json")
        out, _ = call("train", *options, "--out", "run")
        stream = load_dataset("x.npy", mapped=True)
        assert json.loads(out)["data"]["sha256"] == stream.sha256 != load_dataset("x.npy").sha256

    def test_its_parts_are_those_of_the_file_in_memory(self, file):
        inside, outside = load_dataset("x.npy"), load_dataset("x.npy", mapped=True)
        assert isinstance(outside.train, FileRows)
        for part in ("train", "validation", "test"):
            np.testing.assert_array_equal(getattr(outside, part)[:], getattr(inside, part))

    def test_more_dimensions_are_flattened(self, file):
        X = example_rows("float32")
        np.save(file, X.reshape(-1, 5, 6))
        np.testing.assert_array_equal(load_dataset(file, mapped=True, validation=0).train[:], X)

    @pytest.mark.parametrize("shape", [(ROWS, 30), (ROWS, 5, 6)])
    def test_fortran_order_is_read_into_memory_with_a_word(self, file, shape):
        X = example_rows("float32")
        np.save(file, np.asfortranarray(X.reshape(shape)))
        events = []
        train_run(self.options(), out=Path("run"), observers=[events.append])
        assert any("is in Fortran order" in message for message in notices_of(events))
        assert len([e for e in events if isinstance(e, EpochFinished)]) == 6

    def test_bytes_of_0_and_1_are_pointed_out(self, file):
        np.save(file, (example_rows("float32") < 0.5).astype(np.uint8))
        assert "all 0 or 1" in load_dataset(file, mapped=True).notices[0]

    def test_a_bad_value_is_refused_before_there_is_a_folder(self, file, call):
        X = example_rows("float32")
        X[1000, 2] = np.nan
        np.save(file, X)
        options = ("--layers", "30,4", "--data", "x.npy", "--handoff", "minibatch", "--out", "run")
        _, err = call("train", *options, status=2)
        assert "x.npy: got nan at row 1000, column 2" in err
        assert not Path("run").exists()


@pytest.mark.parametrize("count", [1.5, "a", True, 0, -1])
def test_a_number_of_examples_that_is_none_is_refused(count):
    with pytest.raises(DataError, match=f"^n_examples: got {count!r}, expected a whole number"):
        Minibatches([np.zeros((2, 3))], n_examples=count)


@pytest.mark.parametrize("function", [lambda: [], lambda a, b: []])
def test_a_function_of_something_else_than_a_number_is_refused(function):
    with pytest.raises(DataError, match="expected a function of the number of the pass"):
        Minibatches(function)


@pytest.mark.parametrize("X", [lambda number: [], Minibatches([np.zeros((2, 3))])])
def test_units_that_suit_the_columns_of_an_iterable_are_refused(X):
    with pytest.raises(SettingsError, match=r"^visible_units: got auto with an iterable, "):
        pretrain(X, layers=[3, 2], handoff="minibatch", visible_units="auto")


def test_masked_values_are_not_taken_for_numbers():
    X = np.ma.masked_array(np.full((8, 3), 0.5), mask=False)
    options = {
        "layers": [3, 2],
        "handoff": "minibatch",
        "epochs": 1,
        "batch_size": 4,
        "warn": False,
    }
    plain = pretrain(Minibatches([X]), **options).parameters_sha256
    assert plain == pretrain(Minibatches([X.data]), **options).parameters_sha256
    X[2, 1] = np.ma.masked
    for hidden in (X, Minibatches([X])):
        with pytest.raises(DataError, match="got a masked array with 1 masked values, expected"):
            pretrain(hidden, **options)
