"""Standardization: of a column, of a stack, and what Gaussian visible units accept."""

from __future__ import annotations

import numpy as np
import pytest

from syncpretrain import Stack, pretrain
from syncpretrain.data.examples import check_examples
from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import DataError, SettingsError
from syncpretrain.models.layer import DenseLayer


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)[:, None]


class TestScaling:
    def test_columns_come_to_mean_0_and_deviation_1(self):
        X = np.random.default_rng(0).normal([5, -300, 0], [1, 50, 1e-3], (500, 3))
        scaled = Scaling.of(X.astype(np.float32)).apply(X.astype(np.float32))
        assert scaled.dtype == np.float32
        np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(scaled.std(axis=0), 1, rtol=1e-5)

    def test_a_known_answer(self):
        scaling = Scaling.of(column(1, 3))
        assert (scaling.shift.item(), scaling.scale.item()) == (2, 1)
        np.testing.assert_array_equal(scaling.apply(column(1, 3, 7)), column(-1, 1, 5))

    def test_inverting_takes_it_back_and_nothing_is_written_to(self):
        X = np.random.default_rng(1).normal(7, 3, (40, 5)).astype(np.float32)
        scaling, copy = Scaling.of(X), X.copy()
        scaled = scaling.apply(X)
        once = scaled.copy()
        np.testing.assert_allclose(scaling.invert(scaled), X, rtol=1e-6)
        np.testing.assert_array_equal(X, copy)
        np.testing.assert_array_equal(scaled, once)

    @pytest.mark.parametrize("value", [0, 0.1, -1e18, 3e-30])
    def test_a_constant_column_is_divided_by_one(self, value):
        X = np.full((1001, 1), value, dtype=np.float32)
        scaling = Scaling.of(X)
        assert scaling.scale.item() == 1
        np.testing.assert_array_equal(scaling.apply(X), np.zeros_like(X))
        np.testing.assert_array_equal(scaling.invert(np.zeros_like(X)), X)

    @pytest.mark.parametrize("height", [1, 1e18, 1e-18])
    def test_a_rare_spike_lies_at_most_10_from_the_mean(self, height):
        X = np.zeros((10_000, 1), dtype=np.float32)
        X[77] = height
        scaling = Scaling.of(X)
        assert scaling.scale.item() == pytest.approx(height / 10)
        assert scaling.apply(X).max() == pytest.approx(10, rel=1e-3)

    @pytest.mark.parametrize("height", [1e-45, 1e-44, 1e-38])
    def test_the_smallest_numbers_there_are_make_no_infinity(self, height):
        X = column(0, 0, 0, height)
        scaling = Scaling.of(X)
        assert scaling.scale.item() > 0
        assert np.abs(scaling.apply(X)).max() <= 10


class TestStack:
    @pytest.fixture
    def stack(self) -> Stack:
        """The identity, between data that is centred at 10 and codes in standard deviations."""
        eye, zero = np.eye(2, dtype=np.float32), np.zeros(2, dtype=np.float32)
        layer = DenseLayer(eye, zero, zero, None, "gaussian", "gaussian")
        return Stack((layer,), {}, Scaling(np.float32([10, 10]), np.float32([2, 4])))

    def test_encodes_from_and_decodes_to_the_units_of_the_data(self, stack):
        X = np.float32([[12, 6], [10, 30]])
        codes = np.float32([[1, -1], [0, 5]])
        np.testing.assert_array_equal(stack.encode(X), codes)
        np.testing.assert_array_equal(stack.decode(codes), X)
        np.testing.assert_array_equal(stack.reconstruct(X), X)

    def test_the_checksum_covers_the_scaling(self, stack):
        other = Stack(stack.layers, {}, Scaling(np.float32([10, 10]), np.float32([2, 5])))
        assert len({s.parameters_sha256 for s in (stack, other, Stack(stack.layers))}) == 3

    def test_pretraining_standardizes_and_reconstructs_in_units_of_the_data(self):
        draws = np.random.default_rng(2)
        X = draws.normal(size=(300, 1)) * [30, 50, -20] + draws.normal(size=(300, 3)) + 1000
        stack = pretrain(X, layers=[3, 2], visible_units="gaussian", epochs=20, batch_size=20)
        expected = Scaling.of(X.astype(np.float32))
        np.testing.assert_array_equal(stack.scaling.shift, expected.shift)
        np.testing.assert_array_equal(stack.scaling.scale, expected.scale)
        assert np.abs(stack.reconstruct(X).mean(axis=0) - 1000).max() < 50

    def test_the_units_of_the_data_do_not_matter(self):
        """Powers of 2 and shifts that are exact: the layers come out bit for bit the same."""
        X = np.random.default_rng(3).integers(-8, 8, (64, 4)).astype(np.float32)
        runs = [
            pretrain(data, layers=[4, 3], visible_units="gaussian", epochs=2, batch_size=16)
            for data in (X, 64 * X, X / 1024)
        ]
        assert len({Stack(run.layers).parameters_sha256 for run in runs}) == 1

    def test_binary_visible_units_are_not_scaled(self, bits):
        assert pretrain(bits, layers=[16, 4], epochs=1, batch_size=20).scaling is None


class TestRange:
    X = np.float32([[0, 2], [-1, 0.5]] * 5)

    def test_values_outside_the_unit_interval_need_gaussian_visible_units(self):
        arguments = {"layers": [2, 2], "epochs": 1, "batch_size": 5}
        with pytest.raises(DataError, match=r"X: got 2 at row 0, column 1 .*values in \[0, 1\]"):
            pretrain(self.X, visible_units="bernoulli", **arguments)
        stack = pretrain(self.X, visible_units="gaussian", **arguments)
        assert np.isfinite(stack.reconstruct(self.X)).all()

    def test_held_out_examples_likewise(self):
        train = np.abs(self.X) / 2
        arguments = {"layers": [2, 2], "epochs": 1, "batch_size": 5, "validation": self.X}
        with pytest.raises(DataError, match=r"validation: got 2 at row 0, column 1"):
            pretrain(train, **arguments)
        pretrain(train, visible_units="gaussian", **arguments)

    @pytest.mark.parametrize("bad", [np.inf, -np.inf, 1e19, -1e19, 1e300])
    def test_what_no_square_can_hold_is_refused_with_its_place(self, bad):
        X = self.X.astype(np.float64)
        X[3, 1] = bad
        with pytest.raises(DataError, match=r"X: got .* at row 3, column 1 \(counted from 0\)"):
            pretrain(X, layers=[2, 2], visible_units="gaussian", batch_size=5)

    def test_the_message_tells_a_huge_value_from_one_that_is_not_finite(self):
        with pytest.raises(DataError, match=r"got nan .*expected finite numbers"):
            check_examples([[0, np.nan]], bounded=False)
        with pytest.raises(DataError, match=r"got 1e\+20 .*expected numbers from -1e\+18 to"):
            check_examples([[0, 1e20]], bounded=False)

    def test_the_largest_that_is_accepted_trains(self):
        X = 1e18 * self.X / 2
        stack = pretrain(X, layers=[2, 2], visible_units="gaussian", epochs=1, batch_size=5)
        assert np.isfinite(stack.reconstruct(X)).all()

    def test_early_stopping_needs_held_out_examples(self, bits):
        with pytest.raises(SettingsError, match=r"early_stopping: .* without validation examples"):
            pretrain(bits, layers=[16, 4], early_stopping="pseudo-likelihood")
