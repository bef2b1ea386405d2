"""What a run keeps of its versions, against the definition from the schedule's past."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from scheduleplay import free, greedy, layer_plans, lockstep, rounds

from syncpretrain.backends.base import Backend
from syncpretrain.pretraining.driver import TrainedLayers
from syncpretrain.schedule.schedule import Command, Past, Release, Schedule, Train
from syncpretrain.settings import settings_from
from syncpretrain.workers.state import PretrainState


class Snapshot:
    """Stands for a version's parameters, wherever they are."""

    def to(self, device: object) -> Snapshot:
        return self


def retained(past: Past) -> set[tuple[int, int]]:
    """The versions held, and those that their activations were made through."""
    kept = set()
    for number, versions in enumerate(past.held, start=1):
        for version in versions:
            for layer in range(number, 0, -1):
                kept.add((layer, version))
                version = past.reads[layer - 1][version - 1]
    return kept


@given(
    plans=layer_plans,
    pace=st.sampled_from([lockstep, greedy, rounds, free]),
    slots=st.integers(1, 6),
    interruptions=st.floats(0, 0.5),
    seed=st.integers(0, 2**32),
)
def test_a_run_keeps_the_versions_held_and_those_below_them(
    plans, pace, slots, interruptions, seed
):
    rng = random.Random(seed)
    pretrain = settings_from([4] * (len(plans) + 1)).pretrain
    schedule = Schedule(plans, pace(plans), slots=slots)
    trained, running = TrainedLayers(pretrain, Backend(), list), {}

    def execute(commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Release):
                trained.release(command)
            else:
                running[command.layer] = command

    def cut() -> PretrainState:
        return trained.state(schedule.past, [])

    execute(schedule.begin())
    while running:
        command: Train = running.pop(rng.choice(sorted(running)))
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
