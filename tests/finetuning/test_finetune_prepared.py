"""What fine-tuning would refuse is refused before pretraining, by the same objects."""

import sys
import tracemalloc

import msgspec
import numpy as np
import pytest
from barpictures import untrained
from randomstacks import normal_stack
from toyclasses import epochs_of
from trialruns import notices_of

from syncpretrain.data.dataset import Dataset
from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import DataError, SettingsError
from syncpretrain.finetuning import finetune
from syncpretrain.finetuning.options import tuning_options
from syncpretrain.finetuning.prepared import Finetuning
from syncpretrain.finetuning.tasks import Form, Part
from syncpretrain.parallel import available_memory as memory_module
from syncpretrain.pretraining import memory
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.runs import prepare
from syncpretrain.runs.prepare import check_finetuning
from syncpretrain.runs.run import train_run
from syncpretrain.settings import settings_from

WIDTHS = (16, 9, 4)


def make_data(**changes):
    """Return 60 examples of three classes to train on, and 20 to validate with."""
    X = np.random.default_rng(0).random((80, WIDTHS[0]), dtype=np.float32)
    y = np.arange(80) % 3
    parts = {"train": X[:60], "validation": X[60:], "test": X[:0]}
    parts |= {"train_labels": y[:60], "validation_labels": y[60:]}
    return Dataset("toy", "here", **parts | changes)


def make_settings(**finetune):
    tuning = {"objective": "classification", "epochs": 2, "batch_size": 10, **finetune}
    return settings_from(WIDTHS, finetune=tuning, epochs=1, batch_size=10)


@pytest.fixture
def refused_early(monkeypatch, tmp_path):
    """Return a function that runs settings which are to be refused before anything is trained."""

    def work(*arguments, **options):
        raise AssertionError("work was begun")

    def run(match, settings, data):
        with monkeypatch.context() as patched:
            patched.setattr(Pretraining, "run", work)
            patched.setattr(prepare, "load_data", lambda settings, given: data)
            with pytest.raises((SettingsError, DataError), match=match):
                train_run(settings, out=tmp_path / "run")
        assert not (tmp_path / "run").exists()

    return run


class TestBeforePretraining:
    @pytest.mark.parametrize(
        "changes",
        [
            {"validation_labels": np.full(20, -1)},
            {"validation": np.empty((0, WIDTHS[0]), np.float32), "validation_labels": None},
        ],
        ids=["no label", "no example"],
    )
    def test_patience_with_nothing_to_judge_by(self, refused_early, changes):
        match = "^finetune_patience: got a number without validation examples that have a target"
        refused_early(match, make_settings(patience=2), make_data(**changes))

    @pytest.mark.parametrize(
        ("y", "match"),
        [
            (np.full(60, 4), "^training labels: got 1 class, 4, expected two or more; label"),
            (np.full(60, -1), "^training labels: got no class, expected two or more"),
            (np.where(np.arange(60) < 9, np.arange(60) % 3, -1), "^finetune_batch_size: got 10, e"),
        ],
    )
    def test_labels_that_are_too_few(self, refused_early, y, match):
        refused_early(match, make_settings(), make_data(train_labels=y))

    @pytest.mark.parametrize("objective", ["classification", "regression"])
    def test_no_labels(self, refused_early, objective):
        settings = make_settings(objective=objective)
        match = f"^finetune: got {objective}, but toy has no labels"
        refused_early(match, settings, make_data(train_labels=None, validation_labels=None))

    @pytest.mark.parametrize("objective", ["reconstruction", "classification"])
    def test_too_little_memory(self, refused_early, monkeypatch, objective):
        settings = make_settings(objective=objective, batch_size=60)
        needed = memory.pretraining_bytes(settings.pretrain.shapes, examples=80, batch_size=10)
        monkeypatch.setattr(memory_module, "available_bytes", lambda: needed)
        match = "^layers: fine-tuning 16,9,4 on 80 examples need about 0.0 GB"
        refused_early(match, settings, make_data())

    def test_an_optimizer_that_is_not_installed(self, refused_early, monkeypatch):
        monkeypatch.setitem(sys.modules, "scipy.optimize", None)
        settings = make_settings(objective="reconstruction", optimizer="cg")
        refused_early("^finetune_optimizer: cg needs", settings, make_data())


class TestRun:
    @pytest.fixture
    def run(self, monkeypatch, tmp_path):
        """Return a function that runs settings on data: its accuracy, errors and notices."""

        def train(settings, data):
            monkeypatch.setattr(prepare, "load_data", lambda settings, given: data)
            events = []
            report = train_run(settings, out=tmp_path / "run", observers=[events.append])
            errors = [event.validation_error for event in epochs_of(events)]
            return report["accuracy"], errors, notices_of(events)

        return train

    def test_a_class_that_only_other_parts_have_counts_as_wrong(self, run):
        others = {"validation_labels": np.full(20, 7), "test": make_data().train}
        data = make_data(**others, test_labels=np.full(60, 8))
        accuracy, errors, notices = run(make_settings(patience=2), data)
        assert errors == [1.0, 1.0]
        assert accuracy["validation"] == accuracy["test"] == 0
        assert any("(7); they count as wrong" in message for message in notices)

    def test_validation_examples_without_a_label_judge_nothing(self, run):
        data = make_data(validation_labels=np.full(20, -1))
        accuracy, errors, _ = run(make_settings(), data)
        assert (errors, accuracy["validation"]) == ([None, None], None)


class TestCheckFinetuning:
    @pytest.mark.parametrize("objective", ["reconstruction", "classification", "regression"])
    def test_it_tunes_as_the_function_does(self, objective):
        settings, data = make_settings(objective=objective), make_data()
        tuning = check_finetuning(settings, data)
        given = msgspec.to_builtins(settings.finetune) | {"seed": settings.pretrain.seed}
        labels = data.train_labels, data.validation_labels
        y, validation_y = (None, None) if objective == "reconstruction" else labels
        given |= {"validation": data.validation, "validation_y": validation_y}
        alone = finetune(normal_stack(WIDTHS), data.train, y, **given)
        for _ in range(2):  # it is not used up
            after = tuning.run(normal_stack(WIDTHS))
            assert after.parameters_sha256 == alone.parameters_sha256
            assert after.info == alone.info

    def test_no_label_is_no_number_to_predict(self):
        y = np.where(np.arange(60) % 2, -1, np.arange(60))
        settings = make_settings(objective="regression")
        tuning = check_finetuning(settings, make_data(train_labels=y))
        given = msgspec.to_builtins(settings.finetune) | {"seed": settings.pretrain.seed}
        rows, known = make_data().train[::2], y[::2].astype(float)
        some = finetune(normal_stack(WIDTHS), rows, known, **given)
        assert tuning.examples == 30
        assert tuning.run(normal_stack(WIDTHS)).parameters_sha256 == some.parameters_sha256

    def test_without_fine_tuning_there_is_none(self):
        assert check_finetuning(make_settings(objective="none"), make_data()) is None

    def test_another_stack_than_it_was_prepared_for(self):
        tuning = check_finetuning(make_settings(), make_data())
        with pytest.raises(DataError, match=r"^stack: got .*expected .*as it was prepared for"):
            tuning.run(normal_stack((16, 8, 4)))


DENSE = normal_stack((300, 200, 100))
CONVOLUTIONS = untrained("1x20x20,conv:16x5,pool:2,conv:24x3,pool:2,100")
SHORT = {"epochs": 1, "batch_size": 100, "replicas": 1}
OF_DENSE = [
    {},
    {"optimizer": "sgd", "momentum": 0.9},
    {"optimizer": "cg", "epochs": 1, "batch_size": 150},
    {"optimizer": "lbfgs", "epochs": 1, "batch_size": 150},
    {"split": "examples", "shards": 4},
    {"split": "units", "shards": 3},
    {"dropout": 0.5, "input_dropout": 0.2, "patience": 3},
    {"batch_size": 400},
]
OF_CONVOLUTIONS = [
    {},
    {"split": "examples", "shards": 4},
    {"split": "filters", "shards": 4, "optimizer": "sgd", "momentum": 0.9},
    {"split": "hybrid", "shards": 4, "dropout": 0.5, "input_dropout": 0.2},
]


class TestMemory:
    @pytest.mark.parametrize("objective", ["reconstruction", "classification", "regression"])
    @pytest.mark.parametrize(
        ("stack", "settings"),
        [
            *((DENSE, own) for own in OF_DENSE),
            *((CONVOLUTIONS, SHORT | own) for own in OF_CONVOLUTIONS),
        ],
        ids=[*map(str, OF_DENSE), *(f"convolutions, {own}" for own in OF_CONVOLUTIONS)],
    )
    def test_what_is_needed_is_an_upper_bound(self, stack, settings, objective, monkeypatch):
        if settings.get("optimizer") in ("cg", "lbfgs"):
            pytest.importorskip("scipy.optimize")
        X = np.random.default_rng(0).random((400, stack.widths[0]), dtype=np.float32)
        y = np.where(np.arange(400) % 4, np.arange(400) % 3, -1)
        if objective == "regression":
            y = np.where(y == -1, np.nan, y)
        targets = None if objective == "reconstruction" else y
        given = {"objective": objective, "epochs": 2, "blas_threads": 1, "batch_size": 50}
        given |= {"learning_rate": 1e-4} | settings
        if targets is not None:
            given["batch_size"] = min(given["batch_size"], 300)
        needed = []
        module = sys.modules["syncpretrain.finetuning.prepared"]
        monkeypatch.setattr(module, "check_available", lambda n, *rest: needed.append(n))
        form, options = Form.of(stack), tuning_options(given)
        parts = Part(X, targets, "y"), Part(X, targets, "y")
        Finetuning(form, options, *parts).run(stack)  # what is loaded at first is not fine-tuning's
        tracemalloc.start()
        try:
            Finetuning(form, options, *parts).run(stack)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < needed[-1] + 500_000, "and some hundred kB of objects"
        assert needed[-1] < 3 * peak, "nor is it far away"

    @pytest.mark.parametrize("units", ["bernoulli", "gaussian"])
    def test_rows_that_are_scaled_are_copied(self, units):
        X = np.random.default_rng(0).random((80, WIDTHS[0]), dtype=np.float32)
        scaling = Scaling(*np.ones((2, WIDTHS[0]), dtype=np.float32))
        stack = normal_stack(WIDTHS, units=[units, "bernoulli", "bernoulli"], scaling=scaling)
        options = tuning_options({"objective": "reconstruction", "batch_size": 10})
        plain, scaled = (
            Finetuning(Form.of(own), options, Part(X, None, "y")).bytes
            for own in (normal_stack(WIDTHS), stack)
        )
        assert scaled - plain == X.nbytes
