"""Few labels: columns that share a range, tables of 0 and 1, and a head before fine-tuning."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6", reason="the estimators are scikit-learn's")

from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from syncpretrain import load
from syncpretrain.sklearn import DBNClassifier, StackedRBM, predictors
from syncpretrain.sklearn import fit_choices as module
from syncpretrain.sklearn.fit_choices import (
    Targets,
    _inner_ends,
    are_bits,
    are_few,
    codes_are_better,
    few_labels_settings,
    in_shared_range,
    likeliest,
    settings_for_bits,
    shared_range,
    with_head,
)
from syncpretrain.sklearn.passes import codes_of, outputs_of

RNG = np.random.default_rng(0)
SMALL = {"hidden": (12, 6), "workers": 1, "random_state": 0}


def kinds(rows=200, columns=30, seed=0):
    """Return zeros and ones of two kinds of rows, half of whose columns tell them apart."""
    draw = np.random.default_rng(seed)
    y = draw.integers(2, size=rows)
    shares = np.where(np.arange(columns) % 2, 0.5, np.where(y[:, None], 0.9, 0.1))
    return (draw.random((rows, columns)) < shares).astype(float), y


def some(y, step=10):
    return np.where(np.arange(len(y)) % step == 0, y, -1)


BITS, KINDS = kinds()
ALL = Targets(np.arange(len(KINDS)), KINDS)
PIXELS = np.round(BITS * 16 * RNG.random(BITS.shape) ** 0.2)


class TestSharedRange:
    def test_it_is_that_of_the_table(self):
        scaling = shared_range(PIXELS - 3)
        assert set(scaling.shift.tolist()) == {-3.0}
        assert set(scaling.scale.tolist()) == {16.0}
        scaled = in_shared_range(PIXELS - 3, scaling)
        np.testing.assert_allclose(scaled, PIXELS / 16, atol=1e-6)

    @pytest.mark.parametrize(
        "X",
        [
            BITS,  # are in [0, 1]
            RNG.normal(size=(500, 30)),  # lie in the middle of their range
            PIXELS * np.arange(1, 31),  # have a range each
            PIXELS[:, :24],  # are few
            PIXELS * 0,
            np.where(PIXELS > 8, np.inf, PIXELS),
            np.where(PIXELS > 8, np.nan, 2.0),
            sparse.csr_matrix(PIXELS - 3),  # whose zeros would not stay zeros
            sparse.csr_matrix(PIXELS + 1),  # which has none
        ],
    )
    def test_none(self, X):
        assert shared_range(X) is None

    def test_a_sparse_matrix_and_missing_values_have_the_same(self):
        expected = shared_range(PIXELS)
        matrix = sparse.csr_matrix(PIXELS)
        holes = np.where(RNG.random(PIXELS.shape) < 0.1, np.nan, PIXELS)
        for X in (matrix, sparse.csr_array(PIXELS), holes, PIXELS.astype(np.float32)):
            np.testing.assert_array_equal(shared_range(X).scale, expected.scale)
        scaled = in_shared_range(matrix, expected)
        np.testing.assert_allclose(scaled.toarray(), in_shared_range(PIXELS, expected), rtol=1e-6)

    def test_columns_that_never_vary_have_no_part(self):
        assert shared_range(np.hstack([PIXELS, np.zeros_like(PIXELS)])) is not None

    @pytest.mark.parametrize("far", [40.0, 1e6, -500.0])
    @pytest.mark.parametrize("X", [PIXELS, PIXELS.astype(np.float32), BITS])
    def test_one_value_far_away_has_no_part(self, X, far):
        X = X.copy()
        X[3, 7] = far
        scaling = shared_range(X)
        assert set(scaling.shift.tolist()) == {0.0}
        assert set(scaling.scale.tolist()) == {X.max(where=far != X, initial=0)}
        scaled = in_shared_range(X, scaling)
        assert scaled[3, 7] == (far > 0)

    @pytest.mark.parametrize("chunk", [30, 1 << 20])
    def test_the_inner_ends_leave_out_one_value_in_ten_thousand(self, monkeypatch, chunk):
        monkeypatch.setattr("syncpretrain.data.blocks.CHUNK_VALUES", chunk)
        X = RNG.permutation(30_000.0 - np.arange(30_000)).reshape(1000, 30)
        assert _inner_ends(X) == (4.0, 29_997.0)  # three beyond either
        X[X == 2] = np.nan
        assert _inner_ends(X) == (5.0, 29_997.0)

    def test_more_values_far_away_have_a_part(self):
        X = PIXELS.copy()
        X[:5, 7] = 40
        assert shared_range(X) is None

    def test_counts_of_words_stay_counts(self):
        X = RNG.poisson(0.2, (200, 40)).astype(float)
        X[3, 7] = 60
        assert shared_range(X) is None

    def test_what_lies_beyond_is_cut_off(self):
        far = in_shared_range(np.full((1, 30), 40.0), shared_range(PIXELS))
        np.testing.assert_array_equal(far, 1)


@pytest.mark.parametrize(
    ("X", "expected"), [(BITS, True), (BITS * 2, False), (np.where(BITS > 0, np.nan, 0), False)]
)
def test_zeros_and_ones(X, expected):
    assert are_bits(X) is expected
    assert are_bits(sparse.csr_matrix(X)) is expected


@pytest.mark.parametrize(
    ("rows", "labels", "expected"),
    [(100, 19, True), (100, 20, False), (10**6, 9_999, True), (10**6, 10_000, False)],
)
def test_when_labels_are_few(rows, labels, expected):
    assert are_few(rows, labels) is expected


@pytest.fixture
def better_codes(monkeypatch):
    """Make the codes, which have fewer columns, right for every label, and the columns for none."""
    monkeypatch.setattr(
        module,
        "_share_right",
        lambda X, y, *rest: np.full(len(y), float(X.shape[1] < BITS.shape[1])),
    )


def stripes(rows=400, seed=0):
    """Return two long clusters side by side, their classes, and labels of four rows."""
    draw = np.random.default_rng(seed)
    y, along = draw.integers(2, size=rows), draw.uniform(-3, 3, rows)
    X = np.stack([along, 2 * y - 1 + draw.normal(0, 0.2, rows), 0.1 * along], axis=1)
    labels = np.full(rows, -1)
    for label, place in ((0, -2), (0, 1), (1, -1), (1, 2)):
        labels[np.abs(along - place + 9 * (y != label)).argmin()] = label
    return X, y, labels


class TestGuesses:
    def test_rows_without_a_label_train_too(self):
        X, y, labels = stripes()
        fitted = DBNClassifier(hidden=(32, 32), workers=1, random_state=0).fit(X, labels)
        assert fitted.score(X, y) > 0.98
        (record,) = fitted.stack_.info["finetune"]
        assert (record["unlabelled"], record["normalization"]) == ("pseudo", "batch")
        assert fitted.stack_.units[1:] == ("relu", "relu")

    @pytest.mark.parametrize(
        ("own", "guesses"),
        [
            ({}, True),
            ({"batch_size": 50}, True),
            ({"batch_size": 1}, True),
            ({"visible_units": "gaussian"}, True),
            ({"epochs": 1}, False),
            ({"finetune_epochs": 1}, False),
            ({"learning_rate": 0.01}, False),
            ({"settings": {"finetune_unlabelled": "none"}}, False),
        ],
    )
    def test_another_training_that_is_asked_for_is_done(self, own, guesses):
        X, _, labels = stripes(60)
        model = DBNClassifier(hidden=(8,), workers=1, random_state=0, **own)
        assert model._is_to_try(X, 4) is guesses
        record = model.fit(X, labels).stack_.info["finetune"][-1]
        assert (record["unlabelled"] == "pseudo") is guesses

    def test_counts_are_for_rbms(self):
        X = RNG.poisson(0.3, (200, 40)).astype(float)
        model = DBNClassifier(hidden=(8,), workers=1, random_state=0)
        assert not model._is_to_try(X, 20)
        model.set_params(visible_units="counts")
        assert not model._is_to_try(X + 0.5, 20)

    @pytest.mark.parametrize("way", ["codes", "guesses"])
    @pytest.mark.parametrize(
        "X",
        [
            BITS,
            255 * BITS,
            np.where(RNG.random(BITS.shape) < 0.1, np.nan, BITS),
            sparse.csr_matrix(255 * BITS),
        ],
        ids=["bits", "black or white", "some missing", "sparse black or white"],
    )
    def test_zeros_and_ones_may_stay_with_rbms(self, monkeypatch, X, way):
        monkeypatch.setattr(module, "likeliest", lambda ways, *_, **__: way)
        monkeypatch.setattr(predictors, "UNLABELLED_STEPS", 10)
        model = DBNClassifier(hidden=(4,), workers=1, random_state=0).fit(X[:60], some(KINDS[:60]))
        guesses = way == "guesses"
        assert model.pseudo_labels_ is guesses
        assert model.stack_.units[1:] == (("relu",) if guesses else ("bernoulli",))
        assert np.isfinite(model.predict_proba(X)).all()

    @pytest.mark.parametrize(
        ("labels", "told"), [(2, "fewer than three labels"), (3, "left out were not more likely")]
    )
    def test_the_notice_says_why_classes_are_not_guessed(self, monkeypatch, capsys, labels, told):
        if labels > 2:
            monkeypatch.setattr(module, "likeliest", lambda ways, *_, **__: "codes")
        y = np.full(60, -1)
        for kind in (0, 1):
            y[np.flatnonzero(KINDS[:60] == kind)[:labels]] = kind
        model = DBNClassifier(hidden=(4,), workers=1, random_state=0, verbose=1)
        assert not model.fit(BITS[:60], y).pseudo_labels_
        assert told in capsys.readouterr().out

    def test_the_result_does_not_depend_on_the_number_of_workers(self):
        X, _, labels = stripes()
        one, two = (
            DBNClassifier(hidden=(32, 32), workers=n, random_state=0).fit(X, labels).stack_
            for n in (1, 2)
        )
        assert one.parameters_sha256 == two.parameters_sha256

    def test_enough_labels_need_no_guesses(self):
        X, _, _ = stripes(60)
        model = DBNClassifier(hidden=(8,), workers=1, random_state=0)
        assert not model._is_to_try(X, 12) and model._is_to_try(X, 11)

    def test_other_forms_of_the_rows_train_the_same(self):
        X, _, labels = stripes(80)
        model = DBNClassifier(hidden=(8,), workers=1, random_state=0)
        first = model.fit(X, labels).predict_proba(X)
        for rows in (sparse.csr_matrix(X), X.astype(np.float32)):
            found = clone(model).fit(rows, labels).predict_proba(rows)
            np.testing.assert_allclose(found, first, rtol=1e-2, atol=1e-3)


def ball(rows=600, columns=7, labels=80, seed=0):
    """Return one cluster that a sphere cuts into two classes, and labels of some rows."""
    X = np.random.default_rng(seed).normal(size=(rows, columns))
    far = np.square(X).sum(axis=1)
    y = (far > np.median(far)).astype(int)
    return X, y, np.where(np.arange(rows) < labels, y, -1)


class TestTrial:
    """Labels left out decide whether rows without a label are trained for guessed classes."""

    @pytest.fixture
    def trainings(self, monkeypatch):
        """Record trainings in place of them; ``sure`` is the logit of the right class."""
        found, sure = [], {"guesses": 1.0, "labels": 1.0}

        def finetuned(stack, X, y, **settings):
            found.append((stack, X, y, settings))
            return stack

        def outputs_of(stack, X):  # the first column is the class
            return np.eye(2)[X[:, 0].astype(int)] * sure[stack]

        monkeypatch.setattr(module, "outputs_of", outputs_of)
        return found, sure, finetuned

    ROWS, CLASSES = np.arange(0, 60, 10), np.array([0, 1, 0, 1, 0, 1])
    WAYS: ClassVar = {name: lambda X, y, steps, n=name: (n, {}) for name in ("guesses", "labels")}

    def table(self):
        X = np.arange(120.0).reshape(60, 2)
        X[self.ROWS, 0] = self.CLASSES
        return X

    def winner(self, finetuned, labels=6, weights=None, classes=2, margin=0.0):
        targets = Targets(self.ROWS[:labels], self.CLASSES[:labels], weights)
        options = {"classes": classes, "margin": margin}
        return likeliest(self.WAYS, finetuned, self.table(), targets, 0, **options)

    @pytest.mark.parametrize(
        ("logit", "expected"), [(1.1, "guesses"), (1.0, "guesses"), (0.9, "labels")]
    )
    def test_the_more_likely_labels_win(self, trainings, logit, expected):
        _, sure, finetuned = trainings
        sure["guesses"] = logit
        assert self.winner(finetuned) == expected

    def test_one_row_that_is_far_off_does_not_decide(self, trainings):
        _, sure, finetuned = trainings
        sure["guesses"], sure["labels"] = -1000, -6  # both are below the least likelihood
        assert self.winner(finetuned) == "guesses"

    @pytest.mark.parametrize(("margin", "expected"), [(2.4, "labels"), (2.5, "guesses")])
    def test_the_second_way_must_be_better_by_a_margin(self, trainings, margin, expected):
        _, sure, finetuned = trainings
        sure["guesses"] = 0.9  # the difference is equal for all six labels: 2.45 standard errors
        assert self.winner(finetuned, margin=margin) == expected

    def test_each_label_is_left_out_once_by_both_trainings(self, trainings):
        found, _, finetuned = trainings
        X, weights = self.table(), np.linspace(1, 2, 6)
        self.winner(finetuned, weights=weights)
        left_out = {name: np.zeros(6) for name in self.WAYS}
        for name, rows, y, settings in found:
            order = np.argsort(rows[:, 1])  # rows left out are rows without a label
            np.testing.assert_array_equal(rows[order], X)
            own, heavy = y[order][self.ROWS], settings["weights"][order][self.ROWS]
            known = np.isfinite(own)
            assert np.isfinite(y).sum() == known.sum() == 4
            np.testing.assert_array_equal(own[known], self.CLASSES[known])
            np.testing.assert_array_equal(heavy[known], weights[known])
            left_out[name] += ~known
        assert [each.tolist() for each in left_out.values()] == [[1] * 6, [1] * 6]

    def test_no_more_rows_than_the_trial_reads(self, trainings, monkeypatch):
        found, _, finetuned = trainings
        monkeypatch.setattr(module, "GUESS_STEPS", 1)
        monkeypatch.setattr(module, "GUESS_BATCH", 10)
        self.winner(finetuned)
        assert {len(X) for _, X, _, _ in found} == {16}

    @pytest.mark.parametrize(("labels", "classes"), [(6, 3), (5, 2)])
    def test_fewer_than_three_labels_of_a_class_decide_nothing(self, trainings, labels, classes):
        found, sure, finetuned = trainings
        sure["guesses"] = 0
        assert self.winner(finetuned, labels, classes=classes) == "guesses"
        assert found == []

    @pytest.mark.parametrize(("columns", "share"), [(2, 0.0), (3, 0.1)])
    def test_of_two_columns_none_is_left_out(self, columns, share):
        own = few_labels_settings((100, columns), 20, None, guess=True)
        assert own["input_dropout"] == share

    @pytest.mark.parametrize(
        ("labels", "batch_size", "expected"),
        [(40, None, (40, 1500)), (65, None, (33, 750)), (65, 20, (4, 89)), (20, 7, (2, 150))],
    )
    def test_minibatches_of_labels_are_about_as_large_as_each_other(
        self, labels, batch_size, expected
    ):
        own = few_labels_settings((1000, 3), labels, batch_size, guess=False)
        assert (own["batch_size"], own["epochs"]) == expected

    @pytest.mark.parametrize("weight", [{0: 1, 1: 0}, {0: 0, 1: 1}])
    def test_a_class_without_any_weight_stays_a_class(self, monkeypatch, weight):
        monkeypatch.setattr(predictors, "UNLABELLED_STEPS", 10)
        X, y, _ = stripes(60)
        labels = np.where(np.arange(60) < 11, y, -1)
        model = DBNClassifier(hidden=(8,), workers=1, random_state=0, class_weight=weight)
        assert model.fit(X, labels).classes_.tolist() == [0, 1]
        assert model.pseudo_labels_

    def test_guesses_that_are_asked_for_are_told(self):
        X, _, labels = stripes(60)
        own = {"finetune_unlabelled": "pseudo"}
        model = DBNClassifier(
            hidden=(8,), epochs=1, finetune_epochs=1, random_state=0, settings=own
        )
        assert model.fit(X, labels).pseudo_labels_

    @pytest.mark.parametrize("batch_size", [1, 7])
    def test_small_minibatches_are_of_two_rows(self, monkeypatch, batch_size):
        monkeypatch.setattr(module, "GUESS_STEPS", 10)
        monkeypatch.setattr(predictors, "UNLABELLED_STEPS", 10)
        X, y, _ = stripes(70)
        model = DBNClassifier(hidden=(8,), workers=1, random_state=0, batch_size=batch_size)
        model.fit(X, np.where(np.arange(70) < 13, y, -1))
        assert np.isfinite(model.predict_proba(X)).all()

    def test_classes_that_part_inside_of_a_cluster(self, capsys):
        X, _, labels = ball()
        model = DBNClassifier(hidden=(32, 32), workers=1, random_state=0, verbose=1)
        assert not model.fit(X, labels).pseudo_labels_
        assert "classes of rows without a label are not guessed" in capsys.readouterr().out
        assert model.stack_.info["finetune"][-1]["unlabelled"] == "none"


class TestClassifier:
    def test_pixels_are_binary_units_with_a_scaling(self, tmp_path):
        fitted = DBNClassifier(**SMALL, epochs=2, finetune_epochs=2).fit(PIXELS, KINDS)
        stack = fitted.stack_
        assert stack.units[0] == "bernoulli"
        assert set(stack.scaling.scale.tolist()) == {16.0}
        stack.save(tmp_path / "model.safetensors")
        read = load(tmp_path / "model.safetensors")
        np.testing.assert_array_equal(read.encode(PIXELS), stack.encode(PIXELS))
        decoded = stack.decode(stack.encode(PIXELS))
        assert 1 < decoded.max() <= 16
        np.testing.assert_array_equal(read.predict(PIXELS), fitted.predict(PIXELS))

    def test_pixels_train_as_what_the_user_scales(self):
        own = DBNClassifier(**SMALL, epochs=2, finetune_epochs=20)
        ours, by_hand = (clone(own).fit(X, some(KINDS)) for X in (PIXELS, PIXELS / 16))
        np.testing.assert_allclose(
            ours.predict_proba(PIXELS), by_hand.predict_proba(PIXELS / 16), atol=1e-5
        )

    @pytest.mark.parametrize("form", [sparse.csr_matrix, lambda X: X.astype(np.float32)])
    @pytest.mark.parametrize("X", [BITS, PIXELS], ids=["bits", "pixels"])
    def test_other_forms_of_the_rows_train_the_same(self, form, X):
        X, y = X[:60], some(KINDS[:60])
        dense, other = (DBNClassifier(**SMALL, epochs=2).fit(rows, y) for rows in (X, form(X)))
        np.testing.assert_allclose(
            dense.predict_proba(X), other.predict_proba(form(X)), rtol=1e-3, atol=1e-4
        )

    def test_units_that_are_given_stay(self):
        own = DBNClassifier(**SMALL, epochs=1, finetune_epochs=1, visible_units="gaussian")
        assert own.fit(PIXELS, KINDS).stack_.units[0] == "gaussian"

    @pytest.mark.parametrize(
        ("own", "y", "persistent"),
        [
            ({}, some(KINDS), [True, False]),
            ({}, KINDS, [False, False]),
            ({"learning_rate": 0.1}, some(KINDS), [False, False]),
            ({"visible_units": "gaussian"}, some(KINDS), [False, False]),
            ({"settings": {"cd_steps": 2}}, some(KINDS), [False, False]),
            ({"settings": {"finetune_dropout": 0.1}}, some(KINDS), [True, False]),
        ],
    )
    def test_settings_of_zeros_and_ones(self, own, y, persistent):
        stack = DBNClassifier(**SMALL, epochs=1, finetune_epochs=1, **own).fit(BITS, y).stack_
        assert stack.info["pretrain"]["persistent"] == persistent

    def test_the_head_begins_as_a_logistic_regression(self, better_codes):
        stack = StackedRBM(**SMALL, epochs=20).fit(BITS).stack_
        rows = np.flatnonzero(some(KINDS) >= 0)
        headed, settings = with_head(stack, BITS, Targets(rows, KINDS[rows]))
        codes = codes_of(stack, BITS)
        own = LogisticRegression().fit(codes[rows], KINDS[rows])
        outputs = outputs_of(headed, BITS)
        np.testing.assert_allclose(
            outputs[:, 1] - outputs[:, 0], own.decision_function(codes), atol=1e-3
        )
        assert settings["learning_rate"] < 0.003
        assert settings["epochs"] == 100

    def test_codes_that_tell_nothing_get_no_head(self):
        stack = DBNClassifier(**SMALL, epochs=0, finetune_epochs=1).fit(BITS, KINDS).stack_
        layer = stack.layers[0]
        blind = type(stack)((layer.to(np.zeros_like), *stack.layers[1:]))
        assert not codes_are_better(blind, BITS, ALL, 0)

    def test_a_head_that_is_there_stays(self, better_codes):
        stack = StackedRBM(**SMALL, epochs=1).fit(BITS).stack_
        assert codes_are_better(stack, BITS, ALL, 0)
        headed, _ = with_head(stack, BITS, ALL)
        assert not codes_are_better(headed, BITS, ALL, 0)

    @pytest.mark.parametrize("weights", [None, np.full(200, 0.5)])
    def test_labels_left_out_are_predicted(self, weights):
        right = module._share_right(KINDS[:, None] - 0.5, KINDS, weights, 0)
        np.testing.assert_allclose(right, 1 if weights is None else weights)
        assert module._share_right(np.zeros((200, 1)), KINDS, None, 0).mean() < 0.7

    def test_settings_of_the_user_leave_it_out(self, better_codes):
        y = some(KINDS)
        usual = DBNClassifier(**SMALL, epochs=20).fit(BITS, y)
        given = DBNClassifier(**SMALL, epochs=20, settings={"finetune_dropout": 0.3}).fit(BITS, y)
        rates = [own.stack_.info["finetune"][-1]["learning_rate"] for own in (usual, given)]
        assert rates == [0.001, 0.003]
        assert usual.score(BITS, KINDS) > 0.85

    @pytest.mark.parametrize("counted", [0, 1, 2])
    def test_classes_without_any_weight_stay_classes(self, counted):
        y = np.full(len(BITS), -1)
        y[:10] = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
        fitted = DBNClassifier(**SMALL, epochs=1)
        assert fitted.fit(BITS, y, y == counted).classes_.tolist() == [0, 1, 2]
        assert fitted.fit(BITS, y, np.eye(len(y))[counted]).predict(BITS[:1]) == [counted]

    def test_weights_and_rare_classes(self):
        y = some(KINDS)
        y[0] = 2  # one row alone
        fitted = DBNClassifier(**SMALL, epochs=2, class_weight="balanced").fit(BITS, y)
        assert fitted.classes_.tolist() == [0, 1, 2]
        assert np.isfinite(fitted.predict_proba(BITS)).all()


def test_settings_have_a_value_a_layer():
    assert settings_for_bits(2)["weight_decay"] == [0.01, 0.0002]
    assert {len(values) for values in settings_for_bits(3).values()} == {3}
