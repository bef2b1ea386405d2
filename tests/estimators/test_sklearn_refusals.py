"""What the estimators refuse, and in which words; what they take for no label."""

import warnings

import numpy as np
import pytest
from estimatorkinds import ESTIMATORS, DBNClassifier, DBNRegressor

from syncpretrain.errors import DataError, PoorResultWarning, SettingsError

ROWS = np.random.default_rng(0).normal(size=(30, 3))
TEXTS = np.where(ROWS[:, 0] > 0, "oui", "né").tolist()
SMALL = {"hidden": (4, 3), "epochs": 1, "workers": 1, "random_state": 0}


def fitted(X=ROWS, y=TEXTS, *, weights=None, kind=DBNClassifier, **settings):
    return kind(**(SMALL | {"finetune_epochs": 1} | settings)).fit(X, y, weights)


@pytest.mark.parametrize("none", [-1, -1.0, np.int64(-1), None, float("nan"), np.nan])
def test_a_list_of_texts_may_lack_some(none):
    y = [none if row < 10 else text for row, text in enumerate(TEXTS)]
    assert fitted(y=y).classes_.tolist() == ["né", "oui"]


def test_texts_of_two_types_are_texts():
    y = [np.str_(text) if row % 2 else text for row, text in enumerate(TEXTS)]
    assert fitted(y=[*y[:-1], None]).classes_.tolist() == ["né", "oui"]
    assert fitted().classes_.dtype.kind == "U", "without None they keep their type"


@pytest.mark.parametrize("kind", ["i1", "f2", ">i4", ">f8", object, list])
def test_minus_one_that_may_be_a_class_is_doubted(kind):
    y = np.arange(30) % 3 - 1
    with pytest.warns(PoorResultWarning, match="^y: 10 rows are left out, since the label -1 st"):
        model = fitted(y=y.tolist() if kind is list else y.astype(kind))
    assert (model.classes_.tolist(), model.n_unlabelled_) == ([0, 1], 10)


@pytest.mark.parametrize("none", [-1, np.nan])
def test_many_rows_without_a_label_are_no_doubt(none):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "y: ", PoorResultWarning)
        assert fitted(y=np.where(np.arange(30) < 20, none, np.arange(30) % 3)).n_unlabelled_ == 20
        assert fitted(y=np.r_[none, np.arange(29) % 3]).n_unlabelled_ == 1
        y = np.where(np.arange(30) < 20, np.nan, ROWS[:, 0])
        assert DBNRegressor(**SMALL).fit(ROWS, y).n_unlabelled_ == 20


@pytest.mark.parametrize(
    ("y", "remedy"), [(np.arange(30), "or DBNRegressor"), ([f"n{i}" for i in range(30)], "another")]
)
def test_a_class_for_nearly_every_row_is_doubted_once(y, remedy):
    with pytest.warns(PoorResultWarning) as caught:
        fitted(y=y)
    found = [str(one.message) for one in caught if "classes" in str(one.message)]
    assert len(found) == 1
    assert "y: got 30 classes in 30 rows, so that nearly every row" in found[0]
    assert remedy in found[0]


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize("epochs", [(0, 3), [3, 0], np.array([0, 3])])
def test_epochs_of_some_layers_alone_are_refused(kind, epochs):
    model = kind(**(SMALL | {"epochs": epochs}))
    with pytest.raises(SettingsError, match=r"^epochs: got .*, expected 0 for all layers, which"):
        model.fit(ROWS, ROWS[:, 0] if kind is DBNRegressor else TEXTS)


@pytest.mark.parametrize("epochs", [0, (0, 0), np.zeros(2, dtype=int)])
def test_no_epoch_of_any_layer_leaves_out_pretraining(epochs):
    stacks = [fitted(epochs=own).stack_ for own in (epochs, 0)]
    assert stacks[0].parameters_sha256 == stacks[1].parameters_sha256


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"settings": {"observers": 1}}, "settings: got observers, which "),
        ({"settings": {"warn": 1}}, "settings: got warn, which "),
        ({"settings": {"finetune_objective": 1}}, "settings: got finetune_objective, which "),
        ({"settings": {"finetune_seed": 1}}, "settings: got finetune_seed, which "),
        ({"settings": {3: 1}}, "settings: got the name 3, expected text"),
        ({"settings": {"finetune_unlabelled": "psudo"}}, "finetune_unlabelled: got "),
        ({"batch_size": -1}, "batch_size: got "),
    ],
)
def test_a_refusal_names_the_parameter_that_was_given(given, message):
    with pytest.raises(SettingsError, match=f"^{message}"):
        fitted(**given)


@pytest.mark.parametrize("estimator", [DBNClassifier, DBNRegressor])
def test_visible_units_that_are_no_text_are_refused_where_a_committee_would_teach(estimator):
    with pytest.raises(SettingsError, match=r"^visible_units: got 3, expected text$"):
        estimator(visible_units=3).fit(ROWS, np.arange(30) % 2)


DATES, NUMBERS = np.arange(90).reshape(30, 3), {"kind": DBNRegressor, "y": ROWS[:, 0]}
NO_WEIGHT = {"X": ROWS[:3], "y": [np.nan, 1, 2], "weights": [1, 0, 0]}
OF_DATES = "X: got values of type .*64.s., expected numbers; take"
OF_NO_WEIGHT = "sample_weight: got 0 for every row with a target, expe"
TOO_LARGE = "y: got numbers up to .*e.300, expected ones whose squ"
ALIKE = r"y: got numbers that differ by .*e-\d+ at most, expected"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"y": [7, *TEXTS[1:]]}, "y: got labels of types int, str, expected one type; "),
        ({"y": np.full(30, -1)}, "y: got 1 class, -1, .* two classes, with -1 for no lab"),
        ({"X": DATES.astype("M8[s]")}, OF_DATES),
        ({"X": DATES.astype("m8[s]")}, OF_DATES),
        (NUMBERS | {"y": ROWS[:, 0] * 1e300}, TOO_LARGE),
        (NUMBERS | {"y": ROWS[:, :2] * [1, 1e-200]}, ALIKE),
        (NUMBERS | {"y": ROWS[:, :2] * [1, 1e-162]}, ALIKE),
        (NO_WEIGHT, OF_NO_WEIGHT),
        (NO_WEIGHT | {"kind": DBNRegressor}, OF_NO_WEIGHT),
        # before pretraining:
        ({"hidden": (), "class_weight": {"né": 0, "oui": 0}}, "class_weight: got "),
        ({"hidden": (), "class_weight": {"né": -1, "oui": -1}}, "class_weight: got "),
        ({"hidden": (), "class_weight": {"né": np.nan, "oui": np.nan}}, "class_weight: got "),
    ],
)
def test_data_are_refused(given, message):
    with pytest.raises(DataError, match=f"^{message}"):
        fitted(**given)


def frame_with(**columns):
    return pytest.importorskip("pandas").DataFrame(ROWS, columns=list("abc")).assign(**columns)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (TEXTS, "holds '(oui|né)' at row 0 .counted from 0., expected numbers; encode it"),
        (np.array(["2020-01-01"] * 30, dtype="M8[s]"), "holds datetime64.s., expected numbers"),
        (np.full(30, np.nan), "^X: got NaN in every row of column 'd', expected a number in one"),
        ([1.0] * 4 + [np.inf] * 26, "holds infinity at row 4 .counted from 0., expected finite"),
        ([1.0] * 4 + [None] * 25 + ["x"], "column 'd' holds 'x' at row 29 .counted from 0."),
    ],
)
def test_the_column_of_a_data_frame_is_named(column, words):
    with pytest.raises(DataError, match=words) as error:
        fitted(frame_with(d=column))
    assert "'d'" in str(error.value)


def test_dates_alone_and_two_columns_of_one_name_are_refused():
    frame = frame_with(d=np.array(["2020-01-01"] * 30, dtype="M8[s]"))
    with pytest.raises(DataError, match=r"^X: column 'd' holds datetime64.s., expected numbers"):
        fitted(frame[["d"]])
    frame.columns = ["a", "b", "a", "d"]
    with pytest.raises(DataError, match=r"^X: got two columns of the name 'a'; rename one$"):
        fitted(frame)


def test_a_value_that_is_missing_at_a_prediction_may_be_a_whole_column():
    assert fitted(frame_with()).predict(frame_with(a=np.nan)).shape == (30,)


def test_nan_in_a_sparse_matrix_is_refused_with_its_place():
    sparse = pytest.importorskip("scipy.sparse")
    rows = np.where(np.abs(ROWS) > 0.5, ROWS, 0)
    rows[7, 1] = np.nan
    words = (
        r"^X: got NaN at row 7, column 1 \(counted from 0\) of a sparse matrix, expected numbers"
    )
    with pytest.raises(DataError, match=words):
        fitted(sparse.csr_matrix(rows))
    model = fitted()
    with pytest.raises(DataError, match=words):
        model.predict(sparse.csr_array(rows))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_numbers_that_float32_cannot_hold_are_named(estimator):
    """Not as infinity, into which they would turn."""
    words = r"^X: got \S+e\+(299|300) at row \d+, column \d .* divide by a larger unit"
    rows = np.abs(ROWS) * 1e300
    with pytest.raises(DataError, match=words):
        estimator(**SMALL).fit(rows, np.arange(len(rows)) % 2)


@pytest.mark.parametrize("scale", [1e308, 3e-320])
def test_weights_are_relative(scale):
    weights = np.repeat([1.0, 0.5, 0.25], 10)
    models = [DBNRegressor(**SMALL).fit(ROWS, ROWS[:, 0], weights * by) for by in (1, scale)]
    assert models[0].target_scale_ == pytest.approx(models[1].target_scale_, rel=1e-3)
    assert models[0].predict(ROWS) == pytest.approx(models[1].predict(ROWS), rel=1e-2, abs=1e-3)


def test_weights_of_classes_and_of_rows_may_both_be_large():
    large = dict.fromkeys(("né", "oui"), 1e308)
    model = DBNClassifier(**SMALL, class_weight=large).fit(ROWS, TEXTS, np.full(30, 1e308))
    alike = DBNClassifier(**SMALL).fit(ROWS, TEXTS, np.ones(30))
    assert model.stack_.parameters_sha256 == alike.stack_.parameters_sha256


def test_fine_tuning_by_line_searches_takes_fewer_rows_than_its_minibatches_have():
    model = fitted(settings={"finetune_optimizer": "lbfgs"}, finetune_epochs=2)
    assert np.isfinite(model.predict_proba(ROWS)).all()
