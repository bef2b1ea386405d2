"""Memory that processes share, and the rings between streamed layers, in it and elsewhere."""

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
from syncpretrain.workers.streamed.inputs import Passes, RingSize, RingSource


def split(train, validation, width=3):
    rng = np.random.default_rng(0)
    return Split(*(rng.random((n, width)).astype(np.float32) for n in (train, validation)))


STRIDED = np.arange(24, dtype=np.float32).reshape(6, 4)
SPLITS = [split(5, 2), split(5, 0), split(PAGE, PAGE + 1), split(1, 1)]
SPLITS += [Split(STRIDED[::2, 1:], STRIDED[:0, 1:])]  # rows that are not contiguous


@pytest.mark.parametrize("data", SPLITS, ids=lambda data: str(data.train.shape))
def test_a_room_holds_a_copy_of_a_split(data):
    shared = SharedSplits.of(data)
    (found,) = shared.map()
    shared.close()
    for have, want in zip(found, data, strict=True):
        np.testing.assert_array_equal(have, want)
        assert have.flags.c_contiguous
        assert not have.flags.writeable
        assert have.ctypes.data % 64 == 0


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
    command = [sys.executable, "-c", code]
    subprocess.run(command, pass_fds=[numbers.descriptor], check=True, timeout=60)
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


# 5 minibatches of 3 rows, of passes of 4 minibatches; the last one of a pass has 2 rows.
PASSES = Passes(examples=11, held_out=2, batch_size=3)
SIZE = RingSize(minibatches=5, rows=3, passes=3, held_out=2, width=4)


def rows(first, last):
    """Return the rows of successive minibatches, each with the number of its minibatch."""
    numbers = [n for n in range(first, last + 1) for _ in range(PASSES.size(n))]
    return np.repeat(np.array(numbers, dtype=np.float32)[:, None], SIZE.width, axis=1)


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_a_ring_gives_what_was_handed_up_also_around_its_end(at_once):
    rings = SIZE.on()
    source = RingSource(rings, PASSES)
    for first in range(1, 13, at_once):
        last = first + at_once - 1
        if (first - 1) // PASSES.steps != (last - 1) // PASSES.steps:  # a run is of one pass
            continue
        rings.minibatches.fill(first, last, rows(first, last))
        X, numbers = source.run(first, last)
        np.testing.assert_array_equal(X[numbers], rows(first, last))
        np.testing.assert_array_equal(source.measured(first), rows(first, first))
