"""Every kind of schedule of the table, wherever one is accepted, executed or predicted."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from syncpretrain import pretrain
from syncpretrain.cli.compare import command as compare_command
from syncpretrain.cli.train import train as train_command
from syncpretrain.errors import SettingsError
from syncpretrain.observers.history import History
from syncpretrain.planning.candidates import Task, candidates
from syncpretrain.planning.timings import LayerTimings, Timings
from syncpretrain.runs.compare import STARTS
from syncpretrain.schedule.kinds import ASYNC, SCHEDULES, UNTRAINED
from syncpretrain.settings import settings_from
from syncpretrain.settings.fields import PretrainFields

LAYERS = (16, 12, 8, 6, 4)
RUN = {"layers": LAYERS, "epochs": (3, 2, 1, 2), "refresh_epochs": (0, 1, 0, 1), "batch_size": 20}
EACH = pytest.mark.parametrize("name", SCHEDULES)


def test_the_settings_name_the_kinds_of_the_table():
    hints = get_type_hints(PretrainFields)
    assert set(get_args(hints["schedule"])) == {*SCHEDULES, ASYNC, UNTRAINED}


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
    timing = LayerTimings(
        step=1.0, products=0.5, sharded={}, transform={1: 0.0, 2: 0.0}, validation=0.0
    )
    settings = settings_from(LAYERS, epochs=2).pretrain
    found = candidates(Task(settings, 100, 0), Timings((timing,) * 4, 2, 1))
    tried = {candidate.options["schedule"] for candidate in found}
    assert (name in tried) == (kind.candidate is not None)
    assert kind.candidate is None or f"{kind.candidate}, one core" in {c.name for c in found}


@EACH
def test_compare_starts_from_it(name):
    assert name in STARTS


@EACH
def test_what_a_kind_lacks_is_refused(name):
    kind = SCHEDULES[name]
    for lacking, option in ((kind.free is None, {"pace": "free"}), (True, {"group_size": 2})):
        if lacking and not (kind.has_groups and "group_size" in option):
            with pytest.raises(SettingsError, match=f"with schedule {name}"):
                settings_from(LAYERS, schedule=name, **option)
        else:
            settings_from(LAYERS, schedule=name, **option)
