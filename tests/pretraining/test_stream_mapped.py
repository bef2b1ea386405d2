"""Streamed pretraining on a file that is larger than the memory."""

import json
import operator
import os
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest
from largerdata import ROWS, STREAM, example_rows, mapped
from moments import At

from syncpretrain import Minibatches, finetune, pretrain
from syncpretrain.data import load_dataset
from syncpretrain.data.file_rows import FileRows
from syncpretrain.errors import DataError, DivergedError, WorkerError
from syncpretrain.events import EpochFinished
from syncpretrain.settings import settings_from, write_settings

pytestmark = pytest.mark.usefixtures("forked_layers")
MB = 1 << 20
LARGE = 240 * MB, 1024  # bytes of the file, values of an example
ALLOWED = 100 * MB
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
    HOW: ClassVar = {"layers": (LARGE[1], 16, 8), "epochs": 1, "batch_size": 250}

    def limited(self, folder, **settings):
        data = {"name": str(folder / "x.npy"), "validation": 0.01}
        run = settings_from(data=data, workers=2, **self.HOW, **settings)
        write_settings(run, folder / "config.toml")
        out = folder / settings["handoff"]
        command = [sys.executable, "-c", LIMITED, folder / "config.toml", out, str(ALLOWED)]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
        how = {"capture_output": True, "text": True, "timeout": 120, "env": environment}
        return subprocess.run(command, check=False, **how)

    @pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts what is allocated")
    def test_a_stream_trains_on_it_to_the_bits_of_rows_in_memory(self, large):
        stream = {"handoff": "minibatch", "shuffle": "blocks:500"}
        done = self.limited(large, **stream)
        assert done.returncode == 0, done.stderr
        sha256, peak = json.loads(done.stdout)
        assert peak < ALLOWED, "the whole process, interpreter and libraries included"
        data = load_dataset(large / "x.npy", validation=0.01)
        assert not isinstance(data.train, FileRows)
        stack = pretrain(data.train, validation=data.validation, **self.HOW, **stream)
        assert stack.parameters_sha256 == sha256

    @pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts what is allocated")
    def test_whole_epochs_need_more_than_there_is(self, large):
        done = self.limited(large, handoff="epoch")
        assert done.returncode
        assert "MemoryError" in done.stderr


class TestBits:
    def assert_same(self, folder, X, **options):
        inside, outside = (pretrain(x, **STREAM | options) for x in (X, mapped(folder, X)))
        assert inside.parameters_sha256 == outside.parameters_sha256

    @pytest.mark.parametrize("shuffle", ["rows", "blocks:7", "blocks:40"])
    @pytest.mark.parametrize("dtype", ["float32", "f8", ">f4", "f2", "uint8", "?", "int64"])
    def test_they_do_not_depend_on_where_the_rows_lie(self, tmp_path, never_whole, dtype, shuffle):
        X = example_rows(dtype if dtype != "int64" else "?").astype(dtype)
        self.assert_same(tmp_path, X, shuffle=shuffle, validation=X[:80])

    @pytest.mark.parametrize("visible_bias", ["zero", "log-odds"])
    @pytest.mark.parametrize("units", ["bernoulli", "gaussian"])
    def test_nor_does_what_is_measured_before(self, tmp_path, never_whole, units, visible_bias):
        X = example_rows("float32", 70_000) * np.float32(1 if units == "bernoulli" else 9)
        assert X.size > 2 * MB, "several blocks"
        options = {"epochs": 1, "batch_size": 2000, "learning_rate": 0.01}
        self.assert_same(tmp_path, X, visible_units=units, visible_bias=visible_bias, **options)

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
        self.assert_same(tmp_path, example_rows("uint8"), handoff="epoch")

    @pytest.mark.parametrize(("row", "value"), [(0, np.nan), (1002, np.inf), (500, 1.5)])
    def test_a_bad_value_anywhere_is_refused_before_work(self, tmp_path, row, value):
        X = example_rows("float32")
        X[row, 4] = value
        with pytest.raises(DataError, match=rf"^X: got {value} at row {row}, column 4"):
            pretrain(mapped(tmp_path, X), **STREAM)


class TestWrittenTo:
    def fails(self, X, place, message, *, value=np.nan, into=None, **options):
        """Fail while X is written to, or ``into`` the file that it is mapped from."""
        rows = X if into is None else np.load(into, mmap_mode="r+")
        write = At(EpochFinished, lambda: operator.setitem(rows, (place, 4), value), layer=1)
        with pytest.raises(WorkerError, match=message) as end:
            pretrain(X, **{**STREAM, "runtime": "serial", "observers": [write], **options})
        return end.value

    @pytest.mark.parametrize("runtime", ["serial", "threads", "processes"])
    @pytest.mark.parametrize("value", [np.nan, np.inf, 7.0])
    def test_a_bad_value_in_a_file_is_blamed_on_the_file(self, tmp_path, value, runtime):
        X = mapped(tmp_path, example_rows("float32"))
        message = (
            rf"layer 1 failed in epoch \d+: DataError: X, mapped from .*x\.npy: got {value:g} at"
            r" row 517, column 4 \(counted from 0\), expected the values that it had when the run"
            " began; let nothing write to it"
        )
        where = {"into": tmp_path / "x.npy", "epochs": 100, "runtime": runtime}
        end = self.fails(X, 517, message, value=value, **where)
        assert isinstance(end.__cause__, DataError)
        assert all(np.isfinite(layer.weight).all() for layer in end.stack.layers)

    def test_all_rows_of_a_minibatch_are_counted(self, tmp_path):
        X = mapped(tmp_path, example_rows("float64"))
        message = r"got nan at row 5\d\d, column 4 \(counted from 0\), and bad values in \d+ more"
        how = {"into": tmp_path / "x.npy", "epochs": 9, "shuffle": "blocks:40"}
        self.fails(X, slice(500, 600), message, **how)

    def test_so_is_one_that_only_layers_above_train_on(self, tmp_path):
        X = mapped(tmp_path, example_rows("float32"))
        message = r"layer 1 failed .*x\.npy: got nan at row"
        self.fails(X, slice(None), message, into=tmp_path / "x.npy", epochs=(1, 9))

    @pytest.mark.parametrize("epochs", [9, (1, 9)])
    @pytest.mark.parametrize("is_mapped", [False, True])
    def test_so_is_one_in_memory(self, tmp_path, is_mapped, epochs):
        X = example_rows("float32")
        if is_mapped:
            mapped(tmp_path, X)
            X = np.load(tmp_path / "x.npy", mmap_mode="r+")
        message = "layer 1 failed in epoch .: DataError: X: got nan at row 517, column 4 .*expected"
        self.fails(X, 517, message, epochs=epochs)

    def test_a_layer_that_diverges_is_still_blamed(self, tmp_path):
        X = mapped(tmp_path, example_rows("float32"))
        options = {**STREAM, "visible_units": "gaussian", "learning_rate": 1e6}
        with pytest.raises(DivergedError, match="layer 1 diverged"):
            pretrain(X, **options)

    def test_a_row_is_that_of_the_part_that_was_given(self, tmp_path):
        X = mapped(tmp_path, example_rows("float32"))[300:]
        message = "got nan at row 217, column 4"
        how = {"into": tmp_path / "x.npy", "epochs": 100, "runtime": "threads"}
        self.fails(X, 517, message, **how)


def test_masked_values_are_not_taken_for_numbers():
    X = np.ma.masked_array(np.full((8, 3), 0.5), mask=False)
    options = {"layers": [3, 2], "handoff": "minibatch", "epochs": 1, "batch_size": 4}
    plain = pretrain(Minibatches([X]), **options).parameters_sha256
    assert plain == pretrain(Minibatches([X.data]), **options).parameters_sha256
    X[2, 1] = np.ma.masked
    for hidden in (X, Minibatches([X])):
        with pytest.raises(DataError, match="got a masked array with 1 masked values, expected"):
            pretrain(hidden, **options)
