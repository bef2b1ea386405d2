"""``train`` with every kind of layer and objective, and the other commands on what it leaves."""

import json

import numpy as np
import pytest
from commandline import exit_status
from PIL import Image

import syncpretrain
from syncpretrain.data import load_dataset
from syncpretrain.settings import read_settings

DIGITS = ("--layers", "64,10,6", "--data", "digits", "--epochs", 1)
CLASSES = (*DIGITS, "--finetune", "classification", "--finetune-epochs", 2)
NET = "--layers 16,9,4 --data xy.npz --batch-size 10 --validation 0.2 --epochs 1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with data, and the runs that the other commands are tried on."""
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    X = rng.random((60, 16), dtype=np.float32)
    np.save(folder / "x.npy", X)
    np.save(folder / "wide.npy", rng.normal(5, [1, 9] * 8, (60, 16)).astype(np.float32))
    np.savez(folder / "xy.npz", X=X, y=np.arange(60) % 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        quiet = ("--quiet", "--out")
        assert exit_status("train", *CLASSES, *quiet, "classifier") == 0
        assert exit_status("train", *DIGITS, "--model", "autoencoder", *quiet, "autoencoder") == 0
        wide = ("--data", "wide.npy", "--layers", "16,9,4", "--batch-size", 10, "--epochs", 3)
        assert exit_status("train", *wide, "--visible-units", "gaussian", *quiet, "gaussian") == 0
    return folder


@pytest.fixture
def call(call, folder, monkeypatch):
    monkeypatch.chdir(folder)
    return call


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run"


class TestClassification:
    def test_the_share_wrong_is_printed_and_the_accuracy_kept(self, call, out):
        printed, _ = call("train", *CLASSES, "--out", out)
        accuracy = json.loads((out / "metrics.json").read_text())["accuracy"]
        assert list(accuracy) == ["train", "validation", "test"]
        wrong = ", ".join(f"{part} {100 * (1 - share):.2f} %" for part, share in accuracy.items())
        assert f"classifier, wrong: {wrong}" in printed.splitlines()
        data, stack = load_dataset("digits"), syncpretrain.load(out)
        assert stack.head.classes == tuple(range(10))
        assert accuracy["test"] == (stack.predict(data.test) == data.test_labels).mean()

    def test_so_many_labels_are_kept(self, call, out):
        given = ("--labels", 30, "--finetune-batch-size", 10, "--out", out, "--json")
        right = json.loads(call("train", *CLASSES, *given)[0])["accuracy"]["train"] * 30
        assert right == pytest.approx(round(right)), "a share of the labelled ones"
        assert read_settings(out / "config.toml").data.labels == 30

    def test_evaluate_says_what_training_said(self, call, folder):
        report = json.loads(call("evaluate", "classifier", "--json")[0])
        metrics = json.loads((folder / "classifier/metrics.json").read_text())
        assert report["accuracy"] == metrics["accuracy"]
        assert set(report["reconstruction_error"].values()) == {None}
        lines = call("evaluate", "classifier")[0].splitlines()
        assert any(line.startswith("classifier, wrong: train ") for line in lines)
        assert not any(line.startswith("whole stack") for line in lines)


class TestOthers:
    def test_evaluate_values_outside_the_unit_interval(self, call, folder):
        for data in ((), ("--data", "./wide.npy")):
            report = json.loads(call("evaluate", "gaussian", *data, "--json")[0])
            assert report["data"]["train"] == 54
        stack, X = syncpretrain.load(folder / "gaussian"), np.load(folder / "wide.npy")
        np.save("other.npy", X[:20])  # the error is that of the standardized values
        report = json.loads(call("evaluate", "gaussian", "--data", "other.npy", "--json")[0])
        miss = (X[:20] - stack.reconstruct(X[:20])) / stack.scaling.scale
        expected = np.square(miss).sum(axis=1).mean()
        assert report["reconstruction_error"]["test"] == pytest.approx(expected, rel=1e-4)

    def test_encode_and_reconstruct_them(self, call, folder, tmp_path):
        z = tmp_path / "z.npy"
        call("encode", "gaussian", "--data", "wide.npy", "--out", z)
        stack, X = syncpretrain.load(folder / "gaussian"), np.load("wide.npy")
        assert np.array_equal(np.load(z), stack.encode(X))
        call("encode", "gaussian", "--data", "wide.npy", "--log-odds", "--out", z)
        assert np.array_equal(np.load(z), stack.encode(X, log_odds=True))
        call("reconstruct", "gaussian", "--out", tmp_path / "r.png")
        with Image.open(tmp_path / "r.png") as image:
            image.load()
            assert image.format == "PNG"


RBM = (
    " --visible-units gaussian --hidden-units relu,bernoulli --visible-bias log-odds --l1 0.001"
    " --cd-steps 2 --persistent --sparsity-target 0.2 --sparsity-cost 0.01,0.02"
    " --hidden-dropout 0.1 --early-stopping free-energy-gap --patience 2"
)
AUTOENCODER = " --untied --loss cross-entropy --early-stopping validation-error"
TUNED = (
    " --finetune classification --finetune-epochs 2 --finetune-batch-size 10 --labels 24"
    " --finetune-optimizer sgd --finetune-learning-rate 0.05 --finetune-rate-schedule cosine"
    " --finetune-momentum 0.5 --finetune-nesterov --finetune-weight-decay 0.01"
    " --finetune-dropout 0.2 --finetune-input-dropout 0.1 --finetune-patience 3"
)
UNSUPERVISED = " --finetune reconstruction --finetune-loss cross-entropy --finetune-batch-size 10"
REACHED = {
    RBM: {
        **{"visible_units": "gaussian", "hidden_units": ("relu", "bernoulli")},
        **{"visible_bias": "log-odds", "l1": (0.001,) * 2, "cd_steps": (2, 2)},
        **{"persistent": (True, True), "sparsity_target": (0.2, 0.2)},
        **{"sparsity_cost": (0.01, 0.02), "hidden_dropout": (0.1, 0.1)},
        **{"early_stopping": "free-energy-gap", "patience": 2},
    },
    AUTOENCODER + " --model denoising --corruption masking:0.1,gaussian:0.5": {
        **{"model": "denoising", "corruption": ("masking:0.1", "gaussian:0.5"), "tied": False},
        **{"loss": "cross-entropy", "early_stopping": "validation-error"},
    },
    AUTOENCODER + " --model contractive --contraction 0.3,0.2": {
        **{"model": "contractive", "contraction": (0.3, 0.2)}
    },
    TUNED: {
        **{"objective": "classification", "optimizer": "sgd", "learning_rate": 0.05},
        **{"rate_schedule": "cosine", "momentum": 0.5, "nesterov": True, "weight_decay": 0.01},
        **{"dropout": 0.2, "input_dropout": 0.1, "patience": 3, "batch_size": 10, "epochs": 2},
    },
    UNSUPERVISED: {"objective": "reconstruction", "loss": "cross-entropy"},
}


@pytest.mark.parametrize("options", REACHED)
def test_options_reach_their_settings_and_the_file_repeats_the_run(call, out, options):
    given = (*NET.split(), *options.split(), "--seed", 3, "--out", out, "--json")
    report = json.loads(call("train", *given)[0])
    stack, settings = syncpretrain.load(out), read_settings(out / "config.toml")
    assert stack.parameters_sha256 == report["parameters_sha256"]
    assert (stack.scaling is not None) == (stack.units[0] == "gaussian")
    assert np.isfinite(list(filter(None, report["reconstruction_error"].values()))).all()
    section = settings.finetune if "--finetune " in options else settings.pretrain
    expected = REACHED[options]
    assert {name: getattr(section, name) for name in expected} == expected
    assert settings.data.labels == (24 if "--labels" in options else None)
    again = ("--config", out / "config.toml", "--out", out / "again", "--json")
    assert json.loads(call("train", *again)[0])["parameters_sha256"] == report["parameters_sha256"]


WRONG = [
    ("--corruption masking:0.2", "--corruption: got masking:0.2 with model rbm, which ignores it"),
    ("--contraction 0.2", "--contraction: got 0.2 with model rbm, which ignores it"),
    ("--loss squared", "--loss: got a value with model rbm, expected none"),
    ("--untied", "--tied: got a value with model rbm, expected none"),
    ("--model x", "--model: 'x' is not one of 'rbm', 'autoencoder'"),
    ("--early-stopping validation-error", "--early-stopping: got validation-error with model r"),
    ("--hidden-units cubic", "--hidden-units: got 'cubic', expected bernoulli or gaussian or"),
    ("--hidden-units tanh", "--hidden-units: got tanh with model rbm, expected units whose"),
    ("--visible-units relu", "--visible-units: got relu, expected bernoulli or gaussian"),
    ("--model denoising --corruption salt:0.1", "--corruption: got 'salt:0.1', expected none"),
    (
        "--model denoising --visible-units gaussian --loss cross-entropy",
        "--loss: got cross-entropy with gaussian visible units, expected squared",
    ),
    ("--finetune classification --labels 1", "--labels: got 1 class, "),
    (
        "--finetune reconstruction --visible-units gaussian --finetune-loss cross-entropy",
        "--finetune-loss: got cross-entropy for gaussian visible units",
    ),
    ("--finetune classification --data x.npy", "--finetune: got classification, but x.npy has"),
    ("--labels 20 --data x.npy", "--labels: got 20, but x.npy has no labels"),
    ("--labels 0", "--labels: got 0, expected a whole number of at least 1"),
    ("--labels 49", "--labels: got 49, expected 1 to 48, those there are"),
    (
        "--finetune classification --labels 9 --finetune-batch-size 100",
        "--finetune-batch-size: got 100, expected at most 9",
    ),
    (
        "--finetune reconstruction --finetune-batch-size 10 --finetune-patience 2 --validation 0",
        "--finetune-patience: got a number without validation examples",
    ),
    (
        "--finetune reconstruction --finetune-optimizer sgd --finetune-nesterov",
        "--finetune-nesterov: got no momentum, expected one above 0",
    ),
    ("--data wide.npy --visible-units bernoulli", "wide.npy: got "),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[row[0] for row in WRONG])
def test_wrong_options(refusal, out, options, message):
    line = refusal("train", *NET.split(), *options.split(), "--out", out)
    assert line.startswith(f"Error: {message}")
    assert not out.exists()
