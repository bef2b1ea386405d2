"""Averages of gradients: the tree of their mean, and members that are threads."""

import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from averagedtraining import (
    SECONDS,
    assert_equal_bits,
    beginning,
    gradient,
    together,
    train,
    trained,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from namedmemory import named_memory

from syncpretrain.errors import SettingsError, SyncpretrainError
from syncpretrain.kernels import averaging as tree
from syncpretrain.kernels.averaging import add_tree
from syncpretrain.parallel import AveragingError, GradientAverager, tree_mean
from syncpretrain.parallel import averager as averagers


def exactly_trained(shards=4, steps=5, weights=None):
    """The same in float64, by the definition."""
    parameters = [array.astype(np.float64) for array in beginning()]
    velocities = [np.zeros_like(array) for array in parameters]
    weights = [1] * shards if weights is None else weights
    for step in range(steps):
        for i, (parameter, velocity) in enumerate(zip(parameters, velocities, strict=True)):
            parts = [gradient(step, s, i, parameter).astype(np.float64) for s in range(shards)]
            mean = sum(w * p for w, p in zip(weights, parts, strict=True)) / sum(weights)
            velocity[...] = 0.9 * velocity - 0.1 * mean
            parameter += velocity
    return parameters


@pytest.mark.parametrize("weights", [None, [3, 1, 0, 2]])
def test_any_number_of_members_gives_the_same_bits_and_the_exact_mean(weights):
    one = trained(1, weights=weights)
    for workers in (2, 3, 4):
        assert_equal_bits(trained(workers, weights=weights), one)
    for have, want in zip(one, exactly_trained(weights=weights), strict=True):
        assert have.dtype == np.float32
        np.testing.assert_allclose(have, want, rtol=0, atol=3e-6)


@pytest.mark.parametrize("shards", [1, 3, 7])
@pytest.mark.parametrize("size", [1, 15, 16, 17, 33, 1000])
def test_odd_sizes(shards, size):
    arrays = beginning([(size,)])
    one = trained(1, shards=shards, arrays=arrays)
    assert (one[0] != arrays[0]).all()
    for workers in {2, 5, shards} & set(range(2, shards + 1)):
        assert_equal_bits(trained(workers, shards=shards, arrays=arrays), one)


def test_the_slices_are_cache_lines_and_make_up_the_flat_vector():
    for size in (1, 16, 105, 784):
        for workers in (1, 2, 3, 8):
            slices = averagers.Layout(((size,),), 8, 0, 0).slices(workers)
            assert [s for part in slices for s in range(size)[part]] == list(range(size))
            assert all(part.start % 16 == 0 for part in slices)
            assert max(s.stop - s.start for s in slices) <= size / workers + 32


def test_shards_are_dealt_in_order():
    with GradientAverager([(3,)], shards=5, workers=3) as averager:
        handles = [averager.worker(rank) for rank in range(3)]
        with handles[0] as a, handles[1] as b, handles[2] as c:
            assert [list(m.shards) for m in (a, b, c)] == [[0], [1, 2], [3, 4]]
            assert list(b.gradients) == [1, 2]


def test_shapes_begin_as_zeros_and_arrays_as_copies():
    given = np.arange(6, dtype=np.float64).reshape(2, 3).T
    with GradientAverager([(2, 2), given], shards=1, workers=1) as averager:
        zeros, copy = averager.parameters
        assert zeros.shape == (2, 2)
        assert not zeros.any()
        np.testing.assert_array_equal(copy, given)
        copy += 1
        assert given[0, 0] == 0
        with averager.worker(0) as worker:
            assert worker.parameters[1][0, 0] == 1, "all see the same memory"


def test_nobody_updates_before_all_gradients_are_there_or_returns_before_all_updates_are_done():
    updated, returned = threading.Event(), threading.Event()

    def early(handle):
        with handle as worker:
            worker.gradients[0][0].fill(2)
            worker.average(lambda *_: updated.set())
            returned.set()

    def late(handle):
        def update(parameters, mean, where):
            assert updated.wait(SECONDS)
            assert not returned.wait(0.1), "this update is not done"
            parameters -= mean

        with handle as worker:
            assert not updated.wait(0.1), "these gradients are not there"
            worker.gradients[1][0].fill(4)
            worker.average(update)

    with GradientAverager([(64,)], shards=2, workers=2, timeout=SECONDS) as averager:
        with ThreadPoolExecutor(2) as pool:
            works = [pool.submit(early, averager.worker(0)), pool.submit(late, averager.worker(1))]
            assert [work.result(SECONDS) for work in works] == [None, None]
        np.testing.assert_array_equal(averager.parameters[0], [0.0] * 32 + [-3.0] * 32)


def test_an_exception_in_one_member_is_told_to_all_others():
    def work(handle):
        with handle as worker:
            worker.average(lambda *_: None)
            if worker.rank == 2:
                raise OverflowError("the loss is nan")
            while True:
                worker.average(lambda *_: None)

    with GradientAverager([(50,)], shards=4, workers=4, timeout=SECONDS) as averager:
        outcomes = together(averager, 4, work)
    assert isinstance(outcomes.pop(2), OverflowError)
    assert issubclass(AveragingError, SyncpretrainError)
    for error in outcomes:
        assert isinstance(error, AveragingError)
        told = r"rank 2 \(process .* failed: OverflowError: the loss is nan"
        assert re.fullmatch(told, str(error))


def test_an_update_that_fails_breaks_the_barrier_even_if_its_member_goes_on():
    def work(handle):
        with handle as worker:

            def update(*_):
                if worker.rank == 0:
                    raise ZeroDivisionError

            try:
                worker.average(update)
            except ZeroDivisionError:
                worker.average(lambda *_: None)

    with GradientAverager([(50,)], shards=2, workers=2, timeout=SECONDS) as averager:
        for error in together(averager, 2, work):
            assert isinstance(error, AveragingError)
            assert re.fullmatch("rank 0 .* failed: ZeroDivisionError", str(error))


def test_who_leaves_while_others_still_wait_is_named():
    def work(handle):
        with handle as worker:
            for _ in range(1 if worker.rank == 0 else 2):
                worker.average(lambda *_: None)

    with GradientAverager([(50,)], shards=2, workers=2, timeout=SECONDS) as averager:
        outcomes = together(averager, 2, work)
    assert outcomes[0] is None, "it did nothing wrong by its own lights"
    assert isinstance(outcomes[1], AveragingError)
    assert re.fullmatch(r"rank 0 \(process .* has left", str(outcomes[1]))


def test_who_is_late_is_named():
    told = r"^rank 0 \(process .*waited 0\.2 s for rank 1 \(process .*, rank 2 \(never started\)$"
    with (
        GradientAverager([(50,)], shards=3, workers=3, timeout=0.2) as averager,
        averager.worker(1),
        pytest.raises(AveragingError, match=told),
        averager.worker(0) as worker,
    ):
        worker.average(lambda *_: None)


def test_who_comes_when_it_is_over_is_told_why():
    with GradientAverager([(50,)], shards=2, workers=2) as averager:
        averager.abort("process 7 did not start")
        with pytest.raises(AveragingError, match=r"^process 7 did not start$"), averager.worker(1):
            pass


def test_the_end_of_the_averager_ends_who_waits():
    came = threading.Event()

    def work(handle):
        with handle as worker:
            came.set()
            worker.average(lambda *_: None)

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(KeyError), GradientAverager([(5,)], shards=2, workers=2) as averager:
            future = pool.submit(work, averager.worker(0))
            assert came.wait(SECONDS)
            raise KeyError("elsewhere")
        told = "the creator of the averager failed: KeyError: 'elsewhere'"
        with pytest.raises(AveragingError, match=told):
            future.result(SECONDS)


def test_a_member_takes_part_once():
    with GradientAverager([(50,)], shards=2, workers=1) as averager:
        with averager.worker(0) as worker:
            worker.average(lambda *_: None)
        with pytest.raises(AveragingError, match="make a new averager"), averager.worker(0):
            pass
        with pytest.raises(AveragingError, match="has left; stay in its with block"):
            worker.average(lambda *_: None)


def test_a_closed_averager_says_so():
    averager = GradientAverager([(50,)], shards=2, workers=1)
    averager.close()
    averager.close()
    for use in (lambda: averager.parameters, lambda: averager.worker(0), averager.__enter__):
        with pytest.raises(AveragingError, match="inside its with block"):
            use()


@pytest.mark.parametrize(
    ("arrays", "options", "text"),
    [
        ([(3,)], {"shards": 2, "workers": 3}, "workers: got 3 for 2 shards"),
        ([(3,)], {"shards": 0, "workers": 0}, "workers: got 0 for 0 shards"),
        ([(3,)], {"shards": 1, "workers": 1, "timeout": 0}, "timeout: got 0"),
        ([], {"shards": 1, "workers": 1}, "arrays: got none"),
        ([(3,), np.arange(3)], {"shards": 1, "workers": 1}, r"arrays\[1\]: got an array of int64"),
        ([(3, -1)], {"shards": 1, "workers": 1}, r"arrays\[0\]: got \(3, -1\)"),
        ([[3, 4]], {"shards": 1, "workers": 1}, r"arrays\[0\]: got \[3, 4\]"),
    ],
)
def test_what_cannot_be_averaged_is_refused(arrays, options, text):
    with pytest.raises(SettingsError, match=text):
        GradientAverager(arrays, **options)


@pytest.mark.parametrize("free", [0, 10**5])
def test_what_does_not_fit_the_memory_is_refused_before_it_is_allocated(free, monkeypatch):
    def never(*args):
        raise AssertionError("it was allocated")

    monkeypatch.setattr(averagers, "available_bytes", lambda: free)
    monkeypatch.setattr(averagers.GradientMemory, "create", never)
    needs = r"need about 0\.0 GB, and 0\.0 GB are free; take smaller arrays or fewer shards"
    with pytest.raises(SettingsError, match=rf"^arrays: 10000 numbers .* 3 shards {needs}"):
        GradientAverager([(100, 100)], shards=3, workers=2)


def test_there_are_only_so_many_workers():
    with GradientAverager([(50,)], shards=2, workers=2) as averager:
        for rank in (-1, 2):
            with pytest.raises(SettingsError, match=f"rank: got {rank}, expected 0 to 1"):
                averager.worker(rank)


@pytest.mark.parametrize("weights", [[1], [1, -1], [1, np.nan], [1, np.inf]])
def test_weights_that_do_not_fit_are_refused(weights):
    with (
        GradientAverager([(50,)], shards=2, workers=1) as averager,
        pytest.raises(ValueError, match="one for each of this worker's shards"),
        averager.worker(0) as worker,
    ):
        worker.average(lambda *_: None, weights=weights)


def test_the_memory_of_averagers_has_no_name():
    """That nothing else is left is seen after every test."""
    files = named_memory()
    for _ in range(100):
        with GradientAverager(beginning(), shards=2, workers=2) as averager:
            assert named_memory() == files
            together(averager, 2, lambda handle: train(handle, 1))


def test_a_member_is_no_file():
    with GradientAverager([(50,)], shards=2, workers=1) as averager:
        handle = averager.worker(0)
        with pytest.raises(AveragingError, match="only the start of a process can do"):
            pickle.dumps(handle)


def test_threads_share_plain_memory_where_there_is_no_memory_without_a_name(monkeypatch):
    expected = trained(2)
    monkeypatch.delattr("os.memfd_create")
    assert_equal_bits(trained(2), expected)
    with (
        GradientAverager([(50,)], shards=2, workers=1) as averager,
        pytest.raises(AveragingError, match="memfd_create of Linux; let the workers be threads"),
    ):
        pickle.dumps(averager.worker(0))


@pytest.mark.parametrize(("quota", "spins"), [(1.0, False), (2.0, True)])
def test_no_member_spins_where_the_container_has_fewer_cores(monkeypatch, quota, spins):
    from syncpretrain.parallel import blas
    from syncpretrain.parallel.barrier import Barrier

    monkeypatch.setattr(blas.os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(blas, "_quota", lambda: quota)
    counters = np.zeros(64, dtype=np.int64)
    barrier = Barrier(counters, np.zeros((2, 64), dtype=np.uint8), 0, 2, timeout=1.0)
    assert (barrier._spin > 0) == spins


def parts_of(seed, shards, size):
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.integers(-4, 5, (shards, 1))
    return list((rng.standard_normal((shards, size)) * scales).astype(np.float32))


def mean_of(parts, weights=None):
    return tree_mean(parts, out=np.full_like(parts[0], np.nan), weights=weights)


def bound(parts, weights=None):
    """Half a unit in the last place an operation, of the sum of what is added."""
    shares = np.ones(len(parts)) if weights is None else np.asarray(weights, np.float64)
    shares = shares / shares.sum()
    exact = sum(w * p.astype(np.float64) for w, p in zip(shares, parts, strict=True))
    size = sum(w * np.abs(p.astype(np.float64)) for w, p in zip(shares, parts, strict=True))
    roundings = (len(parts) - 1).bit_length() + 2
    return exact, roundings * 2.0**-24 * 1.001 * size + 1e-40


WEIGHTS = st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=12)


@given(
    st.integers(0, 2**32),
    st.integers(1, 20) | WEIGHTS.filter(lambda weights: sum(weights) > 1e-3),
    st.integers(0, 300),
    st.data(),
)
@settings(max_examples=200)
def test_the_mean_is_exact_up_to_rounding_and_any_slice_has_its_bits(seed, shares, size, data):
    weights = None if isinstance(shares, int) else shares
    parts = parts_of(seed, shares if weights is None else len(weights), size)
    before = [part.copy() for part in parts]
    whole = mean_of(parts, weights)
    exact, error = bound(parts, weights)
    assert (np.abs(whole - exact) <= error).all()
    assert all(np.array_equal(a, b) for a, b in zip(parts, before, strict=True)), "left as they are"
    own = slice(*sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size)))))
    np.testing.assert_array_equal(mean_of([part[own] for part in parts], weights), whole[own])


@pytest.mark.parametrize("shards", range(1, 18))
def test_the_tree_is_that_of_the_learners_also_with_equal_weights(shards):
    parts = parts_of(shards, shards, 33)
    expected = add_tree([part.copy() for part in parts]) / np.float32(shards)
    for weights in (None, [0.3] * shards):
        np.testing.assert_array_equal(mean_of(parts, weights), expected)


@pytest.mark.parametrize("size", [tree.BLOCK - 1, tree.BLOCK, 2 * tree.BLOCK + 5])
@pytest.mark.parametrize("weights", [None, [1, 2, 0, 4, 5, 6]])
def test_blocks_do_not_show(size, weights):
    parts = parts_of(3, 6, size)
    short = tree.BLOCK // 3  # each of one block
    pieces = [slice(start, start + short) for start in range(0, size, short)]
    expected = [mean_of([part[piece] for part in parts], weights) for piece in pieces]
    np.testing.assert_array_equal(mean_of(parts, weights), np.concatenate(expected))


@pytest.mark.parametrize("left_out", [(0,), (1,), (0, 1), (0, 1, 2), (2, 3), (4,), (0, 2, 4)])
def test_a_part_of_weight_0_is_not_read(left_out):
    parts = parts_of(2, 5, 30)
    weights = [0.0 if i in left_out else float(i + 1) for i in range(5)]
    zeroed = [np.zeros_like(part) if i in left_out else part for i, part in enumerate(parts)]
    expected = mean_of(zeroed, weights)
    for i in left_out:
        parts[i].fill(np.nan)
    np.testing.assert_array_equal(mean_of(parts, weights), expected)
    assert np.isfinite(expected).all()
    assert expected.any()


@pytest.mark.parametrize(
    "weights", [[1, 2], [1, 2, 3, 4], [1, -1, 2], [0, 0, 0], [1, np.nan, 1], [1, np.inf, 1]]
)
def test_weights_that_make_no_mean_are_refused(weights):
    with pytest.raises(ValueError, match=r"^weights: got"):
        mean_of(parts_of(0, 3, 4), weights)


def test_parts_that_do_not_fit_are_refused():
    good, out = np.zeros(4, np.float32), np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="parts: got none"):
        tree_mean([], out=out)
    for bad in (np.zeros(5, np.float32), np.zeros(4), np.zeros((2, 2), np.float32)):
        with pytest.raises(ValueError, match=r"part 1: got .* expected float32 of shape \(4,\)"):
            tree_mean([good, bad], out=out)
    with pytest.raises(ValueError, match="out: got float64"):
        tree_mean([good], out=np.zeros(4))
