"""Schedules of every pace, played with epochs that end in random order."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from syncpretrain.schedule.kinds import (
    SCHEDULES,
    LayerPlan,
    Pace,
    Reads,
    Rule,
    ScheduleOptions,
    planned_rows,
    rounds_row,
)
from syncpretrain.schedule.schedule import Command, Release, Schedule, Train

MAX_BUFFERS = 3


class Memory:
    """A runtime's memory in miniature: it fails on any read of what was never made or is freed."""

    def __init__(self, depth: int) -> None:
        # For each layer, the version it was trained on by its own version.
        self.published: list[dict[int, int]] = [{} for _ in range(depth + 1)]
        self.made: list[set[int]] = [set() for _ in range(depth + 1)]
        self.in_use: dict[int, tuple[tuple[int, int], ...]] = {}

    def free(self, command: Release) -> None:
        address = (command.layer, command.version)
        assert not any(address in used for used in self.in_use.values())
        del self.published[command.layer][command.version]
        self.made[command.layer].discard(command.version)

    def train(self, command: Train) -> None:
        below = command.layer - 1
        used: list[tuple[int, int]] = []
        if below:
            assert self.published[below][command.reads] == command.below_reads
            used.append((below, command.reads))
            if command.reads not in self.made[below]:
                if below > 1:
                    assert command.below_reads in self.made[below - 1]
                    used.append((below - 1, command.below_reads))
                self.made[below].add(command.reads)
                assert len(self.made[below]) <= MAX_BUFFERS
        else:
            assert command.reads == 0
        self.in_use[command.layer] = tuple(used)

    def finish(self, command: Train) -> None:
        del self.in_use[command.layer]
        self.published[command.layer][command.epoch] = command.reads


class Play:
    """A run whose epochs end in random order, as far as it is asked to go."""

    def __init__(self, memory, rng, stops, slots=None):
        self.memory, self.rng, self.stops = memory, rng, stops
        self.slots = slots or len(memory.made)
        self.running: list[Train] = []
        self.log: list[Train] = []
        self.finished = 0

    def go(self, schedule: Schedule, commands: Sequence[Command], steps: float) -> None:
        self.execute(commands)
        assert {c.layer for c in self.running} == set(schedule.training)
        while self.running and steps > 0:
            command = self.running.pop(self.rng.randrange(len(self.running)))
            self.memory.finish(command)
            self.finished += 1
            self.execute(
                schedule.finished(
                    command.layer, stops=self.stops(command), drifts=self.drifts(command)
                )
            )
            assert {c.layer for c in self.running} == set(schedule.training)
            steps -= 1

    def drifts(self, command: Train) -> dict[int, float] | None:
        """Return how far a version is from others; none where nothing asks for it."""
        return None

    def execute(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Release):
                self.memory.free(command)
            else:
                self.memory.train(command)
                self.running.append(command)
                self.log.append(command)
        assert len(self.running) <= self.slots


def play(schedule, depth, slots, rng, stops=lambda command: False):
    """Run a schedule with epochs that end in random order; return the epochs in starting order.

    ``stops`` says of an epoch whether the layer has learned enough with it.
    """
    run = Play(Memory(depth), rng, stops, slots)
    run.go(schedule, schedule.begin(), math.inf)
    assert schedule.is_finished
    assert all(schedule.ended(layer) for layer in range(1, depth + 1))
    return run.log


def planned_reads(plans: Sequence[LayerPlan], rule: Rule) -> Reads:
    return tuple(row.reads for row in planned_rows(plans, rule))


def pace_of(build: Callable[[Sequence[LayerPlan], ScheduleOptions], Pace]) -> Callable[..., Pace]:
    def pace(plans: Sequence[LayerPlan], *, drain: bool = True) -> Pace:
        return build(plans, ScheduleOptions(drain=drain))

    return pace


KNOWN = {name: pace_of(kind.lockstep) for name, kind in SCHEDULES.items()}  # reads known beforehand
FREE = {name: pace_of(kind.free) for name, kind in SCHEDULES.items() if kind.free is not None}
PACES = [*KNOWN.values(), *FREE.values()]
lockstep, greedy, rounds = (KNOWN[name] for name in ("synchronized", "greedy", "rounds"))
free = FREE["synchronized"]
in_pairs = partial(rounds_row, group_size=2)
layer_plans = st.lists(
    st.builds(LayerPlan, epochs=st.integers(1, 6), refresh_epochs=st.integers(0, 3)),
    min_size=1,
    max_size=5,
)
last_epochs = st.lists(st.integers(1, 7), min_size=5, max_size=5)  # when layers stop
NEVER = (9,) * 5
PARTS = {
    "plans": layer_plans,
    "pace": st.sampled_from(PACES),
    "last": last_epochs,
    "slots": st.integers(1, 6),
    "cuts": st.lists(st.integers(0, 12), min_size=3, max_size=3),  # steps between interruptions
    "drain": st.booleans(),
    "seed": st.integers(0, 2**32),
    "points": st.integers(0, 99),
}
# Of one run after another.
two_slots, two_seeds = (st.tuples(PARTS[name], PARTS[name]) for name in ("slots", "seed"))
many_slots = st.lists(PARTS["slots"], min_size=2, max_size=4)


def drawn(names: str, **others: st.SearchStrategy[Any]) -> Callable[..., Any]:
    """Draw parts of a schedule and of how it is played, and others."""
    return given(**{name: PARTS[name] for name in names.split()}, **others)


def stops_after(last: Sequence[int]) -> Callable[[Train], bool]:
    return lambda command: command.epoch >= last[command.layer - 1]


def shortened(plans: Sequence[LayerPlan], last: Sequence[int]) -> list[LayerPlan]:
    return [replace(plan, epochs=min(plan.epochs, n)) for plan, n in zip(plans, last, strict=False)]
