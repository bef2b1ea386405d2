"""Every kind of schedule of the table, wherever one is accepted, executed or predicted."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from functools import partial
from typing import get_args, get_type_hints

import pytest
from disturbedsteps import after_steps

from syncpretrain import pretrain
from syncpretrain.cli.compare import command as compare_command
from syncpretrain.cli.train import train as train_command
from syncpretrain.errors import RunInterrupted, SettingsError
from syncpretrain.events import EpochStarted
from syncpretrain.planning.candidates import Task, candidates
from syncpretrain.planning.timings import LayerTimings, Timings
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.runs.compare import STARTS
from syncpretrain.schedule.kinds import ASYNC, SCHEDULES, UNTRAINED
from syncpretrain.settings import settings_from
from syncpretrain.settings.fields import PretrainFields
from syncpretrain.workers.state import PretrainState

pytestmark = pytest.mark.usefixtures("forked_layers")
LAYERS = (16, 12, 8, 6, 4)
RUN = {"layers": LAYERS, "epochs": (3, 2, 1, 2), "refresh_epochs": (0, 1, 0, 1), "batch_size": 20}
EACH = pytest.mark.parametrize("name", SCHEDULES)


def pretraining(bits, name, **others) -> Pretraining:
    options = {**RUN, "schedule": name, "blas_threads": 1, **others}
    layers = options.pop("layers")
    given = {key: options.pop(key) for key in ("save", "resume") if key in options}
    return Pretraining(settings_from(layers, **options).pretrain, bits, bits[:40], **given)


def interrupt_at(number: int, steps: Iterator[int]) -> None:
    if next(steps) == number:
        signal.raise_signal(signal.SIGINT)


def keep(states: list[PretrainState], state, *, done, final) -> None:
    states.append(state())


def test_the_settings_name_the_kinds_of_the_table():
    hints = get_type_hints(PretrainFields)
    assert set(get_args(hints["schedule"])) == {*SCHEDULES, ASYNC, UNTRAINED}


@pytest.mark.parametrize("command", [train_command, compare_command])
def test_the_command_line_names_them_too(command):
    texts = " ".join(str(option.type) + (option.help or "") for option in command.params)
    assert all(name in texts for name in SCHEDULES)


@EACH
def test_the_weights_do_not_depend_on_the_runtime_or_the_workers(bits, name):
    runs = [
        pretraining(bits, name, runtime="serial"),
        pretraining(bits, name, runtime="threads", workers=1),
        pretraining(bits, name, runtime="threads", workers=3),
        pretraining(bits, name, runtime="processes", workers=2),
    ]
    assert len({run.run().parameters_sha256 for run in runs}) == 1


@EACH
def test_a_replay_of_its_reads_gives_the_same_weights(bits, name):
    events: list[EpochStarted] = []
    stack = pretrain(
        bits,
        **RUN,
        schedule=name,
        blas_threads=1,
        observers=[lambda e: events.append(e) if isinstance(e, EpochStarted) else None],
    )
    layers = range(1, len(LAYERS))
    reads = tuple(tuple(e.reads for e in events if e.layer == layer) for layer in layers)
    again = pretrain(bits, **RUN, schedule=name, blas_threads=1, replay=reads)
    assert again.parameters_sha256 == stack.parameters_sha256


@EACH
def test_a_run_that_is_stopped_is_resumed_to_the_same_weights(bits, name, monkeypatch):
    whole = pretraining(bits, name, runtime="serial").run()
    state, stack = None, None
    while stack is None:
        steps, states = itertools.count(1), []
        with monkeypatch.context() as patched:
            after_steps(patched, partial(interrupt_at, 7, steps))
            run = pretraining(
                bits, name, runtime="serial", resume=state, save=partial(keep, states)
            )
            try:
                stack = run.run()
            except RunInterrupted:
                state = states[-1]
    assert state is not None, "it was stopped"
    assert stack.parameters_sha256 == whole.parameters_sha256


@EACH
def test_layers_that_stop_early_end_the_run(bits, name):
    run = pretraining(
        bits, name, epochs=6, early_stopping="pseudo-likelihood", patience=1, runtime="serial"
    )
    stack = run.run()
    again = pretraining(
        bits, name, epochs=6, early_stopping="pseudo-likelihood", patience=1, workers=3
    )
    assert again.run().parameters_sha256 == stack.parameters_sha256


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
