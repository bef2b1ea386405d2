"""The schedule against its definition, computed anew from the whole past at each event.

The definition is slow and short. It looks at every layer each time, and gives free slots to the
ready layer with the longest chain of epochs to go, whatever an epoch of each layer costs.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st
from scheduleplay import drawn, stops_after

from syncpretrain.schedule.kinds import Fixed, LayerPlan, Pace
from syncpretrain.schedule.schedule import Past, Release, Schedule, Train


@dataclass
class Definition:
    plans: Sequence[LayerPlan]
    pace: Pace
    slots: int
    costs: Sequence[float]
    reads: list[list[int]] = field(init=False)
    done: list[int] = field(init=False)
    held: list[set[int]] = field(init=False)
    epochs: list[int] = field(init=False)

    def __post_init__(self):
        self.depth = len(self.plans)
        self.reads = [[] for _ in self.plans]
        self.done = [0 for _ in self.plans]
        self.held = [set() for _ in self.plans]
        self.epochs = [plan.epochs for plan in self.plans]

    @property
    def past(self):
        held = tuple(tuple(sorted(versions)) for versions in self.held)
        return Past(tuple(map(tuple, self.reads)), tuple(self.done), held, tuple(self.epochs))

    def finished(self, layer, *, stops):
        i = layer - 1
        self.done[i] += 1
        self.held[i].add(self.done[i])
        if stops and self.done[i] < self.epochs[i]:
            self.pace.shorten(i, self.done[i])
            self.epochs[i] = self.done[i]
        return self.assign()

    def assign(self):
        begun = []
        while sum(map(self.trains, range(self.depth))) < self.slots:
            ready = [i for i in range(self.depth) if self.is_ready(i)]
            if not ready:
                break
            i = max(ready, key=self.longest_chain)
            version = self.next_read(i)
            assert version is not None
            self.reads[i].append(version)
            below_reads = self.reads[i - 1][version - 1] if i else 0
            begun.append(Train(i + 1, len(self.reads[i]), version, below_reads))
        freed = []
        for i in range(self.depth):
            dropped = self.held[i] - self.needed(i)
            self.held[i] -= dropped
            freed += [Release(i + 1, version) for version in sorted(dropped)]
        return freed + begun

    def trains(self, i):
        return len(self.reads[i]) > self.done[i]

    def newest_below(self, i):
        return self.done[i - 1] if i else 0

    def is_settled(self):
        counts = zip(map(len, self.reads), self.done, strict=True)
        return all(self.pace.is_satisfied(i, *count) for i, count in enumerate(counts))

    def next_read(self, i):
        if self.is_settled():
            return None
        return self.pace.next_read(i, self.reads[i], self.newest_below(i))

    def unread(self, i):
        if i + 1 == self.depth or self.is_settled():
            return []
        return self.pace.unread(i + 1, self.reads[i + 1], self.done[i])

    def is_ready(self, i):
        version, limit = self.next_read(i), self.pace.max_unread
        return (
            not self.trains(i)
            and version is not None
            and version <= self.newest_below(i)
            and all(map(self.ended, range(self.pace.first_of_round(i))))
            and (limit is None or len(self.unread(i)) < limit)
        )

    def ended(self, i):
        if self.trains(i) or self.next_read(i) is not None:
            return False
        return i == 0 or self.is_settled() or self.ended(i - 1)

    def longest_chain(self, i):
        """Climb the layers once and spend the repeats in the costliest one."""
        above = range(i, self.depth)
        left = [max(0, self.epochs[j] - len(self.reads[j]) - 1) for j in above]
        repeats = [self.costs[j] * n for j, n in zip(above, left, strict=True)]
        return sum(self.costs[j] for j in above) + max(repeats)

    def needed(self, i):
        if i + 1 == self.depth:
            return set()
        needed, above = set(self.unread(i)), self.reads[i + 1]
        if above and not self.ended(i + 1):
            needed.add(above[-1])
        if i + 2 < self.depth:
            through = set(self.unread(i + 1))
            if self.trains(i + 2):
                through.add(self.reads[i + 2][-1])
            needed |= {above[version - 1] for version in through}
        return needed


def check_against_definition(schedule, definition, rng, last):
    """Play both in the same random order; every answer must be the same."""
    stops, ended = stops_after(last), set()
    commands = schedule.begin()
    assert commands == definition.assign()
    running = [command for command in commands if isinstance(command, Train)]
    while running:
        command = running.pop(rng.randrange(len(running)))
        count, enough = len(ended), stops(command)
        commands = schedule.finished(command.layer, stops=enough)
        assert commands == definition.finished(command.layer, stops=enough)
        assert schedule.past == definition.past
        now_ended = schedule.ended_since(count)
        assert now_ended == sorted(now_ended)
        ended.update(now_ended)
        layers = range(1, definition.depth + 1)
        assert ended == {layer for layer in layers if definition.ended(layer - 1)}
        assert ended == {layer for layer in layers if schedule.ended(layer)}
        running += [command for command in commands if isinstance(command, Train)]
    assert schedule.is_finished


@drawn("plans pace last slots seed", costs=st.lists(st.floats(0.1, 10), min_size=5, max_size=5))
def test_every_answer_is_that_of_the_definition(plans, pace, costs, last, slots, seed):
    schedule = Schedule(plans, pace(plans), slots=slots)
    definition = Definition(plans, pace(plans), slots, costs)
    check_against_definition(schedule, definition, random.Random(seed), last)


@drawn("plans pace slots seed", limit=st.sampled_from([1, 2, 3, None]))
def test_those_that_end_with_layer_1_and_their_replays_too(plans, pace, limit, slots, seed):
    rng, never = random.Random(seed), [10**9] * len(plans)
    costs = [1.0] * len(plans)
    schedule = Schedule(plans, pace(plans, drain=False), slots=slots)
    definition = Definition(plans, pace(plans, drain=False), slots, costs)
    check_against_definition(schedule, definition, rng, never)
    replays = [Fixed(schedule.reads, max_unread=limit) for _ in range(2)]
    replayed = Schedule(plans, replays[0], slots=slots)
    check_against_definition(replayed, Definition(plans, replays[1], slots, costs), rng, never)
