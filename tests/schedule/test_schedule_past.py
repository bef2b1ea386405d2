"""A schedule goes on from its past wherever it was stopped, and a run keeps what that needs."""

import random

import pytest
from hypothesis import strategies as st
from scheduleplay import (
    Memory,
    Play,
    drawn,
    free,
    greedy,
    in_pairs,
    lockstep,
    many_slots,
    planned_reads,
    rounds,
    shortened,
    stops_after,
)

from syncpretrain.backends.base import Backend
from syncpretrain.errors import ScheduleError
from syncpretrain.pretraining.driver import TrainedLayers
from syncpretrain.schedule.kinds import LayerPlan, greedy_row, lockstep_row
from syncpretrain.schedule.schedule import Release, Schedule
from syncpretrain.settings import settings_from

RULES = {lockstep: lockstep_row, greedy: greedy_row, rounds: in_pairs}


class Interrupted(Play):
    """A run that goes on from its past."""

    def interrupt(self, past):
        """Leave what a resumed run has: the versions held, some made by epochs that were begun."""
        for i, versions in enumerate(past.held, start=1):
            assert set(self.memory.published[i]) == set(versions), "all else was forgotten"
        for command in self.running:
            del self.memory.in_use[command.layer]
            first = past.reads[command.layer - 1].count(command.reads) == 1
            if first and self.rng.random() < 0.5:  # it had not made them yet
                self.memory.made[command.layer - 1].discard(command.reads)
        self.running = []


@drawn("plans pace last cuts seed", slots=many_slots)
def test_resumed_anywhere_it_ends_with_the_same_reads(plans, pace, last, slots, cuts, seed):
    depth = len(plans)
    run = Interrupted(Memory(depth), random.Random(seed), stops_after(last))
    schedule = Schedule(plans, pace(plans), slots=slots[0])
    commands = schedule.begin()
    for number, steps in zip(slots[1:], cuts, strict=False):
        run.go(schedule, commands, steps)
        past, begun = schedule.past, schedule.training
        run.interrupt(past)
        schedule = Schedule(plans, pace(plans), slots=number)
        commands = schedule.resume(past)
        assert tuple(c.layer for c in commands[: len(begun)]) == begun, "begun again"
        assert len(schedule.training) <= max(number, len(begun))
        assert schedule.done == past.done
    run.go(schedule, commands, float("inf"))
    assert schedule.is_finished
    assert all(schedule.ended(layer) for layer in range(1, depth + 1))
    assert run.finished == sum(schedule.done), "no epoch twice"
    if pace in RULES:
        assert schedule.reads == planned_reads(shortened(plans, last), RULES[pace])


@drawn("plans pace last slots seed", steps=st.integers(0, 40))
def test_with_the_same_slots_only_begun_epochs_are_issued(plans, pace, last, slots, steps, seed):
    run = Interrupted(Memory(len(plans)), random.Random(seed), stops_after(last))
    schedule = Schedule(plans, pace(plans), slots=slots)
    run.go(schedule, schedule.begin(), steps)
    resumed = Schedule(plans, pace(plans), slots=slots)
    commands = resumed.resume(schedule.past)
    assert sorted(commands, key=layer_of) == sorted(run.running, key=layer_of)
    assert resumed.past == schedule.past


def layer_of(command):
    return command.layer


def test_the_past_of_other_layers_is_refused():
    past = Schedule([LayerPlan(1)] * 3, lockstep([LayerPlan(1)] * 3), slots=1).past
    with pytest.raises(ScheduleError, match="resume: the past is of 3 layers"):
        Schedule([LayerPlan(1)] * 2, lockstep([LayerPlan(1)] * 2), slots=1).resume(past)


class Snapshot:
    """Stands for a version's parameters, wherever they are."""

    def to(self, device):
        return self


def retained(past):
    """The versions held, and those that their activations were made through."""
    kept = set()
    for number, versions in enumerate(past.held, start=1):
        for version in versions:
            for layer in range(number, 0, -1):
                kept.add((layer, version))
                version = past.reads[layer - 1][version - 1]
    return kept


@drawn(
    "plans slots seed",
    pace=st.sampled_from([lockstep, greedy, rounds, free]),
    interruptions=st.floats(0, 0.5),
)
def test_a_run_keeps_the_versions_held_and_those_below(plans, pace, slots, interruptions, seed):
    rng = random.Random(seed)
    pretrain = settings_from([4] * (len(plans) + 1)).pretrain
    schedule = Schedule(plans, pace(plans), slots=slots)
    trained, running = TrainedLayers(pretrain, Backend(), list), {}

    def execute(commands):
        for command in commands:
            if isinstance(command, Release):
                trained.release(command)
            else:
                running[command.layer] = command

    def cut():
        return trained.state(schedule.past, [])

    execute(schedule.begin())
    while running:
        command = running.pop(rng.choice(sorted(running)))
        trained.publish(command, Snapshot())
        execute(schedule.finished(command.layer))
        assert list(cut().snapshots) == sorted(retained(schedule.past))
        if rng.random() < interruptions:
            stopped = cut()
            trained = TrainedLayers(pretrain, Backend(), list)
            trained.resume(stopped)
            running.clear()
            schedule = Schedule(plans, pace(plans), slots=slots)
            execute(schedule.resume(stopped.past))
            assert cut().snapshots == stopped.snapshots
    assert not cut().snapshots
