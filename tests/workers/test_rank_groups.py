"""Layers on groups of ranks: collective operations, where layers go, and the bits of one thread."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from localengines import local_engines
from localranks import local_ranks

from syncpretrain.cluster.group import AgreedStop, Group, GroupError
from syncpretrain.cluster.transport import Transport
from syncpretrain.errors import StalledError, WorkerError
from syncpretrain.kernels.averaging import add_subtrees, add_tree, subtrees
from syncpretrain.learners.on_ranks import ByExamplesOnRanks
from syncpretrain.learners.steps import WholeStep
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining.build import build_learner, rank_shares, step_on_ranks
from syncpretrain.pretraining.driver import driver_for
from syncpretrain.settings import settings_from
from syncpretrain.workers.ranks.placement import RankShares, groups_of_layers

WAIT = 20.0
PORT = (1, "group", 1)
HANDOFFS = ("epoch", "minibatch")
LAYERS = (16, 12, 5)
VARIANTS = {
    "plain": {"replicas": (4, 1)},
    "odd": {"replicas": (3, 2), "shards": (7, 2)},
    "in turn": {"replicas": (4, 3), "schedule": "greedy"},
    "no means": {"replicas": (2, 3), "handoff": "minibatch", "hidden_dropout": 0.3},
    "forward": {"replicas": (4, 2), "handoff": "minibatch", "epochs": (1, 3), "delay": 0.4},
}


def run(bits, *, layers=LAYERS, handoff="epoch", runtime="mpi", **options):
    usual = {"epochs": 2, "batch_size": 30, "seed": 3, "handoff": handoff, "runtime": runtime}
    settings = settings_from(layers, **(usual | options)).pretrain
    return driver_for(settings, bits, bits[:50])


@contextmanager
def groups(size, **options):
    """Start the groups of some ranks, which are threads' to use."""
    transports = [Transport(engine, Timeouts(join=WAIT)) for engine in local_engines(size)]
    ranks = range(size)
    try:
        yield [Group(transport, ranks, PORT, **options) for transport in transports]
    finally:
        assert all(transport.close() for transport in transports)


def on_each(own, work):
    with ThreadPoolExecutor(len(own)) as pool:
        calls = [pool.submit(work, group) for group in own]
        return [call.exception(WAIT) or call.result() for call in calls]


@pytest.fixture(scope="module")
def oracle(bits):
    return {
        name: run(bits, runtime="serial", **options).run().parameters_sha256
        for name, options in VARIANTS.items()
    }


@given(st.integers(1, 24), st.data())
def test_subtrees_of_all_ranks_have_the_bits_of_the_tree(shards, data):
    ends = data.draw(st.lists(st.integers(1, shards), max_size=5).map(sorted))
    rng = np.random.default_rng(shards)
    leaves = list(rng.standard_normal((shards, 5)).astype(np.float32))
    wanted = add_tree([leaf.copy() for leaf in leaves])
    sums = {}
    for start, stop in zip([0, *ends], [*ends, shards], strict=True):
        if start < stop:
            for tree in subtrees(range(start, stop), range(shards)):
                sums[tree] = add_tree([leaves[shard] for shard in tree])
    np.testing.assert_array_equal(add_subtrees(sums, range(shards)), wanted)


def test_few_subtrees_make_up_many_shards():
    assert subtrees(range(8, 16), range(16)) == [range(8, 16)]
    assert subtrees(range(1, 6), range(7)) == [range(1, 2), range(2, 4), range(4, 6)]
    assert subtrees(range(4, 7), range(7)) == [range(4, 7)]


PAIR, DEEP = (784, 100, 30), (784, 1000, 500, 250, 30)


@pytest.mark.parametrize(
    ("widths", "size", "shares", "ranks"),
    [
        (PAIR, 3, RankShares((2, 1)), {1: (1,), 2: (2,)}),
        (PAIR, 4, RankShares((2, 2)), {1: (1, 2), 2: (3,)}),
        (PAIR, 6, RankShares((4, 4)), {1: (1, 2, 3, 4), 2: (5,)}),
        (PAIR, 7, RankShares((4, 2)), {1: (1, 2, 3, 4), 2: (5, 6)}),
        (PAIR, 9, RankShares((2, 1)), {1: (1, 2), 2: (3,)}),
        (PAIR, 9, RankShares(), {1: (1,), 2: (2,)}),
        (PAIR, 2, RankShares((4, 4)), {1: (1,), 2: (1,)}),
        (PAIR, 4, RankShares((2, 4), one_at_a_time=True), {1: (1, 2), 2: (1, 2, 3)}),
        (PAIR, 4, RankShares((1, 1), one_at_a_time=True), {1: (1,), 2: (2,)}),
        # Heavy layers are spread.
        (DEEP, 5, RankShares(), {1: (1,), 2: (2,), 3: (3,), 4: (4,)}),
        (DEEP, 9, RankShares(), {1: (1,), 2: (2,), 3: (3,), 4: (4,)}),
        (DEEP, 3, RankShares(), {1: (1,), 2: (2,), 3: (2,), 4: (2,)}),
        ((10, 10, 100, 10, 100), 3, RankShares(), {2: (1,), 3: (2,), 4: (1,), 1: (2,)}),
    ],
)
def test_ranks_that_are_left_go_to_the_heaviest_layers_that_may_be_shared(
    widths, size, shares, ranks
):
    assert groups_of_layers(widths, size, shares) == ranks


def test_replicas_of_layers_that_are_split_by_filters_are_threads_of_a_rank():
    settings = settings_from(LAYERS, replicas=(2, 3), schedule="greedy").pretrain
    assert rank_shares(settings) == RankShares((2, 3), one_at_a_time=True)
    settings = settings_from("1x8x8,conv:4x3,10", replicas=2, split="filters").pretrain
    assert rank_shares(settings) == RankShares((1, 2))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_collective_operations_of_integers_are_exact(size):
    def work(group):
        i = group.number
        turn = group.exchange([np.array([100 * i + j]) for j in range(size)])
        sums = [int(sum(group.all_gather(np.full(5000, 7**i + k)))[0]) for k in range(3)]
        gathered = group.gather(i)
        return [int(one[0]) for one in turn], sums, gathered

    with groups(size) as own:
        found = on_each(own, work)
    total = sum(7**i for i in range(size))
    for i, (turn, sums, gathered) in enumerate(found):
        assert turn == [100 * j + i for j in range(size)]
        assert sums == [total, total + size, total + 2 * size]
        assert gathered == (None if i else list(range(size)))


def test_all_ranks_agree_on_a_stop():
    def work(group):
        stop = AgreedStop(group, lambda: group.number == 1)
        before = stop()
        return before, stop.agree(), stop()

    with groups(3) as own:
        assert on_each(own, work) == [(False, True, True)] * 3


def test_a_rank_that_waits_learns_of_a_failure_of_the_end_and_of_the_deadline():
    def work(group):
        if group.number == 1:
            group.fail()
            return None
        return group.all_gather(0)

    with groups(3) as own:
        found = on_each(own, work)
        assert [type(one) for one in found] == [GroupError, type(None), GroupError]
        assert str(found[0]).startswith("rank 1")
    for error, told, options in (
        (GroupError, "^the run ended while rank 1 ", {"is_over": lambda: True}),
        (StalledError, "^nothing came from rank 1 ", {"times": Timeouts(stall=0.01, tick=0.01)}),
    ):
        with groups(2, **options) as (first, _), pytest.raises(error, match=told):
            first.all_gather(0)


def test_another_step_is_refused():
    step = WholeStep(build_learner(settings_from(LAYERS).pretrain, 1))
    with groups(1) as (group,), pytest.raises(ValueError, match=r"^step: got WholeStep, expected"):
        step_on_ranks(step, AgreedStop(group, bool))


@pytest.mark.parametrize("size", [3, 4, 5, 7])
def test_the_bits_are_those_of_one_thread(bits, oracle, size):
    with local_ranks(size):
        for name in VARIANTS:
            found = run(bits, **VARIANTS[name]).run().parameters_sha256
            assert found == oracle[name], name


def test_ranks_of_a_group_have_threads_too(bits, oracle, monkeypatch):
    threads = set()
    gradient = ByExamplesOnRanks._gradient

    def note(self, i):
        threads.add((self.group.number, threading.current_thread().name))
        gradient(self, i)

    monkeypatch.setattr(ByExamplesOnRanks, "_gradient", note)
    with local_ranks(4):
        assert run(bits, **VARIANTS["plain"]).run().parameters_sha256 == oracle["plain"]
    names = ["syncpretrain-layer-1", "syncpretrain-layer-1-2"]
    assert threads == {(number, name) for number in range(2) for name in names}


@pytest.mark.parametrize("handoff", HANDOFFS)
@pytest.mark.parametrize("number", [0, 1])
def test_an_error_on_one_rank_of_a_group_names_it(bits, monkeypatch, handoff, number):
    healthy = ByExamplesOnRanks.train_step

    def broken(self, X, rows, *, epoch, step, **how):
        if self.group.number == number and (epoch, step) == (2, 1):
            raise ValueError("out of luck")
        return healthy(self, X, rows, epoch=epoch, step=step, **how)

    monkeypatch.setattr(ByExamplesOnRanks, "train_step", broken)
    told = rf"^layer 1 failed in epoch 2 on rank {number + 1} on .*: ValueError: out of luck"
    with local_ranks(5) as ranks, pytest.raises(WorkerError, match=told):
        run(bits, handoff=handoff, replicas=(3, 1)).run()
    assert not ranks.own.broken, "the others have left"
