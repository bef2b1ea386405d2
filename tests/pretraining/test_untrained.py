"""Runs that begin with random weights, which only fine-tuning trains."""

import numpy as np
import pytest
from trialruns import DieAt

from syncpretrain import finetune, load, pretrain
from syncpretrain.data.dataset import Dataset
from syncpretrain.errors import RunInterrupted, SettingsError
from syncpretrain.events import FinetuneEpochFinished, RunFinished, RunStarted
from syncpretrain.learners.first_layers import untrained_stack
from syncpretrain.runs import prepare
from syncpretrain.runs.run import resume_run, train_run
from syncpretrain.settings import settings_from

TEXT = "1x8x8,conv:4x3,pool:2,6"
CHOICES = {"schedule": "none", "hidden_units": "relu", "batch_size": 10, "epochs": 10}


def make_data(rows=60):
    X = np.random.default_rng(0).random((rows + 20, 64), dtype=np.float32)
    y = (X[:, :32].sum(axis=1) > X[:, 32:].sum(axis=1)).astype(np.int64)
    parts = {"train": X[:rows], "validation": X[rows:], "test": X[:0]}
    labels = {"train_labels": y[:rows], "validation_labels": y[rows:]}
    return Dataset("toy", "here", **parts, **labels)


def make_settings(objective="classification", **others):
    tuning = {"objective": objective, "epochs": 3, "batch_size": 10}
    return settings_from(TEXT, finetune=tuning, **{**CHOICES, **others})


def test_pretraining_gives_the_random_stack_of_the_seed():
    data, events = make_data(), []
    settings = make_settings(seed=3).pretrain
    stack = pretrain(data.train, layers=TEXT, seed=3, observers=[events.append], **CHOICES)
    expected = untrained_stack(settings.shapes, settings.hidden_units, seed=3)
    assert stack.parameters_sha256 == expected.parameters_sha256
    assert stack.info["epochs"] == [0, 0]
    assert stack.info["pretrain"]["schedule"] == "none"
    assert [type(event) for event in events] == [RunStarted, RunFinished]


def test_random_weights_are_no_poor_result(recwarn):
    random = {"hidden_units": "relu", "visible_units": "gaussian", "schedule": "none", "seed": 0}
    X = np.random.default_rng(0).normal(size=(150, 4))
    assert "verdict" not in pretrain(X, layers=[4, 16], **random).info
    assert not recwarn.list


def test_pictures_of_any_values_are_standardized():
    X = 5 + make_data().train
    stack = pretrain(X, layers=TEXT, visible_units="gaussian", **CHOICES)
    np.testing.assert_allclose(stack.scaling.apply(X).mean(axis=0), 0, atol=1e-4)
    assert finetune(stack, X, epochs=1, batch_size=10).scaling is stack.scaling


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(prepare, "load_data", lambda *others, **how: make_data())


@pytest.mark.parametrize("objective", ["classification", "reconstruction"])
def test_a_run_tunes_it_and_says_that_no_layer_was_pretrained(tmp_path, toy, objective):
    events, settings = [], make_settings(objective)
    report = train_run(settings, out=tmp_path / "run", observers=[events.append])
    assert report["schedule"] == "none"
    assert [layer["epochs"] for layer in report["layers"]] == [0, 0]
    for layer in report["layers"]:
        assert set(layer["reconstruction_error"].values()) == {None}
    whole = report["reconstruction_error"]["validation"]
    assert (whole is None) == (objective == "classification"), "that of the tuned stack, if any"
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "Not pretrained: trained from random weights" in card
    assert "| - | - |" in card
    assert sum(isinstance(event, FinetuneEpochFinished) for event in events) == 3
    stack = pretrain(make_data().train, layers=TEXT, **CHOICES)
    y = make_data().train_labels if objective == "classification" else None
    tuned = finetune(stack, make_data().train, y, epochs=3, batch_size=10)
    assert load(tmp_path / "run").parameters_sha256 == tuned.parameters_sha256


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path, toy):
    whole = train_run(make_settings(), out=tmp_path / "whole")
    interrupt = DieAt(FinetuneEpochFinished, n=2, error=KeyboardInterrupt)
    with pytest.raises(RunInterrupted):
        train_run(make_settings(), out=tmp_path / "run", observers=[interrupt])
    resumed = resume_run(tmp_path / "run")
    assert resumed["parameters_sha256"] == whole["parameters_sha256"]


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"pace": "free"}, "^pace: got free with schedule none"),
        ({"group_size": 2}, "^group_size: got 2 with schedule none"),
        ({"handoff": "minibatch"}, "^schedule: got none with handoff minibatch"),
        ({"refresh_when": "drift:0.1"}, "^refresh_when: got drift:0.1 with schedule none"),
    ],
    ids=str,
)
def test_what_only_a_schedule_has_is_refused(others, message):
    with pytest.raises(SettingsError, match=message):
        make_settings(**others)


def test_a_run_that_trains_nothing_is_refused(tmp_path, toy):
    settings = make_settings("none")
    with pytest.raises(SettingsError, match=r"^schedule: got none without fine-tuning, which"):
        train_run(settings, out=tmp_path / "run")
    assert not list(tmp_path.iterdir())
