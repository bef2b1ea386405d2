"""Rings between streamed layers, in memory of this process and shared; sources of minibatches."""

from __future__ import annotations

import numpy as np
import pytest

from syncpretrain.workers.shared_memory import SharedSplits
from syncpretrain.workers.streamed.inputs import Passes, RingSize, RingSource

# 5 minibatches of 3 rows, of passes of 4 minibatches; the last one of a pass has 2 rows.
PASSES = Passes(examples=11, held_out=2, batch_size=3)
SIZE = RingSize(minibatches=5, rows=3, passes=3, held_out=2, width=4)


@pytest.fixture
def shared():
    """Return shared memory for rings."""
    memory = SharedSplits.create(SIZE.all_rows, SIZE.width, 1)
    yield memory
    memory.close()


def rows(first, last):
    """Return the rows of successive minibatches, each with the number of its minibatch."""
    numbers = [n for n in range(first, last + 1) for _ in range(PASSES.size(n))]
    return np.repeat(np.array(numbers, dtype=np.float32)[:, None], SIZE.width, axis=1)


def read(source, first, last):
    X, numbers = source.run(first, last)
    return X[numbers]


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_a_ring_gives_what_was_handed_up_also_around_its_end(at_once):
    rings = SIZE.on()
    source = RingSource(rings, PASSES)
    for first in range(1, 13, at_once):
        last = first + at_once - 1
        if (first - 1) // PASSES.steps != (last - 1) // PASSES.steps:  # a run is of one pass
            continue
        rings.minibatches.fill(first, last, rows(first, last))
        np.testing.assert_array_equal(read(source, first, last), rows(first, last))
        np.testing.assert_array_equal(source.measured(first), rows(first, first))


def test_as_many_minibatches_wait_as_it_has_places_for():
    ring = SIZE.on().minibatches
    for number in range(1, 8):
        ring.put(number, rows(number, number))
    for number in range(3, 8):
        np.testing.assert_array_equal(ring.slot(number, PASSES.size(number)), rows(number, number))
    assert ring.slot(2, 3)[0, 0] == 7


def test_validation_examples_are_handed_up_once_a_pass():
    rings = SIZE.on()
    source = RingSource(rings, PASSES)
    for count in range(1, 6):
        rings.validation.put(count, np.full((2, SIZE.width), count, np.float32))
        with source.validation(count) as X:
            np.testing.assert_array_equal(X, np.full((2, SIZE.width), count))


def test_what_is_taken_to_the_host_is_a_copy():
    ring = SIZE.on().minibatches
    ring.put(1, rows(1, 1))
    taken = ring.on_host(1, 3)
    ring.put(6, rows(6, 6))  # in the same place
    np.testing.assert_array_equal(taken, rows(1, 1))


def test_rings_in_shared_memory_are_one(shared):
    below, above = SIZE.rings(shared.map()[0]), SIZE.rings(shared.map(write=True)[0])
    above.minibatches.slot(7, 3)[:] = rows(7, 7)  # as a layer computes it
    above.validation.put(1, np.ones((2, SIZE.width), np.float32))
    np.testing.assert_array_equal(read(RingSource(below, PASSES), 7, 7), rows(7, 7))
    assert below.validation.slot(1, 2).all()
    with pytest.raises(ValueError, match="read-only"):
        below.minibatches.put(7, rows(7, 7))


def test_rings_are_no_memory_for_others():
    rings = SIZE.on()
    assert SIZE.rings(rings) is rings
