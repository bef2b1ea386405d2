"""Fine-tuning for classes and numbers, early stopping, schedules, and units that are not binary."""

from __future__ import annotations

import re
import warnings
from functools import partial

import numpy as np
import pytest
from randomstacks import normal_stack
from trialruns import notices_of

from syncpretrain.data.dataset import Dataset
from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import DataError, DivergedError, PoorResultWarning, SettingsError
from syncpretrain.events import FinetuneEpochFinished, FinetuneStarted
from syncpretrain.finetuning import finetune
from syncpretrain.finetuning.classes import objective_of
from syncpretrain.finetuning.network import Network
from syncpretrain.finetuning.optimizers import GradientDescent
from syncpretrain.models.evaluation import accuracies
from syncpretrain.models.stack import load

CLASSES = np.array([3, 7, 11])
make_stack = partial(normal_stack, (8, 6, 4), scale=0.5)


def toy(rows=60, seed=1):
    """Return noisy copies of three patterns, and which of the classes each is."""
    draw = np.random.default_rng(seed)
    patterns = np.array(
        [[1, 1, 1, 0, 0, 0, 0, 1], [0, 0, 1, 1, 1, 0, 1, 0], [1, 0, 0, 0, 1, 1, 0, 0]]
    )
    which = np.arange(rows) % 3
    X = 0.8 * patterns[which] + 0.2 * draw.random((rows, 8))
    return X.astype(np.float32), CLASSES[which]


def numbers(X):
    return X @ np.linspace(-1, 1, 16).reshape(8, 2).astype(np.float32) + 0.5


def tuned(stack=None, X=None, y=None, **settings):
    given = {"epochs": 3, "batch_size": 10, "blas_threads": 1, **settings}
    return finetune(stack or make_stack(), toy()[0] if X is None else X, y, **given)


def epochs_of(events):
    return [event for event in events if isinstance(event, FinetuneEpochFinished)]


class TestClassification:
    def test_learns_a_separable_problem_and_gives_its_labels_back(self):
        X, y = toy()
        after = tuned(None, X, y, epochs=60, learning_rate=0.02)
        new, expected = toy(seed=9)
        assert (after.head.kind, after.head.classes) == ("classification", (3, 7, 11))
        np.testing.assert_array_equal(after.predict(new), expected)
        proba = after.predict_proba(new)
        assert proba.shape == (60, 3)
        np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-5)
        np.testing.assert_array_equal(CLASSES[proba.argmax(axis=1)], expected)

    def test_encoder_learns_too_and_the_stack_given_stays(self):
        (X, y), stack = toy(), make_stack()
        before = stack.parameters_sha256
        after = tuned(stack, X, y)
        for old, new in zip(stack.layers, after.layers, strict=True):
            assert not np.array_equal(old.weight, new.weight)
            assert not np.array_equal(old.hidden_bias, new.hidden_bias)
            np.testing.assert_array_equal(old.visible_bias, new.visible_bias)
        assert stack.parameters_sha256 == before
        assert stack.head is None

    def test_rows_without_a_label_are_left_out(self):
        X, y = toy()
        some = np.where(np.arange(len(y)) % 4 == 0, -1, y)
        among = tuned(None, X, some)
        alone = tuned(None, X[some != -1], some[some != -1])
        assert among.parameters_sha256 == alone.parameters_sha256
        assert among.info["finetune"][0]["examples"] == 45

    @pytest.mark.parametrize("kind", ["i1", "f2", ">i4", ">f8", object, list])
    def test_minus_one_that_may_be_a_class_is_doubted(self, kind):
        (X, _), y, events = toy(), np.arange(60) % 3 - 1, []
        y = y.tolist() if kind is list else y.astype(kind)
        with pytest.warns(PoorResultWarning, match="^y: 20 rows are left out, since the label"):
            tuned(None, X, y, observers=[events.append])
        found = notices_of(events)
        assert found[0] == "y: 20 of 60 rows have no label"
        assert "though it is as frequent as a class; if -1 is a class, number" in found[-1]

    @pytest.mark.parametrize("y", [np.where(np.arange(60) < 40, -1, np.arange(60) % 3), [None] * 3])
    def test_many_rows_without_a_label_are_no_doubt(self, y):
        (X, labels), events = toy(), []
        y = [*y, *labels[3:]] if len(y) == 3 else y
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "y: ", PoorResultWarning)
            tuned(None, X, y, observers=[events.append])
        assert re.match(r"y: (40|3) of 60 rows have no label", notices_of(events)[0])

    def test_one_class_beside_minus_one_is_refused_with_their_number(self):
        with pytest.raises(DataError, match=r"1 class, 1, .*\(20 rows of -1, None or NaN have no"):
            tuned(y=np.where(np.arange(60) % 3, 1, -1))

    @pytest.mark.parametrize(
        ("y", "remedy"),
        [
            (np.arange(60), 'take regression .objective="regression", --task regression'),
            (np.arange(60) // 1.5, 'take regression .objective="regression"'),
            ([f"n{i}" for i in range(60)], "name another target"),
        ],
    )
    def test_a_class_for_nearly_every_row_is_doubted(self, y, remedy):
        words = rf"^y: got \d+ classes in 60 rows, so that nearly every row is a class.*{remedy}"
        with pytest.warns(PoorResultWarning, match=words):
            tuned(y=y)
        with warnings.catch_warnings():
            warnings.simplefilter("error", PoorResultWarning)
            tuned(y=y, warn=False)

    def test_more_classes_than_the_memory_holds_are_refused(self, monkeypatch):
        monkeypatch.setattr("syncpretrain.finetuning.tasks.available_bytes", lambda: 10_000)
        with pytest.raises(DataError, match=r"^y: got 60 classes in 60 rows, .* take regression"):
            tuned(y=np.arange(60))

    def test_few_whole_numbers_as_floats_are_classes(self):
        X, y = toy()
        as_floats = tuned(None, X, y.astype(float))
        assert as_floats.parameters_sha256 == tuned(None, X, y).parameters_sha256
        assert tuned(None, X, y.astype(float), objective="regression").head.kind == "regression"
        assert tuned(None, X, y + 0.5).head.kind == "regression"

    @pytest.mark.parametrize(
        ("y", "objective"),
        [
            (np.arange(50.0), "classification"),
            (np.arange(51.0), "regression"),
            (np.arange(51), "classification"),
            ([0.0, 1.0, np.nan], "classification"),
            ([0.0, 0.5, np.nan], "regression"),
            ([np.nan, np.nan], "regression"),
            ([0.0, np.inf], "regression"),
            ([[0.0, 1.0]], "regression"),
            (["a", None], "classification"),
        ],
    )
    def test_what_targets_are_for(self, y, objective):
        assert objective_of(y) == objective

    @pytest.mark.parametrize("kind", [str, object])
    def test_texts_are_classes(self, kind, tmp_path):
        X, y = toy()
        names = np.array([f"c{c}" for c in y], dtype=kind)
        after = tuned(None, X, names)
        assert after.head.classes == tuple(sorted(set(names)))
        assert set(after.predict(X)) <= set(names)
        after.save(tmp_path / "model.safetensors")
        again = load(tmp_path / "model.safetensors")
        np.testing.assert_array_equal(again.predict(X), after.predict(X))

    def test_none_and_nan_are_no_label(self):
        X, y = toy()
        labels = y.copy()
        labels[::3] = -1
        expected = tuned(None, X, labels, batch_size=10).parameters_sha256
        missing = y.astype(float)
        missing[::3] = np.nan
        assert tuned(None, X, missing, batch_size=10).parameters_sha256 == expected
        objects = [None if i % 3 == 0 else int(c) for i, c in enumerate(y)]
        assert tuned(None, X, objects, batch_size=10).parameters_sha256 == expected
        y = np.unique(y, return_inverse=True)[1]  # whose order is that of their texts
        texts = [None if i % 3 == 0 else f"c{c}" for i, c in enumerate(y)]
        assert tuned(None, X, texts, batch_size=10).parameters_sha256 == expected
        with_ones = [-1 if i % 3 == 0 else f"c{c}" for i, c in enumerate(y)]
        assert tuned(None, X, with_ones, batch_size=10).parameters_sha256 == expected

    @pytest.mark.parametrize(
        ("y", "match"),
        [
            ([10**20, 2 * 10**20] * 30, r"^y: got the class 1e\+20, expected whole numbers up to"),
            (np.array([2**64 - 1, 1] * 30, dtype=np.uint64), "up to"),
            ([2**60, 2**60 + 1, None] * 20, "up to"),
            ([[1], [1, 2]] * 30, "^y: got no array"),
        ],
    )
    def test_classes_that_would_be_taken_for_others(self, y, match):
        with pytest.raises(DataError, match=match):
            tuned(y=y)

    def test_errors_are_shares_of_wrong_classes(self):
        (X, y), events = toy(), []
        after = tuned(
            None, X, y, validation=X[:7], validation_y=y[:7], epochs=1, observers=[events.append]
        )
        assert isinstance(events[0], FinetuneStarted)
        assert events[0].objective == "classification"
        (epoch,) = epochs_of(events)
        assert epoch.validation_error == pytest.approx((after.predict(X[:7]) != y[:7]).mean())
        assert 0 < epoch.train_error <= 1
        assert epoch.train_error * 60 == pytest.approx(round(epoch.train_error * 60))

    def test_validation_rows_without_a_label_do_not_count(self):
        (X, y), events = toy(), []
        held_out = np.array([-1, y[1], -1])
        after = tuned(
            None, X, y, validation=X[:3], validation_y=held_out, observers=[events.append]
        )
        assert events[-1].validation_error == float(after.predict(X[1:2])[0] != y[1])
        tuned(
            None,
            X,
            y,
            validation=X[:3],
            validation_y=np.full(3, -1),
            observers=[events.append],
        )
        assert events[-1].validation_error is None
        counts = [f"validation_y: {count} of 3 rows have no label" for count in (2, 3)]
        assert notices_of(events) == counts


class TestUnknownClasses:
    """Classes that only validation examples have."""

    def errors(self, X, y, held_out, held_out_y, **settings):
        events = []
        after = tuned(
            None,
            X,
            y,
            validation=held_out,
            validation_y=held_out_y,
            observers=[events.append],
            **settings,
        )
        wrong = (after.predict(held_out) != held_out_y)[held_out_y != -1].mean()
        errors = [event.validation_error for event in epochs_of(events)]
        notices = notices_of(events)
        return errors, wrong, notices

    @pytest.mark.parametrize("patience", [None, 9])
    @pytest.mark.parametrize("repeated", [1, 40])  # more rows than are looked at without patience
    def test_they_count_as_wrong(self, patience, repeated):
        X, y = toy()
        held_out, held_out_y = np.repeat(X, repeated, axis=0), np.repeat(y, repeated)
        held_out_y = np.where(np.arange(len(held_out)) % 5 == 0, -1, held_out_y)
        known = y != 11
        errors, wrong, notices = self.errors(
            X[known], y[known], held_out, held_out_y, epochs=8, patience=patience
        )
        if patience is None:  # else the best epoch's are kept
            assert errors[-1] == pytest.approx(wrong, abs=0.02 if repeated > 1 else 1e-12)
        else:
            assert min(errors) == pytest.approx(wrong)
        assert min(errors) >= 0.3, "a third is of the unknown class"
        counted, reported = notices
        assert counted == f"validation_y: {12 * repeated} of {60 * repeated:,} rows have no label"
        assert reported == (
            f"warning: {(held_out_y == 11).sum()} of {(held_out_y != -1).sum()} labelled validation"
            " examples are of classes that no training example has (11); they count as wrong"
        )

    def test_none_of_them_is_taken_for_the_first_class(self):
        X, y = toy()
        always_first = np.full(len(y), 3)
        always_first[0] = 7  # two classes, and a head that says 3 to all
        settings = {"epochs": 2, "learning_rate": 1e-9}
        errors, wrong, _ = self.errors(X, always_first, X, np.full(len(y), 4), **settings)
        assert errors == [1.0, 1.0]
        assert wrong == 1

    def test_known_ones_are_told_of_nothing(self):
        X, y = toy()
        errors, wrong, notices = self.errors(X, y, X, y)
        assert errors[-1] == wrong
        assert not notices

    def test_evaluation_counts_them_as_wrong_too(self):
        X, y = toy()
        known = y != 11
        after = tuned(None, X[known], y[known], epochs=60, learning_rate=0.02)
        data = Dataset("toy", "here", X[known], X[:0], X, y[known], None, y)
        found = accuracies(after, data)
        assert found["train"] == 1
        assert found["test"] == pytest.approx(2 / 3)


class TestHead:
    def test_starts_small_with_biases_of_zero_and_depends_on_the_seed(self):
        X, y = toy()
        first, again, other = (
            tuned(None, X, y, seed=seed, learning_rate=1e-12, epochs=1).head for seed in (1, 1, 2)
        )
        assert first.weight.shape == (4, 3)
        assert 0.003 < first.weight.std() < 0.03
        np.testing.assert_allclose(first.bias, 0, atol=1e-9)
        np.testing.assert_array_equal(first.weight, again.weight)
        assert not np.array_equal(first.weight, other.weight)

    def test_a_second_call_goes_on_with_it(self):
        X, y = toy()
        once = tuned(None, X, y, epochs=30, learning_rate=0.02)
        rest = {"learning_rate": 1e-12, "epochs": 1}
        np.testing.assert_allclose(tuned(once, X, y, **rest).head.weight, once.head.weight)
        # Some of its classes are enough: the outputs keep their meaning.
        twice = tuned(once, X[y == 7], y[y == 7], **rest)
        assert twice.head.classes == (3, 7, 11)
        np.testing.assert_allclose(twice.head.weight, once.head.weight)
        assert len(twice.info["finetune"]) == 2

    @pytest.mark.parametrize("change", [lambda y: y + 1, lambda y: numbers(toy()[0])])
    def test_one_for_something_else_starts_anew(self, change):
        X, y = toy()
        once = tuned(None, X, y, epochs=30, learning_rate=0.02)
        after = tuned(once, X, change(y), learning_rate=1e-12, epochs=1)
        assert np.abs(after.head.weight).max() < 0.1 < np.abs(once.head.weight).max()
        assert after.head.classes == ((4, 8, 12) if after.head.kind == "classification" else ())

    def test_reconstruction_drops_it(self):
        X, y = toy()
        assert tuned(tuned(None, X, y), X).head is None


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


class TestPatience:
    def test_stops_and_keeps_the_best(self):
        X, events = toy()[0], []
        # Validated with other numbers than trained with: learning soon makes it worse.
        wrong = numbers(X[::-1])
        after = tuned(
            None,
            X,
            numbers(X),
            validation=X,
            validation_y=wrong,
            patience=4,
            epochs=500,
            learning_rate=0.02,
            observers=[events.append],
        )
        errors = [event.validation_error for event in epochs_of(events)]
        best = int(np.argmin(errors)) + 1
        assert len(errors) == best + 4 < 500
        kept = np.square(after.predict(X) - wrong).sum() / len(X)
        assert kept == pytest.approx(min(errors), rel=1e-5)
        record = after.info["finetune"][0]
        assert (record["best_epoch"], record["epochs"]) == (best, best + 4)
        assert record["patience"] == 4

    def test_the_best_are_kept_at_the_last_epoch_too(self):
        X, events = toy()[0], []
        held_out = {"validation": X, "validation_y": numbers(X[::-1])}
        settings = {"learning_rate": 0.05, "epochs": 60, "patience": 59, "seed": 2}
        after = tuned(None, X, numbers(X), **held_out, **settings, observers=[events.append])
        errors = [event.validation_error for event in epochs_of(events)]
        assert after.info["finetune"][0]["best_epoch"] == np.argmin(errors) + 1 < 60
        kept = np.square(after.predict(X) - held_out["validation_y"]).sum() / len(X)
        assert kept == pytest.approx(min(errors), rel=1e-5)

    def test_without_any_finite_error_nothing_was_better_than_the_start(self, monkeypatch):
        monkeypatch.setattr(Network, "error", lambda self, X, target: np.inf)
        stack = make_stack()
        after = tuned(stack, validation=toy()[0], patience=1, batch_size=60)
        for old, new in zip(stack.layers, after.layers, strict=True):
            np.testing.assert_array_equal(old.weight, new.weight)
        assert after.info["finetune"][0]["best_epoch"] == 0

    def test_needs_validation(self):
        with pytest.raises(SettingsError, match="patience: got a number without validation"):
            tuned(patience=2)

    def test_judges_by_all_rows(self):
        X, events = toy()[0], []
        many = np.tile(X, (30, 1))  # 1800
        many[1::2] = 0
        after = tuned(None, X, validation=many, patience=5, epochs=2, observers=[events.append])
        expected = np.square(after.reconstruct(many) - many).sum() / len(many)
        assert events[-1].validation_error == pytest.approx(expected, rel=1e-5)


class TestSchedule:
    @pytest.mark.parametrize(
        ("schedule", "rates"),
        [
            ("constant", [0.2, 0.2, 0.2, 0.2]),
            ("linear", [0.2, 0.15, 0.1, 0.05]),
            ("cosine", [0.2, 0.1 + 0.1 * 0.5**0.5, 0.1, 0.1 - 0.1 * 0.5**0.5]),
        ],
    )
    def test_every_step_has_its_rate(self, schedule, rates, monkeypatch):
        seen = []

        class Recorded(GradientDescent):
            def train(self, *args, rate, **kwargs):
                seen.append(rate)
                return super().train(*args, rate=rate, **kwargs)

        monkeypatch.setattr("syncpretrain.finetuning.optimizers.GradientDescent", Recorded)
        settings = {"optimizer": "sgd", "learning_rate": 0.2, "rate_schedule": schedule}
        tuned(epochs=2, batch_size=30, **settings)
        assert seen == pytest.approx(rates)

    def test_the_first_step_is_that_of_a_constant_rate_and_the_next_are_not(self):
        settings = {"optimizer": "sgd", "batch_size": 60}
        one = [tuned(epochs=1, rate_schedule=s, **settings) for s in ("constant", "linear")]
        two = [tuned(epochs=2, rate_schedule=s, **settings) for s in ("constant", "linear")]
        assert one[0].parameters_sha256 == one[1].parameters_sha256
        assert two[0].parameters_sha256 != two[1].parameters_sha256


class TestOptimizers:
    @pytest.mark.parametrize(
        "settings",
        [
            {"optimizer": "sgd", "momentum": 0.9},
            {"optimizer": "sgd", "momentum": 0.9, "nesterov": True},
            {"optimizer": "adam", "weight_decay": 0.01},
            {"optimizer": "cg"},
            {"optimizer": "lbfgs"},
            {"loss": "cross-entropy"},
            {"dropout": 0.1, "input_dropout": 0.1},
        ],
        ids=str,
    )
    def test_each_lowers_the_error_and_repeats_its_bits(self, settings):
        if settings.get("optimizer") in ("cg", "lbfgs"):
            pytest.importorskip("scipy")
        X, stack = toy()[0], make_stack()
        after, again = (tuned(stack, X, epochs=20, **settings) for _ in range(2))
        assert after.parameters_sha256 == again.parameters_sha256
        plain = tuned(stack, X, epochs=20)
        assert after.parameters_sha256 != plain.parameters_sha256
        before, now = (np.square(s.reconstruct(X) - X).sum() for s in (stack, after))
        assert now < 0.8 * before

    def test_dropout_depends_on_the_seed_alone_and_not_on_who_watches(self):
        X = toy()[0]
        settings = {"dropout": 0.5, "input_dropout": 0.2, "epochs": 2}
        plain = tuned(None, X, **settings)
        watched = tuned(None, X, validation=X, observers=[lambda event: None], **settings)
        assert plain.parameters_sha256 == watched.parameters_sha256


class TestUnits:
    def test_gaussian_visible_units_reconstruct_better_in_units_of_the_data(self):
        draw = np.random.default_rng(3)
        factors = draw.normal(size=(60, 2))
        X = 50 * factors @ draw.normal(size=(2, 8)) + 1000
        X = X.astype(np.float32)
        stack = make_stack(units=("gaussian", "bernoulli", "gaussian"), scaling=Scaling.of(X))
        after = tuned(stack, X, epochs=100, learning_rate=0.02)
        before, now = (np.square(s.reconstruct(X) - X).mean() for s in (stack, after))
        assert now < 0.2 * X.var(axis=0).mean() < before
        assert after.scaling is stack.scaling
        assert after.units == ("gaussian", "bernoulli", "gaussian")

    @pytest.mark.parametrize("code", ["gaussian", "relu", "tanh"])
    @pytest.mark.parametrize("middle", ["relu", "tanh"])
    def test_codes_that_are_not_binary(self, code, middle):
        X, stack = toy()[0], make_stack(units=("bernoulli", middle, code))
        after = tuned(stack, X, epochs=50, learning_rate=0.01)
        before, now = (np.square(s.reconstruct(X) - X).sum() for s in (stack, after))
        assert now < 0.5 * before
        assert after.units == stack.units
        assert after.layers[1].visible_units == middle

    def test_a_classifier_on_gaussian_visible_units(self):
        X, y = toy()
        X = 100 * X - 30
        stack = make_stack(units=("gaussian", "relu", "gaussian"), scaling=Scaling.of(X))
        after = tuned(stack, X, y, epochs=40, learning_rate=0.02)
        np.testing.assert_array_equal(after.predict(X), y)


def refused(kind, match, stack=None, X=None, y=None, **settings):
    with pytest.raises(kind, match=match) as caught:
        tuned(stack, X, y, **settings)
    assert type(caught.value) is kind


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


class TestRefusedSettings:
    @pytest.mark.parametrize(
        ("match", "settings"),
        [
            ("finetune_momentum: got momentum with optimizer adam", {"momentum": 0.9}),
            (
                "finetune_momentum: got momentum with optimizer cg",
                {"optimizer": "cg", "momentum": 0.9},
            ),
            ("finetune_nesterov: got no momentum", {"optimizer": "sgd", "nesterov": True}),
            ("dropout", {"dropout": 1.0}),
            ("input_dropout", {"input_dropout": -0.1}),
            ("momentum", {"optimizer": "sgd", "momentum": 1.0}),
            ("weight_decay", {"weight_decay": float("inf")}),
            ("rate_schedule", {"rate_schedule": "step"}),
            ("patience", {"patience": 0}),
            ("loss: got 'hinge', expected squared or cross-entropy", {"loss": "hinge"}),
            ("objective: got none", {"objective": "none"}),
            ("objective: got classification without targets", {"objective": "classification"}),
            ("objective: got regression without targets", {"objective": "regression"}),
        ],
    )
    def test_without_targets(self, match, settings):
        refused(SettingsError, match, **settings)

    @pytest.mark.parametrize(
        ("match", "settings"),
        [
            ("objective: got reconstruction with targets", {"objective": "reconstruction"}),
            ("finetune_loss: got squared for classes", {"loss": "squared"}),
            (
                "finetune_loss: got cross-entropy for numbers",
                {"objective": "regression", "loss": "cross-entropy"},
            ),
        ],
    )
    def test_with_targets(self, match, settings):
        refused(SettingsError, match, y=toy()[1], **settings)

    def test_cross_entropy_of_gaussian_visible_units(self):
        stack = make_stack(units=("gaussian", "bernoulli", "bernoulli"))
        refused(DataError, "loss: got cross-entropy for gaussian", stack, loss="cross-entropy")

    def test_predictions_of_a_stack_without_a_head(self):
        for predict in (make_stack().predict, make_stack().predict_proba):
            with pytest.raises(DataError, match="fine-tune it"):
                predict(toy()[0])


class TestSomeLabels:
    def data(self):
        X, y = toy()
        return Dataset("toy", "here", X, X[:0], X[:0], train_labels=y)

    def test_as_many_of_each_class_and_fewer_are_a_part_of_more(self):
        few, more = (self.data().with_labels(n, seed=3).train_labels for n in (6, 30))
        for labels, count in ((few, 2), (more, 10)):
            found, counts = np.unique(labels, return_counts=True)
            assert found.tolist() == [-1, 3, 7, 11]
            assert counts.tolist() == [60 - 3 * count, count, count, count]
            known = labels != -1
            np.testing.assert_array_equal(labels[known], self.data().train_labels[known])
        assert set(np.flatnonzero(few != -1)) <= set(np.flatnonzero(more != -1))

    def test_all_of_them(self):
        labels = self.data().with_labels(60).train_labels
        np.testing.assert_array_equal(labels, self.data().train_labels)

    @pytest.mark.parametrize("count", [0, 61])
    def test_a_count_there_is_not(self, count):
        with pytest.raises(DataError, match=rf"labels: got {count}, expected 1 to 60"):
            self.data().with_labels(count)
