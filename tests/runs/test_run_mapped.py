"""Streamed runs on a file: killed, resumed, changed meanwhile, and what follows them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from largerdata import LAYERS, ROWS, example_rows
from moments import At, told_by

from syncpretrain import load
from syncpretrain.data import load_dataset, readers
from syncpretrain.data.file_rows import FileRows
from syncpretrain.errors import SettingsError, WorkerError
from syncpretrain.events import EpochFinished
from syncpretrain.runs.run import resume_run, train_run
from syncpretrain.settings import settings_from

pytestmark = pytest.mark.usefixtures("measures_anew")


class TestRun:
    @pytest.fixture
    def file(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(readers, "RECENT_NS", 0)  # or a new file has no stamp
        np.save("x.npy", example_rows("float32"))
        return tmp_path / "x.npy"

    @pytest.fixture
    def reads(self, monkeypatch):
        """How often the file was read as a whole for a check."""
        found, raw = [], FileRows.raw_blocks
        monkeypatch.setattr(FileRows, "raw_blocks", lambda rows: (found.append(1), raw(rows))[1])
        return found

    def options(self, **more):
        own = {"data": {"name": "x.npy"}, "epochs": 3, "batch_size": 32, "handoff": "minibatch"}
        own |= {"shuffle": "blocks:20", "run": {"checkpoint_every": "1"}}
        return settings_from(LAYERS, **own, **more)

    def died(self):
        """Leave a run that died after an epoch of its second layer."""
        program = (
            "import os\n"
            "from pathlib import Path\n"
            "from syncpretrain.events import EpochFinished\n"
            "from syncpretrain.data import readers\n"
            "from syncpretrain.runs.run import train_run\n"
            "from syncpretrain.settings import read_settings\n"
            "readers.RECENT_NS = 0\n"
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
        damage = At(EpochFinished, lambda: X[:, 7].fill(np.nan), layer=1, epoch=1)
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
        monkeypatch.setattr(readers, "RECENT_NS", 10**12)
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
        found = json.loads(out)["reconstruction_error"]
        assert found == pytest.approx(report["reconstruction_error"])
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
            choice, timings = SimpleNamespace(name="x"), SimpleNamespace(kept="")
            plan = SimpleNamespace(choice=choice, timings=timings, reason="", settings={})
            return self.options(), plan

        monkeypatch.setattr("syncpretrain.cli.train.planned", planned)
        monkeypatch.setattr("syncpretrain.planning.choice.option_text", str)
        options = ("--layers", "30,12,5", "--data", "x.npy", "--schedule", "auto", "--json")
        out, _ = call("train", *options, "--out", "run")
        stream = load_dataset("x.npy", mapped=True)
        assert json.loads(out)["data"]["sha256"] == stream.sha256 != load_dataset("x.npy").sha256

    @pytest.mark.parametrize("shape", [(ROWS, 30), (ROWS, 5, 6)])
    def test_its_parts_are_those_of_the_file_in_memory(self, file, shape):
        np.save(file, example_rows("float32").reshape(shape))
        inside, outside = load_dataset("x.npy"), load_dataset("x.npy", mapped=True)
        assert isinstance(outside.train, FileRows)
        for part in ("train", "validation", "test"):
            np.testing.assert_array_equal(getattr(outside, part)[:], getattr(inside, part))

    @pytest.mark.parametrize("shape", [(ROWS, 30), (ROWS, 5, 6)])
    def test_fortran_order_is_read_into_memory_with_a_word(self, file, shape):
        X = example_rows("float32")
        np.save(file, np.asfortranarray(X.reshape(shape)))
        report, notices = told_by(train_run, self.options(), out=Path("run"))
        assert any("is in Fortran order" in notice for notice in notices)
        assert [layer["epochs"] for layer in report["layers"]] == [3, 3]

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
