"""Weight decay of a regression, chosen by cross-validation."""

from __future__ import annotations

import numpy as np
import pytest

from syncpretrain.sklearn import DBNRegressor
from syncpretrain.sklearn import fit_choices as module
from syncpretrain.sklearn.fit_choices import (
    DECAYS,
    FOLDS,
    Targets,
    chooses_decay,
    chosen_decay,
    trial_epochs,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
NOISE = RNG.normal(size=60)
SMALL = {"hidden": (6,), "epochs": 1, "workers": 1, "random_state": 0}


@pytest.mark.parametrize(
    ("rows", "targets", "given", "expected"),
    [
        (60, 60, {}, True),
        (60, 49, {}, False),
        (9_999, 9_999, {"learning_rate": 0.01}, True),
        (10_000, 10_000, {}, False),
        (300, 60, {}, True),
        (301, 60, {}, False),
        (60, 60, {"weight_decay": 0.0}, False),
        (60, 60, {"optimizer": "sgd"}, False),
        (60, 60, {"epochs": 3}, False),
        (60, 60, {"dropout": 0.5}, False),
    ],
)
def test_when_it_is_chosen(rows, targets, given, expected):
    assert chooses_decay(rows, targets, given) is expected


@pytest.mark.parametrize(("rows", "expected"), [(60, 167), (1000, 10), (9_999, 10)])
def test_trials_have_epochs_for_a_number_of_updates(rows, expected):
    assert trial_epochs(rows, 1000) == expected


def test_rows_that_count_have_a_weight():
    rows, y = np.array([3, 5, 8]), np.array([30.0, 50.0, 80.0])
    assert Targets(rows, y).weighted() == (rows, y, None)
    found = Targets(rows, y, np.array([0.5, 0.0, 2.0])).weighted()
    assert [part.tolist() for part in found] == [[3, 8], [30.0, 80.0], [0.5, 2.0]]


@pytest.mark.parametrize("weights", [None, np.array([0.5, 2.0])])
@pytest.mark.parametrize("y", [np.array([3, 8]), np.array([[3.0, 1.0], [8.0, 2.0]])])
def test_rows_without_a_target_have_nan_and_no_weight(y, weights):
    targets, own = Targets(np.array([1, 3]), y, weights).spread_out(4)
    assert np.isnan(targets[[0, 2]]).all()
    np.testing.assert_array_equal(targets[[1, 3]], y)
    assert own is None if weights is None else own.tolist() == [0, 0.5, 0, 2]


class Tried:
    """Trainings whose outputs are wrong by a number for each weight decay."""

    def __init__(self, monkeypatch, errors):
        self.errors, self.calls = errors, []
        monkeypatch.setattr(module, "outputs_of", self.outputs)

    def __call__(self, rows, targets, *, epochs, observers, weight_decay, weights, **options):
        self.calls.append((weight_decay, rows[:, 0].tolist(), weights))
        return weight_decay

    def outputs(self, decay, rows):
        return rows[:, :1] + self.errors(decay, rows)


@pytest.mark.parametrize("best", DECAYS)
def test_the_smallest_error_on_rows_left_out_wins(monkeypatch, best):
    tried = Tried(monkeypatch, lambda decay, rows: np.float64(decay != best))
    table = np.arange(60.0).reshape(-1, 1)
    assert chosen_decay(tried, table, Targets(np.arange(60), table), 3) == best
    assert [decay for decay, _, _ in tried.calls] == list(DECAYS) * FOLDS
    for decay in DECAYS:
        trained = [set(rows) for own, rows, _ in tried.calls if own == decay]
        left_out = [set(range(60)) - rows for rows in trained]
        assert set().union(*left_out) == set(range(60))
        assert sum(map(len, left_out)) == 60, "each row is left out once"


def test_errors_are_weighted(monkeypatch):
    """One decay is wrong on the first half by 1, the other on the second half by 2."""

    def errors(decay, rows):
        first = rows[:, :1] < 30
        return np.where(first, 1.0, 0.0) if decay == DECAYS[0] else np.where(first, 0.0, 2.0)

    table = np.arange(60.0).reshape(-1, 1)
    tried = Tried(monkeypatch, errors)
    targets = Targets(np.arange(60), table)
    assert chosen_decay(tried, table, targets, 0) == DECAYS[0]
    targets = targets._replace(weights=np.where(table[:, 0] < 30, 9.0, 1.0))
    assert chosen_decay(tried, table, targets, 0) == DECAYS[1]


class TestRegressor:
    def test_noise_takes_the_larger_one(self):
        fitted = DBNRegressor(**SMALL).fit(X, NOISE)
        assert fitted.weight_decay_ == max(DECAYS)
        assert fitted.stack_.info["finetune"][-1]["weight_decay"] == max(DECAYS)

    @pytest.mark.parametrize(
        ("rows", "options"),
        [
            (40, {}),
            (60, {"finetune_epochs": 2}),
            (60, {"settings": {"finetune_weight_decay": 0.2, "finetune_learning_rate": 0.01}}),
        ],
    )
    def test_what_decides_it_leaves_it_out(self, rows, options):
        fitted = DBNRegressor(**SMALL, **options).fit(X[:rows], NOISE[:rows])
        assert fitted.weight_decay_ is None

    def test_rows_without_weight_do_not_count(self):
        fitted = DBNRegressor(**SMALL).fit(X, NOISE, np.arange(60.0) < 2)
        assert fitted.weight_decay_ is None
        assert DBNRegressor(**SMALL).fit(X, NOISE, np.arange(60.0) < 50).weight_decay_ is not None

    def test_the_same_seed_gives_the_same_bits(self):
        one, other = (DBNRegressor(**SMALL).fit(X, NOISE).stack_ for _ in range(2))
        assert one.parameters_sha256 == other.parameters_sha256
