"""Targets of fine-tuning: numbers, probabilities of classes, and what is refused."""

import numpy as np
import pytest
from toyclasses import CLASSES, make_stack, numbers, refused, toy, tuned

from syncpretrain import finetune, pretrain
from syncpretrain.errors import DataError, DivergedError, SettingsError

OF_CLASSES, OF_NUMBERS = {"objective": "classification"}, {"objective": "regression"}
NUMBERS, LABELS = np.arange(60) % 7, toy()[1]
SHARES = np.eye(3)[LABELS % 3]


class TestRegression:
    @pytest.mark.parametrize("outputs", [1, 2])
    def test_learns_numbers(self, outputs):
        X = toy()[0]
        y = numbers(X)[:, 0] if outputs == 1 else numbers(X)
        after = tuned(None, X, y, epochs=100, learning_rate=0.02)
        assert after.predict(X).shape == y.shape
        assert np.square(after.predict(X) - y).mean() < 0.05 * y.var()
        assert after.head.kind == "regression"
        with pytest.raises(DataError, match="no classifier"):
            after.predict_proba(X)

    def test_rows_with_a_missing_number_are_left_out(self):
        X = toy()[0]
        y = numbers(X)
        y[::4, 1] = np.nan
        known = ~np.isnan(y[:, 1])
        among, alone = tuned(None, X, y), tuned(None, X[known], y[known])
        assert among.parameters_sha256 == alone.parameters_sha256

    @pytest.mark.parametrize(
        ("y", "other", "message"),
        [
            (1.6e9 + NUMBERS, 1e9 * NUMBERS, "1600000000 that are nearly"),
            (1e-200 * NUMBERS, 1e-40 * NUMBERS, ".* divide by a smaller unit"),
        ],
        ids=["nearly equal", "too small"],
    )
    def test_numbers_that_float32_cannot_keep_apart(self, y, other, message):
        refused(DataError, f"^y: got numbers such as {message}", y=y, objective="regression")
        tuned(y=other, objective="regression", epochs=1)

    def test_validation_error_is_squared_and_summed_over_outputs(self):
        X, events = toy()[0], []
        y = numbers(X)
        after = tuned(None, X, y, validation=X, validation_y=y, observers=[events.append])
        expected = np.square(after.predict(X) - y).sum() / len(X)
        assert events[-1].validation_error == pytest.approx(expected, rel=1e-5)

    def test_too_large_a_rate_is_a_divergence(self):
        X, stack = toy()[0], make_stack()
        with pytest.raises(DivergedError, match="epoch 1") as caught:
            tuned(stack, X, numbers(X), optimizer="sgd", learning_rate=1e4)
        assert caught.value.stack is stack

    @pytest.mark.parametrize("seed", range(4))
    def test_a_first_minibatch_near_the_mean_is_no_divergence(self, seed):
        noise = np.random.default_rng(seed).standard_normal(60)
        tuned(None, toy()[0], noise, batch_size=1, epochs=1)

    def test_far_and_large_targets_are_learned_as_near_and_small_ones(self):
        X, found, errors = toy()[0], [], []
        for shift, scale in ((0, 1), (1000, 50)):
            y = shift + scale * numbers(X)
            how = {"validation": X, "validation_y": y, "epochs": 30, "learning_rate": 0.01}
            after = tuned(None, X, y, **how)
            curve = after.history.finetune
            errors.append(np.array([curve.train, curve.validation]) / scale**2)
            found.append((after.predict(X) - shift) / scale)
        np.testing.assert_allclose(errors[1], errors[0], rtol=0.02)
        np.testing.assert_allclose(found[1], found[0], atol=0.01)

    def test_a_constant_target_is_predicted(self):
        X = toy()[0]
        after = tuned(None, X, np.full(60, 3.5), epochs=30, learning_rate=0.01)
        np.testing.assert_allclose(after.predict(X), 3.5, atol=0.2)


class TestProbabilities:
    def test_certain_ones_train_as_classes_do(self):
        X, y = toy()
        certain = np.equal.outer(y, CLASSES)
        stacks = [tuned(None, X, own, objective="classification") for own in (certain, y)]
        assert [stack.head.classes for stack in stacks] == [(0, 1, 2), (3, 7, 11)]
        weights = [stack.head.weight for stack in stacks]
        np.testing.assert_array_equal(*weights)

    def test_a_stack_learns_them(self):
        kinds = np.arange(60) % 2
        X = np.repeat(kinds[:, None], 4, axis=1).astype(np.float32)
        shares = np.array([[0.5, 0.3, 0.2], [0.1, 0.0, 0.9]])[kinds]
        start = pretrain(X, layers=[4, 6], schedule="none", warn=False)
        how = {"objective": "classification", "learning_rate": 0.05, "weight_decay": 0.0}
        found = finetune(start, X, shares, epochs=500, batch_size=60, warn=False, **how)
        np.testing.assert_allclose(found.predict_proba(X), shares, atol=0.01)

    def test_a_row_of_nan_has_none_and_a_head_keeps_its_classes(self):
        X, y = toy()
        named, shares = np.array(["a", "b", "c"])[y % 3], SHARES.copy()
        shares[::2] = np.nan
        found = tuned(tuned(None, X, named), X, shares, objective="classification")
        assert found.head.classes == ("a", "b", "c")
        assert found.info["finetune"][-1]["examples"] == 30

    @pytest.mark.parametrize(
        ("row", "match"),
        [
            ([0.5, 0.4], r"y: got row 7 \(counted from 0\) with the sum 0.9"),
            ([1.5, -0.5], r"y: got row 7 .* a negative number"),
            ([1, 3], r"y: got row 7 .* with the sum 4"),
        ],
    )
    def test_other_numbers_are_refused(self, row, match):
        y = np.tile([0.5, 0.5], (60, 1))
        y[7] = row
        refused(DataError, match, y=y, objective="classification")

    @pytest.mark.parametrize("far", [1e-9, 1e-50])
    def test_nearly_alike_and_tiny_ones_are_no_mistake(self, far):
        X, _ = toy()
        first = far * np.arange(1, 61)
        shares = np.stack([first, 1 - first], axis=1)
        found = tuned(None, X, shares, objective="classification")
        assert np.isfinite(found.head.weight).all()


class TestRefusedTargets:
    @pytest.mark.parametrize(
        ("how", "y", "match"),
        [
            ({}, np.ones(59, int), r"y: got shape \(59,\), expected \(60,\)"),
            ({}, np.ones((60, 1), int), r"y: got shape \(60, 1\), expected \(60,\)"),
            ({}, np.full(60, 4), "y: got 1 class, 4, expected two or more"),
            ({}, np.full(60, -1), "y: got no class"),
            ({}, np.full(60, "a"), "y: got 1 class, 'a', expected two or more"),
            ({}, [1, "a"] * 30, "y: got classes of two types, such as 1 and 'a'"),
            ({}, [-1, "a", 3] * 20, "y: got classes of two types, such as 3 and 'a'"),
            ({}, [1j] * 60, "y: got .* values, expected classes as whole numbers or texts"),
            (OF_CLASSES, np.full(60, 0.5), "y: got float64 values"),
            (OF_CLASSES, np.full(60, np.inf), "y: got float64 values"),
            (OF_NUMBERS, np.ones(59), r"y: got shape \(59,\), expected \(60,\)"),
            (OF_NUMBERS, np.ones((60, 2, 2)), "y: got shape"),
            (OF_NUMBERS, np.ones((60, 0)), "y: got shape"),
            (OF_NUMBERS, np.full(60, np.nan), "y: got no number in any row"),
            (OF_NUMBERS, np.full(60, np.inf), "y: holds infinite values"),
            (OF_NUMBERS, np.r_[np.inf, np.arange(59) / 7], "y: holds infinite values"),
            (OF_NUMBERS, np.full(60, 1e300), "y: holds infinite values"),
            (OF_NUMBERS, np.full(60, "a"), "y: got no numbers"),
        ],
    )
    def test_of_the_training(self, how, y, match):
        refused(DataError, match, y=y, **how)

    def test_no_label_for_a_stack_that_has_classes(self):
        X, y = toy()
        refused(DataError, "y: got no class", tuned(None, X, y), X, np.full(60, -1))

    @pytest.mark.parametrize(
        ("how", "y", "validation_y", "match"),
        [
            ({}, LABELS, None, "got nothing"),
            ({}, LABELS, LABELS[1:], r"got shape \(59,\)"),
            ({}, numbers(toy()[0]), numbers(toy()[0])[:, 0], "got 1 numbers a row, expected 2"),
            (OF_CLASSES, SHARES, np.eye(4)[LABELS % 4], "got 4 numbers a row"),
            (OF_CLASSES, SHARES, np.full(60, "a"), "got 'a', expected classes such as 0"),
        ],
    )
    def test_of_the_validation(self, how, y, validation_y, match):
        given = {"y": y, "validation": toy()[0], "validation_y": validation_y}
        refused(DataError, f"validation_y: {match}", **how, **given)

    def test_minibatch_larger_than_the_labelled_rows(self):
        y = np.where(np.arange(60) < 9, toy()[1], -1)
        refused(SettingsError, "batch_size: got 10, expected at most 9", y=y)
