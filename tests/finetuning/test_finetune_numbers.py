"""Fine-tuning for numbers, which may be far from 0, large or missing."""

from __future__ import annotations

import numpy as np
import pytest
from toyclasses import make_stack, numbers, toy, tuned

from syncpretrain import finetune, pretrain
from syncpretrain.errors import DataError, DivergedError

OPTIONS = {"epochs": 30, "batch_size": 10, "learning_rate": 0.01, "blas_threads": 1}
draws = np.random.default_rng(0)
X = draws.random((60, 5), dtype=np.float32)
y = X[:, :2].astype("f8") @ [2.0, -1.0]
STACK = pretrain(X, hidden=4, epochs=2, batch_size=10)


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

    def test_numbers_that_float32_cannot_keep_apart(self):
        y = 1.6e9 + np.arange(60) % 7
        with pytest.raises(DataError, match=r"^y: got numbers such as 1600000000 that are nearly"):
            tuned(y=y, objective="regression")
        tuned(y=1e9 * (np.arange(60) % 7), objective="regression", epochs=1)

    def test_numbers_that_are_too_small_for_float32(self):
        y = np.arange(60) % 7
        with pytest.raises(DataError, match=r"^y: got numbers such as .* divide by a smaller unit"):
            tuned(y=y * 1e-200, objective="regression")
        tuned(y=y * 1e-40, objective="regression", epochs=1)

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


def test_far_and_large_targets_are_learned_as_near_and_small_ones():
    errors = []
    near = finetune(STACK, X, y, validation=X, validation_y=y, **OPTIONS)
    far = finetune(STACK, X, 1000 + 50 * y, validation=X, validation_y=1000 + 50 * y, **OPTIONS)
    for stack, scale in ((near, 1.0), (far, 50.0)):
        curve = stack.history.finetune
        errors.append(np.array([curve.train, curve.validation]) / scale**2)
    np.testing.assert_allclose(errors[1], errors[0], rtol=0.02)
    np.testing.assert_allclose((far.predict(X) - 1000) / 50, near.predict(X), atol=0.01)


def test_a_constant_target_is_predicted():
    tuned = finetune(STACK, X, np.full(60, 3.5), **OPTIONS)
    np.testing.assert_allclose(tuned.predict(X), 3.5, atol=0.2)
