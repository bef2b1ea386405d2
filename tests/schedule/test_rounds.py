"""The schedule in rounds: the next G layers together, then the next G."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduleplay import layer_plans, planned_reads, play, shortened, stops_after

from syncpretrain import pretrain
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
VARIANTS = {
    "plain": {"epochs": 3},
    "uneven": {"epochs": (4, 2, 1, 3), "refresh_epochs": (0, 2, 1, 2)},
    "first-layer": {"epochs": (4, 2, 3, 1), "refresh_epochs": 2, "finish": "first-layer"},
}
group_sizes = st.integers(1, 6)
last_epochs = st.lists(st.integers(1, 7), min_size=5, max_size=5)


def in_rounds(
    plans: Sequence[LayerPlan], group_size: int, slots: int, *, drain: bool = True
) -> Schedule:
    rule = partial(rounds_row, group_size=group_size, drain=drain)
    return Schedule(plans, Planned(plans, rule, group_size=group_size), slots=slots)


def rounds_reads(plans: Sequence[LayerPlan], *, group_size: int, drain: bool = True) -> Reads:
    return planned_reads(plans, partial(rounds_row, group_size=group_size, drain=drain))


def test_the_table_of_five_layers_in_pairs():
    plans = [LayerPlan(3)] * 5
    assert rounds_reads(plans, group_size=2) == (
        (0, 0, 0),
        (1, 2, 3),
        (3, 3, 3),
        (1, 2, 3),
        (3, 3, 3),
    )


def test_the_next_round_reads_the_version_after_the_last_refresh():
    plans = [LayerPlan(4), LayerPlan(2, refresh_epochs=2), LayerPlan(2), LayerPlan(1)]
    reads = rounds_reads(plans, group_size=2)
    assert reads == ((0,) * 4, (1, 2, 3, 3, 4, 4), (6, 6), (1,))


def test_without_drain_a_rounds_refreshes_begin_before_its_first_layer_is_done():
    plans = [LayerPlan(4), LayerPlan(2, refresh_epochs=2)] * 2
    below, above = (1, 2, 3), (1, 2, 3)
    reads = rounds_reads(plans, group_size=2, drain=False)
    assert reads == ((0,) * 4, below, (3,) * 4, above)


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


def test_no_layer_of_the_next_round_trains_while_a_lower_one_still_does():
    plans = [LayerPlan(5), LayerPlan(1), LayerPlan(1)]
    schedule = in_rounds(plans, 2, slots=3)
    schedule.begin()
    schedule.finished(1)
    schedule.finished(2)
    assert schedule.training == (1,), "layer 2, whose last version layer 3 reads, has ended"
    for _ in range(4):
        schedule.finished(1)
    assert schedule.training == (3,)


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
        (
            {"group_size": 2, "schedule": "greedy"},
            "group_size: got 2 with schedule greedy, expected none",
        ),
        ({"group_size": 0, "schedule": "rounds"}, "group_size: got 0"),
        ({"schedule": "rounds", "pace": "free"}, "pace: got free with schedule rounds, where"),
    ],
)
def test_what_does_not_fit_is_refused(given, message):
    with pytest.raises(SettingsError, match=message):
        settings_of(**given)


def sums(bits, variants: Sequence[dict], **common) -> list[str]:
    wanted = {"layers": LAYERS, "batch_size": 20} | common
    return [pretrain(bits, **wanted, **variant).parameters_sha256 for variant in variants]


@pytest.mark.parametrize("variant", VARIANTS)
class TestBits:
    def test_groups_of_one_layer_end_like_greedy(self, bits, variant):
        one, pairs, greedy = sums(
            bits,
            [
                {"schedule": "rounds", "group_size": 1},
                {"schedule": "rounds", "group_size": 2},
                {"schedule": "greedy", "blas_threads": 1},
            ],
            **VARIANTS[variant],
        )
        assert one == greedy
        assert pairs != greedy

    @pytest.mark.parametrize("size", [4, 9])
    def test_groups_of_all_layers_end_like_synchronized(self, bits, variant, size):
        all_layers, pairs, synchronized = sums(
            bits,
            [
                {"schedule": "rounds", "group_size": size},
                {"schedule": "rounds", "group_size": 2},
                {"schedule": "synchronized"},
            ],
            **VARIANTS[variant],
        )
        assert all_layers == synchronized
        assert pairs != synchronized


def test_early_stopping_stops_the_same_epochs_everywhere(bits):
    stacks = [
        pretrain(
            bits,
            validation=1 - bits[:50],
            layers=LAYERS,
            batch_size=20,
            epochs=12,
            schedule="rounds",
            early_stopping="pseudo-likelihood",
            patience=1,
            **where,
        )
        for where in ({"runtime": "serial"}, {"workers": 1}, {"workers": 2})
    ]
    assert len({stack.parameters_sha256 for stack in stacks}) == 1
    assert min(stacks[0].info["epochs"]) < 12, "it did stop"
