"""Targets of fine-tuning: probabilities of classes, and targets that are refused."""

from __future__ import annotations

import numpy as np
import pytest
from toyclasses import CLASSES, numbers, refused, toy, tuned

from syncpretrain import finetune, pretrain
from syncpretrain.errors import DataError, SettingsError


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
        named = np.array(["a", "b", "c"])[y % 3]
        shares = np.eye(3)[y % 3]
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

    def test_validation_has_as_many(self):
        X, y = toy()
        shares = np.eye(4)[y % 4]
        held_out = {"X": X, "y": np.eye(3)[y % 3], "objective": "classification", "validation": X}
        refused(DataError, "validation_y: got 4 numbers a row", **held_out, validation_y=shares)
        match = "validation_y: got 'a', expected classes such as 0"
        refused(DataError, match, **held_out, validation_y=np.full(60, "a"))


class TestRefusedTargets:
    @pytest.mark.parametrize(
        ("y", "match"),
        [
            (np.ones(59, int), r"y: got shape \(59,\), expected \(60,\)"),
            (np.ones((60, 1), int), r"y: got shape \(60, 1\), expected \(60,\)"),
            (np.full(60, 4), "y: got 1 class, 4, expected two or more"),
            (np.full(60, -1), "y: got no class"),
            (np.full(60, "a"), "y: got 1 class, 'a', expected two or more"),
            ([1, "a"] * 30, "y: got classes of two types, such as 1 and 'a'"),
            ([1j] * 60, "y: got .* values, expected classes as whole numbers or texts"),
        ],
    )
    def test_classes(self, y, match):
        refused(DataError, match, y=y)

    @pytest.mark.parametrize("value", [0.5, np.inf])
    def test_classes_that_are_no_whole_numbers(self, value):
        y = np.full(60, value)
        refused(DataError, "y: got float64 values", y=y, objective="classification")

    def test_no_label_for_a_stack_that_has_classes(self):
        X, y = toy()
        refused(DataError, "y: got no class", tuned(None, X, y), X, np.full(60, -1))

    @pytest.mark.parametrize(
        ("y", "match"),
        [
            (np.ones(59), r"y: got shape \(59,\), expected \(60,\)"),
            (np.ones((60, 2, 2)), "y: got shape"),
            (np.ones((60, 0)), "y: got shape"),
            (np.full(60, np.nan), "y: got no number in any row"),
            (np.full(60, np.inf), "y: holds infinite values"),
            (np.r_[np.inf, np.arange(59) / 7], "y: holds infinite values"),
            (np.full(60, 1e300), "y: holds infinite values"),
            (np.full(60, "a"), "y: got no numbers"),
        ],
    )
    def test_numbers(self, y, match):
        refused(DataError, match, y=y, objective="regression")

    def test_validation(self):
        X, y = toy()
        held_out = {"X": X, "y": y, "validation": X}
        refused(DataError, "validation_y: got nothing", **held_out)
        refused(DataError, r"validation_y: got shape \(59,\)", **held_out, validation_y=y[1:])
        refused(
            DataError,
            "validation_y: got 1 numbers a row, expected 2",
            **{**held_out, "y": numbers(X)},
            validation_y=numbers(X)[:, 0],
        )

    def test_minibatch_larger_than_the_labelled_rows(self):
        y = np.where(np.arange(60) < 9, toy()[1], -1)
        refused(SettingsError, "batch_size: got 10, expected at most 9", y=y)
