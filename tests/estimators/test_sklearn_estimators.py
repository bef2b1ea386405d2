"""What the estimators for scikit-learn compute, after scikit-learn's own checks."""

import pickle
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from estimatorkinds import (
    DBNClassifier,
    DBNRegressor,
    StackAnomalyDetector,
    StackedAutoencoder,
    StackedRBM,
)
from joblib import Parallel, delayed
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_regression
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from syncpretrain import Stack, pretrain
from syncpretrain.errors import DataError, PoorResultWarning, SettingsError
from syncpretrain.models.diagnosis import stack_error
from syncpretrain.models.likelihood import free_energy
from syncpretrain.sklearn.base import core_limit

DATES = np.full(90, "2020-01-01", dtype="M8[D]")
QUIET = "ignore::syncpretrain.errors.PoorResultWarning"  # two epochs learn little
SMALL = {"hidden": (6, 3), "epochs": 2, "batch_size": 10, "workers": 1, "random_state": 0}
TUNED = {**SMALL, "hidden": (8,), "finetune_epochs": 40}
TUNED |= {"settings": {"finetune_learning_rate": 0.02}}
BLOBS, NUMBERS = make_blobs(90, 4, centers=3, cluster_std=0.5, random_state=1)
NAMES = np.array(["oak", "ash", "elm"])[NUMBERS]
UNIT = MinMaxScaler().fit_transform(BLOBS)
HOLES = np.where(np.random.default_rng(2).random(BLOBS.shape) < 0.2, np.nan, BLOBS)
TRANSFORMERS = [StackedRBM(**SMALL), StackedAutoencoder(**SMALL, finetune_epochs=2)]
BY_ROWS = ("transform", "predict", "predict_proba", "score_samples", "decision_function")
ALL = [
    *TRANSFORMERS,
    DBNClassifier(**TUNED),
    DBNRegressor(**TUNED),
    StackAnomalyDetector(**SMALL, finetune_epochs=2),
]


TINY = {"hidden": (8, 4), "epochs": 1, "batch_size": 20, "workers": 1}
ESTIMATORS = [
    StackedRBM(**TINY),
    StackedAutoencoder(**TINY, finetune_epochs=1),
    StackAnomalyDetector(**TINY, finetune_epochs=1),
    StackAnomalyDetector(**TINY, by="free-energy"),
    DBNClassifier(hidden=20, epochs=1, finetune_epochs=40, batch_size=10, workers=1),
    DBNRegressor(hidden=20, epochs=1, finetune_epochs=40, batch_size=10, workers=1),
]
EQUIVALENCE = "minibatches follow from the number of rows, and pretraining reads all rows alike"
WEIGHTED = [f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")]


def expected_failures(estimator):
    """Return the checks that fail, and the reason."""
    is_weighted = isinstance(estimator, (DBNClassifier, DBNRegressor))
    return dict.fromkeys(WEIGHTED, EQUIVALENCE) if is_weighted else {}


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures)
def test_checks(estimator, check):
    check(estimator)


def by_name(estimators):
    return pytest.mark.parametrize("estimator", estimators, ids=lambda one: type(one).__name__)


def result(estimator, X):
    return getattr(estimator, "predict", getattr(estimator, "transform", None))(X)


@by_name(ALL)
class TestAll:
    def test_the_same_state_gives_the_same_stack(self, estimator):
        hashes = {clone(estimator).fit(BLOBS, NUMBERS).stack_.parameters_sha256 for _ in range(2)}
        other = clone(estimator).set_params(random_state=1).fit(BLOBS, NUMBERS)
        assert len(hashes) == 1
        assert other.stack_.parameters_sha256 not in hashes

    def test_the_number_of_workers_does_not_matter(self, estimator):
        one, two = (clone(estimator).set_params(workers=n).fit(BLOBS, NUMBERS) for n in (1, 2))
        assert one.stack_.parameters_sha256 == two.stack_.parameters_sha256

    def test_float32_and_float64_train_the_same(self, estimator):
        single = BLOBS.astype(np.float32)
        wide = clone(estimator).fit(single.astype(np.float64), NUMBERS)
        narrow = clone(estimator).fit(single, NUMBERS)
        assert wide.stack_.parameters_sha256 == narrow.stack_.parameters_sha256
        found, expected = result(wide, single.astype(np.float64)), result(narrow, single)
        assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    def test_frames_are_known_by_their_columns(self, estimator):
        pandas = pytest.importorskip("pandas", reason="a DataFrame is needed")
        frame = pandas.DataFrame(BLOBS, columns=list("abcd"))
        fitted = clone(estimator).fit(frame, NUMBERS)
        assert fitted.feature_names_in_.tolist() == list("abcd")
        with pytest.raises(ValueError, match="feature names"):
            result(fitted, frame[list("bacd")])
        codes = fitted.stack_.encode(frame)
        np.testing.assert_array_equal(fitted.stack_.encode(frame[list("bacd")]), codes)
        np.testing.assert_array_equal(fitted.stack_.encode(BLOBS), codes)

    def test_a_given_stack_learns_the_names_of_the_columns(self, estimator):
        if "pretrained" not in estimator.get_params():
            pytest.skip("takes no stack")
        pandas = pytest.importorskip("pandas", reason="a DataFrame is needed")
        frame = pandas.DataFrame(BLOBS, columns=list("abcd"))
        given = clone(estimator).fit(BLOBS, NUMBERS).stack_
        stack = clone(estimator).set_params(pretrained=given).fit(frame, NUMBERS).stack_
        np.testing.assert_array_equal(stack.encode(frame[list("bacd")]), stack.encode(frame))

    @pytest.mark.parametrize(
        ("parameter", "value", "match"),
        [
            ("hidden", (), "hidden: got no layer"),
            ("hidden", (3, -1), r"hidden: got \(3, -1\), expected the units"),
            ("hidden", (2.5,), "hidden: got"),
            ("epochs", -1, "^epochs: got -1"),
            ("visible_units", "cubic", "visible_units: got 'cubic'"),
            ("settings", {"epochs": 3}, "settings: got epochs, which a parameter decides"),
            ("settings", {"seed": 3}, "set hidden for layers, random_state for seed"),
            ("settings", {"no_such": 3}, "no_such: there is no such setting"),
        ],
    )
    def test_wrong_parameters(self, estimator, parameter, value, match):
        wrong = clone(estimator).set_params(**{parameter: value})
        with pytest.raises(SettingsError, match=match):
            wrong.fit(BLOBS, NUMBERS)

    def test_visible_units_follow_from_the_values(self, estimator):
        units = [clone(estimator).fit(X, NUMBERS).stack_.units[0] for X in (BLOBS, UNIT)]
        assert units == ["gaussian", "bernoulli"]

    def test_missing_values_are_left_out(self, estimator):
        fitted = clone(estimator).fit(HOLES, NUMBERS)
        assert np.isfinite(result(fitted, HOLES)).all()
        assert np.isfinite(fitted.stack_.layers[0].weight).all()
        score = getattr(fitted, "score_samples", None)
        assert score is None or np.isfinite(score(HOLES)).all()
        assert np.isfinite(result(fitted, np.full((1, 4), np.nan))).all()
        for wrong, match in ((np.full((90, 1), np.nan), "NaN in every row"), (np.inf, "infinity")):
            with pytest.raises(ValueError, match=match):
                clone(estimator).fit(np.hstack([BLOBS, np.broadcast_to(wrong, (90, 1))]), NUMBERS)

    @pytest.mark.parametrize("kind", ["f4", "f8"])
    @pytest.mark.parametrize("X", [BLOBS, UNIT, HOLES], ids=["any", "unit", "holes"])
    def test_a_row_has_one_result_whatever_the_other_rows(self, estimator, X, kind):
        X = X.astype(kind)
        fitted = clone(estimator).fit(X, NUMBERS)
        for name in filter(partial(hasattr, fitted), BY_ROWS):
            whole, found = (getattr(fitted, name)(rows) for rows in (X, np.asfortranarray(X)))
            assert_array_equal(found, whole)
            for rows, end in ((1, 9), (7, 63)):
                parts = [getattr(fitted, name)(X[i : i + rows]) for i in range(0, end, rows)]
                assert_array_equal(np.concatenate(parts), whole[:end])

    def test_sparse_rows_have_no_missing_values(self, estimator):
        with pytest.raises(ValueError, match="NaN"):
            clone(estimator).fit(sparse.csr_matrix(HOLES), NUMBERS)

    def test_verbose_prints_epochs(self, estimator, capsys):
        clone(estimator).set_params(verbose=1).fit(UNIT, NUMBERS)
        assert "layer 1" in "".join(capsys.readouterr())


class TestTransformers:
    def test_codes_may_be_log_odds(self):
        rbm = clone(TRANSFORMERS[0]).fit(BLOBS)
        means = rbm.transform(BLOBS)
        odds = rbm.set_params(log_odds=True).transform(BLOBS)
        assert_allclose(1 / (1 + np.exp(-odds)), means, rtol=1e-5)
        back = rbm.inverse_transform(odds)
        assert_allclose(back, rbm.set_params(log_odds=False).inverse_transform(means), rtol=1e-5)

    @pytest.mark.parametrize("method", ["fit", "partial_fit"])
    def test_log_odds_that_there_are_not_are_refused_before_training(self, method):
        rbm = StackedRBM(**SMALL, log_odds=True, settings={"hidden_units": "relu"})
        with pytest.raises(DataError, match="log_odds: got relu units"):
            getattr(rbm, method)(BLOBS)
        assert not hasattr(rbm, "stack_")

    def test_codes_and_scores_are_those_of_the_stack(self):
        rbm = clone(TRANSFORMERS[0]).fit(BLOBS)
        rows = BLOBS.astype(np.float32)
        assert_allclose(rbm.transform(rows), rbm.stack_.encode(rows), rtol=1e-5)
        codes = rbm.transform(rows)
        back = rbm.stack_.decode(codes)
        assert_allclose(rbm.inverse_transform(codes), back, rtol=1e-4, atol=1e-4)
        energy = free_energy(rbm.stack_.layers[0], rbm.stack_.prepared(rows))
        assert_allclose(rbm.score_samples(rows), -energy, rtol=1e-5)

    def test_the_mean_score_of_an_autoencoder_is_its_error(self):
        fitted = clone(TRANSFORMERS[1]).fit(UNIT)
        rows = UNIT.astype(np.float32)
        expected = -stack_error(fitted.stack_, rows) / UNIT.shape[1]
        assert fitted.score_samples(rows).mean() == pytest.approx(expected, rel=1e-5)

    @by_name(TRANSFORMERS)
    def test_columns_have_names(self, estimator):
        pandas = pytest.importorskip("pandas", reason="the output is a DataFrame")
        fitted = clone(estimator).set_output(transform="pandas")
        frame = fitted.fit_transform(pandas.DataFrame(BLOBS, index=range(5, 95)))
        assert list(frame.columns) == [f"{type(estimator).__name__.lower()}{i}" for i in range(3)]
        assert frame.index[0] == 5

    @by_name(TRANSFORMERS)
    def test_columns_of_polars_have_names(self, estimator):
        polars = pytest.importorskip("polars", reason="the output is a DataFrame of polars")
        fitted = clone(estimator).set_output(transform="polars").fit(BLOBS)
        frame = fitted.transform(BLOBS)
        assert isinstance(frame, polars.DataFrame)
        assert frame.columns == fitted.get_feature_names_out().tolist()
        assert_array_equal(frame.to_numpy(), clone(estimator).fit(BLOBS).transform(BLOBS))

    @by_name(TRANSFORMERS)
    def test_imputed_values_are_those_of_the_stack(self, estimator):
        fitted = clone(estimator).fit(HOLES)
        filled = fitted.impute(HOLES)
        assert_array_equal(filled, fitted.stack_.impute(HOLES))
        assert_array_equal(filled[~np.isnan(HOLES)], HOLES[~np.isnan(HOLES)])
        assert np.isfinite(filled).all()

    def test_errors_leave_missing_values_out(self):
        fitted = clone(TRANSFORMERS[1]).fit(UNIT)
        holes = np.where(np.isnan(HOLES), np.nan, UNIT)
        expected = np.where(np.isnan(holes), np.nan, fitted.stack_.reconstruct(holes) - holes)
        expected = -np.nanmean(np.square(expected), axis=1)
        assert_allclose(fitted.score_samples(holes), expected, rtol=1e-5)

    @by_name(TRANSFORMERS)
    def test_parts_may_have_missing_values(self, estimator):
        online = clone(estimator).partial_fit(HOLES[:40])
        assert_allclose(online.stack_.scaling.shift, np.nanmean(HOLES[:40], axis=0), rtol=1e-5)
        assert np.isfinite(online.partial_fit(BLOBS).partial_fit(HOLES).transform(HOLES)).all()
        with pytest.raises(DataError, match="NaN in every row of column 0"):
            clone(estimator).partial_fit(np.where(np.arange(4) == 0, np.nan, BLOBS))

    @by_name(TRANSFORMERS)
    def test_parts_standardize_gaussian_columns_alone(self, estimator):
        X = np.column_stack([UNIT[:, :2], BLOBS[:, :1]])
        online = clone(estimator).set_params(visible_units="bernoulli:2,gaussian:1").partial_fit(X)
        assert online.stack_.scaling.shift[:2].tolist() == [0, 0]

    @by_name(TRANSFORMERS)
    def test_rows_in_parts_learn_as_well(self, estimator):
        online, errors = clone(estimator), []
        for _ in range(40):
            for part in np.array_split(UNIT, 3):
                online.partial_fit(part)
            errors.append(stack_error(online.stack_, UNIT.astype(np.float32)))
        assert errors[-1] < 0.8 * errors[0]

    @by_name(TRANSFORMERS)
    def test_parts_go_on_from_a_pickle_and_from_fit(self, estimator):
        first = clone(estimator).fit(BLOBS[:40])
        before = first.stack_
        second = pickle.loads(pickle.dumps(first.partial_fit(BLOBS[40:60])))
        assert second.stack_.scaling is not None
        assert_array_equal(second.stack_.scaling.shift, before.scaling.shift)
        a, b = (one.partial_fit(BLOBS[60:]).stack_.parameters_sha256 for one in (first, second))
        assert a == b != before.parameters_sha256

    def test_parts_of_other_values_are_refused(self):
        online = clone(TRANSFORMERS[0]).partial_fit(UNIT)
        with pytest.raises(DataError, match=r"expected values in \[0, 1\]"):
            online.partial_fit(BLOBS)

    def test_codes_of_another_width(self):
        with pytest.raises(DataError, match="X: got 4 columns, expected codes of 3 units"):
            clone(TRANSFORMERS[0]).fit(UNIT).inverse_transform(UNIT)

    def test_a_model_there_is_not(self):
        with pytest.raises(SettingsError, match="model: got 'rbm', expected one of denoising"):
            StackedAutoencoder(model="rbm").fit(UNIT)


class TestClassifier:
    @pytest.mark.parametrize(
        ("y", "nothing"),
        [
            (NUMBERS, -1),
            (NUMBERS.astype(float), -1.0),
            (NUMBERS.astype(float), np.nan),
            (NAMES.astype(object), None),
            (NAMES.astype(object), np.nan),
            (NAMES.astype(object), -1),
            (NUMBERS.astype(object), -1),
        ],
        ids=str,
    )
    def test_rows_without_a_label_pretrain_all_the_same(self, y, nothing):
        fitted = DBNClassifier(**TUNED).fit(BLOBS, np.where(np.arange(90) % 3 == 0, y, nothing))
        assert fitted.classes_.tolist() == sorted(set(y.tolist()))
        assert fitted.score(BLOBS, np.array(y.tolist())) > 0.9
        alone = DBNClassifier(**TUNED).fit(BLOBS[::3], y[::3])
        scales = (fitted.stack_.scaling.shift, alone.stack_.scaling.shift)
        assert not np.array_equal(*scales)  # all rows were seen

    def test_truth_values_with_missing_ones_stay_truth_values(self):
        pandas = pytest.importorskip("pandas", reason="a nullable column is needed")
        y = pandas.Series([True, False, pandas.NA] * 30, dtype="boolean")
        fitted = DBNClassifier(**SMALL, finetune_epochs=1).fit(BLOBS, y)
        assert (fitted.classes_.tolist(), fitted.predict(BLOBS).dtype) == ([False, True], bool)

    def test_nullable_columns(self):
        pandas = pytest.importorskip("pandas", reason="a nullable column is needed")
        y = pandas.Series(NUMBERS, dtype="Int64").mask(np.arange(90) % 2 == 1)
        assert DBNClassifier(**TUNED).fit(BLOBS, y).classes_.tolist() == [0, 1, 2]

    def test_beside_one_other_number_minus_one_is_a_class(self):
        fitted = DBNClassifier(**TUNED).fit(BLOBS, np.where(NUMBERS == 0, 1, -1))
        assert fitted.classes_.tolist() == [-1, 1]

    def test_weights_of_classes_multiply_those_of_rows(self):
        each, own = np.array([1.0, 2.0, 5.0]), np.linspace(0.5, 2, 90)
        by_class = DBNClassifier(**TUNED, class_weight=dict(enumerate(each)))
        by_class.fit(BLOBS, NUMBERS, own)
        by_row = DBNClassifier(**TUNED).fit(BLOBS, NUMBERS, own * each[NUMBERS])
        assert by_class.stack_.parameters_sha256 == by_row.stack_.parameters_sha256

    def test_weights_may_be_routed(self):
        with config_context(enable_metadata_routing=True):
            own = DBNClassifier(**TUNED).set_fit_request(sample_weight=True)
            model = make_pipeline(MinMaxScaler(), own)
            weighted = model.fit(BLOBS, NUMBERS, sample_weight=np.linspace(0, 1, 90))
            alone = DBNClassifier(**TUNED).fit(UNIT, NUMBERS, np.linspace(0, 1, 90))
        assert weighted[-1].stack_.parameters_sha256 == alone.stack_.parameters_sha256


class TestPretrained:
    @pytest.mark.parametrize("kind", ["stack", "fitted", "frozen", "unfitted"])
    def test_begins_with_it(self, kind):
        rbm = clone(TRANSFORMERS[0])
        given = {
            "stack": clone(rbm).fit(BLOBS).stack_,
            "fitted": clone(rbm).fit(BLOBS),
            "frozen": FrozenEstimator(clone(rbm).fit(BLOBS)),
            "unfitted": rbm,
        }[kind]
        options = {"finetune_epochs": 2, "random_state": 0, "batch_size": 10}
        fitted = DBNClassifier(pretrained=given, **options).fit(BLOBS, NUMBERS)
        expected = DBNClassifier(pretrained=clone(rbm).fit(BLOBS).stack_, **options)
        expected.fit(BLOBS, NUMBERS)
        assert fitted.stack_.widths == (4, 6, 3)
        assert fitted.stack_.parameters_sha256 == expected.stack_.parameters_sha256
        assert kind != "unfitted" or not hasattr(rbm, "stack_")

    def test_of_another_width(self):
        stack = pretrain(UNIT[:, :2], layers=[2, 3], epochs=1, batch_size=10)
        with pytest.raises(DataError, match="pretrained: got a stack for 2 columns, expected one"):
            DBNClassifier(pretrained=stack).fit(BLOBS, NUMBERS)

    @pytest.mark.parametrize("given", ["rbm", MinMaxScaler()], ids=["str", "MinMaxScaler"])
    def test_of_another_type(self, given):
        name = type(given).__name__
        with pytest.raises(SettingsError, match=f"pretrained: got a {name}, expected a Stack"):
            DBNClassifier(pretrained=given).fit(BLOBS, NUMBERS)

    def test_without_epochs_the_weights_are_random(self):
        fitted = DBNClassifier(**{**TUNED, "epochs": 0}).fit(BLOBS, NUMBERS)
        assert isinstance(fitted.stack_, Stack)
        assert fitted.stack_.info["epochs"] == [0]
        assert fitted.score(BLOBS, NUMBERS) > 0.9


class TestRegressor:
    @pytest.mark.parametrize("outputs", [1, 2])
    def test_predicts_in_the_units_of_the_targets(self, outputs):
        X, y = make_regression(120, 4, n_targets=outputs, random_state=0)
        y = 1e4 + 100 * y
        fitted = DBNRegressor(**{**TUNED, "hidden": (20,), "finetune_epochs": 150}).fit(X, y)
        assert fitted.predict(X).shape == y.shape
        assert fitted.score(X, y) > 0.8

    @pytest.mark.parametrize("scale", [(1.7e9, 20.0), (0.0, 1e40), (0.0, 1e-50)])
    def test_numbers_that_a_head_in_float32_cannot_predict_are_warned_of(self, scale):
        y = scale[0] + scale[1] * BLOBS[:, 0]
        with pytest.warns(PoorResultWarning, match="^y: got numbers of mean .*stack_, its files"):
            fitted = DBNRegressor(**TUNED).fit(BLOBS, y)
        assert np.isfinite(fitted.predict(BLOBS)).all()

    def test_rows_without_a_number_pretrain_all_the_same(self):
        fitted = DBNRegressor(**TUNED).fit(BLOBS, np.where(np.arange(90) % 2, np.nan, BLOBS[:, 0]))
        assert fitted.target_mean_ == pytest.approx([BLOBS[::2, 0].mean()])
        assert np.isfinite(fitted.predict(BLOBS)).all()


@pytest.mark.parametrize(
    ("kind", "y", "match"),
    [
        (DBNClassifier, None, "y: got None, expected labels"),
        (DBNClassifier, np.zeros(90), "y: got 1 class"),
        (DBNClassifier, np.full(90, None), "y: got no label"),
        (DBNClassifier, np.array(["a", 1] * 45, dtype=object), "y: got labels of types int, str"),
        (DBNClassifier, NUMBERS[:5], "inconsistent"),
        (DBNClassifier, DATES, "y: got values of type datetime64"),
        (DBNRegressor, None, "y: got None, expected numbers"),
        (DBNRegressor, np.full(90, np.nan), "y: got NaN in every row"),
        (DBNRegressor, np.full(90, np.inf), "infinity"),
        (DBNRegressor, DATES, "y: got values of type datetime64"),
    ],
)
def test_wrong_targets(kind, y, match):
    with pytest.raises(ValueError, match=match):
        kind(**TUNED).fit(BLOBS, y)


@pytest.mark.parametrize(("kind", "none"), [(DBNClassifier, None), (DBNRegressor, np.nan)], ids=str)
def test_few_targets_beside_many_rows_get_dropout(kind, none):
    y = np.full(90, none, dtype=object if none is None else float)
    y[:6] = [True, False] * 3 if none is None else BLOBS[:6, 0]
    weights = np.arange(1.0, 91)
    options = {**SMALL, "hidden": (8,)}
    record = kind(**options).fit(BLOBS, y, sample_weight=weights).stack_.info["finetune"][0]
    assert (record["dropout"], record["input_dropout"]) == (0.5, 0.2)
    assert (record["examples"], record["batch_size"]) == (6, 6)
    given = {"finetune_dropout": 0.0, "finetune_input_dropout": 0.0}
    plain = kind(**options, settings=given).fit(BLOBS, y, sample_weight=weights)
    assert plain.stack_.info["finetune"][0]["dropout"] == 0


class TestAnomalies:
    X = np.vstack([UNIT, np.random.default_rng(0).random((10, 4))])

    @pytest.mark.parametrize("by", ["reconstruction", "free-energy"])
    def test_the_names_of_pyod(self, by):
        found = StackAnomalyDetector(**SMALL, by=by, finetune_epochs=2).fit(self.X)
        assert_array_equal(found.decision_scores_, -found.score_samples(self.X))
        assert found.threshold_ == -found.offset_
        assert found.labels_.tolist() == (found.predict(self.X) == -1).astype(int).tolist()
        assert found.labels_.sum() == 10

    @pytest.mark.parametrize("by", ["reconstruction", "free-energy"])
    def test_finds_rows_far_away(self, by):
        new = np.vstack([BLOBS, BLOBS.mean(axis=0) + 40 * np.eye(4)])
        options = {**SMALL, "epochs": 20, "finetune_epochs": 20, "learning_rate": 0.01}
        scores = StackAnomalyDetector(**options, by=by).fit(BLOBS).score_samples(new)
        assert roc_auc_score(np.arange(94) >= 90, -scores) == 1

    def test_a_score_is_the_distance_of_residuals_and_codes(self):
        found = StackAnomalyDetector(**SMALL, finetune_epochs=0).fit(BLOBS)
        seen = found.stack_.prepared(BLOBS)
        codes = found.stack_.up(seen).astype(np.float64)
        squares = np.square(seen - found.stack_.down(found.stack_.up(seen)).astype(np.float64))
        apart = codes - codes.mean(axis=0)
        variances, axes = np.linalg.eigh(apart.T @ apart / len(apart))
        variances = np.maximum(variances, variances.mean() / 100)
        by_code = np.square(apart @ axes) / variances
        by_error = squares / squares.mean(axis=0)
        expected = np.hstack([by_error, by_code]).mean(axis=1)
        assert_allclose(found.decision_scores_, expected, rtol=1e-3)

    def test_columns_and_codes_that_never_vary_count_little(self):
        X = np.hstack([UNIT, np.full((90, 1), 0.5)])
        scores = StackAnomalyDetector(**SMALL, finetune_epochs=1).fit(X).score_samples(X)
        assert np.isfinite(scores).all()
        assert -scores.mean() < 2

    def test_sparse_rows_have_the_scores_of_dense_ones(self):
        X = UNIT * (UNIT > 0.5)
        detector = StackAnomalyDetector(**SMALL, finetune_epochs=1)
        dense, rows = (clone(detector).fit(x).decision_scores_ for x in (X, sparse.csr_matrix(X)))
        assert_allclose(rows, dense, rtol=1e-3)

    @pytest.mark.parametrize("by", ["reconstruction", "free-energy"])
    def test_a_row_at_the_threshold_is_judged_alone_as_among_others(self, by):
        options = {**SMALL, "batch_size": 1, "by": by, "finetune_epochs": 1}
        found = StackAnomalyDetector(**options).fit(UNIT[:1])
        assert found.decision_function(np.repeat(UNIT[:1], 5, axis=0)).tolist() == [0] * 5
        assert found.predict(UNIT[:1]).tolist() == [1]

    def test_a_free_energy_needs_one_layer(self):
        assert len(StackAnomalyDetector(**SMALL, by="free-energy").fit(UNIT).stack_.layers) == 1

    @pytest.mark.parametrize(
        ("given", "match"),
        [
            ({"by": "distance"}, "by: got 'distance', expected reconstruction or free-energy"),
            ({"contamination": 0}, "contamination: got 0, expected a share"),
            ({"contamination": 0.6}, "contamination: got 0.6"),
            ({"contamination": "auto"}, "contamination: got 'auto', expected a share"),
            ({"by": "free-energy", "epochs": 0}, "epochs: got 0 with by free-energy, expected one"),
        ],
    )
    def test_wrong_parameters(self, given, match):
        with pytest.raises(SettingsError, match=match):
            StackAnomalyDetector(**given).fit(UNIT)


def python(*arguments):
    return subprocess.check_output([sys.executable, *arguments], text=True)


class TestParallel:
    def test_a_job_of_joblib_takes_one_core(self):
        assert core_limit(None) is None
        assert core_limit(3) == 3
        jobs = Parallel(n_jobs=2, backend="threading")
        assert jobs(delayed(core_limit)(None) for _ in range(2)) == [1, 1]
        assert Parallel(n_jobs=1)(delayed(core_limit)(None) for _ in range(1)) == [None]

    def test_a_search_in_two_jobs_finds_what_one_finds(self):
        one, processes, threads = python("-W", "error", "-W", QUIET, "-c", SEARCH).splitlines()
        assert one == processes == threads


SEARCH = """
import joblib
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from syncpretrain.sklearn import DBNClassifier
X, y = load_iris(return_X_y=True)
settings = {"finetune_learning_rate": 0.02}
model = DBNClassifier(epochs=2, finetune_epochs=20, random_state=0, settings=settings)
model = make_pipeline(MinMaxScaler(), model)
for jobs, backend in ((1, "loky"), (2, "loky"), (2, "threading")):
    with joblib.parallel_config(backend):
        grid = {"dbnclassifier__hidden": [(4,), (8, 4)]}
        search = GridSearchCV(model, grid, cv=2, n_jobs=jobs, error_score="raise").fit(X, y)
    print(search.cv_results_["mean_test_score"].tolist())
"""
MISSING = """
import sys
sys.modules["sklearn"] = None
try:
    import syncpretrain.sklearn
except ImportError as error:
    print(error)
"""


def test_without_scikit_learn_one_sentence_says_what_to_install():
    printed = python("-c", MISSING)
    assert 'pip install "syncpretrain[sklearn]"' in printed
    assert len(printed.splitlines()) == 1


SHORT = {"epochs": 1, "finetune_epochs": 1, "workers": 1, "random_state": 0}


def fitted(classes, labels, **settings):
    """Return a classifier fitted on so many classes with so many labels each."""
    y = np.arange(classes * labels) % classes
    X = np.random.default_rng(0).normal(size=(len(y), 3))
    return DBNClassifier(**(SHORT | settings)).fit(X, y)


@pytest.mark.parametrize(
    ("classes", "given", "widths"),
    [
        (20, {}, (3, 256, 64)),
        (21, {}, (3, 256, 256)),
        (21, {"hidden": (7, 5)}, (3, 7, 5)),  # layers that are given stay
    ],
)
def test_many_classes_get_a_wider_code(classes, given, widths):
    assert fitted(classes, 2, **given).stack_.widths == widths


def test_few_classes_keep_their_bits():
    stacks = [fitted(5, 10, **given).stack_ for given in ({}, {"hidden": (256, 64)})]
    assert stacks[0].parameters_sha256 == stacks[1].parameters_sha256


def test_many_classes_of_few_rows_are_told_apart():
    X, y = make_blobs(60 * 11, 20, centers=60, cluster_std=4.5, random_state=3)
    seen = np.zeros(len(y), dtype=bool)
    for label in range(60):
        seen[np.flatnonzero(y == label)[:5]] = True
    model = DBNClassifier(random_state=0, workers=1).fit(X[seen], y[seen])
    assert model.score(X[~seen], y[~seen]) > 0.84  # 0.79 with a code of 64 units
