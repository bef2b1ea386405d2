"""The number of replicas that pays: by useful updates, and by the error where that is clear."""

from __future__ import annotations

import random

import pytest

from syncpretrain.parallel.replicas.replica_count import ErrorFall, Trained, Trial
from syncpretrain.settings.fields import AsyncFields


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


def test_changes_divided_by_their_staleness_are_worth_no_more_than_those_of_two():
    trial = tried(8, lambda n: 10.0 * n, rate="staleness")
    assert trial.count == 2
    assert trial.useful[8] == pytest.approx(80 / 7)
    assert trial.useful[2] == pytest.approx(20)


def test_replicas_that_disturb_each_other_are_stopped():
    assert tried(16, lambda n: n / (1 + (n / 6) ** 3)).count in (4, 6)


def test_one_replica_needs_no_trial():
    assert Trial(1).is_over


def test_the_error_overrules_updates_that_are_whole_but_worth_little():
    """As of stale changes that are taken whole: each of more than two replicas leads astray."""
    gains = {8: 0.1, 6: 0.15, 4: 0.25, 2: 1.0, 1: 1.0}
    trial = tried(8, lambda n: 10.0 * n, gain=gains.__getitem__)
    assert trial.useful[8] == pytest.approx(80)
    assert trial.count == 2
    assert trial.falls == pytest.approx({8: 8.0, 4: 10.0, 2: 20.0, 1: 10.0})


def test_the_error_overrules_in_favour_of_more_replicas_too():
    """As where noise decides, and the mean of several changes has less."""
    trial = tried(8, lambda n: 10.0 * n, rate="staleness", gain=lambda n: 1.0)
    assert trial.count == 8
    assert trial.falls == pytest.approx({2: 20.0, 8: 80.0})


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
