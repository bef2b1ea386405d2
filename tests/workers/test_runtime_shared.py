from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest
from namedmemory import named_memory

from syncpretrain import pretrain
from syncpretrain.errors import SettingsError
from syncpretrain.parallel.descriptors import PAGE
from syncpretrain.workers.activations import Split
from syncpretrain.workers.shared_memory import SharedArrays, SharedSplits


def split(train: int, validation: int, width: int = 3) -> Split:
    rng = np.random.default_rng(0)
    return Split(*(rng.random((n, width)).astype(np.float32) for n in (train, validation)))


@pytest.mark.parametrize("rows", [(5, 2), (5, 0), (PAGE, PAGE + 1), (1, 1)])
def test_a_room_holds_a_copy_of_a_split(rows):
    data = split(*rows)
    shared = SharedSplits.of(data)
    (found,) = shared.map()
    shared.close()
    for have, want in zip(found, data, strict=True):
        np.testing.assert_array_equal(have, want)
        assert have.flags.c_contiguous
        assert not have.flags.writeable
        assert have.ctypes.data % 64 == 0


def test_rows_that_are_not_contiguous_are_copied_too():
    X = np.arange(24, dtype=np.float32).reshape(6, 4)
    shared = SharedSplits.of(Split(X[::2, 1:], X[:0, 1:]))
    np.testing.assert_array_equal(shared.map()[0].train, X[::2, 1:])
    shared.close()


def test_what_is_written_is_seen_by_all_and_the_splits_do_not_overlap():
    shared = SharedSplits.create((50, 7), 33, 3)
    mine, others = shared.map(write=True), shared.map()
    for i, rows in enumerate(mine, start=1):
        rows.train.fill(i)
        rows.validation.fill(-i)
    for i, rows in enumerate(others, start=1):
        assert (rows.train == i).all()
        assert (rows.validation == -i).all()
    shared.close()
    assert (others[0].train == 1).all(), "a mapping lives longer than the descriptor"


def test_pages_are_allocated_when_they_are_touched():
    shared = SharedSplits.create((60_000, 0), 1000, 3)
    assert os.fstat(shared.descriptor).st_blocks == 0
    shared.map(write=True)[1].train[:10] = 1
    assert 0 < os.fstat(shared.descriptor).st_blocks * 512 < 1 << 22  # a huge page is 2 MB
    shared.close()


def test_nothing_has_a_name():
    before = named_memory()
    shared, numbers = SharedSplits.of(split(5, 2)), SharedArrays.create(("<f8", (4,)))
    assert named_memory() == before
    shared.close()
    numbers.close()


def test_another_process_sees_the_numbers():
    numbers = SharedArrays.create(("<f8", (4,)))
    (mapped,) = numbers.map(write=True)
    code = (
        "from syncpretrain.workers.shared_memory import SharedArrays\n"
        f"SharedArrays{(numbers.descriptor, numbers.kinds)}.map(write=True)[0][2] = 0.5"
    )
    subprocess.run(
        [sys.executable, "-c", code], pass_fds=[numbers.descriptor], check=True, timeout=60
    )
    assert list(mapped) == [0, 0, 0.5, 0]
    numbers.close()


@pytest.mark.parametrize("handoff", ["epoch", "minibatch"])
class TestNoMemory:
    OPTIONS: ClassVar = {"layers": (16, 4, 2), "epochs": 1, "runtime": "processes", "warn": False}

    def test_a_system_without_such_memory_is_told_to_take_threads(self, bits, monkeypatch, handoff):
        monkeypatch.delattr(os, "memfd_create")
        with pytest.raises(SettingsError, match=r"^runtime: got processes, which .* take threads$"):
            pretrain(bits, handoff=handoff, **self.OPTIONS)

    def test_memory_that_the_system_refuses_is_named(self, bits, monkeypatch, handoff):
        def refuse(descriptor, size):
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

        monkeypatch.setattr(os, "ftruncate", refuse)
        with pytest.raises(SettingsError, match=r"^runtime: got processes, but .*File too large"):
            pretrain(bits, handoff=handoff, **self.OPTIONS)
