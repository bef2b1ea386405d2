"""The verdict: errors beside the mean's, and sentences for what went wrong."""

import warnings

import numpy as np
import pytest
from randomstacks import normal_stack

from syncpretrain import finetune, pretrain
from syncpretrain.data.dataset import Dataset
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.errors import PoorResultWarning
from syncpretrain.models import diagnosis
from syncpretrain.models.diagnosis import Baseline, baselines, mean_error, on_layers, on_tuning
from syncpretrain.observers.history import ErrorCurve
from syncpretrain.runs.metrics import measure


def labelled(rows=80):
    """Return two classes that differ in one column."""
    rng = np.random.default_rng(2)
    y = np.arange(rows) % 2
    X = rng.random((rows, 4), dtype=np.float32) / 4
    X[:, 1] += y * 0.6
    return X, y


class TestBaselines:
    def test_the_mean_error_is_that_of_predicting_the_mean(self):
        X = np.random.default_rng(0).random((30, 16), dtype=np.float32)
        stack = normal_stack((16, 9, 4))
        below = X.astype(np.float64)
        for layer, found in zip(stack.layers, baselines(stack, X), strict=True):
            expected = np.square(below - below.mean(axis=0)).sum(axis=1).mean()
            assert found.mean_error == pytest.approx(expected, rel=1e-5)
            below = layer.up(np.float32(below)).astype(np.float64)
        assert mean_error(X) == pytest.approx(baselines(stack, X)[0].mean_error)

    def test_units_that_do_not_differ_are_counted(self):
        X = np.random.default_rng(0).random((30, 4), dtype=np.float32)
        stack = pretrain(X, hidden=3, epochs=1, batch_size=30)
        layer = stack.layers[0]
        layer.weight[:] = np.float32([[0, 0, 5]] * 4)
        layer.hidden_bias[:] = np.float32([-20, 0, 0])
        assert baselines(stack, X)[0][2:] == (3, 2, 1)
        assert baselines(stack, X[:1])[0].constant == 0

    def test_a_single_row_has_no_error_of_the_mean(self):
        X, stack = np.float32(np.random.default_rng(0).random((30, 50))), normal_stack((50, 3))
        assert not any(baselines(stack, row[None])[0].mean_error for row in X)

    def test_there_are_none_without_examples(self):
        assert baselines(normal_stack((4, 2)), np.empty((0, 4), np.float32)) == []


class TestSentences:
    GOOD = Baseline(2.0, 4.0, 10, 0, 0)

    @pytest.mark.parametrize(
        ("layer", "train", "start"),
        [
            (GOOD, [3.0, 2.0], None),
            (GOOD, [3.0, 3.1], None),
            (GOOD, [3.0, 3.5], "layer 1: its error grew from 3 to 3.5; try a lower learning_rate"),
            (Baseline(5.0, 4.0, 10, 0, 0), [9.0, 5.0], "layer 1: its error is 125 % of"),
            (Baseline(2.0, 4.0, 10, 6, 0), [3.0], "layer 1: 6 of its 10 units hardly"),
            (Baseline(2.0, 4.0, 10, 6, 6), [3.0], "layer 1: 6 of its 10 units are off"),
            (Baseline(2.0, 4.0, 10, 5, 5), [3.0], None),
            (Baseline(0.0, 0.0, 10, 0, 0), [3.0], None),
        ],
    )
    def test_of_a_layer(self, layer, train, start):
        found = on_layers([layer], [ErrorCurve(train)])
        assert len(found) == (start is not None)
        assert all(sentence.startswith(start) for sentence in found)

    def test_an_upper_layer_whose_input_grows_may_have_a_larger_error(self):
        curves = [ErrorCurve([3.0, 2.0]), ErrorCurve([1.0, 2.0])]
        assert on_layers([self.GOOD, self.GOOD], curves) == []

    @pytest.mark.parametrize(
        ("objective", "curve", "start"),
        [
            ("classification", ErrorCurve([0.4], [0.3]), None),
            ("classification", ErrorCurve([0.1], [0.37]), "classifier: 37.0 % wrong, as by always"),
            ("classification", ErrorCurve([0.5]), "classifier: 50.0 % wrong, more than by always"),
            ("reconstruction", ErrorCurve([0.5]), "reconstruction: the error is 135 % of the mean"),
            ("regression", ErrorCurve([0.1, 0.2]), "fine-tuning: the error grew from 0.1 to 0.2"),
            ("regression", ErrorCurve(), None),
        ],
    )
    def test_of_a_fine_tuning(self, objective, curve, start):
        found = on_tuning(objective, curve, 0.37)
        assert len(found) == (start is not None)
        assert all(sentence.startswith(start) for sentence in found)

    @pytest.mark.parametrize(("examples", "expected"), [(0, 1), (60, 0), (6000, 1)])
    def test_few_wrong_classes_more_are_chance(self, examples, expected):
        curve = ErrorCurve([0.1, 0.15])
        assert len(on_tuning("classification", curve, 0.5, examples=examples)) == expected


class TestInPython:
    def test_a_result_that_learned_warns_of_nothing(self):
        X, y = labelled()
        with warnings.catch_warnings():
            warnings.simplefilter("error", PoorResultWarning)
            stack = pretrain(X, hidden=8, epochs=60, batch_size=10)
            after = finetune(stack, X, y, epochs=60, batch_size=10, learning_rate=0.01)
        assert "verdict" not in after.info

    def test_one_that_did_not_says_so_and_keeps_it(self):
        X, y = labelled()
        with pytest.warns(PoorResultWarning, match="^layer 1: 8 of its 8 units hardly differ"):
            stack = pretrain(X, hidden=8, epochs=1, batch_size=80, learning_rate=0.001)
        assert len(stack.info["verdict"]) == 1
        with pytest.warns(PoorResultWarning, match="^classifier: 50.0 % wrong"):
            after = finetune(stack, X, y, epochs=1, batch_size=80)
        assert after.info["verdict"][0] == stack.info["verdict"][0]
        assert len(after.info["verdict"]) == 2
        better = finetune(after, X, y, epochs=60, batch_size=10, learning_rate=0.01)
        assert "verdict" not in better.info

    @pytest.mark.parametrize("share", [0.25, 0.75])
    def test_validation_classes_are_compared_with_the_class_of_training(self, share):
        X, y = labelled()
        y[:41] = 1  # the most frequent class; ``share`` of the validation rows are of it
        held_out = (np.arange(40) < 40 * share).astype(int)
        how = {"validation": X[:40], "validation_y": held_out, "warn": False}
        stack = pretrain(X, hidden=8, epochs=1, warn=False)
        after = finetune(stack, X, y, epochs=1, learning_rate=1e-9, **how)
        (error,) = after.history.finetune.validation
        told = [x for x in after.info["verdict"] if x.startswith("classifier")]
        assert bool(told) == (error >= 1 - share)
        assert all(f"class ({100 * (1 - share):.1f} % wrong)" in x for x in told)

    def test_validation_numbers_are_compared_with_the_mean_of_training(self):
        X, t = labelled()[0], np.random.default_rng(0).normal(size=80)
        held_out = t.mean() + t[:20] / 100
        how = {"validation": X[:20], "validation_y": held_out, "warn": False}
        stack = pretrain(X, hidden=8, epochs=1, warn=False)
        after = finetune(stack, X, t, epochs=1, learning_rate=0.05, **how)
        constant = np.square(held_out - t.mean()).mean()
        assert constant < after.history.finetune.validation[-1] < np.var(t)
        assert any(x.startswith("regression: the error is") for x in after.info["verdict"])

    def test_a_rate_that_spoils_a_layer(self):
        X, _ = labelled()
        with pytest.warns(PoorResultWarning, match="^layer 1: .*; try a lower learning_rate"):
            pretrain(X, hidden=8, epochs=20, batch_size=10, learning_rate=50)


def test_errors_and_shares_stand_beside_the_means_and_the_majority():
    X, y = labelled()
    y[:10] = 0
    data = Dataset("toy", "here", X[:60], X[60:], X[:0], y[:60], y[60:])
    stack = pretrain(X, hidden=8, epochs=1)
    found = measure(finetune(stack, X, y, epochs=1), data, pretrained=stack)
    for part, rows in (("train", X[:60]), ("validation", X[60:])):
        expected = pytest.approx(mean_error(rows), rel=1e-5)
        assert found["layers"][0]["mean_error"][part] == expected
        assert found["mean_error"][part] == expected
    assert found["majority"] == {"train": 35 / 60, "validation": 0.5, "test": None}


def test_layers_trained_for_targets_have_no_error_of_reconstruction():
    X, y = labelled()
    data = Dataset("toy", "here", X[:60], X[60:], X[:0], y[:60], y[60:])
    tuned = finetune(pretrain(X, hidden=8, epochs=1, warn=False), X, y, epochs=1, warn=False)
    for before in (None, tuned):
        found = measure(tuned, data, pretrained=before)
        assert set(found["layers"][0]["reconstruction_error"].values()) == {None}
        assert set(found["reconstruction_error"].values()) == {None}


@pytest.mark.parametrize("kind", ["classes", "numbers"])
@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("few", [10, 50])
def test_few_labels_are_judged_by_the_rows_that_have_them(monkeypatch, kind, is_sparse, few):
    monkeypatch.setattr("syncpretrain.runs.metrics.TRAIN_ROWS", 20)
    X, _ = labelled(rows=200)
    y = np.full(200, -1) if kind == "classes" else np.full(200, np.nan, np.float32)
    rows = np.random.default_rng(4).choice(200, few, replace=False)
    y[rows] = np.arange(few) % 2 if kind == "classes" else np.linspace(-1, 2, few)
    csr = X.ravel(), np.tile(np.arange(4, dtype=np.int32), 200), np.arange(0, 801, 4)
    train = SparseRows(*csr, 4) if is_sparse else X
    data = Dataset("toy", "here", train, X[:0], X[:0], y, y[:0])
    pretrained = pretrain(X, hidden=8, epochs=1, warn=False)
    stack = finetune(pretrained, X, y, epochs=2, warn=False)
    found = measure(stack, data, pretrained=pretrained)
    judged = np.sort(rows)[np.arange(20) * few // 20] if few > 20 else np.sort(rows)
    predicted = stack.predict(X[judged])
    if kind == "classes":
        assert found["accuracy"]["train"] == (predicted == y[judged]).mean()
        share = (y[judged] == 1).mean()
        assert found["majority"]["train"] == max(share, 1 - share)
        assert found["accuracy"]["test"] is None
    else:
        assert found["accuracy"] is None
        expected = np.sqrt(np.square(predicted - y[judged]).mean())
        assert found["regression_error"]["train"]["rmse"] == pytest.approx(expected, rel=1e-5)
    error = found["reconstruction_error"]["train"]
    assert error == pytest.approx(diagnosis.stack_error(pretrained, X[::10]), rel=1e-5)
