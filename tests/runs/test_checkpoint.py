"""Checkpoint files: whole or not at all, and never trusted."""

import errno
import os

import numpy as np
import pytest
from folders import names_in
from modelfiles import write_crafted

from syncpretrain import storage
from syncpretrain.array_files import read_arrays, write_arrays
from syncpretrain.errors import CheckpointError
from syncpretrain.runs.checkpoints import checkpoint_path, newest_checkpoint, prune_checkpoints

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.float32([np.nan, np.inf])}
ARRAYS["turned"] = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
HEADER = {"epoch": 3, "name": "x", "nested": {"list": [1, 2.5, None]}}


def written(folder, number=1, header=HEADER, arrays=ARRAYS):
    path = checkpoint_path(folder, "pretrain", number)
    write_arrays(path, header, arrays)
    return path


def test_what_was_written_is_read(tmp_path):
    header, arrays = read_arrays(written(tmp_path))
    assert header == HEADER
    assert list(arrays) == list(ARRAYS)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, ARRAYS[name])
        assert array.dtype == np.float32


def test_an_array_under_two_names_is_kept_once(tmp_path):
    big = np.ones((100, 100), dtype=np.float32)
    once = written(tmp_path, 1, arrays={"a": big}).stat().st_size
    twice = written(tmp_path, 2, arrays={"a": big, "b": big}).stat().st_size
    assert twice < once + 200
    assert read_arrays(checkpoint_path(tmp_path, "pretrain", 2))[1]["b"].shape == (100, 100)


def test_every_truncation_is_refused(tmp_path):
    path = written(tmp_path)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match="pretrain-00000001"):
            read_arrays(path)


def test_random_damage_is_refused_or_harmless(tmp_path):
    """3,000 files with one changed byte: refused with a typed error, or of the same content."""
    path = written(tmp_path)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(3_000):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        try:
            header, arrays = read_arrays(path)
        except CheckpointError:
            refused += 1
            continue
        assert header == HEADER
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, ARRAYS[name])
    assert refused > 2_700


def test_a_file_that_claims_too_much_is_refused(tmp_path):
    entry = {"dtype": "F32", "shape": [1_000_000, 1_000_000], "data_offsets": [0, 4 * 10**12]}
    path = write_crafted(checkpoint_path(tmp_path, "pretrain", 1), {"00000": entry})
    with pytest.raises(CheckpointError):
        read_arrays(path)


@pytest.mark.parametrize("content", [b"", b"\x80\x04\x95", b"PK\x03\x04", b"\x00" * 100])
def test_files_of_other_kinds_are_refused(tmp_path, content):
    path = checkpoint_path(tmp_path, "pretrain", 1)
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint"):
        read_arrays(path)


def test_a_missing_file_and_a_model_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_arrays(tmp_path / "none.safetensors")
    path = write_crafted(tmp_path / "x.safetensors", {"__metadata__": {"format": "syncpretrain 2"}})
    with pytest.raises(CheckpointError, match="its format is 'syncpretrain 2'"):
        read_arrays(path)


def test_the_newest_good_one_counts(tmp_path):
    for number in (1, 2, 10):
        written(tmp_path, number, header={"number": number})
    checkpoint_path(tmp_path, "pretrain", 10).write_bytes(b"damaged")
    (tmp_path / "pretrain-00000099.safetensors.tmp").write_bytes(b"")
    reported = []
    header, _ = newest_checkpoint(tmp_path, "pretrain", read_arrays, reported.append)
    assert header == {"number": 2}
    assert len(reported) == 1
    assert "pretrain-00000010" in reported[0]
    assert newest_checkpoint(tmp_path, "finetune", read_arrays, reported.append) is None
    assert newest_checkpoint(tmp_path / "none", "pretrain", read_arrays, reported.append) is None


@pytest.mark.parametrize("keep", [1, 2, 3, 4, 5, 6, 20])
def test_as_many_are_kept_as_asked_for_beside_other_files(tmp_path, keep):
    (tmp_path / "notes.txt").write_text("mine")
    for number in range(1, 12):
        written(tmp_path, number)
        prune_checkpoints(tmp_path, "pretrain", keep)
        kept = range(max(1, number - keep + 1), number + 1)
        names = [checkpoint_path(tmp_path, "pretrain", k).name for k in kept]
        assert names_in(tmp_path) == ["notes.txt", *names]
    prune_checkpoints(tmp_path, "pretrain", 0)
    assert names_in(tmp_path) == ["notes.txt"]


def test_a_refused_one_does_not_take_the_place_of_a_good_one(tmp_path):
    for number in (3, 9, 12):
        written(tmp_path, number, header={"run": "another"})

    def read(path):
        header, arrays = read_arrays(path)
        if header["run"] != "mine":
            raise CheckpointError(f"{path}: is of another run")
        return header, arrays

    reported = []
    assert newest_checkpoint(tmp_path, "pretrain", read, reported.append) is None
    assert len(reported) == 3 and "none is before it" in reported[-1]
    for number in (3, 6):
        written(tmp_path, number, header={"run": "mine", "number": number})
        prune_checkpoints(tmp_path, "pretrain", 2)
    assert newest_checkpoint(tmp_path, "pretrain", read, reported.append)[0]["number"] == 6
    assert len([name for name in names_in(tmp_path) if name.endswith(".refused")]) == 3
    prune_checkpoints(tmp_path, "pretrain", 0)
    assert names_in(tmp_path) == []


def test_numbers_of_more_than_eight_digits_are_newer(tmp_path):
    for number in (99_999_999, 100_000_000):
        written(tmp_path, number, header={"number": number})
    assert newest_checkpoint(tmp_path, "pretrain", read_arrays, print)[0] == {"number": 100_000_000}


STEPS = ("open", "fsync", "link", "replace")


class Failing:
    """Stands for a module: its n-th call of any function that touches the disk raises."""

    def __init__(self, module, n):
        self._module, self._left = module, n

    def __getattr__(self, name):
        found = getattr(self._module, name)
        if name not in STEPS:
            return found

        def call(*args, **kwargs):
            self._left -= 1
            if self._left == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return found(*args, **kwargs)

        return call


@pytest.mark.parametrize("n", range(1, 7))
@pytest.mark.parametrize("again", [False, True], ids=["new", "over"])
def test_whichever_write_fails_the_checkpoint_before_it_is_intact(tmp_path, monkeypatch, n, again):
    written(tmp_path, 1, header={"number": 1})
    if again:
        written(tmp_path, 2, header={"number": "old"})
    monkeypatch.setattr(storage, "os", Failing(os, n))
    try:
        written(tmp_path, 2, header={"number": 2})
    except OSError as error:
        assert error.strerror == "No space left on device"
    monkeypatch.undo()
    reported = []
    header, _ = newest_checkpoint(tmp_path, "pretrain", read_arrays, reported.append)
    assert header["number"] in (1, "old", 2)
    assert not reported
    assert all(name.startswith("pretrain-") for name in names_in(tmp_path)), "nothing temporary"


def test_the_checksum_covers_shapes(tmp_path):
    path = written(tmp_path, arrays={"a": np.zeros((2, 3), dtype=np.float32)})
    content = path.read_bytes()
    path.write_bytes(content.replace(b"[2,3]", b"[3,2]"))
    with pytest.raises(CheckpointError, match="is damaged"):
        read_arrays(path)
