"""The newest state of a layer survives whoever writes it, killed at any moment."""

import numpy as np
import pytest

from syncpretrain.workers import restarts as module
from syncpretrain.workers.restarts import LOST, Keeping, KeptStates, Replacement, Restarts


class Killed(BaseException):
    """As if the process had died here."""


@pytest.fixture
def kept():
    states = KeptStates.create()
    yield states
    states.close()


def state(number):
    """Return large arrays of several kinds, an empty one, and something that is none."""
    draws = np.random.default_rng(number)
    return {
        "large": draws.random((300, 400), dtype=np.float32),
        "turned": np.asfortranarray(draws.random((70, 500))),
        "apart": draws.random((200, 600))[::2, ::3],
        "none": np.empty((0, 3), dtype=np.float32),
        "numbers": (number, float("inf"), None),
        "grows": np.full(10_000 * number, number),
    }


def same(found, wanted):
    return all(np.array_equal(found[name], wanted[name]) for name in wanted)


def test_the_newest_of_many_is_found_in_arrays_of_its_own(kept):
    assert kept.newest() is None
    assert kept.number == 0
    for number in (1, 2, 3, 4, 5):
        written = state(number)
        kept.write(written)
        found = kept.newest()
        assert kept.number == number
        assert same(found, written)
        found["large"][:] = 0.0
        assert same(kept.newest(), written)


def test_equal_arrays_are_one(kept):
    array = np.ones((100, 100))
    kept.write([array, array])
    first, second = kept.newest()
    assert first is second


@pytest.mark.parametrize("writes", [1, 2])
def test_a_kill_at_any_moment_leaves_the_last_whole_state(kept, monkeypatch, writes):
    """Before and in the middle of each block, and before the last mark."""
    write, mark, left = module.write_array, module._mark, [0]

    def due():
        left[0] -= 1
        return left[0] < 0

    def write_array(place, array, offset):
        if due():
            write(place, array[: len(array) // 2], offset)
            raise Killed
        write(place, array, offset)

    def marked(place, number):
        if due():
            raise Killed
        mark(place, number)

    for number in range(1, writes + 1):
        kept.write(state(number))
    monkeypatch.setattr(module, "write_array", write_array)
    monkeypatch.setattr(module, "_mark", marked)
    moments = 0
    while kept.number == writes:
        left[0] = moments
        moments += 1
        assert same(kept.newest(), state(writes))
        try:
            kept.write(state(writes + 1))
        except Killed:
            continue
    assert moments > len(state(1))
    assert same(kept.newest(), state(writes + 1))


def test_without_memory_the_state_is_lost_and_no_process_is_replaced(kept, monkeypatch):
    told = []
    restarts = Restarts(3, told.append)
    replacement = Replacement(restarts)
    replacement.open(1)
    keeping = Keeping(replacement.kept(1))
    keeping.keep(state(1))
    assert replacement.takes(1, OSError("first"))

    def full(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_array", full)
        keeping.keep(state(2))
    keeping.keep(state(3))  # which would hide that the second one is missing
    assert replacement.kept(1).number == LOST
    assert not keeping.is_due
    assert not replacement.takes(1, OSError("second"))
    restarts.report_all()
    assert told == ["warning: first; a new process goes on from its last state (restart 1 of 3)"]
    assert restarts.take() == "restart 2 of 3", "the one that was refused is left"
    replacement.close()


def test_a_layer_that_comes_no_further_is_not_replaced_for_ever():
    restarts = Restarts(10)
    replacement = Replacement(restarts)
    replacement.open(2)
    takes = [True, True, True, False]
    assert [replacement.takes(1, OSError()) for _ in takes] == takes
    assert replacement.takes(2, OSError()), "another layer"
    replacement.kept(1).write(state(1))
    assert [replacement.takes(1, OSError()) for _ in takes] == takes
    replacement.close()


def test_without_restarts_there_is_no_memory():
    replacement = Replacement(Restarts())
    replacement.open(3)
    assert replacement.kept(1) is None
    assert not replacement.takes(1, OSError())
