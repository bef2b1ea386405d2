"""The schedule in rounds: the next G layers together, then the next G."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduleplay import layer_plans, planned_reads, play, shortened, stops_after

from syncpretrain.errors import SettingsError
from syncpretrain.pretraining.build import build_schedule
from syncpretrain.schedule.kinds import (
    GROUP_SIZE,
    LayerPlan,
    Planned,
    Reads,
    greedy_row,
    lockstep_row,
    rounds_row,
)
from syncpretrain.schedule.schedule import Schedule
from syncpretrain.settings import PretrainSettings, settings_from

LAYERS = (16, 12, 10, 8, 5)
group_sizes = st.integers(1, 6)
last_epochs = st.lists(st.integers(1, 7), min_size=5, max_size=5)


def in_rounds(
    plans: Sequence[LayerPlan], group_size: int, slots: int, *, drain: bool = True
) -> Schedule:
    rule = partial(rounds_row, group_size=group_size, drain=drain)
    return Schedule(plans, Planned(plans, rule, group_size=group_size), slots=slots)


def rounds_reads(plans: Sequence[LayerPlan], *, group_size: int, drain: bool = True) -> Reads:
    return planned_reads(plans, partial(rounds_row, group_size=group_size, drain=drain))


OF_TWO = [LayerPlan(4), LayerPlan(2, refresh_epochs=2)]
FROM_BELOW = (1, 2, 3)


@pytest.mark.parametrize(
    ("plans", "drain", "reads"),
    [
        ([LayerPlan(3)] * 5, True, ((0,) * 3, FROM_BELOW, (3,) * 3, FROM_BELOW, (3,) * 3)),
        ([*OF_TWO, LayerPlan(2), LayerPlan(1)], True, ((0,) * 4, (1, 2, 3, 3, 4, 4), (6, 6), (1,))),
        (OF_TWO * 2, False, ((0,) * 4, FROM_BELOW, (3,) * 4, FROM_BELOW)),
    ],
    ids=[
        "five layers in pairs",
        "the next round reads the version after the last refresh",
        "without drain, refreshes begin before the first layer of a round is done",
    ],
)
def test_reads_in_pairs(plans, drain, reads):
    assert rounds_reads(plans, group_size=2, drain=drain) == reads


@given(plans=layer_plans, drain=st.booleans())
def test_groups_of_all_layers_read_in_lockstep(plans, drain):
    for size in (len(plans), len(plans) + 1):
        reads = rounds_reads(plans, group_size=size, drain=drain)
        assert reads == planned_reads(plans, partial(lockstep_row, drain=drain))


@given(plans=layer_plans, drain=st.booleans())
def test_groups_of_one_layer_read_like_greedy(plans, drain):
    assert rounds_reads(plans, group_size=1, drain=drain) == planned_reads(plans, greedy_row)


@given(
    plans=layer_plans,
    group_size=group_sizes,
    last=last_epochs,
    slots=st.integers(1, 6),
    seed=st.integers(0, 2**32),
)
def test_reads_do_not_depend_on_timing_or_slots(plans, group_size, last, slots, seed):
    schedule = in_rounds(plans, group_size, slots)
    play(schedule, len(plans), slots, random.Random(seed), stops_after(last))
    assert schedule.reads == rounds_reads(shortened(plans, last), group_size=group_size)


@given(
    plans=layer_plans,
    group_size=group_sizes,
    drain=st.booleans(),
    slots=st.integers(1, 6),
    seed=st.integers(0, 2**32),
)
def test_a_round_begins_when_the_one_before_has_ended(plans, group_size, drain, slots, seed):
    schedule = in_rounds(plans, group_size, slots, drain=drain)
    log = play(schedule, len(plans), slots, random.Random(seed))
    begun = [(command.layer - 1) // group_size for command in log]
    assert begun == sorted(begun)
    assert schedule.reads == rounds_reads(plans, group_size=group_size, drain=drain)


def settings_of(**given) -> PretrainSettings:
    return settings_from(LAYERS, **given).pretrain


@pytest.mark.parametrize(("given", "size"), [({}, GROUP_SIZE), ({"group_size": 3}, 3)])
def test_settings_name_the_size_of_the_groups(given, size):
    schedule = build_schedule(settings_of(schedule="rounds", epochs=3, **given), slots=1)
    play(schedule, 4, 1, random.Random(0))
    assert schedule.reads == rounds_reads([LayerPlan(3)] * 4, group_size=size)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"group_size": 2}, "group_size: got 2 with schedule synchronized, expected none"),
        ({"group_size": 0, "schedule": "rounds"}, "group_size: got 0"),
        ({"schedule": "rounds", "pace": "free"}, "pace: got free with schedule rounds, where"),
    ],
)
def test_what_does_not_fit_is_refused(given, message):
    with pytest.raises(SettingsError, match=message):
        settings_of(**given)
