"""The parameter server and its replicas: whole numbers add up exactly; how many replicas pay."""

import os
import random
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
from asyncreplicas import EXCHANGES, STEPS, Fleet, never, place_of
from hypothesis import given
from hypothesis import strategies as st

from syncpretrain.errors import StalledError, WorkerError
from syncpretrain.kernels.arrays import slices_of
from syncpretrain.parallel.replicas.replica_count import ErrorFall, Trained, Trial
from syncpretrain.parallel.replicas.server import ParameterServer, ServerSlice, SliceThreads
from syncpretrain.parallel.replicas.steps import tasks_of
from syncpretrain.parallel.timeouts import TIMEOUTS
from syncpretrain.settings.fields import AsyncFields

STEADY = [(1, 1), (3, 3), (2, 4)]
ON_RANKS = [(2, 1, 1, 1, None), (4, 1, 1, 1, None), (3, 1, 2, 4, None)]
ON_RANKS += [(6, 3, 1, 1, 1), (4, 4, 2, 4, 0)]
CASES = [(name, 0, 1, *own, None) for name in ("serial", "threads") for own in STEADY]
CASES += [("processes", 0, 1, 2, 4, None)]
CASES += [(name, 0, 3, 1, 1, None) for name in ("threads", "processes")]
CASES += [(name, 0, 1, 1, 1, 0) for name in ("serial", "threads")]
CASES += [(name, *own) for name in EXCHANGES for own in ON_RANKS]


@pytest.mark.parametrize(("runtime", "ranks", "servers", "push", "fetch", "bound"), CASES)
def test_whole_numbers_add_up_exactly(runtime, ranks, servers, push, fetch, bound):
    own = {"push_every": push, "fetch_every": fetch, "max_staleness": bound}
    run, firsts = Fleet(runtime, servers=servers, **own), []
    with place_of(runtime, ranks), run.fleet as fleet:
        for begin, end in ((0, STEPS), (STEPS, 2 * STEPS)):
            tasks = tasks_of(1, begin, end, push)
            assert fleet.train(tasks, never, run.each) == len(tasks)
            run.assert_adds_up(end)
            firsts += range(begin, end, push)
        states = fleet.state()
    assert run.server.clock == len(run.trained) == len(firsts)
    assert run.errors == sum(range(2 * STEPS)) + 6 * 2 * STEPS
    assert sorted(task.first for task, _ in run.trained) == firsts
    if runtime == "serial":  # where changes that waited for their turn are added, however stale
        assert bound is None or run.server.refused > STEPS
    else:
        assert bound is None or max(staleness for _, staleness in run.trained) <= bound
        made = sum(float(array[0]) for array in states.values())
        assert made == 2 * STEPS + push * run.server.refused


@pytest.mark.parametrize("servers", [1, 2])
def test_a_killed_replica_loses_and_tears_nothing(tmp_path, servers):
    run = Fleet("processes", dies=tmp_path / "died", servers=servers)
    assert run.train() == STEPS
    run.assert_adds_up(STEPS)
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
    run.assert_adds_up(200)
    assert len(victims) == len(run.told) == 3
    assert sorted(task.first for task, _ in run.trained) == list(range(200))


def test_without_a_replica_left_the_run_fails(tmp_path):
    run = Fleet("processes", replicas=1, dies=tmp_path / "died")
    with pytest.raises(WorkerError, match=r"replica 1 failed: its process .* no other one is left"):
        run.train()
    run.assert_adds_up(5)


@pytest.mark.parametrize("runtime", ["threads", "processes", *EXCHANGES])
def test_an_error_of_a_replica_is_raised(runtime, tmp_path):
    place = r" on rank [12] on \S+" if runtime in EXCHANGES else ""
    told = rf"^replica \d failed{place}: ArithmeticError: a step went wrong"
    with place_of(runtime), pytest.raises(WorkerError, match=told) as caught:
        Fleet(runtime, fails=tmp_path / "failed").train()
    assert isinstance(caught.value.__cause__, ArithmeticError)


def test_a_replica_that_hangs_stalls_the_run():
    run = Fleet("threads", replicas=1, times=replace(TIMEOUTS, stall=0.0, tick=0.01))
    with pytest.raises(StalledError, match=r"ended a task for 0 s, of 1 that are alive"):
        run.train(steps=5000)


@pytest.mark.parametrize("own", [{"replicas": 5}, {"replicas": 1, "simulate_staleness": 4}])
def test_turns_are_as_stale_as_equal_speeds_make_them_or_as_was_asked_for(own):
    run = Fleet("serial", **own)
    run.train()
    assert [staleness for _, staleness in run.trained] == [0, 1, 2, 3] + [4] * (STEPS - 4)


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
    asked = iter([False] * 7 + [True] * 100)
    first, second = (Fleet(name, max_staleness=bound) for name in (runtime, other))
    tasks = tasks_of(1, 0, STEPS, 1)
    with place_of(runtime), first.fleet:
        done = first.fleet.train(tasks, lambda: next(asked), first.each)
        state = {name: array.copy() for name, array in first.fleet.state().items()}
    assert len(first.trained) == done
    if runtime != "serial":
        assert 0 < done < STEPS
        first.assert_adds_up(done)
    np.copyto(second.parameters, first.parameters)
    second.fleet.load_state(state)
    with place_of(other), second.fleet:
        second.fleet.train(tasks[done:], never, second.each)
    second.assert_adds_up(STEPS)


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
        np.testing.assert_equal(other.fleet.state(), state)


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
    run = Fleet("threads", fetch_every=10_000, replicas=2)
    usual, fetched = run.server.fetch, []
    run.server.fetch = lambda out: (fetched.append(run.server.clock), usual(out))[1]
    run.fleet.trial = Toggled(run.fleet)
    steps = 4000  # while one replica works at them, the other ends its task for certain
    assert run.train(steps) == steps
    run.assert_adds_up(steps)
    assert fetched[:2] == [0, 0]
    assert len(fetched) == 3, "once each, and once after the rest"
    assert fetched[2] >= 20


@pytest.mark.parametrize(("runtime", "replicas"), [("threads", 4), ("windows", 3)])
def test_a_run_with_a_trial_adds_up(runtime, replicas):
    run = Fleet(runtime, trim_replicas=True, replicas=replicas)
    with place_of(runtime, replicas + 1):
        assert run.train(steps=300) == 300
    run.assert_adds_up(300)
    assert run.fleet.trial.useful[replicas] > 0


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


def tried(replicas, speed, *, rate="constant", gain=None, error=lambda place: 1000.0 - place):
    """Return a trial that is over.

    ``speed`` and ``gain`` are tasks a second and how far the parameters get in a task, by the
    number of replicas, and ``error`` that of a place.
    """
    trial, now, place, rules = Trial(replicas), 0.0, 0.0, AsyncFields(async_rate=rate)
    while not trial.is_over:
        n = trial.count
        now += 1 / speed(n)
        place += gain(n) if gain else 0.0
        own = error(place) if gain else None
        trial.trained(Trained(now, rules.share(n - 1), own))
    return trial


@pytest.mark.parametrize(
    ("cores", "replicas", "count"), [(8, 8, 8), (2, 8, 2), (1, 3, 1), (3, 16, 3), (2, 2, 2)]
)
def test_whole_changes_pay_on_as_many_replicas_as_cores(cores, replicas, count):
    trial = tried(replicas, lambda n: 10.0 * min(n, cores))
    assert trial.count == count
    assert trial.useful[count] == pytest.approx(10 * min(count, cores))


GAINS = {8: 0.1, 6: 0.15, 4: 0.25, 2: 1.0, 1: 1.0}


@pytest.mark.parametrize(
    ("own", "count", "useful", "falls"),
    [
        ({"rate": "staleness"}, 2, {8: 80 / 7, 2: 20.0}, {}),
        # Each of more than two replicas leads astray, as of stale changes that are taken whole.
        ({"gain": GAINS.__getitem__}, 2, {8: 80.0}, {8: 8.0, 4: 10.0, 2: 20.0, 1: 10.0}),
        # Where noise decides, the mean of several changes has less.
        ({"rate": "staleness", "gain": lambda n: 1.0}, 8, {}, {2: 20.0, 8: 80.0}),
    ],
    ids=["divided by their staleness", "the error overrules", "in favour of more too"],
)
def test_changes_are_worth_what_they_bring(own, count, useful, falls):
    trial = tried(8, lambda n: 10.0 * n, **own)
    assert trial.count == count
    assert {n: trial.useful[n] for n in useful} == pytest.approx(useful)
    assert trial.falls == pytest.approx(falls)


def test_replicas_that_disturb_each_other_are_stopped():
    assert tried(16, lambda n: n / (1 + (n / 6) ** 3)).count in (4, 6)


def test_one_replica_needs_no_trial():
    assert Trial(1).is_over


@pytest.mark.parametrize(
    "error",
    [
        lambda x: 50.0,
        lambda x: 900 - 3 * x,
        lambda x: 5 + (x - 900) ** 2 / 99,
        lambda x: 9 - (x / 300 - 2) ** 3 + x / 9,
    ],
)
def test_what_training_gains_meanwhile_cancels(error):
    """Of two numbers that are equally good, whatever cubic the error follows."""
    trial = tried(2, lambda n: 10.0, gain=lambda n: 1.0, error=error)
    assert trial.falls[1] == pytest.approx(trial.falls[2], rel=1e-6, abs=1e-9)
    assert trial.count == 1, "one is as good, and fewer"


@pytest.mark.parametrize("seed", range(5))
def test_noise_overrules_nothing(seed):
    draw = random.Random(seed)
    noisy = {"gain": lambda n: 1.0, "error": lambda place: draw.gauss(100 - place / 9, 20)}
    assert tried(4, lambda n: 10.0 * n, **noisy).count == 4
    assert tried(4, lambda n: 10.0, **noisy).count == 1


def test_the_fall_is_that_of_the_line_through_the_errors():
    tasks = [Trained(float(x), 1.0, y) for x, y in enumerate([5, 3, 4, 0])]
    # By hand: the mean slope is -1.4, and 4.2 of the squares are left for 2 degrees of freedom.
    assert ErrorFall.of(tasks) == pytest.approx((1.4, 4.2 / 2 / 5))
    assert ErrorFall.of(tasks[:2]).variance == float("inf")
    assert ErrorFall.of([Trained(1.0, 1.0, 2.0)] * 4).variance == float("inf")


def test_a_task_that_compares_with_no_other_is_left_out():
    tasks = [Trained(float(x), 1.0, 10.0 - x) for x in range(5)]
    assert ErrorFall.of([*tasks, Trained(9.0)]) == ErrorFall.of(tasks) == (1.0, 0.0)


def test_the_verdict_says_what_was_found():
    trial = tried(4, lambda n: 10.0 * n, rate="staleness", gain=lambda n: 1 / max(1, n - 1))
    assert trial.verdict().startswith(
        "replicas: 2 of 4 go on training, more bring less than 5 % (useful updates a second of 4:"
    )
    assert "; the error fell in a second by 1: 10, 2: 20, 4: 13.3)" in trial.verdict()
