"""Targets of fine-tuning that are refused."""

from __future__ import annotations

import numpy as np
import pytest
from toyclasses import numbers, refused, toy, tuned

from syncpretrain.errors import DataError, SettingsError


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
