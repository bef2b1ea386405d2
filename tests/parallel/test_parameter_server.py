"""The parameter server and its replicas: whole numbers add up exactly, whatever happens."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from asyncreplicas import SIZE, CountingReplica
from hypothesis import given
from hypothesis import strategies as st
from localranks import local_ranks

from syncpretrain.errors import StalledError, WorkerError
from syncpretrain.kernels.arrays import slices_of
from syncpretrain.parallel.replicas.server import (
    ParameterServer,
    Push,
    ServerSlice,
    SliceThreads,
)
from syncpretrain.parallel.replicas.steps import tasks_of
from syncpretrain.parallel.timeouts import TIMEOUTS
from syncpretrain.settings.fields import AsyncFields
from syncpretrain.workers.replicas import replicas_in

WHOLE = AsyncFields(async_rate="constant")
DATA = (np.ones((2, 3), np.float32),)
STEPS = 40
EXCHANGES = ("messages", "windows")


def late(changes: int) -> AsyncFields:
    return msgspec.structs.replace(WHOLE, simulate_staleness=changes)


def never() -> bool:
    return False


def place_of(name: str) -> AbstractContextManager[Any]:
    """Return what surrounds a fleet: the ranks where it exchanges by "messages" or "windows"."""
    return local_ranks(3) if name in EXCHANGES else nullcontext()


class Fleet:
    """Replicas that count, with what they reported."""

    def __init__(
        self, runtime, *, rules=WHOLE, dies=None, fails=None, times=TIMEOUTS, servers=1, replicas=3
    ):
        self.parameters = np.zeros(SIZE, np.float32)
        self.server = ParameterServer(self.parameters, rules, servers)
        self.told, self.trained, self.errors = [], [], 0.0
        on_ranks = runtime in EXCHANGES
        self.fleet = replicas_in(
            "mpi" if on_ranks else runtime,
            self.server,
            rules,
            partial(CountingReplica, dies and str(dies), fails and str(fails)),
            DATA,
            report=self.told.append,
            times=times,
            replicas=replicas,
            **({"exchange": runtime} if on_ranks else {}),
        )

    def each(self, task, errors, staleness):
        self.trained.append((task, staleness))
        self.errors += errors[0]

    def train(self, steps=STEPS, *, push=1, stop=never):
        with self.fleet:
            return self.fleet.train(tasks_of(1, 0, steps, push), stop, self.each)


def total(steps: int) -> float:
    return steps * (steps + 1) / 2


@pytest.mark.parametrize(
    ("runtime", "push", "fetch"),
    [(name, *own) for name in ("serial", "threads") for own in ((1, 1), (3, 3), (2, 4))]
    + [("processes", 2, 4)],
)
def test_whole_numbers_add_up_exactly(runtime, push, fetch):
    rules = msgspec.structs.replace(WHOLE, push_every=push, fetch_every=fetch)
    run = Fleet(runtime, rules=rules)
    done = run.train(push=push)
    assert done == len(tasks_of(1, 0, STEPS, push)) == run.server.clock
    np.testing.assert_array_equal(run.parameters, np.float32(total(STEPS)))
    assert run.errors == sum(range(STEPS)) + 6 * STEPS
    assert sorted(task.first for task, _ in run.trained) == list(range(0, STEPS, push))


@pytest.mark.parametrize("runtime", ["threads", "processes"])
def test_whole_numbers_add_up_exactly_in_slices(runtime):
    run = Fleet(runtime, servers=3)
    assert run.train() == STEPS == run.server.clock
    np.testing.assert_array_equal(run.parameters, np.float32(total(STEPS)))


def test_a_killed_replica_loses_nothing_of_any_slice(tmp_path):
    run = Fleet("processes", dies=tmp_path / "died", servers=2)
    assert run.train() == STEPS
    np.testing.assert_array_equal(run.parameters, np.float32(total(STEPS)))


def test_a_killed_replica_loses_and_tears_nothing(tmp_path):
    run = Fleet("processes", dies=tmp_path / "died")
    assert run.train() == STEPS
    np.testing.assert_array_equal(run.parameters, np.float32(total(STEPS)))
    assert sorted(task.first for task, _ in run.trained) == list(range(STEPS))
    (told,) = run.told
    assert "was killed by SIGKILL; the 2 others go on" in told


def test_replicas_killed_from_outside_lose_and_tear_nothing():
    """Wherever they are: each time some tasks are done, another one is killed."""
    run = Fleet("processes", replicas=4)
    victims = []

    def each(task, errors, staleness):
        run.each(task, errors, staleness)
        if len(run.trained) in (5, 20, 33):
            alive = [r.link for r in run.fleet._running if r.is_alive]
            victims.append(next(link for link in alive if link not in victims))
            os.kill(victims[-1]._process.pid, signal.SIGKILL)

    with run.fleet:
        assert run.fleet.train(tasks_of(1, 0, 200, 1), never, each) == 200
    np.testing.assert_array_equal(run.parameters, np.float32(total(200)))
    assert len(victims) == len(run.told) == 3
    assert sorted(task.first for task, _ in run.trained) == list(range(200))


def test_without_a_replica_left_the_run_fails(tmp_path):
    run = Fleet("processes", replicas=1, dies=tmp_path / "died")
    with pytest.raises(WorkerError, match=r"replica 1 failed: its process .* no other one is left"):
        run.train()
    np.testing.assert_array_equal(run.parameters, np.float32(total(5)))


@pytest.mark.parametrize("runtime", ["threads", "processes"])
def test_an_error_of_a_replica_is_raised(runtime, tmp_path):
    with pytest.raises(WorkerError, match=r"replica \d failed: ArithmeticError: a step") as caught:
        Fleet(runtime, fails=tmp_path / "failed").train()
    assert isinstance(caught.value.__cause__, ArithmeticError)


@pytest.mark.parametrize("runtime", ["serial", "threads"])
def test_a_stop_leaves_whole_tasks(runtime):
    asked = iter([False] * 7 + [True] * 100)
    run = Fleet(runtime, rules=late(0), replicas=1)
    done = run.train(stop=lambda: next(asked))
    assert 0 < done < STEPS
    assert len(run.trained) == done == run.server.clock
    np.testing.assert_array_equal(run.parameters, np.float32(total(done)))


def test_a_replica_that_hangs_stalls_the_run():
    run = Fleet("threads", replicas=1, times=replace(TIMEOUTS, stall=0.0, tick=0.01))
    with pytest.raises(StalledError, match=r"ended a task for 0 s, of 1 that are alive"):
        run.train(steps=5000)


def test_turns_have_the_staleness_that_was_asked_for():
    found = []

    class Watched(ParameterServer):
        def push(self, change, then, fetched):
            push = super().push(change, then, fetched)
            found.append(push.staleness)
            return push

    run = Fleet("serial", rules=late(4), replicas=1)
    run.fleet._server = Watched(run.parameters, WHOLE)
    run.train()
    assert found == [0, 1, 2, 3] + [4] * (STEPS - 4)


def test_by_default_turns_are_as_stale_as_equal_speeds_make_them():
    run = Fleet("serial", replicas=5)
    run.train()
    assert [staleness for _, staleness in run.trained] == [0, 1, 2, 3] + [4] * (STEPS - 4)


@pytest.mark.parametrize("runtime", ["serial", "threads"])
def test_what_is_too_stale_is_made_anew(runtime):
    run = Fleet(runtime, rules=msgspec.structs.replace(WHOLE, max_staleness=0), replicas=4)
    run.train()
    assert run.server.clock == STEPS
    np.testing.assert_array_equal(run.parameters, np.float32(total(STEPS)))
    if runtime == "serial":
        assert run.server.refused > STEPS / 2


@pytest.mark.parametrize("stop_after", [1, 6, 17])
def test_turns_go_on_from_their_state_to_the_same_bits(stop_after):
    rules = AsyncFields(delay_compensation=0.5, simulate_staleness=3)
    whole = Fleet("serial", rules=rules)
    whole.train()
    first = Fleet("serial", rules=rules)
    asked = iter([False] * stop_after + [True])
    tasks = tasks_of(1, 0, STEPS, 1)
    assert first.fleet.train(tasks, lambda: next(asked), first.each) == stop_after
    state = {name: array.copy() for name, array in first.fleet.state().items()}
    second = Fleet("serial", rules=rules)
    np.copyto(second.parameters, first.parameters)
    second.fleet.load_state(state)
    second.fleet.train(tasks[stop_after:], never, second.each)
    np.testing.assert_array_equal(second.parameters, whole.parameters)


@pytest.mark.parametrize(
    ("runtime", "other"),
    [
        *(("serial", name) for name in ("threads", *EXCHANGES)),
        *((name, "serial") for name in ("threads", *EXCHANGES)),
        ("windows", "windows"),
    ],
)
@pytest.mark.parametrize("bound", [None, 0])
def test_a_run_may_go_on_in_another_runtime(runtime, other, bound):
    """It leaves whole changes; those that waited for their turn are added, however stale."""
    rules = msgspec.structs.replace(WHOLE, max_staleness=bound)
    asked = iter([False] * 7 + [True] * 100)
    first, second = Fleet(runtime, rules=rules), Fleet(other, rules=rules)
    tasks = tasks_of(1, 0, STEPS, 1)
    with place_of(runtime), first.fleet:
        done = first.fleet.train(tasks, lambda: next(asked), first.each)
        state = {name: array.copy() for name, array in first.fleet.state().items()}
    if runtime != "serial":
        assert 0 < done < STEPS
        np.testing.assert_array_equal(first.parameters, np.float32(total(done)))
    np.copyto(second.parameters, first.parameters)
    second.fleet.load_state(state)
    with place_of(other), second.fleet:
        second.fleet.train(tasks[done:], never, second.each)
    np.testing.assert_array_equal(second.parameters, np.float32(total(STEPS)))


@pytest.mark.parametrize("runtime", ["threads", "processes"])
def test_replicas_get_back_their_states(runtime):
    run = Fleet(runtime, replicas=2)
    with run.fleet:
        run.fleet.train(tasks_of(1, 0, STEPS, 1), never, run.each)
        state = {name: array.copy() for name, array in run.fleet.state().items()}
        assert sum(float(array[0]) for array in state.values()) == STEPS
    other = Fleet(runtime, replicas=2)
    other.fleet.load_state(state)
    with other.fleet:
        now = other.fleet.state()
        assert {n: float(x[0]) for n, x in now.items()} == {
            n: float(x[0]) for n, x in state.items()
        }


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 5)), max_size=30))
def test_a_server_adds_up_whole_changes_and_counts_them(pushes):
    parameters = np.zeros(7, np.float32)
    server = ParameterServer(parameters, WHOLE)
    for number, (value, behind) in enumerate(pushes):
        then = max(0, number - behind)
        push = server.push(np.full(7, value, np.float32), then, parameters)
        assert push == Push(number - then, is_taken=True)
    assert (parameters == sum(value for value, _ in pushes)).all()
    assert server.clock == len(pushes)


def test_a_change_is_divided_by_its_staleness():
    parameters = np.zeros(2, np.float32)
    server = ParameterServer(parameters, AsyncFields())
    for then, expected in [(0, 8), (0, 16), (0, 20), (2, 28), (0, 30)]:
        server.push(np.full(2, 8, np.float32), then, parameters)
        assert parameters[0] == expected


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_the_rules_by_their_definition(staleness, bound):
    assert AsyncFields().share(staleness) == 1 / max(1, staleness)
    assert AsyncFields(async_rate="constant").share(staleness) == 1
    assert AsyncFields().takes(staleness)
    assert AsyncFields(max_staleness=bound).takes(staleness) == (staleness <= bound)
    fetches = [AsyncFields(push_every=2, fetch_every=6).fetches(n) for n in range(7)]
    assert fetches == [True, False, False] * 2 + [True]


def test_the_compensation_by_its_definition():
    """In terms of the gradient g = -d / rate, of which lambda g*g (w - w') is added."""
    rng = np.random.default_rng(0)
    w, then, rate, strength = rng.normal(size=9), rng.normal(size=9), 0.1, 2.0
    rules, mean = AsyncFields(delay_compensation=strength), np.zeros(9)
    server = ServerSlice(w.astype(np.float32), np.zeros(9, np.float32), rules)
    for _ in range(3):
        g = rng.normal(size=9)
        mean = 0.95 * mean + 0.05 * g * g
        expected = -rate * (g + strength / np.sqrt(mean) / rate * rate * g * g * (w - then))
        change = (-rate * g).astype(np.float32)
        server.compensate(change, then.astype(np.float32))
        np.testing.assert_allclose(change, expected, rtol=1e-4)


class Toggled:
    """A trial that lets two replicas train, then one until the other has rested, then both."""

    is_over, is_back, tasks = False, False, 0

    def __init__(self, fleet):
        self.fleet = fleet

    @property
    def count(self):
        self.is_back |= self.tasks >= 20 and self.fleet._running[1].has_rested
        return 1 if self.tasks >= 10 and not self.is_back else 2

    def trained(self, task):
        assert task.share == 1
        self.tasks += 1


def test_a_replica_that_rested_fetches_anew():
    run = Fleet("threads", rules=msgspec.structs.replace(WHOLE, fetch_every=10_000), replicas=2)
    usual, fetched = run.server.fetch, []
    run.server.fetch = lambda out: (fetched.append(run.server.clock), usual(out))[1]
    run.fleet.trial = Toggled(run.fleet)
    steps = 4000  # while one replica works at them, the other ends its task for certain
    assert run.train(steps) == steps
    np.testing.assert_array_equal(run.parameters, np.float32(total(steps)))
    assert fetched[:2] == [0, 0]
    assert len(fetched) == 3, "once each, and once after the rest"
    assert fetched[2] >= 20


def test_a_run_with_a_trial_adds_up():
    run = Fleet("threads", rules=msgspec.structs.replace(WHOLE, trim_replicas=True), replicas=4)
    run.train(steps=300)
    np.testing.assert_array_equal(run.parameters, np.float32(total(300)))
    assert run.fleet.trial.useful[4] > 0


class TestSlices:
    @given(st.integers(0, 50), st.integers(1, 9))
    def test_they_are_the_whole_in_parts_of_about_the_same_size(self, size, count):
        parts = [range(size)[own] for own in slices_of(size, count)]
        assert [i for part in parts for i in part] == list(range(size))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1

    @pytest.mark.parametrize("is_started", [False, True])
    def test_a_server_in_slices_has_the_bits_of_a_whole_one(self, is_started):
        rules, draws = AsyncFields(delay_compensation=2.0), np.random.default_rng(0)
        servers = [ParameterServer(np.zeros(50, np.float32), rules, n) for n in (1, 3, 60)]
        fetched = [np.empty(50, np.float32) for _ in servers]
        for server in servers if is_started else ():
            server.start()
        try:
            for _ in range(9):
                change = draws.normal(size=50).astype(np.float32)
                late = int(draws.integers(0, 4))
                for server, own in zip(servers, fetched, strict=True):
                    clock = server.fetch(own)
                    server.push(change.copy(), max(0, clock - late), own)
        finally:
            for server in servers:
                server.end()
        for server, own in zip(servers[1:], fetched[1:], strict=True):
            np.testing.assert_array_equal(server.parameters, servers[0].parameters)
            np.testing.assert_array_equal(own, fetched[0])
            np.testing.assert_array_equal(server.state()["mean_square"], servers[0].mean_square)

    def test_an_error_in_a_slice_is_raised_and_the_threads_go_on(self):
        def fail(number):
            if number == 2:
                raise ArithmeticError("a slice went wrong")

        threads, worked = SliceThreads(3), []
        try:
            with pytest.raises(ArithmeticError, match="a slice went wrong"):
                threads.run(fail)
            threads.run(worked.append)
        finally:
            threads.close()
        assert sorted(worked) == [0, 1, 2]

    def test_a_slice_that_is_not_done_in_time_is_a_stall(self):
        threads, begun = SliceThreads(2, replace(TIMEOUTS, stall=0.01)), threading.Event()
        try:
            with pytest.raises(StalledError, match=r"was not done in 0\.01 s"):
                threads.run(lambda number: number and begun.wait(5))
        finally:
            begun.set()
            threads.close()
