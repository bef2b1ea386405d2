"""Asynchronous training on ranks that are threads, by messages and through windows.

Nothing is torn or lost, and every failure is told.
"""

import threading
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from asyncreplicas import EXCHANGES, STEPS, Fleet, never
from hypothesis import given
from hypothesis import strategies as st
from localengines import LocalEngine, local_engines
from localranks import WAIT, local_ranks

from syncpretrain import pretrain
from syncpretrain.cluster.mpi import MPIEngine
from syncpretrain.cluster.transport import Transport, last_beat
from syncpretrain.errors import SettingsError, StalledError, WorkerError
from syncpretrain.parallel import precision_choice
from syncpretrain.parallel.replicas.server import ParameterServer, Push
from syncpretrain.parallel.replicas.steps import tasks_of
from syncpretrain.parallel.timeouts import TIMEOUTS
from syncpretrain.settings import moved_elsewhere, settings_from
from syncpretrain.settings.fields import AsyncFields
from syncpretrain.workers.ranks.replicas import (
    CLOCK_SIZE,
    ParameterWindows,
    WindowPlaces,
    WindowSlice,
)


@pytest.mark.parametrize(
    ("own", "ranks", "on_ranks"),
    [
        *(
            ({"handoff": handoff}, 3, {"exchange": "windows", "servers": servers})
            for handoff, servers in product(("epoch", "minibatch"), (1, 2))
        ),
        *(({"momentum": "0", "delay_compensation": x}, 4, {"servers": 3}) for x in (0.0, 0.5)),
    ],
)
def test_one_replica_is_the_same_as_in_one_thread(bits, own, ranks, on_ranks):
    own |= {"layers": (16, 10, 6), "schedule": "async", "epochs": 2, "seed": 3, "warn": False}
    alone = pretrain(bits, runtime="serial", **own)
    with local_ranks(ranks):
        stack = pretrain(bits, runtime="mpi", **own, **on_ranks)
        pretrain(bits, runtime="mpi", replicas=3, **own, **on_ranks)
    assert stack.parameters_sha256 == alone.parameters_sha256


@pytest.mark.parametrize("precision", ["bfloat16", "auto"])
def test_ranks_that_add_up_in_other_orders_are_refused(bits, precision, monkeypatch):
    monkeypatch.setattr(precision_choice, "bfloat16_gain", lambda: 2.0)
    own = {"layers": (16, 10), "schedule": "async", "epochs": 1, "runtime": "mpi"}
    with local_ranks(3) as ranks:
        ranks.own.sums = {0: "tiles", 1: "tiles", 2: "pairs"}
        with pytest.raises(SettingsError, match="bfloat16 on CPUs that add up in different orders"):
            pretrain(bits, precision=precision, warn=False, **own)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_lost_rank_ends_the_run(exchange):
    run = Fleet(exchange)
    with local_ranks(3) as ranks:
        peers = ranks.own.transport.peers

        def each(*of):
            peers.record(2, last_beat(peers.beats[2]))

        told = r"^replica 2 failed: rank 2 on .* has left$"
        with pytest.raises(WorkerError, match=told), run.fleet as fleet:
            fleet.train(tasks_of(1, 0, 10_000, 1), never, each)
        assert ranks.own.broken, "the others are not left waiting"


@pytest.mark.parametrize("steps", [1, STEPS])  # found out when all is done, and before
def test_an_error_of_a_server_is_raised(monkeypatch, steps):
    def fail(self, change, share, fetched):
        raise ArithmeticError("a slice went wrong")

    monkeypatch.setattr("syncpretrain.parallel.replicas.server.ServerSlice.add", fail)
    raised = r"a parameter server failed on rank [12] on \S+: ArithmeticError: a slice went wrong"
    with local_ranks(3), pytest.raises(WorkerError, match=raised):
        Fleet("messages", servers=2).train(steps)


class Memory:
    """Windows of one rank, whose calls are made at once; something may happen before one."""

    def __init__(self):
        self.vectors = {"w": np.zeros(4, np.float32), "clock": np.zeros(CLOCK_SIZE, np.int64)}
        self.before_add = []

    def get(self, name, rank, at, out):
        out[:] = self.vectors[name][at : at + out.size]

    def put(self, name, rank, at, values):
        self.vectors[name][at : at + values.size] = values

    def add(self, name, rank, at, values):
        if self.before_add:
            self.before_add.pop()()
        self.vectors[name][at : at + values.size] += values

    def fetch_and_add(self, name, rank, at, value):
        found = int(self.vectors[name][at])
        self.vectors[name][at] += value
        return found


def parameters(memory, rules):
    slices = (WindowSlice(0, 0, slice(4)),)
    return ParameterWindows(memory, WindowPlaces("w", "clock", slices, rules))


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 5)), max_size=30))
def test_changes_one_after_another_are_as_stale_as_a_server_says(pushes):
    rules = AsyncFields(max_staleness=3)
    server, out = ParameterServer(np.zeros(4, np.float32), rules), np.empty(4, np.float32)
    windows = parameters(Memory(), rules)
    windows.begin(server.parameters)
    clocks = []
    for value, behind in pushes:
        clocks.append(server.clock)
        then = clocks[max(0, len(clocks) - 1 - behind)]
        expected = server.push(np.full(4, value, np.float32), then, out)
        assert windows.push(np.full(4, value, np.float32), then) == expected
        assert windows.fetch(out) == server.clock
        np.testing.assert_array_equal(out, server.parameters)


def test_a_change_that_is_on_its_way_counts_as_not_fetched():
    memory, fetched = Memory(), []
    windows = parameters(memory, AsyncFields(max_staleness=1))
    windows.begin(np.zeros(4, np.float32))
    memory.before_add.append(lambda: fetched.append(windows.fetch(np.empty(4, np.float32))))
    assert windows.push(np.ones(4, np.float32), 0) == Push(0, is_taken=True)
    assert fetched == [0]
    assert windows.push(np.ones(4, np.float32), 0) == Push(1, is_taken=True)
    assert windows.push(np.ones(4, np.float32), 0) == Push(2, is_taken=False)
    assert windows.fetch(np.empty(4, np.float32)) == 2


def test_of_two_changes_that_meet_at_the_bound_one_is_refused():
    memory, met = Memory(), []
    windows = parameters(memory, AsyncFields(max_staleness=0))
    windows.begin(np.zeros(4, np.float32))
    usual = memory.fetch_and_add

    def meet(name, rank, at, value):
        if value and not met:  # a second change passes the first look, then draws before this one
            met.append(None)
            met.append(windows.push(np.ones(4, np.float32), 0))
        return usual(name, rank, at, value)

    memory.fetch_and_add = meet
    assert windows.push(np.ones(4, np.float32), 0) == Push(1, is_taken=False)
    assert met[1] == Push(0, is_taken=True)
    assert windows.push(np.ones(4, np.float32), 1) == Push(0, is_taken=True)
    assert (memory.vectors["w"] == 2).all()


class TestWindows:
    def test_large_vectors_go_in_pieces(self):
        size = 700_001
        with local_ranks(3) as ranks:
            windows = [ranks.own.transport.windows, *(other.windows for other in ranks.others)]
            windows[0].open("w", [0, 0, size], "float32")
            values, out = np.arange(size, dtype=np.float32), np.empty(size - 1, np.float32)
            windows[0].put("w", 2, 0, values)
            windows[0].get("w", 2, 1, out)
            np.testing.assert_array_equal(out, values[1:])
            windows[0].add("w", 2, 0, values)
            windows[0].get("w", 2, 1, out)
            np.testing.assert_array_equal(out, 2 * values[1:])
            assert [bool(own.owned) for own in windows] == [False, False, True]
            windows[0].close("w")
        assert not windows[0].asked

    def test_an_error_of_a_call_is_raised_and_so_is_every_later_one(self):
        (engine,) = local_engines(1)
        transport = Transport(engine, TIMEOUTS)
        transport.windows.open("w", [2], "float32")
        told = "rank 0 can no longer communicate: ValueError: operands could not be"
        for _ in range(2):
            with pytest.raises(WorkerError, match=told):
                transport.windows.add("w", 0, 0, np.ones(3, np.float32))
        assert not transport.close()

    def test_a_call_that_does_not_end_is_a_stall(self):
        with local_ranks(2) as ranks:
            windows = ranks.own.transport.windows
            windows.open("w", [1, 1], "int64")
            windows.times = replace(TIMEOUTS, stall=0.0, tick=0.01)
            ended = threading.Event()
            with pytest.raises(StalledError, match=r"a call of a window did not end within 0 s"):
                windows._ask(ended.wait(WAIT) for _ in range(1))
            ended.set()


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"schedule": "greedy", "runtime": "mpi"}, "got windows with schedule greedy"),
        ({"schedule": "async"}, "got windows with runtime threads, expected messages"),
        (
            {"schedule": "async", "runtime": "mpi", "momentum": "0", "delay_compensation": 2.0},
            r"got windows with delay_compensation 2, expected messages; MPI only adds",
        ),
    ],
)
def test_what_windows_cannot_do_is_refused(own, told):
    with pytest.raises(SettingsError, match=f"^exchange: {told}"):
        settings_from((16, 8), exchange="windows", **own)


@pytest.mark.parametrize(
    ("library", "near", "fabrics", "lacks"),
    [
        ("MPICH Version: 5.0.2", False, "ofi", False),
        ("Open MPI v5.0.11", False, "ofi", False),
        ("Intel(R) MPI Library 2021.18", True, "shm:ofi", False),
        ("Intel(R) MPI Library 2021.18", False, "shm:ofi", True),
        ("Intel(R) MPI Library 2021.18", True, "ofi", True),
    ],
)
def test_intel_mpi_has_windows_where_ranks_share_memory(monkeypatch, library, near, fabrics, lacks):
    monkeypatch.setenv("I_MPI_FABRICS", fabrics)
    found = MPIEngine.windows_unreliable_on(SimpleNamespace(library=library, _are_all_near=near))
    assert found == (f"{library} where ranks share no memory" if lacks else None)


def test_windows_that_cannot_be_relied_on_are_refused(bits, monkeypatch):
    monkeypatch.setattr(LocalEngine, "windows_unreliable_on", lambda self: "a library")
    own = {"layers": (16, 8), "schedule": "async", "runtime": "mpi", "epochs": 1, "warn": False}
    told = "^exchange: got windows with a library, whose one-sided calls crash there, expected mess"
    with local_ranks(2):
        with pytest.raises(SettingsError, match=told):
            pretrain(bits, exchange="windows", **own)
        pretrain(bits, **own)


def test_a_run_that_is_moved_from_its_ranks_leaves_the_windows():
    settings = settings_from((16, 8), schedule="async", runtime="mpi", exchange="windows")
    assert moved_elsewhere(settings, runtime="threads").pretrain.exchange == "messages"
    assert moved_elsewhere(settings, exchange="messages").pretrain.runtime == "mpi"
    assert moved_elsewhere(settings, runtime="mpi").pretrain.exchange == "windows"
    with pytest.raises(SettingsError, match=r"^exchange: got windows with runtime serial"):
        moved_elsewhere(settings, runtime="serial", exchange="windows")
