"""Every kind of schedule of the table, wherever one is accepted; and the reads in rounds."""

import random
from functools import partial
from typing import get_args, get_type_hints

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from scheduleplay import NEVER, drawn, planned_reads, play, shortened, stops_after

from syncpretrain import pretrain
from syncpretrain.cli.compare import command as compare_command
from syncpretrain.cli.train import train as train_command
from syncpretrain.errors import SettingsError
from syncpretrain.observers.history import History
from syncpretrain.planning.candidates import Task, candidates
from syncpretrain.planning.timings import LayerTimings, Timings
from syncpretrain.pretraining.build import build_schedule
from syncpretrain.runs.compare import STARTS
from syncpretrain.schedule.kinds import (
    ASYNC,
    GROUP_SIZE,
    SCHEDULES,
    UNTRAINED,
    LayerPlan,
    Planned,
    greedy_row,
    lockstep_row,
    rounds_row,
)
from syncpretrain.schedule.schedule import Schedule
from syncpretrain.settings import settings_from
from syncpretrain.settings.fields import PretrainFields

LAYERS = (16, 12, 8, 6, 4)
RUN = {"layers": LAYERS, "epochs": (3, 2, 1, 2), "refresh_epochs": (0, 1, 0, 1), "batch_size": 20}
EACH = pytest.mark.parametrize("name", SCHEDULES)


def test_the_settings_name_the_kinds_of_the_table():
    hints = get_type_hints(PretrainFields)
    assert set(get_args(hints["schedule"])) == {*SCHEDULES, ASYNC, UNTRAINED}
    assert SCHEDULES.keys() <= set(STARTS), "compare starts from each"


@pytest.mark.parametrize("command", [train_command, compare_command])
def test_the_command_line_names_them_too(command):
    texts = " ".join(str(option.type) + (option.help or "") for option in command.params)
    assert all(name in texts for name in SCHEDULES)


@EACH
def test_a_replay_of_its_reads_gives_the_same_weights(bits, name):
    history, run = History(), RUN | {"schedule": name, "blas_threads": 1}
    stack = pretrain(bits, **run, observers=[history])
    again = pretrain(bits, **run, replay=history.reads)
    assert again.parameters_sha256 == stack.parameters_sha256


@EACH
def test_the_planner_tries_those_that_name_a_candidate(name):
    kind = SCHEDULES[name]
    timing = LayerTimings(1.0, 0.5, {}, transform={1: 0.0, 2: 0.0}, validation=0.0)
    settings = settings_from(LAYERS, epochs=2).pretrain
    found = candidates(Task(settings, 100, 0), Timings((timing,) * 4, 2, 1))
    tried = {candidate.options["schedule"] for candidate in found}
    assert (name in tried) == (kind.candidate is not None)
    assert kind.candidate is None or f"{kind.candidate}, one core" in {c.name for c in found}


@EACH
def test_what_a_kind_lacks_is_refused(name):
    kind = SCHEDULES[name]
    for lacking, option in ((kind.free is None, {"pace": "free"}), (True, {"group_size": 2})):
        if lacking and not (kind.has_groups and "group_size" in option):
            with pytest.raises(SettingsError, match=f"with schedule {name}"):
                settings_from(LAYERS, schedule=name, **option)
        else:
            settings_from(LAYERS, schedule=name, **option)


group_sizes = st.integers(1, 6)


def in_rounds(plans, group_size, slots, *, drain=True):
    rule = partial(rounds_row, group_size=group_size, drain=drain)
    return Schedule(plans, Planned(plans, rule, group_size=group_size), slots=slots)


def rounds_reads(plans, *, group_size, drain=True):
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


@drawn("plans drain")
def test_groups_of_one_layer_read_like_greedy_and_groups_of_all_in_lockstep(plans, drain):
    in_lockstep = partial(lockstep_row, drain=drain)
    for size, rule in ((1, greedy_row), (len(plans), in_lockstep), (len(plans) + 1, in_lockstep)):
        reads = rounds_reads(plans, group_size=size, drain=drain)
        assert reads == planned_reads(plans, rule)


@drawn("plans drain last slots seed", group_size=group_sizes)
@settings(max_examples=200)
def test_rounds_follow_each_other_and_read_the_same_whatever_the_timing(
    plans, group_size, drain, last, slots, seed
):
    last = last if drain else NEVER  # the settings refuse the rest
    schedule = in_rounds(plans, group_size, slots, drain=drain)
    log = play(schedule, len(plans), slots, random.Random(seed), stops_after(last))
    begun = [(command.layer - 1) // group_size for command in log]
    assert begun == sorted(begun), "a round begins when the one before has ended"
    plans = shortened(plans, last)
    assert schedule.reads == rounds_reads(plans, group_size=group_size, drain=drain)


def settings_of(**given):
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
