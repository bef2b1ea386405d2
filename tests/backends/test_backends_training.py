"""Training on every backend: NumPy is the oracle, and what only a device has is counted."""

import itertools
import json

import numpy as np
import pytest
from backends import BACKENDS, backend_of, errors_of, on_devices
from devicedraws import draw_as_on_a_device
from pretrainingkinds import KINDS, VARIANTS
from stackcomparisons import alike, arrays_of
from trialruns import notices_of, stop_after, stopped_after

from syncpretrain import finetune, pretrain
from syncpretrain.backends import cupy_backend
from syncpretrain.errors import DivergedError, RunInterrupted
from syncpretrain.events import FinetuneEpochFinished
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.runs.folder import CONFIG_NAME, METRICS_NAME
from syncpretrain.runs.run import resume_run, train_run
from syncpretrain.settings import read_settings, settings_from
from syncpretrain.workers.state import EPOCHS_STATE, FINETUNE_STATE

LAYERS = (16, 12, 8, 5)
BASE = {"layers": LAYERS, "batch_size": 15, "epochs": 3}
TUNING = {
    "adam": {},
    "sgd": {"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.01},
    "sgd, cosine and decay": {"optimizer": "sgd", "learning_rate": 0.01, "weight_decay": 0.1}
    | {"rate_schedule": "cosine"},
    "nesterov": {"optimizer": "sgd", "momentum": 0.5, "nesterov": True},
    "dropout": {"dropout": 0.3, "input_dropout": 0.1},
    "cross-entropy": {"loss": "cross-entropy"},
    "cosine and decay": {"rate_schedule": "cosine", "weight_decay": 0.01},
}
STOPPED = {
    "plain": {"layers": LAYERS},
    "persistent": {"layers": LAYERS} | KINDS["persistent"],
    "untied": {"layers": LAYERS} | KINDS["untied"],
    "persistent convolution": {"layers": "1x4x4,conv:3x3,8,5", "persistent": True}
    | {"visible_bias": "log-odds"},
}
TUNED = [(key, "reconstruction") for key in TUNING]
TUNED += [(key, "classes") for key in TUNING if key != "cross-entropy"]
STOPPING = {
    "free-energy gap": {"early_stopping": "free-energy-gap"},
    "pseudo-likelihood": {"early_stopping": "pseudo-likelihood"},
    "validation error": {"early_stopping": "validation-error", "model": "denoising"},
    "settled": {"epochs": "auto:8", "settle": 0.2, "momentum": "0.5"},
    "waking": {"epochs": [8, *[2] * (len(LAYERS) - 2)], "refresh_when": "drift:0.2"},
}
LEARNED = {
    **{kind: {"epochs": 2, "refresh_epochs": 0} | KINDS[kind] for kind in KINDS},
    **{variant: {"batch_size": 25} | VARIANTS[variant] for variant in VARIANTS},
    **{what: {"epochs": 8, "patience": 1} | STOPPING[what] for what in STOPPING},
}
CASES = [*on_devices(LEARNED), ("double", "plain"), ("double", "free-energy gap")]


@pytest.fixture(params=BACKENDS)
def name(request, monkeypatch) -> str:
    """What a setting calls the backend."""
    backend = backend_of(request.param, monkeypatch)
    return "numpy" if backend.name == "numpy" else "cupy"


class TestTraining:
    """What is the same on every backend."""

    @pytest.mark.parametrize(("name", "case"), CASES, indirect=["name"])
    def test_every_learner_and_schedule_comes_to_numpys_weights(
        self, bits, name, case, monkeypatch
    ):
        draw_as_on_a_device(monkeypatch)
        held = {"validation": 1 - bits[:50]} if case in STOPPING else {}
        settings = BASE | LEARNED[case] | held
        oracle = pretrain(bits, **settings, backend="numpy", runtime="serial")
        stack = pretrain(bits, **settings, backend=name)
        alike(stack, oracle, 1e-5 if case in STOPPING else 3e-6)
        assert stack.info["pretrain"]["backend"] == name
        assert stack.info["epochs"] == oracle.info["epochs"]

    def test_errors_are_told_as_numbers(self, name):
        X = np.random.default_rng(0).random((2300, 16), dtype=np.float32)
        reported = {}
        for backend in ("numpy", name):
            events = []
            own = {"layers": (16, 8, 4), "epochs": 2, "validation": X[1200:]}  # more than looked at
            pretrain(X[:1200], **own, backend=backend, observers=[events.append])
            reported[backend] = errors_of(events)
        np.testing.assert_allclose(reported[name], reported["numpy"], rtol=1e-5)

    @pytest.mark.parametrize(("name", "variant"), on_devices(STOPPED), indirect=["name"])
    @pytest.mark.parametrize("minibatches", [1, 20])
    def test_a_stopped_run_goes_on_to_the_same_bits(
        self, bits, name, variant, minibatches, tmp_path
    ):
        own = STOPPED[variant] | {"epochs": 2, "batch_size": 25, "backend": name}
        settings = settings_from(**own).pretrain
        whole = Pretraining(settings, bits).run()
        state, stack = stopped_after(minibatches, settings, bits)
        assert {type(array) for array in arrays_of(stack)} == {np.ndarray}
        EPOCHS_STATE.write(tmp_path / "state.safetensors", state, {})
        again = EPOCHS_STATE.read(tmp_path / "state.safetensors")
        resumed = Pretraining(settings, bits, resume=again).run()
        assert resumed.parameters_sha256 == whole.parameters_sha256

    def test_a_layer_that_diverges_goes_back_and_halves_its_rate(self, bits, name):
        events = []
        settings = BASE | {"hidden_units": "relu", "learning_rate": 300.0, "momentum": "0.9"}
        with pytest.raises(DivergedError, match="layer 1 diverged in epoch 1") as caught:
            pretrain(bits, **settings, backend=name, observers=[events.append])
        notices = [text for text in notices_of(events) if "layers on GPUs" not in text]
        assert len(notices) == 3 and "half the learning rate, 150" in notices[0]
        assert all(np.isfinite(array).all() for array in arrays_of(caught.value.stack))

    @pytest.mark.parametrize(("name", "case"), on_devices(TUNED), indirect=["name"])
    def test_fine_tuning_comes_to_numpys_weights(self, bits, targets, name, case):
        tuning, given = TUNING[case[0]], {"X": bits}
        stack = pretrain(bits, layers=(16, 12, 8), epochs=2, batch_size=20, backend="numpy")
        settings = {"epochs": 3, "batch_size": 15} | tuning
        if case[1] == "classes":
            given["y"] = targets
            settings |= {"validation": bits[:90], "validation_y": targets[:90]}
        tuned, shares = {}, {}
        for backend in ("numpy", name):
            events = []
            options = {"backend": backend, "observers": [events.append]}
            tuned[backend] = finetune(stack, **given, **settings, **options)
            ends = [event for event in events if isinstance(event, FinetuneEpochFinished)]
            shares[backend] = [(event.train_error, event.validation_error) for event in ends]
        alike(tuned[name], tuned["numpy"])
        assert tuned[name].info["finetune"][-1]["backend"] == name
        if case[1] == "classes":
            assert shares[name] == shares["numpy"], "the same shares of wrong classes"

    def test_regression_with_patience_comes_to_numpys_weights(self, bits, name):
        stack = pretrain(bits, layers=(16, 8), epochs=1, backend="numpy")
        y = bits.sum(axis=1) / 16 + 0.5
        wanted = {"epochs": 6, "patience": 1, "learning_rate": 0.05}
        wanted |= {"validation": bits[:40], "validation_y": -y[:40]}
        oracle = finetune(stack, bits, y, **wanted, backend="numpy")
        tuned = finetune(stack, bits, y, **wanted, backend=name)
        alike(tuned, oracle)
        ended = [x.info["finetune"][-1]["best_epoch"] for x in (tuned, oracle)]
        assert ended[0] == ended[1] < 6

    @pytest.mark.parametrize("optimizer", ["adam", "sgd"])
    def test_a_stopped_fine_tuning_goes_on_to_the_same_bits(
        self, bits, targets, name, optimizer, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(cupy_backend, "STEPS_AT_ONCE", 1)
        stack = pretrain(bits, layers=(16, 8), epochs=1, backend="numpy")
        wanted = {"epochs": 3, "batch_size": 20, "dropout": 0.2, "optimizer": optimizer}
        wanted |= {"backend": name, "momentum": 0.5 if optimizer == "sgd" else 0.0}
        whole = finetune(stack, bits, targets, **wanted)
        states, asked = [], itertools.count()

        def save(state, *, done, final):
            if final:
                states.append(state())

        with pytest.raises(RunInterrupted) as caught:
            finetune(stack, bits, targets, **wanted, save=save, stop=lambda: next(asked) == 13)
        assert {type(array) for array in arrays_of(caught.value.stack)} == {np.ndarray}
        FINETUNE_STATE.write(tmp_path / "state.safetensors", states[-1], {})
        again = FINETUNE_STATE.read(tmp_path / "state.safetensors")
        assert again.cursor.minibatches == 3
        sizes = {len(array) for array in again.arrays.values() if len(array)}
        assert sizes == {16 * 8 + 8 + 8 * 3 + 3}, "without the gaps that a device has"
        resumed = finetune(stack, bits, targets, **wanted, resume=again)
        assert resumed.parameters_sha256 == whole.parameters_sha256

    def test_a_fine_tuning_that_diverges_gives_the_last_good_stack(self, bits, name):
        stack = pretrain(bits, layers=(16, 8), epochs=1, visible_units="gaussian", backend="numpy")
        with pytest.raises(DivergedError, match=r"fine-tuning diverged in epoch \d+: ") as caught:
            finetune(stack, bits, epochs=9, optimizer="sgd", learning_rate=1e30, backend=name)
        assert all(np.isfinite(array).all() for array in arrays_of(caught.value.stack))

    def test_a_run_records_its_backend_and_resumes_on_it(self, bits, name, tmp_path, monkeypatch):
        np.savez(tmp_path / "x.npz", X=bits, y=np.arange(200) % 2)
        tuning = {"objective": "classification", "epochs": 1, "batch_size": 20}
        own = {"epochs": 2, "batch_size": 20, "backend": name, "finetune": tuning}
        settings = settings_from((16, 8, 4), **own, data={"name": str(tmp_path / "x.npz")})
        whole = train_run(settings, out=tmp_path / "whole")
        assert whole["backend"] == name
        assert json.loads((tmp_path / "whole" / METRICS_NAME).read_text())["backend"] == name
        with monkeypatch.context() as patch:
            stop_after(patch, 12)
            with pytest.raises(RunInterrupted):
                train_run(settings, out=tmp_path / "run")
        assert read_settings(tmp_path / "run" / CONFIG_NAME).pretrain.backend == name
        report = resume_run(tmp_path / "run")
        assert report["parameters_sha256"] == whole["parameters_sha256"]
