"""Numbers to predict far from 0, or large: the head learns them as fast as small ones."""

from __future__ import annotations

import numpy as np

from syncpretrain import finetune, pretrain

OPTIONS = {"epochs": 30, "batch_size": 10, "learning_rate": 0.01, "blas_threads": 1}
draws = np.random.default_rng(0)
X = draws.random((60, 5), dtype=np.float32)
y = X[:, :2].astype("f8") @ [2.0, -1.0]
STACK = pretrain(X, hidden=4, epochs=2, batch_size=10)


def test_far_and_large_targets_are_learned_as_near_and_small_ones():
    errors = []
    near = finetune(STACK, X, y, validation=X, validation_y=y, **OPTIONS)
    far = finetune(STACK, X, 1000 + 50 * y, validation=X, validation_y=1000 + 50 * y, **OPTIONS)
    for tuned, scale in ((near, 1.0), (far, 50.0)):
        curve = tuned.history.finetune
        errors.append(np.array([curve.train, curve.validation]) / scale**2)
    np.testing.assert_allclose(errors[1], errors[0], rtol=0.02)
    np.testing.assert_allclose((far.predict(X) - 1000) / 50, near.predict(X), atol=0.01)


def test_reported_errors_are_in_the_units_of_the_targets():
    tuned = finetune(STACK, X, 7 * y, validation=X, validation_y=7 * y, **OPTIONS)
    predicted = tuned.predict(X).reshape(-1)
    error = np.square(predicted - 7 * y).mean()
    np.testing.assert_allclose(tuned.history.finetune.validation[-1], error, rtol=1e-4)


def test_tuning_goes_on_with_the_head_there_is():
    tuned = finetune(STACK, X, 5 + y, **OPTIONS)
    again = finetune(tuned, X, 5 + y, **(OPTIONS | {"epochs": 1, "learning_rate": 1e-9}))
    np.testing.assert_allclose(again.predict(X), tuned.predict(X), atol=1e-5)


def test_a_constant_target_is_predicted():
    tuned = finetune(STACK, X, np.full(60, 3.5), **OPTIONS)
    np.testing.assert_allclose(tuned.predict(X), 3.5, atol=0.2)
