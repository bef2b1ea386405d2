"""Layers that a new version wakes only if it has drifted far enough from the one they know."""

import random
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import example
from hypothesis import strategies as st
from scheduleplay import (
    KNOWN,
    NEVER,
    PACES,
    Memory,
    Play,
    drawn,
    free,
    greedy,
    lockstep,
    many_slots,
    stops_after,
    two_seeds,
    two_slots,
)

from syncpretrain.errors import ScheduleError
from syncpretrain.schedule.kinds import Fixed, LayerPlan
from syncpretrain.schedule.schedule import Past, Schedule, Train

LEAST = 0.5


class Positions:
    """Versions of each layer as points on a line; the drift between two is their distance.

    A point depends on the layer and on what the version was trained on, as activations do, so that
    a schedule whose decisions depend on timing comes to other points.
    """

    def __init__(self, seed, depth):
        self._seed = seed
        self._points = [{0: 0.0}, *({} for _ in range(depth))]

    def drifts(self, command):
        layer, points = command.layer, self._points[command.layer]
        below = self._points[layer - 1][command.reads]
        before = points.get(command.epoch - 1, 0.0)
        step = random.Random(f"{self._seed} {layer} {command.epoch} {below}").uniform(-0.6, 0.6)
        points[command.epoch] = before + step
        return {v: abs(points[command.epoch] - points[v]) for v in command.against}

    def distance(self, layer, since, version):
        points = self._points[layer]
        return abs(points[version] - points[since])


class Drifting(Play):
    def __init__(self, plans, seed, points, last):
        super().__init__(Memory(len(plans)), random.Random(seed), stops_after(last))
        self.positions = Positions(points, len(plans))

    def drifts(self, command):
        return self.positions.drifts(command)

    def interrupt(self):
        for command in self.running:
            del self.memory.in_use[command.layer]
        self.running = []


def by_drift(plans):
    return [replace(plan, least_drift=LEAST) for plan in plans]


def played(plans, pace, slots, seed, points, last=NEVER):
    run = Drifting(plans, seed, points, last)
    schedule = Schedule(plans, pace(plans), slots=slots)
    run.go(schedule, schedule.begin(), float("inf"))
    assert schedule.is_finished
    assert all(map(schedule.ended, range(1, len(plans) + 1)))
    return schedule, run


@drawn(
    "plans slots seed points",
    pace=st.sampled_from([partial(p, drain=drain) for p in PACES for drain in (True, False)]),
)
def test_every_run_ends_and_reads_nothing_freed(plans, pace, slots, seed, points):
    plans = by_drift(plans)
    schedule, run = played(plans, pace, slots, seed, points)
    for i, plan in enumerate(plans):
        reads = schedule.reads[i]
        assert reads == tuple(sorted(reads))
        assert len(reads) >= plan.epochs
        if i:
            check_refreshes(run.positions, i, reads, plan)


def check_refreshes(positions, i, reads, plan):
    """Fail if a refresh began on a version near the one trained on before."""
    for k in range(plan.epochs, len(reads)):
        begins = plan.refresh_epochs and (k - plan.epochs) % plan.refresh_epochs == 0
        if begins:
            assert positions.distance(i, reads[k - 1], reads[k]) > LEAST


@pytest.mark.parametrize("stops_early", [False, True])
@drawn(
    "plans drain last points",
    pace=st.sampled_from(list(KNOWN.values())),
    slots=two_slots,
    two=two_seeds,
)
@example(
    plans=[LayerPlan(4), LayerPlan(2), LayerPlan(1, refresh_epochs=1)],
    pace=lockstep,
    drain=False,
    last=[3, 2, 1],
    slots=(2, 1),
    two=(2, 0),
    points=0,
)
def test_planned_decisions_do_not_depend_on_timing_or_slots(
    plans, pace, drain, last, slots, two, points, stops_early
):
    """Runs that stop early drain: the settings refuse early stopping with finish first-layer."""
    plans, last = by_drift(plans), last if stops_early else NEVER
    pace = partial(pace, drain=drain or stops_early)
    runs = [played(plans, pace, n, s, points, last)[0] for n, s in zip(slots, two, strict=True)]
    assert runs[0].reads == runs[1].reads
    assert said(runs[0]) == said(runs[1])


def said(schedule):
    """Return all decisions, whose order among layers depends on timing."""
    return sorted(schedule.judged_since(0), key=lambda j: (j.layer, j.version))


@drawn("plans slots seed points")
def test_in_lockstep_every_newer_version_is_judged_once_as_defined(plans, slots, seed, points):
    """The versions that wake a layer are found one after the other, from the last that did."""
    plans = by_drift(plans)
    schedule, run = played(plans, lockstep, slots, seed, points)
    for i in range(1, len(plans)):
        plan, published = plans[i], len(schedule.reads[i - 1])
        own = [min(k, plans[i - 1].epochs) for k in range(1, plan.epochs + 1)]
        expected, known, judged = list(own), own[-1], []
        if plan.refresh_epochs:
            for version in range(own[-1] + 1, published + 1):
                drift = run.positions.distance(i, known, version)
                judged.append((known, version, drift, LEAST, drift > LEAST))
                if drift > LEAST:
                    expected += [version] * plan.refresh_epochs
                    known = version
        assert list(schedule.reads[i]) == expected
        found = [j for j in schedule.judged_since(0) if j.layer == i + 1]
        assert [(j.since, j.version, j.drift, j.least, j.wakes) for j in found] == judged


@drawn("plans pace last cuts seed points", slots=many_slots)
def test_resumed_anywhere_it_decides_the_same(plans, pace, last, slots, cuts, seed, points):
    plans = by_drift(plans)
    run = Drifting(plans, seed, points, last)
    schedule = Schedule(plans, pace(plans), slots=slots[0])
    commands = schedule.begin()
    for number, steps in zip(slots[1:], cuts, strict=False):
        run.go(schedule, commands, steps)
        past = schedule.past
        run.interrupt()
        schedule = Schedule(plans, pace(plans), slots=number)
        commands = schedule.resume(past)
        for before, after in zip(past.skipped, schedule.past.skipped, strict=False):
            assert after[: len(before)] == before
    run.go(schedule, commands, float("inf"))
    assert schedule.is_finished
    if pace in KNOWN.values():
        whole, _ = played(plans, pace, 1, seed, points, last)
        assert schedule.reads == whole.reads


@drawn("plans pace last slots seed points")
def test_a_worker_keeps_only_what_its_last_command_named(plans, pace, last, slots, seed, points):
    """Each version asked for is the newest one, or was asked for before."""
    plans = by_drift(plans)
    run = Drifting(plans, seed, points, last)
    kept = [set() for _ in range(len(plans) + 1)]
    finish = run.positions.drifts

    def check(command):
        assert set(command.against) <= kept[command.layer]
        kept[command.layer] = {*command.against, command.epoch}
        return finish(command)

    run.positions.drifts = check
    schedule = Schedule(plans, pace(plans), slots=slots)
    run.go(schedule, schedule.begin(), float("inf"))


@drawn("plans drain points", slots=two_slots, two=two_seeds)
def test_a_recorded_run_replays(plans, drain, slots, two, points):
    recorded, _ = played(by_drift(plans), partial(free, drain=drain), slots[0], two[0], points)
    fixed = lambda plans: Fixed(recorded.reads)  # noqa: E731
    replayed, _ = played(plans, fixed, slots[1], two[1], points)
    assert replayed.reads == recorded.reads


def test_with_one_layer_or_in_greedy_nothing_is_judged():
    for pace in (lockstep, greedy, free):
        schedule, _ = played(by_drift([LayerPlan(3, 1)]), pace, 1, 0, 0)
        assert schedule.judged_since(0) == []
    schedule, _ = played(by_drift([LayerPlan(3), LayerPlan(3, 1)]), greedy, 1, 0, 0)
    assert schedule.judged_since(0) == []


def test_a_missing_drift_is_an_error():
    plans = by_drift([LayerPlan(2), LayerPlan(1, refresh_epochs=1)])
    schedule = Schedule(plans, lockstep(plans), slots=2)
    schedule.begin()
    schedule.finished(1)
    with pytest.raises(ScheduleError, match="layer 1: no drift between its versions 1 and 2"):
        schedule.finished(1)


def test_a_past_from_before_there_was_drift_is_resumed():
    plans = [LayerPlan(2), LayerPlan(1, refresh_epochs=1)]
    schedule = Schedule(plans, lockstep(plans), slots=1)
    schedule.begin()
    past = schedule.past
    assert (past.skipped, past.drifts) == ((), ())
    old = Past(past.reads, past.done, past.held, past.epochs)
    resumed = Schedule(plans, lockstep(plans), slots=1)
    assert [c.epoch for c in resumed.resume(old) if isinstance(c, Train)] == [1]
