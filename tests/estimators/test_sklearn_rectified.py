"""Rectified units of a classifier: in layer 1 where boundaries are curved, or in all layers."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6", reason="the estimators are scikit-learn's")

from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import make_hastie_10_2, make_moons

from syncpretrain.sklearn import DBNClassifier, DBNRegressor, fit_choices
from syncpretrain.sklearn import fit_choices as module
from syncpretrain.sklearn.base import training_rows
from syncpretrain.sklearn.fit_choices import (
    OF_MANY_LABELS,
    Targets,
    are_curved,
    are_measurements,
    of_many_numbers,
    rectified_settings,
)
from syncpretrain.sklearn.predictors import StackPredictor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 3))
RINGS = (np.square(X).sum(axis=1) > 2.4).astype(int)
HALVES = (X[:, 0] > 0).astype(int)
SMALL = {"hidden": (32, 8), "epochs": 2, "workers": 1, "random_state": 0}
BENT, PLAIN = ("gaussian", "relu", "bernoulli"), ("gaussian", "bernoulli", "bernoulli")


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


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_only_layer_1_is_rectified(layers):
    units = {"hidden_units": ["relu", "bernoulli", "bernoulli"][:layers]}
    assert rectified_settings(layers, 2000, None) == units
    assert rectified_settings(layers, 2001, None) == units | {"batch_size": 20}
    assert rectified_settings(layers, 2001, 50) == units


class TestAreCurved:
    """Trainings are replaced by known outputs, which linear models are judged beside."""

    @pytest.fixture
    def judged(self, monkeypatch):
        def judge(outputs, y, weights=None):
            monkeypatch.setattr(module, "outputs_of", lambda _, rows: outputs(rows))
            targets = Targets(np.arange(len(X)), y, weights)
            return are_curved(lambda *_, **__: None, X, targets, 0)

        return judge

    @staticmethod
    def by_radius(rows):
        return np.column_stack([np.full(len(rows), 2.4), np.square(rows).sum(axis=1)])

    def test_rings_are(self, judged):
        assert judged(self.by_radius, RINGS)

    def test_halves_are_not_even_to_a_network_that_knows_them(self, judged):
        assert not judged(lambda rows: np.column_stack([-rows[:, 0], rows[:, 0]]), HALVES)

    def test_rows_without_weight_do_not_count(self, judged):
        wrong = X[:, 2] > 1

        def outputs(rows):
            return np.where(rows[:, 2:] > 1, -1, 1) * self.by_radius(rows)

        assert judged(outputs, RINGS)
        assert not judged(outputs, RINGS, np.where(wrong, 1.0, 0.01))

    @pytest.mark.parametrize("y", [np.arange(300) // 298, np.zeros(300, int), np.ones(300, int)])
    def test_a_class_of_fewer_rows_than_folds_is_not_judged(self, judged, y):
        assert not judged(self.by_radius, y)


class TestPredictors:
    def test_classes(self):
        assert DBNClassifier(**SMALL).fit(X, RINGS).stack_.units == BENT
        assert DBNClassifier(**SMALL).fit(X, HALVES).stack_.units == PLAIN

    def test_a_sparse_matrix_has_the_same(self):
        assert DBNClassifier(**SMALL).fit(sparse.csr_matrix(X), RINGS).stack_.units == BENT

    def test_scikit_learn_may_be_set_to_tables(self):
        pytest.importorskip("pandas")
        with config_context(transform_output="pandas"):
            fitted = DBNClassifier(**SMALL).fit(sparse.csr_matrix(X), RINGS)
        assert fitted.stack_.units == BENT

    def test_missing_values(self):
        holes = np.where(RNG.random(X.shape) < 0.05, np.nan, X)
        holes[:, 2] = X[:, 2]
        assert DBNClassifier(**SMALL).fit(holes, RINGS).stack_.units == BENT

    @pytest.mark.parametrize(
        "given",
        [
            {"learning_rate": 0.001},
            {"finetune_epochs": 2},
            {"settings": {"cd_steps": 2}},
            {"settings": {"finetune_dropout": 0.1}},
        ],
    )
    def test_settings_that_are_given_leave_it_out(self, given):
        assert DBNClassifier(**SMALL, **given).fit(X, RINGS).stack_.units == PLAIN

    def test_few_labels_leave_it_out(self):
        some = np.where(np.arange(300) % 6, -1, RINGS)
        assert DBNClassifier(**SMALL).fit(X, some).stack_.units == PLAIN

    def test_labels_without_weight_are_as_none(self):
        some = (np.arange(300) % 6 == 0).astype(float)
        assert DBNClassifier(**SMALL).fit(X, RINGS, some).stack_.units == PLAIN

    @pytest.mark.filterwarnings("ignore::syncpretrain.errors.PoorResultWarning")
    def test_two_labels_with_weight_are_trained_on(self):
        two = np.isin(np.arange(300), [RINGS.argmin(), RINGS.argmax()]).astype(float)
        fitted = DBNClassifier(**SMALL).fit(X, RINGS, two)
        assert fitted.score(X[two > 0], RINGS[two > 0]) == 1

    @pytest.mark.parametrize(
        ("table", "least"),
        [
            (make_moons(900, noise=0.2, random_state=0), 0.94),  # 0.87 with sigmoids
            (make_hastie_10_2(1400, random_state=0), 0.88),  # 0.7
        ],
    )
    def test_curved_classes_are_learned(self, table, least):
        rows, y = table
        model = DBNClassifier(workers=1, random_state=0).fit(rows[:600], y[:600])
        assert model.score(rows[600:], y[600:]) > least


class TestManyLabels:
    """Of many labels of measurements all hidden units are rectified, without a trial."""

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
    def test_fewer_labels_are_as_before(self, tuned, labels):
        y = np.where(np.arange(120) < labels, self.Y, -1)
        fitted = DBNClassifier((6, 3), workers=1, random_state=0).fit(self.X, y)
        assert (fitted.stack_.units[2] == "relu") == (labels == 100)

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
