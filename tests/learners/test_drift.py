"""Drift between versions: its measure, the runs that depend on it, and what is refused."""

import json
import math
from typing import Any

import numpy as np
import pytest
from comparisondata import make_data, make_settings
from hypothesis import given
from hypothesis import strategies as st
from trialruns import settings_on

from syncpretrain import Stack, pretrain
from syncpretrain.errors import SettingsError
from syncpretrain.events import DriftJudged, EpochFinished, Event
from syncpretrain.learners.early_stopping import Outputs, drift
from syncpretrain.planning.candidates import Task, candidates
from syncpretrain.planning.choice import plan_for
from syncpretrain.planning.timings import LayerTimings, Timings
from syncpretrain.runs.compare import compare
from syncpretrain.runs.folder import EVENTS_NAME, TRACE_NAME
from syncpretrain.runs.run import train_run
from syncpretrain.settings import read_settings, settings_from, write_settings

pytestmark = pytest.mark.usefixtures("forked_layers")
LAYERS = (16, 12, 8, 6)
WAKING = {"epochs": (9, 2, 2), "refresh_epochs": (0, 2, 1), "refresh_when": "drift:0.2"}
SETTLING = {"epochs": "auto:20", "settle": (0.15, 0.2, 0.02), "refresh_epochs": 0}


def run(X: np.ndarray, **settings: Any) -> tuple[Stack, list[Event]]:
    events: list[Event] = []
    usual = {"batch_size": 20, "learning_rate": 0.3, "momentum": "0.5:2,0.9", "seed": 1}
    stack = pretrain(X[:160], layers=LAYERS, observers=[events.append], **(usual | settings))
    return stack, events


def reads(events: list[Event]) -> tuple[tuple[int, ...], ...]:
    finished = [event for event in events if isinstance(event, EpochFinished)]
    layers = range(1, len(LAYERS))
    return tuple(tuple(e.reads for e in finished if e.layer == layer) for layer in layers)


def judged(events: list[Event]) -> list[tuple[Any, ...]]:
    """Return the decisions, whose order among layers depends on timing."""
    found = [event for event in events if isinstance(event, DriftJudged)]
    return sorted((e.layer, e.version, e.since, e.drift, e.wakes) for e in found)


class TestMeasure:
    @given(scale=st.floats(-1, 1, width=32), rows=st.integers(1, 5))
    def test_the_norm_of_the_difference_over_that_of_the_old(self, scale, rows):
        old, moves = np.random.default_rng(rows).random((2, rows, 3), dtype=np.float32)
        new = old + np.float32(scale) * moves
        difference = new.astype(float) - old
        expected = np.linalg.norm(difference) / np.linalg.norm(old.astype(float))
        assert drift(old, new) == pytest.approx(expected)

    def test_outputs_that_are_zero_or_not_finite(self):
        zeros, ones = np.zeros((2, 2), np.float32), np.ones((2, 2), np.float32)
        assert drift(zeros, zeros) == 0
        assert drift(zeros, ones) == math.inf
        assert drift(ones, ones * np.float32(np.nan)) == math.inf
        assert drift(ones * np.float32(3e38), ones) == pytest.approx(1)

    def test_what_is_compared_and_kept(self):
        outputs, ones = Outputs(), np.ones((2, 2), np.float32)
        assert outputs.record(0, ones / 2) == {}
        assert outputs.record(1, ones) == {0: 1.0}
        assert outputs.record(2, ones * 2, (1,)) == {1: 1.0}
        assert outputs.record(3, ones * 2.5, (1,)) == {1: 1.5, 2: 0.25}
        assert set(outputs.kept) == {1, 3}
        with pytest.raises(KeyError):
            outputs.record(4, ones, (2,))
        outputs.record(4, outputs.kept[3])
        assert not outputs.is_settled, "without a number it never is"

    def test_a_layer_settles_once_it_has_moved_and_then_moves_little(self):
        outputs, ones = Outputs(settle=0.3), np.ones((2, 2), np.float32)
        settled = []
        for version, place in enumerate([1.0, 1.1, 1.2, 1.7, 2.8, 3.0]):
            outputs.record(version, ones * np.float32(place))
            settled.append(outputs.is_settled)
        assert settled == [False, False, False, False, False, True]
        assert set(outputs.kept) == {0, 5}
        later = Outputs(settle=0.3, earliest=7)
        for version, place in enumerate([1.0, 1.1, 1.2, 1.7, 2.8, 3.0, 3.1]):
            later.record(version, ones * np.float32(place))
            assert not later.is_settled
        later.record(7, ones * np.float32(3.1))
        assert later.is_settled


def test_the_drift_of_a_run_is_that_of_its_versions(bits):
    """Layer 1 alone, trained again for so many epochs, gives the outputs to compare."""
    _, events = run(bits, **WAKING)
    ups = {}
    for epochs in range(1, 10):
        stack, _ = run(bits, epochs=(epochs, 1, 1), refresh_epochs=0)
        ups[epochs] = stack.layers[0].up(bits[:160])
    found = [entry for entry in judged(events) if entry[0] == 2]
    assert {wakes for *_, wakes in found} == {True, False}, "the test sees both"
    assert [version for _, version, *_ in found] == list(range(3, 10)), "each is judged once"
    known = 2
    for _, version, since, value, wakes in found:
        assert since == known, "the one that layer 2 last trained on"
        assert value == pytest.approx(drift(ups[since], ups[version]), rel=1e-4)
        assert wakes == (value > 0.2)
        known = version if wakes else known


def test_only_some_rows_are_looked_at(bits, monkeypatch):
    sizes, record = [], Outputs.record

    def spy(self, version, outputs, against):
        sizes.append(outputs.shape)
        return record(self, version, outputs, against)

    monkeypatch.setattr(Outputs, "record", spy)
    run(bits, epochs=1, settle=0.1)
    assert set(sizes) == {(160, 12), (160, 8), (160, 6)}
    sizes.clear()
    pretrain(np.tile(bits[:160], (8, 1)), layers=LAYERS, epochs=1, settle=0.1)
    assert set(sizes) == {(1000, 12), (1000, 8), (1000, 6)}


def test_extreme_drifts_are_no_refreshes_and_all_of_them(bits):
    none, _ = run(bits, **(WAKING | {"refresh_when": "drift:1e9"}))
    assert none.info["epochs"] == [9, 2, 2]
    few, _ = run(bits, epochs=WAKING["epochs"], refresh_epochs=0)
    assert none.parameters_sha256 == few.parameters_sha256
    every, _ = run(bits, **(WAKING | {"refresh_when": "drift:1e-9"}))
    always, _ = run(bits, **(WAKING | {"refresh_when": "always"}))
    assert every.parameters_sha256 == always.parameters_sha256


def test_a_layer_that_settles_reads_as_if_it_had_been_planned_so(bits):
    stack, events = run(bits, **SETTLING)
    epochs = stack.info["epochs"]
    assert max(epochs) < 20
    for layer, limit in enumerate(SETTLING["settle"], start=1):
        changes = [e.drift for e in events if isinstance(e, EpochFinished) and e.layer == layer]
        assert changes[-1] < limit <= sum(changes)
    planned, _ = run(bits, epochs=epochs, refresh_epochs=0)
    assert planned.parameters_sha256 == stack.parameters_sha256


def test_free_runs_replay(bits):
    free = WAKING | {"pace": "free", "finish": "first-layer"}
    stack, events = run(bits, **free)
    again, replayed = run(bits, **free, replay=reads(events), runtime="serial")
    assert again.parameters_sha256 == stack.parameters_sha256
    assert judged(replayed) == [], "it has been decided"


def test_the_run_folder_tells_who_slept_on(bits, tmp_path):
    train_run(
        settings_on(tmp_path, bits, LAYERS, tuning=1, learning_rate=0.6, **WAKING),
        out=tmp_path / "run",
    )
    lines = (tmp_path / "run" / EVENTS_NAME).read_text().splitlines()
    entries = [entry for entry in map(json.loads, lines) if entry["event"] == "DriftJudged"]
    asleep = next(entry for entry in entries if not entry["wakes"])
    assert 0 < asleep["drift"] <= asleep["least"] == 0.2
    trace = json.loads((tmp_path / "run" / TRACE_NAME).read_text())["traceEvents"]
    instants = [entry for entry in trace if entry["ph"] == "i"]
    assert len(instants) == len(entries)
    text = f"drift {asleep['drift']:.3g} of version {asleep['version']}, up to 0.2: sleeps"
    assert text in {entry["name"] for entry in instants}


REFUSED = [
    ({"refresh_when": "drift"}, "refresh_when: got 'drift', expected always, or drift:X"),
    ({"refresh_when": "drift:0"}, "refresh_when: got 'drift:0', expected always"),
    ({"refresh_when": "drift:nan"}, "refresh_when: got 'drift:nan', expected always"),
    ({"refresh_when": ["always"] * 2}, "refresh_when: got 2 values, expected one for all"),
    (
        {"refresh_when": "drift:0.1", "schedule": "greedy"},
        "refresh_when: got drift:0.1 with schedule greedy, where no newer version wakes a layer",
    ),
    (
        {"refresh_when": "drift:0.1", "refresh_epochs": (3, 0, 0)},
        "refresh_when: got drift:0.1, but there is no layer above the first whose refresh_epochs",
    ),
    (
        {"refresh_when": "drift:0.1", "handoff": "minibatch"},
        "refresh_when: got drift:0.1 with handoff minibatch, expected always: no newer version",
    ),
    (
        {"epochs": "auto", "handoff": "minibatch"},
        "settle: got 0.15 with handoff minibatch, expected 0, and numbers of epochs, not auto",
    ),
    ({"epochs": "auto:0"}, "epochs: got 'auto:0', expected a whole number, auto, or auto:N"),
    ({"epochs": ["auto:x", 1, 1]}, "epochs: got 'auto:x', expected a whole number, auto"),
    ({"epochs": "many"}, "epochs: got 'many', expected a whole number"),
    ({"epochs": ["auto", 2]}, "epochs: got 2 values, expected one for all layers or 3"),
    ({"epochs": "auto", "settle": 0}, "settle: got 0 with epochs auto, expected a number above"),
    ({"settle": -1.0}, "settle: got -1.0, expected a number of at least 0"),
    ({"settle": math.inf}, "settle: got inf, expected a finite number"),
    (
        {"epochs": "auto", "finish": "first-layer"},
        "settle: got a number, or epochs auto, with finish first-layer in lockstep",
    ),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_what_cannot_work_is_refused(given, message):
    with pytest.raises(SettingsError) as caught:
        settings_from(LAYERS, **given)
    assert str(caught.value).startswith(message)


class TestSettings:
    def test_auto_stands_for_numbers(self):
        own = settings_from(LAYERS, epochs=["auto", 3, "auto:7"]).pretrain
        assert (own.epochs, own.settle) == ((100, 3, 7), (0.15, 0.0, 0.15))
        waking = ["always", "drift:0.3", "drift:0.2"]
        own = settings_from(LAYERS, epochs="auto:9", refresh_when=waking).pretrain
        assert (own.epochs, own.settle) == ((9, 9, 9), (0.15, 0.3, 0.2))
        own = settings_from(LAYERS, epochs="auto:9", settle=0.01).pretrain
        assert own.settle == (0.01,) * 3

    def test_a_file_keeps_them(self, tmp_path):
        settings = settings_from(LAYERS, epochs="auto:9", refresh_when="drift:0.3")
        write_settings(settings, tmp_path / "config.toml")
        assert read_settings(tmp_path / "config.toml") == settings
        (tmp_path / "own.toml").write_text('[pretrain]\nlayers=[16,4]\nepochs="auto:5"\n')
        assert read_settings(tmp_path / "own.toml").pretrain.epochs == (5,)


def test_the_planner_counts_every_version(bits):
    other = {"sharded": {}, "transform": {1: 0.0, 2: 0.0}, "validation": 0.0}
    timings = Timings((LayerTimings(step=1.0, products=0.5, **other),) * 3, 2, 1)
    given = WAKING | {"refresh_epochs": 1}
    always = Task(settings_from(LAYERS, **given).pretrain, 100, 0)
    plain = Task(settings_from(LAYERS, **(given | {"refresh_when": "always"})).pretrain, 100, 0)
    epochs = [[x.epochs for x in candidates(task, timings)] for task in (always, plain)]
    assert epochs[0] == epochs[1]
    chosen = plan_for(always, timings=timings)
    assert chosen.apply(always.settings).schedule == chosen.choice.options["schedule"]
    settled = Task(settings_from(LAYERS, epochs="auto:5").pretrain, 100, 0)
    assert "--epochs 5 --settle 0.15 " in plan_for(settled, timings=timings).command


def test_compare_shows_what_drift_saves(bits):
    settings = make_settings("reconstruction", epochs=(5, 1))
    starts = ("synchronized:always", "synchronized:drift:1e9", "greedy", "random")
    found = compare(settings, make_data(), starts=starts, seeds=(0,))
    assert [x.epochs for x in found] == [(5, 5), (5, 1), (5, 1), ()]
    once = (5 * 16 * 8 + 8 * 4) / (16 * 8 + 8 * 4)  # by the weights of layers
    assert [x.passes for x in found] == pytest.approx([5.0, once, 4.2, 0.0])
    for wrong in ("random:always", "synchronised:always", "drift:0.1"):
        with pytest.raises(SettingsError, match=r"^starts: got"):
            compare(settings, make_data(), starts=(wrong,))
    with pytest.raises(SettingsError, match=r"^refresh_when: got 'x', expected always"):
        compare(settings, make_data(), starts=("synchronized:x",))
