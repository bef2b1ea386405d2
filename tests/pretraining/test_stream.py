"""Streamed pretraining: what each layer computes, whoever computes it and whenever."""

import json
import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from convolutionalruns import MODELS, driver
from disturbedsteps import before_steps
from folders import names_in
from streamedruns import LAYERS, VARIANTS, streamed
from trialruns import notices_of

import syncpretrain.runs.compare as comparing
from syncpretrain import load, pretrain
from syncpretrain.data.order import minibatches
from syncpretrain.errors import RunInterrupted, SettingsError
from syncpretrain.events import EpochFinished, LayerFinished
from syncpretrain.pretraining.build import build_learners
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.pretraining.streamed import StreamedPretraining
from syncpretrain.settings import read_settings, settings_from
from syncpretrain.workers.streamed.pool import StreamPool


def assert_is_as_defined(run):
    """Compare a run with the definition: one minibatch after another, layer by layer.

    Each layer is trained by its learner's own gradient, whose tests are elsewhere.
    """
    settings, data = run.settings, run._data.train
    learners, size = build_learners(settings), settings.batch_size
    steps = -(-len(data) // size)
    delays = [round(i * settings.delay * steps) for i in range(len(learners))]
    own = [n * steps for n in settings.epochs]
    last = max(d + n for d, n in zip(delays, own, strict=True))
    number = 0
    for number_of_pass in range(1, -(-last // steps) + 1):
        for rows in minibatches(len(data), size, seed=3, layer=1, epoch=number_of_pass):
            number += 1
            x = data[rows]
            for i, learner in enumerate(learners):
                if number <= delays[i]:
                    break
                means = learner.current().up(x.copy())
                if (n := number - delays[i]) <= own[i]:
                    if n == 1:
                        learner.start(data if i == 0 else x)
                    epoch, step = (n - 1) // steps + 1, (n - 1) % steps
                    learner.gradient(x, np.arange(len(x)), epoch=epoch, step=step)
                    learner.update(epoch=epoch)
                x = means
    for layer, learner in zip(run.run().layers, learners, strict=True):
        np.testing.assert_allclose(layer.weight, learner.weight, rtol=2e-3, atol=2e-5)


def states_of(run):
    states = []
    run.save = lambda state, *, done, final: states.append(state())
    run.run()
    return states


@pytest.mark.parametrize("delay", [0.0, 0.4, 1.0, 2.5])
@pytest.mark.parametrize(
    "variant", [v for v in VARIANTS if not {"shards", "early_stopping"} & VARIANTS[v].keys()]
)
def test_it_computes_what_is_defined(bits, variant, delay):
    assert_is_as_defined(streamed(bits, variant, delay=delay, runtime="serial"))


@pytest.mark.parametrize("delay", [0.0, 1.5])
@pytest.mark.parametrize("model", ["rbm", "autoencoder"])
def test_so_do_convolutions(images, model, delay):
    own = {"handoff": "minibatch", "delay": delay, "runtime": "serial", **MODELS[model]}
    assert_is_as_defined(driver(images, **own))


@pytest.mark.parametrize("runtime", ["serial", "threads"])
def test_errors_are_those_of_the_minibatches(bits, runtime):
    """With a rate of almost 0 an epoch's error is that of the first weights on all examples."""
    events = []
    run = streamed(bits, "rbm", runtime=runtime, learning_rate=1e-9, observers=[events.append])
    run.run()
    for layer in (1, 2, 3):
        first, second = (e for e in events if isinstance(e, EpochFinished) and e.layer == layer)
        assert first.train_error == pytest.approx(second.train_error, rel=0.05)
        if layer == 1:  # above, sampled states differ from means as much as examples do
            assert first.validation_error == pytest.approx(first.train_error, rel=0.1)


def test_an_epoch_is_reported_before_its_block_is_done(bits, monkeypatch):
    """Who sees that nothing runs any more has every result."""
    run, report, running = streamed(bits, "rbm", runtime="threads"), StreamPool._report, []

    def look_and_report(pool, result):
        running.append(result.event.layer in run._schedule.running)
        report(pool, result)

    monkeypatch.setattr(StreamPool, "_report", look_and_report)
    run.run()
    assert running == [True] * 6


def test_no_layer_ends_two_epochs_between_two_states_that_are_saved(bits, monkeypatch):
    """An epoch is one minibatch, and the driver is slow: there is time for many more."""
    told, again, report = [], threading.Event(), StreamPool._report

    def look_and_report(pool, result):
        told.append(result.event.layer)
        if told.count(result.event.layer) > 1:
            again.set()
        report(pool, result)

    monkeypatch.setattr(StreamPool, "_report", look_and_report)
    own = {"runtime": "threads", "workers": 2, "epochs": 4, "batch_size": len(bits)}
    run = streamed(bits, "rbm", **own, observers=[lambda event: again.wait(0.02)])
    run.save = lambda state, *, done, final: told.clear()
    run.run()
    assert not again.is_set()


def test_layers_that_were_complete_are_told_when_a_run_is_resumed(bits):
    states = states_of(streamed(bits, "uneven", runtime="serial"))  # 3, 1 and 2 epochs
    state = next(state for state in states if state.done[1] == 1)
    assert min(state.done[0], state.done[2]) < 2
    events = []
    again = streamed(bits, "uneven", observers=[events.append])
    again.resume = state
    again.run()
    ends = [e for e in events if isinstance(e, LayerFinished)]
    assert ends[0].layer == 2
    assert events.index(ends[0]) == 1, "after RunStarted"
    assert sorted(e.layer for e in ends) == [1, 2, 3]


AFTER = "the layers train one after another"


@pytest.mark.parametrize(
    ("epochs", "delay", "said"),
    [
        (2, 0.5, None),
        (2, 1.9, None),
        (2, 2, f"with delay 2 layer 2 starts after the last of the 2 epochs of layer 1: {AFTER};"),
        (2, 3, f": {AFTER}, and 2 of the 8 passes over the data train none; a delay below 2, su"),
        (1, 1, f"after the only epoch of layer 1: {AFTER}; a delay below 1, such as 0.5"),
        ((3, 1, 1), 1, None),  # layer 1 trains all the time
        ((2, 1, 4), 2.25, "and 1.5 of the 8.5 passes over the data train none; a delay below 1,"),
        ((4, 1, 4), 2.5, "with delay 2.5 layer 3 starts after the only epoch of layer 2: the lay"),
    ],
)
def test_a_delay_as_long_as_the_epochs_below_is_pointed_out(bits, epochs, delay, said):
    events = []
    run = streamed(bits, "rbm", delay=delay, epochs=epochs, observers=[events.append])
    run.run()
    found = notices_of(events)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_a_resumed_run_does_not_repeat_it(bits):
    events = []
    again = streamed(bits, "rbm", delay=3, observers=[events.append])
    # Threads may end before a state is saved.
    again.resume, *_ = states_of(streamed(bits, "rbm", delay=3, runtime="serial"))
    again.run()
    assert not notices_of(events)


class TestSettings:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"pace": "free"}, "pace: got free with handoff minibatch, expected lockstep"),
            ({"schedule": "greedy"}, "schedule: got greedy with handoff minibatch, expected sync"),
            ({"schedule": "rounds"}, "schedule: got rounds with handoff minibatch, expected sync"),
            ({"finish": "first-layer"}, "finish: got first-layer with handoff minibatch"),
            ({"refresh_epochs": 1}, "refresh_epochs: got 1 with handoff minibatch, expected 0"),
            (
                {"early_stopping": "free-energy-gap"},
                "early_stopping: got free-energy-gap with hand",
            ),
            ({"handoff": "epoch", "delay": 0.5}, "delay: got 0.5 with handoff epoch"),
            ({"delay": -1}, "delay: got -1"),
            ({"delay": 1001}, "delay: got 1001"),
        ],
    )
    def test_what_a_stream_does_not_have_is_refused(self, options, message):
        with pytest.raises(SettingsError, match=f"^{message}"):
            settings_from(LAYERS, **{"handoff": "minibatch", **options})


@pytest.mark.parametrize(
    ("own", "options", "expected"),
    [
        (("--refresh-epochs", 2), ("--handoff", "minibatch"), ("minibatch", 0.5, (0, 0))),
        (("--handoff", "minibatch", "--delay", 1), ("--handoff", "epoch"), ("epoch", 0.0, (1, 1))),
        (("--handoff", "minibatch"), ("--schedule", "greedy"), ("epoch", 0.0, (1, 1))),
        (("--handoff", "minibatch", "--delay", 1), ("--seed", 4), ("minibatch", 1.0, (0, 0))),
    ],
)
def test_settings_of_a_hand_over_go_with_it(call, tmp_path, monkeypatch, own, options, expected):
    layers = ("--data", "x.npy", "--layers", "6,4,3", "--epochs", 1, "--quiet")
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).random((200, 6), dtype=np.float32))
    call("train", *layers, *own, "--out", "own")
    call("train", "--config", "own/config.toml", *options, "--quiet", "--out", "other")
    found = read_settings(Path("other/config.toml")).pretrain
    assert (found.handoff, found.delay, found.refresh_epochs) == expected


class TestRun:
    OPTIONS = ("--layers", "64,20,12,5", "--data", "x.npy", "--epochs", 3, "--handoff", "minibatch")

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch):
        """The current folder has rows in a file: digits would be imported from scikit-learn."""
        monkeypatch.chdir(tmp_path)
        np.save("x.npy", np.random.default_rng(0).random((600, 64), dtype=np.float32))

    def test_its_folder_is_like_any_other(self, call, tmp_path):
        out, _ = call("train", *self.OPTIONS, "--delay", 0.5, "--json", "--out", "run")
        report = json.loads(out)
        assert report["parameters_sha256"] == load("run").parameters_sha256
        assert [layer["epochs"] for layer in report["layers"]] == [3, 3, 3]
        assert all(layer["busy_seconds"] > 0 for layer in report["layers"])
        assert set(names_in(tmp_path / "run")) >= {"trace.json", "events.jsonl"}
        out, _ = call("train", "--config", "run/config.toml", "--json", "--out", "again")
        assert json.loads(out)["parameters_sha256"] == report["parameters_sha256"]

    def test_compare_streams_what_can_be_streamed(self, call, monkeypatch):
        made, make = set(), comparing.driver_for

        def note(settings, *data, **how):
            driver = make(settings, *data, **how)
            made.add((settings.schedule, type(driver)))
            return driver

        monkeypatch.setattr(comparing, "driver_for", note)
        tuning = ("--finetune", "reconstruction", "--finetune-epochs", 1, "--seeds", 1, "--quiet")
        options = (*self.OPTIONS, "--data", "digits", *tuning)
        out, _ = call("compare", *options, "--starts", "greedy,synchronized", "--json")
        assert made == {("greedy", Pretraining), ("synchronized", StreamedPretraining)}
        assert [row["start"] for row in json.loads(out)["table"]] == ["greedy", "synchronized"]


def test_no_more_threads_than_layers_are_started(bits, monkeypatch):
    started = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda t: (started.append(t.name), start(t)))
    streamed(bits, "rbm", workers=64).run()
    assert len([name for name in started if name.startswith("syncpretrain-stream")]) == 3


def test_no_state_is_saved_while_a_minibatch_runs(bits, monkeypatch):
    """A thread that does not leave in time would tear it."""
    states, busy, leave = [], threading.Event(), threading.Event()
    main = threading.main_thread().ident

    def before(learner, epoch, step):
        if (learner.layer, epoch, step) == (1, 1, 2):
            busy.set()
            signal.pthread_kill(main, signal.SIGINT)
            assert leave.wait(60)

    before_steps(monkeypatch, before)
    run = streamed(bits, "rbm", workers=2, epochs=20)
    run.save = lambda state, *, done, final: states.append(final)
    run._times = replace(run._times, drain=0.1)
    timer = threading.Timer(1.0, leave.set)
    timer.start()
    try:
        with pytest.raises(RunInterrupted):
            run.run()
    finally:
        leave.set()
        timer.join(60)
    assert busy.is_set()
    assert True not in states


CONVOLUTIONS = "1x8x8,conv:3x3,pool:2{},4"


@pytest.mark.parametrize(
    ("layers", "options"),
    [
        *(((8, 6, 4), {"model": x}) for x in ("rbm", "autoencoder", "denoising", "contractive")),
        ((8, 6, 4), {"hidden_dropout": (0.0, 0.5)}),
        ((8, 6, 4), {"model": "denoising", "corruption": ("none", "masking:0.3")}),
        *((CONVOLUTIONS.format(pooling), {}) for pooling in ("", ":mean", ":prob")),
        *((CONVOLUTIONS.format(pooling), {"model": "autoencoder"}) for pooling in ("", ":mean")),
        (CONVOLUTIONS.format(":prob"), {"hidden_dropout": 0.0, "persistent": True}),
    ],
)
def test_settings_say_which_layers_make_a_forward_pass_beside_each_step(layers, options):
    settings = settings_from(layers, **options).pretrain
    learners = build_learners(settings)
    again = [settings.passes_up_again(learner.layer) for learner in learners]
    assert again == [learner.hidden_means(0) is None for learner in learners]


def test_an_epoch_that_lost_all_its_minibatches_has_no_error(bits, monkeypatch):
    def overflow(learner, epoch, step):
        if (learner.layer, epoch) == (1, 2) and learner.learning_rate > 0.05:
            learner.weight.fill(np.nan)

    before_steps(monkeypatch, overflow)
    seen = []
    whole = {"batch_size": len(bits), "handoff": "minibatch", "runtime": "serial"}
    pretrain(bits, layers=LAYERS, epochs=3, learning_rate=0.1, observers=[seen.append], **whole)
    found = [e.train_error for e in seen if isinstance(e, EpochFinished) and e.layer == 1]
    assert np.isnan(found).tolist() == [False, True, False]
