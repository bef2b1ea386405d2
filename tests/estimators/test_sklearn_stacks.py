"""Stacks of the estimators on their own: what they predict, go on from, and read."""

from dataclasses import replace

import numpy as np
import pytest
from estimatorkinds import ESTIMATORS, DBNClassifier, DBNRegressor, StackedRBM
from largerdata import mapped
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_blobs

from syncpretrain import finetune, load, pretrain
from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import SettingsError
from syncpretrain.models.scores import scores
from syncpretrain.sklearn import base

SMALL = {"hidden": (8,), "epochs": 2, "batch_size": 10, "workers": 1, "random_state": 0}
TUNED = {**SMALL, "finetune_epochs": 40, "settings": {"finetune_learning_rate": 0.02}}
STILL = {"settings": {"finetune_learning_rate": 1e-9, "finetune_weight_decay": 0.0}}
STILL |= {"finetune_epochs": 1}
BLOBS, PLACES = make_blobs(90, 4, centers=3, cluster_std=0.5, random_state=1)
NAMES = np.array(["oak", "ash", "elm"])
CLASSES = {
    "texts": NAMES[PLACES],
    "objects": NAMES.astype(object)[PLACES],
    "numbers": 3 + 2 * PLACES,
    "floats": 3.0 + PLACES,
    "truth values": PLACES > 0,
    "minus one": np.where(PLACES > 0, 1, -1),
    "some": np.where(np.arange(90) % 3 == 0, NAMES.astype(object)[PLACES], None),
}
FAR = 1e6 + 1000 * BLOBS[:, 0]


def saved(stack, tmp_path):
    stack.save(tmp_path / "model.safetensors")
    return load(tmp_path / "model.safetensors")


class TestPredictions:
    @pytest.mark.parametrize("y", CLASSES.values(), ids=CLASSES)
    def test_a_saved_classifier_predicts_the_labels(self, y, tmp_path):
        fitted = DBNClassifier(**TUNED).fit(BLOBS, y)
        stack = saved(fitted.stack_, tmp_path)
        assert stack.predict(BLOBS).tolist() == fitted.predict(BLOBS).tolist()

    @pytest.mark.parametrize("y", [FAR, np.column_stack([FAR, BLOBS[:, 1]])], ids=["1", "2"])
    def test_a_saved_regressor_predicts_the_numbers(self, y, tmp_path):
        fitted = DBNRegressor(**TUNED).fit(BLOBS, y)
        stack = saved(fitted.stack_, tmp_path)
        assert stack.predict(BLOBS).shape == y.shape
        assert_allclose(stack.predict(BLOBS), fitted.predict(BLOBS), rtol=1e-6, atol=1e-5)


class TestWarmStart:
    @pytest.mark.parametrize("y", CLASSES.values(), ids=CLASSES)
    def test_the_head_goes_on(self, y):
        fitted = DBNClassifier(**TUNED).fit(BLOBS, y)
        again = DBNClassifier(pretrained=fitted, **STILL).fit(BLOBS, y)
        assert_allclose(again.predict_proba(BLOBS), fitted.predict_proba(BLOBS), atol=1e-4)

    def test_of_some_classes_in_another_order(self):
        fitted = DBNClassifier(**TUNED).fit(BLOBS, CLASSES["texts"])
        some = PLACES != 1
        again = DBNClassifier(pretrained=fitted, **STILL).fit(BLOBS[some], CLASSES["texts"][some])
        assert again.classes_.tolist() == ["elm", "oak"]
        assert again.predict_proba(BLOBS).shape == (90, 2)
        assert again.score(BLOBS[some], CLASSES["texts"][some]) > 0.9

    def test_of_other_classes(self):
        fitted = DBNClassifier(**TUNED).fit(BLOBS, CLASSES["numbers"])
        again = DBNClassifier(**TUNED, pretrained=fitted).fit(BLOBS, CLASSES["texts"])
        assert again.stack_.head.classes == ("ash", "elm", "oak")
        assert again.score(BLOBS, CLASSES["texts"]) > 0.9

    def test_of_numbers(self):
        fitted = DBNRegressor(**TUNED).fit(BLOBS, FAR)
        again = DBNRegressor(pretrained=fitted, **STILL).fit(BLOBS[:50], FAR[:50])
        assert_allclose(again.predict(BLOBS), fitted.predict(BLOBS), rtol=1e-5)
        classes = DBNClassifier(**TUNED, pretrained=fitted).fit(BLOBS, PLACES)
        assert classes.score(BLOBS, PLACES) > 0.9

    def test_of_a_predictor_that_is_not_fitted(self):
        with pytest.raises(SettingsError, match="got a DBNClassifier that is not fitted"):
            DBNClassifier(pretrained=DBNClassifier()).fit(BLOBS, PLACES)


@pytest.mark.parametrize("estimator", [own for own in ESTIMATORS if own is not StackedRBM])
@pytest.mark.parametrize(
    ("own", "match"),
    [
        ({"finetune_epochs": -1}, "^finetune_epochs: got -1"),
        ({"settings": {"finetune_foo": 1}}, "foo: there is no such setting"),
        ({"settings": {"finetune_dropout": 2}}, "^finetune_dropout: got 2"),
        ({"settings": 3}, "settings: got 3, expected names and values"),
    ],
)
def test_fine_tuning_is_refused_before_pretraining(estimator, own, match, monkeypatch):
    monkeypatch.setattr(base, "pretrain", None)
    with pytest.raises(SettingsError, match=match):
        estimator(**SMALL, **own).fit(BLOBS, PLACES)


BYTES = np.random.default_rng(0).choice([0, 1, 15, 16], (120, 30)).astype(np.uint8)
LABELS = (BYTES[:, 0] > 8).astype(int)
IMAGES = np.random.default_rng(1).integers(17, size=(100, 36)) / 16
CODED = {**SMALL, "hidden": (6,)}


def check_tuned(stack, X, tmp_path):
    """Check that bytes, the same numbers, and a file that stays mapped tune a stack alike."""
    options = {"epochs": 1, "batch_size": 10, "blas_threads": 1, "backend": "numpy"}
    forms = (X, X.astype(float), mapped(tmp_path, X))
    stacks = [finetune(stack, rows, LABELS, **options) for rows in forms]
    assert len({tuned.parameters_sha256 for tuned in stacks}) == 1


class TestBytes:
    @pytest.mark.parametrize("X", [BYTES, BYTES * 15, BYTES // 15], ids=["16", "240", "1"])
    def test_are_numbers_to_the_stack_too(self, X, tmp_path):
        fitted = DBNClassifier(**CODED, finetune_epochs=2).fit(X, LABELS)
        expected = fitted.predict_proba(X.astype(float))
        assert_array_equal(fitted.predict_proba(X), expected)
        for rows in (X, X.astype(float), mapped(tmp_path, X)):
            assert_allclose(saved(fitted.stack_, tmp_path).predict_proba(rows), expected, atol=1e-6)

    @pytest.mark.parametrize("method", ["fit", "partial_fit"])
    def test_of_standardized_columns(self, method):
        X = BYTES[:, :10]
        fitted = getattr(StackedRBM(**CODED), method)(X)
        assert_allclose(fitted.stack_.encode(X), fitted.transform(X), atol=1e-6)

    def test_fine_tuning_goes_on(self, tmp_path):
        fitted = DBNClassifier(**CODED, finetune_epochs=2).fit(BYTES, LABELS)
        check_tuned(fitted.stack_, BYTES, tmp_path)

    def test_on_the_command_line(self, call, tmp_path):
        fitted = DBNClassifier(**CODED, finetune_epochs=2).fit(BYTES, LABELS)
        fitted.stack_.save(tmp_path / "model.safetensors")
        np.save(tmp_path / "rows.npy", BYTES)
        given = ("--data", tmp_path / "rows.npy", "--out", tmp_path / "codes.npy")
        call("encode", tmp_path / "model.safetensors", *given)
        found = np.load(tmp_path / "codes.npy")
        assert_array_equal(found, fitted.stack_.encode(BYTES.astype(float)))


def test_bytes_of_0_and_1_in_a_mapped_file_are_fine_tuned_as_in_memory(tmp_path):
    X = BYTES // 15
    check_tuned(pretrain(X, hidden=[4], epochs=1, batch_size=10, warn=False), X, tmp_path)


@pytest.fixture
def scaled():
    """Return a stack of RBMs that reads values from -3 to 13 as shares of this range."""
    stack = StackedRBM(**CODED).fit(IMAGES).stack_
    return replace(stack, scaling=Scaling(*np.float32([[-3] * 36, [16] * 36])))


class TestSharedRange:
    def test_images_are_drawn_as_shares_of_it(self, call, scaled, tmp_path):
        image = pytest.importorskip("PIL.Image", reason="a PNG needs Pillow")
        plain = replace(scaled, scaling=None)
        drawn = []
        for name, stack, rows in (("a", scaled, 16 * IMAGES - 3), ("b", plain, IMAGES)):
            stack.save(tmp_path / f"{name}.safetensors")
            np.save(tmp_path / f"{name}.npy", rows)
            model, out = tmp_path / f"{name}.safetensors", tmp_path / "out.png"
            call("reconstruct", model, "--data", tmp_path / f"{name}.npy", "--out", out)
            drawn.append(np.asarray(image.open(out)).astype(int))
            call("sample", model, "--steps", 2, "--out", out)
            drawn.append(np.asarray(image.open(out)).astype(int))
        for ours, expected in zip(drawn[:2], drawn[2:], strict=True):
            assert np.abs(ours - expected).max() <= 1
            assert len(np.unique(ours)) > 5

    def test_scores_and_codes_are_those_of_the_shares(self, scaled):
        plain, X = replace(scaled, scaling=None), 16 * IMAGES - 3
        assert_allclose(scaled.encode(X), plain.encode(IMAGES), atol=1e-6)
        for by in ("reconstruction", "free-energy"):
            found, expected = scores(scaled, X, by=by), scores(plain, IMAGES, by=by)
            assert_allclose(found, expected, rtol=1e-4)
        holes = np.where(BYTES[:100, :1] > 8, np.nan, X[:100])
        filled = plain.impute((holes + 3) / 16, steps=2, samples=2)
        assert_allclose(scaled.impute(holes, steps=2, samples=2), 16 * filled - 3, atol=1e-4)

    def test_a_perceptron_cannot_take_it_back(self, scaled):
        with pytest.raises(SettingsError, match="cannot take probabilities back to the range"):
            scaled.to_sklearn(part="decoder")
        codes = scaled.to_sklearn().predict(16 * IMAGES - 3)
        assert_allclose(codes, scaled.encode(16 * IMAGES - 3), atol=1e-5)


def test_scores_on_the_command_line_need_the_training_examples(scaled, tmp_path, call):
    scaled.save(tmp_path / "model.safetensors")
    np.save(tmp_path / "rows.npy", IMAGES)
    given = ("--data", tmp_path / "rows.npy", "--out", tmp_path / "out.npy")
    _, err = call("score", tmp_path / "model.safetensors", *given, status=2)
    assert "names no training examples" in err
