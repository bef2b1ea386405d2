"""Threads that work at a step together: every shard once, phases in order, nobody waits in vain.

The pool of one layer, whose workers come and go; and steps that any thread may help with.
"""

import threading
import time
from contextlib import closing, contextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from syncpretrain.errors import StalledError
from syncpretrain.kernels import native
from syncpretrain.kernels.program import SHARED_COUNTERS, Program, in_turn
from syncpretrain.parallel import worker_pool as module
from syncpretrain.parallel.step_sharing import StepSharing
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.parallel.worker_pool import WorkerPool

WAIT = 20.0


def run_in_order(run, shards, steps):
    """Run steps of four phases; every shard of each is worked once, and no phase too early."""
    done, early = np.zeros((4, shards), dtype=int), []

    def work(number, shard):
        if number and (done[number - 1] != step + 1).any():
            early.append((number, shard))
        done[number, shard] += 1

    phases = [partial(work, number) for number in range(4)]
    for step in range(steps):
        run(phases)
        assert (done == step + 1).all()
    assert not early, "a phase began before the one below it was done"


@pytest.mark.parametrize("most", [1, 2, 3, 5])
@pytest.mark.parametrize("shards", [1, 2, 7])
def test_every_shard_of_every_phase_is_worked_once_and_in_order(most, shards):
    with closing(WorkerPool(most, "test-pool")) as pool:
        run_in_order(lambda phases: pool.run(phases, shards, most), shards, 50)


def test_members_are_threads_of_their_own_and_gone_at_the_end():
    where = [set() for _ in range(3)]
    together = threading.Barrier(3)

    def phase(shard):
        where[shard].add(threading.current_thread().name)
        together.wait(WAIT)

    with closing(WorkerPool(3, "test-pool")) as pool:
        for _ in range(5):
            pool.run([phase], 3, 3)
        assert where[0] == {threading.current_thread().name}
        assert where[1:] == [{"test-pool-2"}, {"test-pool-3"}]
    assert not [t for t in threading.enumerate() if t.name.startswith("test-pool")]


def test_members_come_and_go_and_are_no_more_than_shards_or_than_there_are():
    rng = np.random.default_rng(0)
    with closing(WorkerPool(4, "test-pool")) as pool:
        for shards, workers in rng.integers(1, 7, size=(500, 2)):
            names = set()

            def phase(shard):
                names.add(threading.current_thread().name)  # noqa: B023

            pool.run([phase, phase], int(shards), int(workers))
            assert len(names) == min(shards, workers, 4)


def test_a_team_that_was_never_needed_has_no_threads():
    before = threading.active_count()
    with closing(WorkerPool(4, "test-pool")) as pool:
        pool.run([lambda shard: None], 8, 1)
        assert threading.active_count() == before


@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize("where", [0, 2])
def test_a_failure_of_any_member_is_raised_and_ends_the_team(culprit, where):
    worked = []

    def work(number, shard):
        worked.append((number, shard))
        if (number, shard) == (where, culprit):
            raise ZeroDivisionError("in a shard")

    phases = [partial(work, number) for number in range(4)]
    with closing(WorkerPool(3, "test-pool")) as pool:
        with pytest.raises(ZeroDivisionError, match="in a shard"):
            pool.run(phases, 3, 3)
        assert max(number for number, _ in worked) <= where
        with pytest.raises(ZeroDivisionError):
            pool.run(phases, 3, 3)
    assert not [t for t in threading.enumerate() if t.name.startswith("test-pool")]


def test_a_member_that_lingered_in_vain_is_woken_again():
    counts = [0, 0]

    def phase(shard):
        counts[shard] += 1

    with closing(WorkerPool(2, "test-pool", Timeouts(linger=0.0, spin=0.0))) as pool:
        for _ in range(300):
            pool.run([phase, phase], 2, 2)
    assert counts == [600, 600]


COMPILED = pytest.mark.skipif(native.extension is None, reason="no compiled kernels are in use")


def scaling(form):
    """Return a step of two shards as phases, or as a program."""
    x = np.ones((2, 5), dtype=np.float32)
    program = Program([[[("scale", row, 2.0)] for row in x]] * 3, 0)
    assert program.is_compiled == (native.extension is not None)
    return program if form == "compiled" else program.phases


@pytest.mark.parametrize(
    ("form", "stall"),
    [("python", 0.0625), ("python", 0.25), pytest.param("compiled", 0.1, marks=COMPILED)],
)
def test_a_member_that_never_comes_or_never_ends_is_told_after_the_time_given(
    form, stall, monkeypatch
):
    monkeypatch.setattr(WorkerPool, "_wake", lambda self, rank: None)
    with closing(WorkerPool(2, "test-pool", Timeouts(stall=stall, look=0.05))) as pool:
        pool._counters[0] = form == "compiled"  # shards that are taken, without which it ends
        with pytest.raises(StalledError, match=rf"of test-pool waited {stall:g} s for the others"):
            pool.run(scaling(form), 2, 2)
        with pytest.raises(StalledError):
            pool.run(scaling(form), 2, 2)


def test_a_member_that_comes_late_but_in_time_is_no_stall(monkeypatch):
    """It is woken when the leader has waited for more than one look."""
    wake, late = WorkerPool._wake, []

    def wake_late(self, rank):
        late.append(threading.Timer(0.1, wake, (self, rank)))
        late[-1].start()

    monkeypatch.setattr(WorkerPool, "_wake", wake_late)
    with closing(WorkerPool(2, "test-pool", Timeouts(stall=WAIT, look=0.01))) as pool:
        pool.run(scaling("python"), 2, 2)
        late[0].join(WAIT)


@COMPILED
def test_a_compiled_step_waits_for_no_member_that_never_comes(monkeypatch):
    monkeypatch.setattr(WorkerPool, "_wake", lambda self, rank: None)
    program = scaling("compiled")
    with closing(WorkerPool(2, "test-pool", Timeouts(stall=WAIT))) as pool:
        for steps in range(1, 4):
            pool.run(program, 2, 2)
            done = [operations[0][1] for operations in program.operations[0]]
            assert (np.array(done) == 8.0**steps).all()


@COMPILED
def test_the_own_work_of_a_member_is_no_time_that_it_waits():
    limit, x = 0.05, np.ones((100, 1000), dtype=np.float32)
    work, spent = [("means", x, np.zeros(1000, dtype=np.float32), "bernoulli")], 0.0
    while spent < 2 * limit:
        work *= 2
        begun = time.monotonic()
        Program([[work]], 0).work()
        spent = time.monotonic() - begun
    counters = np.zeros(SHARED_COUNTERS + 1, dtype=np.int64)
    own = {"base": 0, "broken": SHARED_COUNTERS, "is_owner": True}
    found = Program([[work], [work]], 0).share(counters, timeout_seconds=limit, **own)
    assert found == 0, "reached, not late"


def test_a_suspended_process_is_no_stall(monkeypatch):
    """The clock jumps by an hour while a member waits for the other."""
    jumped, real, waited = threading.Event(), time.monotonic, threading.Event()

    def monotonic():
        if threading.current_thread() is leader:
            (waited if jumped.is_set() else jumped).set()
        return real() + 3600 * waited.is_set()

    def phase(shard):
        if shard:
            assert waited.wait(WAIT)

    leader = threading.current_thread()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=monotonic))
    with closing(WorkerPool(2, "test-pool", Timeouts(stall=WAIT, look=0.01))) as pool:
        pool.run([phase], 2, 2)


def test_what_overflows_in_a_member_is_no_warning():
    def phase(shard):
        np.exp(np.full(3, 1e3, dtype=np.float32))

    with closing(WorkerPool(2, "test-pool")) as pool, np.errstate(over="ignore"):
        pool.run([phase], 2, 2)


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
    sharing = StepSharing()
    with helpers(sharing, count):
        run_in_order(lambda phases: sharing.run(phases, shards), shards, 200)


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


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_helpers_help_and_a_failure_in_any_thread_is_raised_by_the_owner(shard):
    together, later = threading.Barrier(3), []

    def phase(number):
        together.wait(WAIT)  # so that two of the three are helpers'
        if number == shard:
            raise ZeroDivisionError("in a shard")

    sharing = StepSharing()
    with helpers(sharing, 2), pytest.raises(ZeroDivisionError, match="in a shard"):
        sharing.run([phase, later.append], 3)
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
