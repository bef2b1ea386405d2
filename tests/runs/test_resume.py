"""A run that goes on from a checkpoint comes to the bits of one that was never stopped."""

import itertools
import json
import signal
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from disturbedsteps import before_steps
from moments import At, told_by
from trialruns import Abort, died, settings_on

from syncpretrain import finetune, load, pretrain
from syncpretrain.errors import (
    CheckpointError,
    PoorResultWarning,
    RunInterrupted,
    SettingsError,
    SyncpretrainError,
)
from syncpretrain.events import (
    EpochFinished,
    EpochStarted,
    FinetuneEpochFinished,
    Notice,
    RunFinished,
)
from syncpretrain.finetuning.prepared import Finetuning
from syncpretrain.plot.course import curves_of
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.runs.checkpoints import CHECKPOINTS_NAME
from syncpretrain.runs.run import resume_run, train_run
from syncpretrain.settings import settings_from
from syncpretrain.workers.state import EPOCHS_STATE, FINETUNE_STATE

LAYERS = (16, 10, 6, 4)
BASE = {"epochs": 3, "batch_size": 40, "seed": 3}
INTERRUPT = partial(signal.raise_signal, signal.SIGINT)


def pretraining(bits, **how):
    return Pretraining(settings_from(LAYERS, **BASE).pretrain, bits[:160], bits[160:], **how)


def states_of(bits):
    states = []
    pretraining(bits, save=lambda state, **_: states.append(state())).run()
    return states


@pytest.mark.parametrize(
    "change",
    [
        lambda state: replace(state, snapshots={}),
        lambda state: replace(state, computed=[(3, 99)]),
        lambda state: replace(state, computed=[*state.computed, (1, 99)]),
        lambda state: replace(state, past=replace(state.past, held=((99,), (), ()))),
        lambda state: replace(state, past=replace(state.past, reads=((), (), ()))),
    ],
)
def test_a_state_that_contradicts_itself_is_refused(bits, tmp_path, change):
    state = next(state for state in states_of(bits) if state.computed)
    path = tmp_path / "state.safetensors"
    EPOCHS_STATE.write(path, change(state), {})
    with pytest.raises(CheckpointError, match="is damaged"):
        EPOCHS_STATE.read(path)


# fine-tuning


def fine_tuned(bits, *, saved=None, **settings):
    save = None if saved is None else (lambda make, **_: saved.append(make()))
    own = {"validation": bits[160:], "epochs": 3, "batch_size": 40, "blas_threads": 1}
    stack = pretraining(bits).run()
    return finetune(stack, bits[:160], save=save, **own, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"optimizer": "sgd", "momentum": 0.9, "nesterov": True, "rate_schedule": "cosine"},
        {"dropout": 0.3, "weight_decay": 0.01, "patience": 1},
        {"optimizer": "sgd"},
    ],
    ids=["adam", "momentum", "dropout", "plain"],
)
def test_fine_tuning_stopped_anywhere_goes_on_to_the_same_bits(bits, settings, tmp_path):
    whole = fine_tuned(bits, **settings)
    for minibatches in range(12):
        asked = itertools.count()
        saved = []
        with pytest.raises(RunInterrupted):
            fine_tuned(bits, stop=lambda: next(asked) >= minibatches, saved=saved, **settings)  # noqa: B023
        path = tmp_path / "state.safetensors"
        FINETUNE_STATE.write(path, saved[-1], {"run": 1})
        resumed = fine_tuned(bits, resume=FINETUNE_STATE.read(path), **settings)
        assert resumed.parameters_sha256 == whole.parameters_sha256
        assert resumed.info == whole.info
        assert resumed.history == whole.history


def test_a_state_of_another_network_is_refused(bits):
    saved = []
    fine_tuned(bits, saved=saved)
    with pytest.raises(CheckpointError, match="another network"):
        fine_tuned(bits, resume=saved[0], optimizer="sgd", momentum=0.5)


# runs


def settings(folder, bits, **run):
    return settings_on(folder, bits, LAYERS, run={"checkpoint_every": "1", **run}, **BASE)


@pytest.mark.parametrize("at", range(0, 24, 3))
def test_a_run_that_died_at_any_event_is_resumed(tmp_path, bits, at):
    wanted = settings(tmp_path, bits)
    whole = train_run(wanted, out=tmp_path / "whole")
    seen = itertools.count()

    def die(event):
        if not isinstance(event, Notice) and next(seen) == at:
            raise Abort

    with pytest.raises(Abort):
        train_run(wanted, out=tmp_path / "dead", observers=[die])
    report = resume_run(tmp_path / "dead", runtime="serial")
    assert report["parameters_sha256"] == whole["parameters_sha256"]
    assert [row["epochs"] for row in report["layers"]] == [row["epochs"] for row in whole["layers"]]
    assert load(tmp_path / "dead").parameters_sha256 == whole["parameters_sha256"]
    assert not (tmp_path / "dead" / CHECKPOINTS_NAME).exists()
    metrics = json.loads((tmp_path / "dead" / "metrics.json").read_text())
    assert metrics["parameters_sha256"] == whole["parameters_sha256"]
    assert_says_the_same(tmp_path / "dead", tmp_path / "whole")


def said(folder):
    """Return what a run says: its metrics without times, and its learning curves."""
    metrics = json.loads((folder / "metrics.json").read_text())
    del metrics["seconds"], metrics["out"]
    for row in metrics["layers"]:
        del row["busy_seconds"], row["idle_seconds"]
    curves = [(c.title, c.epochs, c.train, c.validation) for c in curves_of(folder)]
    return metrics, [[np.asarray(x).tolist() for x in curve] for curve in curves]


def assert_says_the_same(resumed, whole):
    metrics, curves = said(resumed)
    expected, wanted = said(whole)
    for own in (metrics, expected):
        del own["runtime"], own["workers"]  # may be others
    assert metrics == expected
    assert str(curves) == str(wanted)  # where nan equals nan


def of_rank_two(seed):
    """Return bits on which a rate of 3 lets the error of the first layer grow.

    Most seeds give bits on which training is chaotic, and ends elsewhere with another BLAS.
    """
    rng = np.random.default_rng(seed)
    return (rng.integers(0, 2, (400, 2)) @ rng.integers(0, 2, (2, 16)) > 0).astype(np.float32)


GROWING = {"epochs": 8, "batch_size": 10, "learning_rate": 3.0}


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"schedule": "greedy"},
        {"handoff": "minibatch"},
        {"schedule": "async", "replicas": 2, "runtime": "serial"},
    ],
    ids=["lockstep", "greedy", "streamed", "async"],
)
def test_the_verdict_on_a_run_is_that_of_one_that_never_died(tmp_path, own):
    none = {"objective": "none"}
    wanted = settings_on(tmp_path, of_rank_two(32), (16, 8), finetune=none, **GROWING, **own)
    whole = train_run(wanted, out=tmp_path / "whole")
    assert "its error grew" in whole["verdict"][0]
    for kind, n in ((EpochFinished, 2), (EpochFinished, 4), (EpochFinished, 8), (RunFinished, 1)):
        folder = died(wanted, tmp_path / f"{kind.__name__}{n}", kind, n)
        resume_run(folder)
        assert_says_the_same(folder, tmp_path / "whole")


def shaken(folder):
    """Return the settings of a run with a fine-tuning that makes its error grow."""
    rng = np.random.default_rng(3)
    X = (rng.random((400, 2)) @ rng.random((2, 16)) > 0.5).astype(np.float32)
    tuning = {"objective": "reconstruction", "optimizer": "sgd", "learning_rate": 8.0}
    tuning |= {"momentum": 0.9, "epochs": 8, "batch_size": 10}
    own = {"epochs": 7, "batch_size": 10, "learning_rate": 6.0}
    return settings_on(folder, X, (16, 8), finetune=tuning, **own)


def test_the_verdict_on_a_fine_tuning_is_that_of_one_that_never_died(tmp_path):
    whole = train_run(shaken(tmp_path), out=tmp_path / "whole")
    assert "fine-tuning: the error grew" in whole["verdict"][0]
    for n in (1, 2, 4, 7, 8):
        folder = died(shaken(tmp_path), tmp_path / str(n), FinetuneEpochFinished, n)
        resume_run(folder)
        assert_says_the_same(folder, tmp_path / "whole")


def test_the_history_outlives_a_death_in_fine_tuning(tmp_path, monkeypatch):
    folder = died(shaken(tmp_path), tmp_path / "run", FinetuneEpochFinished, 3)
    tuned = []
    run = Finetuning.run
    monkeypatch.setattr(Finetuning, "run", lambda *a, **k: tuned.append(run(*a, **k)) or tuned[-1])
    resume_run(folder)
    history = tuned[0].history
    assert [len(curve.train) for curve in (*history.layers, history.finetune)] == [7, 8]


@pytest.mark.parametrize(
    "own",
    [{}, {"handoff": "minibatch"}, {"schedule": "async", "replicas": 2, "runtime": "serial"}],
    ids=["epoch", "streamed", "async"],
)
def test_a_call_that_is_stopped_and_repeated_has_the_whole_history(tmp_path, bits, own):
    call = {"layers": (16, 10, 4), "epochs": 8, "batch_size": 40, "learning_rate": 3.0, **own}
    call |= {"validation": bits[160:]}
    whole = pretrain(bits[:160], **call)
    for n in (1, 5, 9, 15, 16):
        with pytest.raises(RunInterrupted):
            observers = [At(EpochFinished, INTERRUPT, n)]
            pretrain(bits[:160], observers=observers, resume=tmp_path, **call)
        resumed = pretrain(bits[:160], resume=tmp_path, **call)
        assert resumed.history == whole.history
        assert resumed.info.get("verdict") == whole.info.get("verdict")


@pytest.mark.parametrize("n", range(1, 17))
def test_the_verdict_on_a_call_is_that_of_one_that_was_not_stopped(tmp_path, n):
    call = {"layers": (16, 8), **GROWING, "resume": tmp_path}
    interrupt = At((EpochStarted, EpochFinished), INTERRUPT, n)
    with pytest.raises(RunInterrupted):
        pretrain(of_rank_two(42), observers=[interrupt], **call)
    with pytest.warns(PoorResultWarning, match=r"error grew from 1\.7\d* to 2\.0"):
        stack = pretrain(of_rank_two(42), **call)
    assert len(stack.history.layers[0].train) == 8


@pytest.mark.parametrize("n", range(1, 9))
def test_a_state_from_before_there_were_curves_goes_on(bits, n):
    state = states_of(bits)[n - 1]
    resumed = pretraining(bits, resume=replace(state, curves=()))
    resumed.run()
    lengths = [len(curve.train) for curve in resumed.history.layers]
    assert lengths == [3 - done for done in state.done]


def test_a_fine_tuning_from_before_there_were_curves_goes_on(bits):
    saved = []
    whole = fine_tuned(bits, saved=saved)
    resumed = fine_tuned(bits, resume=replace(saved[0], curve=None))
    assert resumed.history.finetune.train == whole.history.finetune.train[1:]


def test_a_run_that_is_over_or_none_is_not_resumed(tmp_path, bits):
    train_run(settings(tmp_path, bits), out=tmp_path / "run")
    with pytest.raises(SettingsError, match=r"resume: the run in .* is finished"):
        resume_run(tmp_path / "run")
    with pytest.raises(SettingsError, match=r"resume: got .*, expected the folder of a run"):
        resume_run(tmp_path)


def test_a_damaged_checkpoint_is_told_and_the_one_before_it_used(tmp_path, bits):
    whole = train_run(settings(tmp_path, bits), out=tmp_path / "whole")
    folder = died(settings(tmp_path, bits), tmp_path / "run", n=7)
    # Only the newest two are kept.
    older, newer = sorted((folder / CHECKPOINTS_NAME).glob("pretrain-*"))
    newer.write_bytes(newer.read_bytes()[:-1])
    report, messages = told_by(resume_run, folder)
    assert report["parameters_sha256"] == whole["parameters_sha256"]
    assert any(newer.name in message and "one before it" in message for message in messages)
    assert older.name < newer.name


def test_a_run_whose_worker_fails_is_restarted(tmp_path, bits, monkeypatch):
    whole = train_run(settings(tmp_path, bits), out=tmp_path / "whole")
    failed = []

    def fail(learner, epoch, step):
        if learner.layer == 2 and epoch == 2 and not failed:
            failed.append(True)
            raise RuntimeError("out of luck")

    before_steps(monkeypatch, fail)
    wanted = settings(tmp_path, bits, max_restarts=1)
    report, messages = told_by(train_run, wanted, out=tmp_path / "run")
    assert report["parameters_sha256"] == whole["parameters_sha256"]
    assert any("layer 2 failed" in message and "going on" in message for message in messages)


NO_LOGARITHMS = ("log", "log:", "log:0", "log:x", "log:-5", "log:5s")


@pytest.mark.parametrize("text", ["", "0", "-1", "0s", "infs", "nans", "x", "1m", *NO_LOGARITHMS])
def test_bad_intervals_are_refused(text):
    with pytest.raises(SettingsError, match=f"checkpoint_every: got '{text}'"):
        settings_from(LAYERS, run={"checkpoint_every": text})


@pytest.mark.parametrize(
    ("name", "value"), [("keep", 0), ("max_restarts", -1), ("stall_timeout", 0), ("sparks", 1)]
)
def test_bad_run_settings_are_refused(name, value):
    with pytest.raises(SyncpretrainError, match=name):
        settings_from(LAYERS, run={name: value})
