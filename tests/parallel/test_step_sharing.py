"""Steps that any thread may help with: every shard once, phases in order, nobody waits in vain."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import numpy as np
import pytest

from syncpretrain.errors import StalledError
from syncpretrain.kernels import native
from syncpretrain.kernels.program import Program, in_turn
from syncpretrain.parallel.step_sharing import StepSharing
from syncpretrain.parallel.timeouts import Timeouts

WAIT = 20.0


@contextmanager
def helpers(sharing, count):
    """Let some threads help until the context ends; return the set of their names."""
    over = threading.Event()

    def serve():
        while not over.is_set():
            sharing.help(sharing.calls)

    threads = [threading.Thread(target=serve, name=f"helper-{i}") for i in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        sharing.call()
        for thread in threads:
            thread.join(WAIT)
        assert not any(thread.is_alive() for thread in threads)


def chain(shards, width=32):
    """Return a program of three phases, each of which needs all shards of the one before."""
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=(width, width)).astype("f4") for _ in range(2))
    x, y, z = (np.zeros((width, width), np.float32) for _ in range(3))
    parts = [slice(i * width // shards, (i + 1) * width // shards) for i in range(shards)]
    phases = [
        [[("matmul", a[part], b, x[part])] for part in parts],
        [[("matmul", a, x[:, part], y[:, part])] for part in parts],
        [
            [("matmul", y[part], b, z[part]), ("squared_error", y[part], z[part], x[part], i)]
            for i, part in enumerate(parts)
        ],
    ]
    return Program(phases, shards), (x, y, z)


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("shards", [1, 2, 7])
def test_a_program_gives_the_bits_of_its_shards_in_turn(shards, count):
    program, arrays = chain(shards)
    in_turn(program, shards)
    expected, errors = [array.copy() for array in arrays], program.results.copy()
    sharing = StepSharing()
    with helpers(sharing, count):
        for _ in range(300):
            for array in arrays:
                array.fill(np.nan)
            sharing.run(program, shards)
            for array, wanted in zip(arrays, expected, strict=True):
                np.testing.assert_array_equal(array, wanted)
            np.testing.assert_array_equal(program.results, errors)


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("shards", [1, 2, 5])
def test_every_shard_of_every_phase_is_run_once_and_in_order(shards, count):
    done, early = np.zeros((4, shards), dtype=int), []

    def phase(number):
        def work(shard):
            if number and (done[number - 1] != step + 1).any():
                early.append((number, shard))
            done[number, shard] += 1

        return work

    phases, sharing = [phase(number) for number in range(4)], StepSharing()
    with helpers(sharing, count):
        for step in range(200):
            sharing.run(phases, shards)
            assert (done == step + 1).all()
    assert not early, "a phase began before the one below it was done"


def test_helpers_help():
    together = threading.Barrier(3)
    sharing = StepSharing()
    with helpers(sharing, 2):
        for _ in range(20):
            sharing.run([lambda shard: together.wait(WAIT)] * 2, 3)


@pytest.mark.skipif(not native.available(), reason="the compiled kernels are missing")
def test_helpers_take_shards_of_a_compiled_program():
    """A helper finishes what an owner left: the shards are counted where all see them."""
    program, arrays = chain(2)
    in_turn(program, 2)
    expected = arrays[2].copy()
    arrays[2].fill(np.nan)
    counters = np.zeros(40, dtype=np.int64)
    options = {"base": 0, "broken": 39, "timeout_seconds": WAIT, "spin_seconds": 0.0}
    counters[16] = 2  # open: the owner has begun
    assert program.share(counters, is_owner=False, **options) == 0
    assert list(counters[[0, 8, 16]]) == [6, 6, 6]
    np.testing.assert_array_equal(arrays[2], expected)
    assert program.share(counters, is_owner=False, **options) == 0, "nothing is left"


@pytest.mark.parametrize("shard", [0, 1])
def test_a_failure_in_any_thread_is_raised_by_the_owner(shard):
    together, later = threading.Barrier(2), []

    def phase(number):
        together.wait(WAIT)  # so that one of the two is a helper's
        if number == shard:
            raise ZeroDivisionError("in a shard")

    sharing = StepSharing()
    with helpers(sharing, 1), pytest.raises(ZeroDivisionError, match="in a shard"):
        sharing.run([phase, later.append], 2)
    assert not later, "the next phase did not begin"


def test_a_helper_without_a_step_leaves_soon_and_one_that_is_called_at_once():
    sharing = StepSharing(Timeouts(linger=0.01))
    assert not sharing.help(sharing.calls)
    calls = sharing.calls
    sharing.call()
    assert StepSharing.help(sharing, calls)


def test_a_helper_that_takes_too_long_is_told():
    begun, gate = threading.Event(), threading.Event()

    def phase(shard):
        if threading.current_thread().name == "helper-0":
            begun.set()
            gate.wait(WAIT)
        else:
            begun.wait(WAIT)

    sharing, later = StepSharing(Timeouts(stall=0.05)), []
    with helpers(sharing, 1):
        with pytest.raises(StalledError, match=r"took more than 0\.05 s for a shard"):
            sharing.run([phase, later.append], 2)
        gate.set()
    assert not later, "a helper that is late after all does not go on with a step given up"
