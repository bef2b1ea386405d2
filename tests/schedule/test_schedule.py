import random
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scheduleplay import (
    NEVER,
    drawn,
    free,
    in_pairs,
    last_epochs,
    layer_plans,
    lockstep,
    planned_reads,
    play,
    shortened,
    stops_after,
    two_seeds,
    two_slots,
)

from syncpretrain.errors import ScheduleError, SettingsError
from syncpretrain.schedule.kinds import Fixed, LayerPlan, Planned, greedy_row, lockstep_row
from syncpretrain.schedule.schedule import Schedule


@pytest.mark.parametrize("stops_early", [False, True])
@drawn("plans pace drain last slots seed")
@example(
    plans=[LayerPlan(4), LayerPlan(1, refresh_epochs=2), LayerPlan(1)],
    pace=lockstep,
    drain=False,
    last=[3, 5, 3],
    slots=2,
    seed=7,
)
def test_every_run_ends_and_reads_nothing_freed(plans, pace, drain, last, slots, seed, stops_early):
    last = last if stops_early else NEVER
    drain = drain or (stops_early and pace is not free)  # the settings refuse the rest
    schedule = Schedule(plans, pace(plans, drain=drain), slots=slots)
    log = play(schedule, len(plans), slots, random.Random(seed), stops_after(last))
    for layer, plan in enumerate(shortened(plans, last), start=1):
        epochs = [command for command in log if command.layer == layer]
        assert [command.epoch for command in epochs] == list(range(1, len(epochs) + 1))
        assert len(epochs) >= plan.epochs
        assert len(epochs) == plan.epochs or plan.refresh_epochs
        reads = [command.reads for command in epochs]
        assert reads == sorted(reads), "versions are monotone"
    assert schedule.done[0] == shortened(plans, last)[0].epochs


@pytest.mark.parametrize("stops_early", [False, True])
@drawn("plans drain last", slots=two_slots, seeds=two_seeds)
def test_a_free_run_replays_under_any_timing(plans, drain, last, slots, seeds, stops_early):
    """Layers that stopped early stop again where the reads end."""
    stops = stops_after(last if stops_early else NEVER)
    recorded = Schedule(plans, free(plans, drain=drain), slots=slots[0])
    play(recorded, len(plans), slots[0], random.Random(seeds[0]), stops)
    replayed = Schedule(plans, Fixed(recorded.reads), slots=slots[1])
    play(replayed, len(plans), slots[1], random.Random(seeds[1]), stops)
    assert replayed.reads == recorded.reads


OTHERS = [LayerPlan(4), LayerPlan(2, refresh_epochs=2), LayerPlan(7)]
ONCE = [LayerPlan(6, refresh_epochs=0)] * 2


@pytest.mark.parametrize(
    ("plans", "rule", "reads"),
    [
        (OTHERS, lockstep_row, ((0,) * 4, (1, 2, 3, 3, 4, 4), (1, *[2] * 6))),
        # Layer 1 ends with tick 4, when layer 2 has trained three epochs.
        (OTHERS, partial(lockstep_row, drain=False), ((0,) * 4, (1, 2, 3), (1, *[2] * 6))),
        (OTHERS, greedy_row, ((0,) * 4, (4,) * 2, (2,) * 7)),
        # The layers above read the last version of a layer that stopped.
        (shortened(ONCE, [3, 9]), lockstep_row, ((0,) * 3, (1, 2, 3, 3, 3, 3))),
        (shortened(ONCE, [3, 9]), greedy_row, ((0,) * 3, (3,) * 6)),
    ],
)
def test_reads_where_layers_differ_in_epochs(plans, rule, reads):
    assert planned_reads(plans, rule) == reads


WOKEN = [LayerPlan(5), LayerPlan(2, refresh_epochs=1)]
AT_ONCE = [LayerPlan(2), LayerPlan(1, refresh_epochs=5)]


@pytest.mark.parametrize(
    ("plans", "drain", "order", "reads"),
    [
        (WOKEN, True, [1] * 4 + [2], ((0,) * 5, (1, 4))),  # the newest version, none between
        (WOKEN, True, [1] * 4 + [2, 2], ((0,) * 5, (1, 4))),  # asleep after its epochs
        (WOKEN, True, [1] * 4 + [2, 2, 1], ((0,) * 5, (1, 4, 5))),  # woken for a refresh
        (AT_ONCE, False, [1, 2, 1], ((0, 0), (1,))),  # ends without the refresh
    ],
)
def test_reads_at_a_free_pace(plans, drain, order, reads):
    schedule = Schedule(plans, free(plans, drain=drain), slots=2)
    schedule.begin()
    for layer in order:
        schedule.finished(layer)
    assert schedule.reads == reads
    assert schedule.is_finished == (not drain)


def test_an_illegal_move_tells_the_story():
    schedule = Schedule([LayerPlan(1), LayerPlan(1)], lockstep([LayerPlan(1)] * 2), slots=1)
    schedule.begin()
    with pytest.raises(ScheduleError, match="layer 2 finished without training; so far layer 1"):
        schedule.finished(2)


def test_refreshes_on_refreshes_beyond_measure_are_refused():
    plans = [LayerPlan(100), *[LayerPlan(10, refresh_epochs=200)] * 3]
    with pytest.raises(SettingsError, match="refresh_epochs: got 200 for layer 3, which makes"):
        planned_reads(plans, lockstep_row)


class TestStops:
    """Layers that have learned enough before their stipulated epochs are over."""

    @drawn(
        "plans slots seed",
        rule=st.sampled_from([lockstep_row, greedy_row, in_pairs]),
        last=last_epochs | st.just(NEVER),
    )
    def test_planned_reads_are_those_of_the_shortened_plans(self, plans, rule, last, slots, seed):
        schedule = Schedule(plans, Planned(plans, rule), slots=slots)
        play(schedule, len(plans), slots, random.Random(seed), stops_after(last))
        assert schedule.reads == planned_reads(shortened(plans, last), rule), "whatever the timing"

    @given(
        plans=layer_plans,
        rule=st.sampled_from([lockstep_row, greedy_row, in_pairs]),
        layer=st.integers(0, 4),
        epochs=st.integers(1, 6),
    )
    def test_what_may_have_begun_stays_in_the_plan(self, plans, rule, layer, epochs):
        layer %= len(plans)
        epochs = min(epochs, plans[layer].epochs)
        planned = Planned(plans, rule)
        old = planned_reads(plans, rule)
        planned.shorten(layer, epochs)
        new = reads_of(planned, len(plans))
        assert new[:layer] == old[:layer]
        assert new[layer][:epochs] == old[layer][:epochs]
        newest = epochs
        for before, after in zip(old[layer + 1 :], new[layer + 1 :], strict=True):
            begun = sum(version <= newest for version in before)
            assert after[:begun] == before[:begun]
            newest = begun

    @pytest.mark.parametrize("pace", [lockstep, free])
    def test_newer_versions_wake_a_stopped_layer_for_refreshes(self, pace):
        plans = [LayerPlan(4), LayerPlan(4, refresh_epochs=1)]
        schedule = Schedule(plans, pace(plans), slots=2)
        schedule.begin()
        schedule.finished(1)
        schedule.finished(2, stops=True)
        assert schedule.training == (1,), "asleep"
        assert not schedule.ended(2)
        schedule.finished(1)
        assert schedule.reads[1] == (1, 2), "woken"
        schedule.finished(2, stops=True)
        for _ in range(2):
            schedule.finished(1)
            schedule.finished(2)
        assert schedule.reads == ((0,) * 4, (1, 2, 3, 4))
        assert schedule.is_finished

    @pytest.mark.parametrize(
        ("order", "reads"), [([1, 1, 1, 2, 2], (1, 2)), ([1, 2, 1, 2, 1, 2], (1, 2, 2))]
    )
    def test_without_drain_a_refresh_may_go_on_before_layer_1_stops(self, order, reads):
        """So it depends on timing, and the settings refuse early stopping there."""
        plans = [LayerPlan(4), LayerPlan(1, refresh_epochs=2)]
        schedule = Schedule(plans, lockstep(plans, drain=False), slots=2)
        schedule.begin()
        for layer in order:
            schedule.finished(layer, stops=layer == 1 and schedule.done[0] == 2)
        assert schedule.is_finished
        assert schedule.reads == ((0,) * 3, reads)


def reads_of(pace, depth):
    """Everything that a pace plans, read by read."""
    reads = [[] for _ in range(depth)]
    for layer in range(depth):
        while (version := pace.next_read(layer, reads[layer], 0)) is not None:
            reads[layer].append(version)
    return tuple(map(tuple, reads))
