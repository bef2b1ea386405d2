"""Rectified units of predictors: in all layers, with many targets of measurements."""

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6", reason="the estimators are scikit-learn's")

from scipy import sparse
from sklearn.base import clone

from syncpretrain.sklearn import DBNClassifier, DBNRegressor, committee, fit_choices
from syncpretrain.sklearn.base import training_rows
from syncpretrain.sklearn.fit_choices import OF_MANY_LABELS, are_measurements, of_many_numbers
from syncpretrain.sklearn.predictors import StackPredictor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 3))


@pytest.mark.parametrize(
    ("table", "units", "expected"),
    [
        (X, "auto", True),
        (X, "gaussian", True),
        (X, "bernoulli", False),
        (RNG.random((50, 24)), "auto", True),
        (RNG.random((50, 25)), "auto", False),  # a picture, maybe
        (np.round(RNG.random((50, 5))), "auto", False),
        (sparse.csr_matrix(np.round(RNG.random((50, 5)))), "auto", False),
        (sparse.csr_matrix(RNG.poisson(1, (50, 5))), "auto", False),
        (sparse.csr_matrix(X), "auto", True),
    ],
)
def test_measurements(table, units, expected):
    assert are_measurements(training_rows(table), units) is expected


class TestManyLabels:
    X = np.random.default_rng(5).normal(size=(120, 4))
    Y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)

    @pytest.fixture
    def tuned(self, monkeypatch):
        """Settings of fine-tuning; 100 labels are many."""
        found = []

        def finetuned(self, stack, X, y, seed, epochs=None, **options):
            found.append(options)
            return real(self, stack, X, y, seed, epochs, **options)

        real = StackPredictor._finetuned
        monkeypatch.setattr(StackPredictor, "_finetuned", finetuned)
        monkeypatch.setattr(fit_choices, "MANY_LABELS", 100)
        return found

    def test_they_are_normalized_in_fine_tuning(self, tuned):
        fitted = DBNClassifier((64, 32), workers=1, random_state=0).fit(self.X, self.Y)
        assert fitted.stack_.units == ("gaussian", "relu", "relu")
        (settings,) = tuned
        assert OF_MANY_LABELS.items() <= settings.items()
        assert fitted.score(self.X, self.Y) > 0.9

    def test_rows_of_weight_0_do_not_count(self, tuned):
        weights = (np.arange(120) < 99).astype(float)
        DBNClassifier((64,), epochs=0, workers=1, random_state=0).fit(self.X, self.Y, weights)
        assert tuned[-1].keys().isdisjoint(OF_MANY_LABELS)

    @pytest.mark.parametrize(
        ("given", "units", "normalized"),
        [
            ({"batch_size": 1}, "relu", False),  # one row has no variance
            ({"batch_size": 7}, "relu", True),
            ({"epochs": 0}, "relu", True),
            ({"finetune_epochs": 2}, "bernoulli", False),
            ({"learning_rate": 0.01}, "bernoulli", False),
            ({"settings": {"finetune_dropout": 0.1}}, "bernoulli", False),
            ({"visible_units": "bernoulli"}, "bernoulli", False),
        ],
    )
    def test_what_the_user_gives_decides(self, tuned, given, units, normalized):
        X = (self.X > 0).astype(float) if "visible_units" in given else self.X
        model = DBNClassifier((6,), workers=1, random_state=0).set_params(**given)
        assert model.fit(X, self.Y).stack_.units[1] == units
        assert ("normalization" in tuned[-1]) == normalized

    @pytest.mark.parametrize("labels", [99, 100])
    def test_fewer_labels_ask_a_committee(self, tuned, monkeypatch, labels):
        monkeypatch.setattr(committee, "TRIAL_STEPS", 10)
        monkeypatch.setattr(committee, "UNLABELLED_STEPS", 10)
        y = np.where(np.arange(120) < labels, self.Y, -1)
        fitted = DBNClassifier((6, 3), workers=1, random_state=0).fit(self.X, y)
        assert bool(fitted.teachers_) == (labels == 99)

    def test_many_numbers_are_normalized_too(self, tuned):
        model = DBNRegressor((64, 32), workers=1, random_state=0)
        fitted = model.fit(self.X, np.abs(self.X[:, 0]))
        assert fitted.stack_.units[1:] == ("relu", "relu") and not fitted.teachers_
        (settings,) = tuned
        assert (settings["normalization"], settings.get("dropout")) == ("batch", None)
        assert fitted.stack_.info["finetune"][-1]["epochs"] == 60
        assert fitted.score(self.X, np.abs(self.X[:, 0])) > 0.9
        given = clone(model).set_params(finetune_epochs=2)
        assert given.fit(self.X, self.X[:, 0]).stack_.units[1] == "bernoulli"

    @pytest.mark.parametrize(
        ("numbers", "epochs"), [(10_000, 60), (100_000, 20), (200_000, 10), (10**7, 10)]
    )
    def test_epochs_of_many_numbers(self, numbers, epochs):
        assert of_many_numbers(numbers)["epochs"] == epochs
