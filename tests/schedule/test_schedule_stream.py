"""The streamed schedule: order, rings, delays, the end."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncpretrain.errors import ScheduleError
from syncpretrain.schedule.stream import Block, StreamPlan, StreamSchedule

stacks = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=5)


def plans_of(stack):
    plans, delay = [], 0
    for i, (more, steps) in enumerate(stack):
        delay += more if i else 0
        plans.append(StreamPlan(delay, steps))
    return plans


def play(schedule, plans, *, workers, ring, seed, stops=()):
    """Process blocks that end in random order; return what each layer processed.

    A layer with one of the ``stops`` has learned enough after so many steps.
    """
    rng, running, longest = random.Random(seed), [], list(schedule.ends)
    processed = [[] for _ in plans]
    position = list(schedule.positions)
    while not schedule.is_finished:
        while len(running) < workers and (block := schedule.take()) is not None:
            running.append(block)
        assert len({block.layer for block in running}) == len(running), "one block a layer"
        block = running.pop(rng.randrange(len(running)))
        i = block.layer - 1
        for number in range(block.first, block.last + 1):
            assert i == 0 or number <= position[i - 1], "its input is there"
            if i + 1 < len(plans) and position[i + 1] < schedule.ends[i + 1]:
                unread = min(number, longest[i + 1]) - position[i + 1]
                assert unread <= ring, "no minibatch that is waited for is overwritten"
            processed[i].append(number)
        position[i] = block.last
        enough = replace(plans[i], steps=stops[i]) if stops else plans[i]
        schedule.done(block, enough if position[i] >= enough.end else plans[i])
    assert not running
    return processed


@given(stacks, st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.integers())
def test_every_layer_processes_its_part_once_in_order(stack, ring, block, workers, seed):
    plans = plans_of(stack)
    schedule = StreamSchedule(plans, ring=ring, block=block)
    processed = play(schedule, plans, workers=workers, ring=ring, seed=seed)
    ends = [max(plan.end for plan in plans[i:]) for i in range(len(plans))]
    assert processed == [
        list(range(plan.skipped + 1, end + 1)) for plan, end in zip(plans, ends, strict=True)
    ]


@given(stacks, st.integers(1, 5), st.integers(1, 4), st.integers(0, 30), st.integers())
def test_it_is_resumed_from_any_positions_that_it_had(stack, ring, block, steps, seed):
    plans, rng = plans_of(stack), random.Random(seed)
    schedule = StreamSchedule(plans, ring=ring, block=block)
    for _ in range(steps):
        taken = [b for b in (schedule.take(), schedule.take()) if b is not None]
        rng.shuffle(taken)
        for one in taken:
            schedule.done(one)
    again = StreamSchedule(plans, ring=ring, block=block)
    again.go_to(schedule.positions)
    play(again, plans, workers=3, ring=ring, seed=seed)


@given(stacks, st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.integers())
def test_layers_that_stop_early_hold_nobody_up_and_lose_nothing(stack, ring, block, workers, seed):
    plans, rng = plans_of(stack), random.Random(seed)
    stops = [rng.randint(1, plan.steps) for plan in plans]
    schedule = StreamSchedule(plans, ring=ring, block=block)
    play(schedule, plans, workers=workers, ring=ring, seed=seed, stops=stops)
    needed = [plan.skipped + stop for plan, stop in zip(plans, stops, strict=True)]
    assert all(schedule.positions[i] >= max(needed[i:]) for i in range(len(plans)))


def cuts(delay, end, *, block, steps):
    """Return where the blocks of a layer end, by definition: those of its epochs, and of passes."""
    found, begun = [], 0
    for number in range(delay + 1, end + 1):
        begun += 1
        ends = (number - delay) % steps == 0 or number % steps == 0
        if ends or begun == block or number == end:
            found.append(number)
            begun = 0
    return found


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), min_size=1, max_size=5),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 6),
    st.integers(),
)
def test_whole_blocks_end_as_defined_whatever_the_timing(stack, steps, block, more, workers, seed):
    plans = plans_of([(delay, epochs * steps) for delay, epochs in stack])
    ring = 2 * block - 1 + more
    schedule = StreamSchedule(plans, ring=ring, block=block, steps=steps)
    taken = {}
    take = schedule.take

    def taking():
        found = take()
        if found is not None:
            taken.setdefault(found.layer - 1, []).append(found)
        return found

    schedule.take = taking  # type: ignore[method-assign]
    play(schedule, plans, workers=workers, ring=ring, seed=seed)
    for i, plan in enumerate(plans):
        wanted = cuts(plan.skipped, schedule.ends[i], block=block, steps=steps)
        assert [found.last for found in taken[i]] == wanted


def test_the_lowest_layer_that_may_process_goes_first():
    schedule = StreamSchedule([StreamPlan(0, 4)] * 2, ring=2, block=1)
    for block in (Block(1, 1, 1), Block(1, 2, 2), Block(2, 1, 1), Block(1, 3, 3)):
        assert schedule.take() == block
        schedule.done(block)


@pytest.mark.parametrize(
    ("plans", "numbers"),
    [
        ([StreamPlan(0, 1)], {"ring": 0, "block": 1}),
        ([StreamPlan(0, 1)], {"ring": 1, "block": 0}),
        ([StreamPlan(0, 0)], {"ring": 1, "block": 1}),
        ([StreamPlan(3, 1), StreamPlan(2, 1)], {"ring": 1, "block": 1}),
        ([StreamPlan(-1, 1)], {"ring": 1, "block": 1}),
        ([StreamPlan(0, 1)], {"ring": 2, "block": 2, "steps": 1}),
    ],
)
def test_numbers_out_of_range_are_refused(plans, numbers):
    with pytest.raises(ScheduleError):
        StreamSchedule(plans, **numbers)


def test_a_block_that_was_not_taken_is_refused():
    schedule = StreamSchedule([StreamPlan(0, 4)], ring=1, block=2)
    with pytest.raises(ScheduleError, match="was not taken"):
        schedule.done(Block(1, 1, 2))
