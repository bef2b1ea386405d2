"""Asynchronous training on ranks that are threads: nothing torn or lost, every failure told."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from asyncreplicas import SIZE, CountingReplica
from localranks import local_ranks

from syncpretrain import pretrain
from syncpretrain.cluster.transport import last_beat
from syncpretrain.errors import WorkerError
from syncpretrain.parallel.replicas.server import ParameterServer
from syncpretrain.parallel.replicas.steps import tasks_of
from syncpretrain.parallel.timeouts import TIMEOUTS
from syncpretrain.settings.fields import AsyncFields
from syncpretrain.workers.replicas import replicas_in

STEPS = 40
DATA = (np.ones((2, 3), np.float32),)


def fleet_of(server, rules, *, replicas=3, fails=None):
    build = partial(CountingReplica, None, fails)
    own = {"replicas": replicas, "report": print, "times": TIMEOUTS}
    return replicas_in("mpi", server, rules, build, DATA, **own)


@pytest.mark.parametrize(("size", "push", "fetch"), [(2, 1, 1), (4, 1, 1), (3, 2, 4)])
def test_whole_numbers_add_up_exactly(size, push, fetch):
    rules = AsyncFields(async_rate="constant", push_every=push, fetch_every=fetch)
    server, told = ParameterServer(np.zeros(SIZE, np.float32), rules), []
    with local_ranks(size), fleet_of(server, rules) as fleet:
        tasks = tasks_of(1, 0, STEPS, push)
        assert fleet.train(tasks, lambda: False, lambda *of: told.append(of)) == len(tasks)
        states = fleet.state()
    np.testing.assert_array_equal(server.parameters, np.float32(STEPS * (STEPS + 1) / 2))
    assert sorted(task.first for task, _, _ in told) == list(range(0, STEPS, push))
    assert sum(float(array[0]) for array in states.values()) == STEPS


@pytest.mark.parametrize(
    ("size", "servers", "push", "fetch"), [(3, 2, 1, 1), (6, 3, 1, 1), (4, 4, 2, 4)]
)
def test_whole_numbers_add_up_exactly_in_slices_on_ranks(size, servers, push, fetch):
    rules = AsyncFields(async_rate="constant", push_every=push, fetch_every=fetch, max_staleness=1)
    server = ParameterServer(np.zeros(SIZE, np.float32), rules, servers)
    with local_ranks(size), fleet_of(server, rules) as fleet:
        for first in (0, STEPS):
            tasks = tasks_of(1, first, first + STEPS, push)
            assert fleet.train(tasks, lambda: False, lambda *of: None) == len(tasks)
            done = first + STEPS
            np.testing.assert_array_equal(server.parameters, np.float32(done * (done + 1) / 2))
    assert server.clock == 2 * len(tasks)


def test_an_error_of_a_replica_is_raised(tmp_path):
    rules = AsyncFields()
    server = ParameterServer(np.zeros(SIZE, np.float32), rules)
    told = r"^replica \d failed on rank [12] on \S+: ArithmeticError: a step went wrong"
    fleet = fleet_of(server, rules, fails=str(tmp_path / "failed"))
    with local_ranks(3), pytest.raises(WorkerError, match=told), fleet:
        fleet.train(tasks_of(1, 0, STEPS, 1), lambda: False, lambda *of: None)


@pytest.mark.parametrize("compensation", [0.0, 0.5])
def test_servers_on_ranks_have_the_bits_of_one(bits, compensation):
    own = {"layers": (16, 10, 6), "schedule": "async", "epochs": 2, "seed": 3, "momentum": "0"}
    own |= {"delay_compensation": compensation, "warn": False}
    alone = pretrain(bits, runtime="serial", **own)
    with local_ranks(4):
        stack = pretrain(bits, runtime="mpi", servers=3, **own)
    assert stack.parameters_sha256 == alone.parameters_sha256


@pytest.mark.parametrize("steps", [1, STEPS])  # found out when all is done, and before
def test_an_error_of_a_server_is_raised(monkeypatch, steps):
    def fail(self, change, share, fetched):
        raise ArithmeticError("a slice went wrong")

    monkeypatch.setattr("syncpretrain.parallel.replicas.server.ServerSlice.add", fail)
    rules = AsyncFields()
    server = ParameterServer(np.zeros(SIZE, np.float32), rules, 2)
    raised = r"a parameter server failed on rank [12] on \S+: ArithmeticError: a slice went wrong"
    with local_ranks(3), pytest.raises(WorkerError, match=raised), fleet_of(server, rules) as own:
        own.train(tasks_of(1, 0, steps, 1), lambda: False, lambda *of: None)


def test_a_lost_rank_ends_the_run():
    rules = AsyncFields()
    server = ParameterServer(np.zeros(SIZE, np.float32), rules)
    with local_ranks(3) as ranks:
        peers = ranks.own.transport.peers

        def each(*of):
            peers.record(2, last_beat(peers.beats[2]))

        fleet, told = fleet_of(server, rules), r"^replica 2 failed: rank 2 on .* has left$"
        with pytest.raises(WorkerError, match=told), fleet:
            fleet.train(tasks_of(1, 0, 10_000, 1), lambda: False, each)
        assert ranks.own.broken, "the others are not left waiting"
