"""Fine-tuning for classes: what is learned, unknown classes, and the head."""

import re
import warnings

import numpy as np
import pytest
from toyclasses import CLASSES, epochs_of, numbers, toy, tuned
from trialruns import notices_of

from syncpretrain.data.labels import objective_of
from syncpretrain.errors import DataError, PoorResultWarning
from syncpretrain.events import FinetuneStarted
from syncpretrain.models.stack import load


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

    @pytest.mark.parametrize(
        ("kinds", "none"),
        [
            (CLASSES.astype(float), np.nan),
            (CLASSES.astype(object), None),
            (np.array(["c0", "c1", "c2"], dtype=object), None),
            (np.array(["c0", "c1", "c2"], dtype=object), -1),
        ],
        ids=["numbers and NaN", "numbers and None", "texts and None", "texts and -1"],
    )
    def test_none_and_nan_are_no_label(self, kinds, none):
        (X, y), lost = toy(), np.arange(60) % 3 == 0
        labels = np.where(lost, none, kinds[np.searchsorted(CLASSES, y)])
        expected = tuned(None, X, np.where(lost, -1, y)).parameters_sha256
        for given in (labels, labels.tolist()):
            assert tuned(None, X, given).parameters_sha256 == expected

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

    def test_validation_targets_without_rows_are_refused(self):
        X, y = toy()
        with pytest.raises(DataError, match=r"^validation_y: got targets without validation"):
            tuned(None, X, y, validation_y=y[:7])

    def test_errors_are_shares_of_wrong_classes(self):
        (X, y), events = toy(), []
        held_out = {"validation": X[:7], "validation_y": y[:7]}
        after = tuned(None, X, y, **held_out, epochs=1, observers=[events.append])
        assert isinstance(events[0], FinetuneStarted) and events[0].objective == "classification"
        (epoch,) = epochs_of(events)
        assert epoch.validation_error == pytest.approx((after.predict(X[:7]) != y[:7]).mean())
        wrong = epoch.train_error * 60
        assert 0 < wrong <= 60 and wrong == pytest.approx(round(wrong))


class TestUnknownClasses:
    """Classes that only validation examples have."""

    def errors(self, X, y, held_out, held_out_y, **settings):
        events, given = [], {"validation": held_out, "validation_y": held_out_y}
        after = tuned(None, X, y, observers=[events.append], **given, **settings)
        wrong = (after.predict(held_out) != held_out_y)[held_out_y != -1].mean()
        return [event.validation_error for event in epochs_of(events)], wrong, notices_of(events)

    @pytest.mark.parametrize("patience", [None, 9])
    @pytest.mark.parametrize("repeated", [1, 40])  # more rows than are looked at without patience
    def test_they_count_as_wrong(self, patience, repeated):
        X, y = toy()
        held_out, held_out_y = np.repeat(X, repeated, axis=0), np.repeat(y, repeated)
        held_out_y = np.where(np.arange(len(held_out)) % 5 == 0, -1, held_out_y)
        known = y != 11
        given, settings = (X[known], y[known], held_out, held_out_y), {"patience": patience}
        errors, wrong, notices = self.errors(*given, epochs=8, learning_rate=0.05, **settings)
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
        assert (errors, wrong) == ([1.0, 1.0], 1)

    def test_known_ones_are_told_of_nothing(self):
        X, y = toy()
        errors, wrong, notices = self.errors(X, y, X, y)
        assert (errors[-1], notices) == (wrong, [])


class TestHead:
    def test_starts_small_with_biases_of_zero_and_depends_on_the_seed(self):
        X, y = toy()
        how = {"learning_rate": 1e-12, "epochs": 1}
        first, again, other = (tuned(None, X, y, seed=seed, **how).head for seed in (1, 1, 2))
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
