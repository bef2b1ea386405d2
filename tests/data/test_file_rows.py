"""Rows of a file that is larger than the memory."""

import os

import numpy as np
import pytest
from largerdata import LAYERS, ROWS, STREAM, example_rows, mapped

from syncpretrain import pretrain
from syncpretrain.data.blocks import blocks_of
from syncpretrain.data.file_rows import rows_in_file
from syncpretrain.errors import DataError, WorkerError
from syncpretrain.events import EpochFinished

pytestmark = pytest.mark.usefixtures("forked_layers")


class TestRows:
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
        np.testing.assert_array_equal(np.concatenate(list(blocks_of(rows))), X)
        out = np.empty((3, LAYERS[0]), dtype=np.float32)
        assert np.take(rows, [4, 2, 9], axis=0, out=out, mode="clip") is out
        np.testing.assert_array_equal(out, X[[4, 2, 9]])

    def test_a_part_of_a_mapping_is_found_in_its_file(self, tmp_path):
        X = example_rows("uint8")
        rows = rows_in_file(mapped(tmp_path, X)[100:200])
        np.testing.assert_array_equal(rows[:], X[100:200] / np.float32(255))

    def test_what_is_not_a_row_at_a_time_in_a_file_is_none(self, tmp_path):
        X = example_rows("float32")
        file = mapped(tmp_path, X)
        modes = [np.load(tmp_path / "x.npy", mmap_mode=mode) for mode in ("c", "r+")]
        others = [X, X.tolist(), file[:, :5], file.T, *modes]
        assert [rows_in_file(other) for other in others] == [None] * 6
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
