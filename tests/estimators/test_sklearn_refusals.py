"""What the estimators refuse, and in which words; what they take for no label."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from estimatorkinds import ESTIMATORS, DBNClassifier, DBNRegressor

from syncpretrain.errors import DataError, PoorResultWarning, SettingsError

ROWS = np.random.default_rng(0).normal(size=(30, 3))
TEXTS = np.where(ROWS[:, 0] > 0, "oui", "né").tolist()
SMALL = {"hidden": (4, 3), "epochs": 1, "workers": 1, "random_state": 0}


def fitted(X=ROWS, y=TEXTS, **settings):
    return DBNClassifier(**(SMALL | {"finetune_epochs": 1} | settings)).fit(X, y)


@pytest.mark.parametrize("none", [-1, -1.0, np.int64(-1), None, float("nan"), np.nan])
def test_a_list_of_texts_may_lack_some(none):
    y = [none if row < 10 else text for row, text in enumerate(TEXTS)]
    assert fitted(y=y).classes_.tolist() == ["né", "oui"]


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
        model = fitted(y=np.where(np.arange(30) < 20, none, np.arange(30) % 3))
        assert model.n_unlabelled_ == 20
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


def test_texts_of_two_types_are_texts():
    y = [np.str_(text) if row % 2 else text for row, text in enumerate(TEXTS)]
    assert fitted(y=[*y[:-1], None]).classes_.tolist() == ["né", "oui"]


def test_labels_that_are_all_texts_keep_their_type():
    assert fitted(y=TEXTS).classes_.dtype.kind == "U"


def test_a_list_of_texts_and_numbers_is_refused():
    with pytest.raises(DataError, match=r"^y: got labels of types int, str, expected one type; "):
        fitted(y=[7, *TEXTS[1:]])


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


@pytest.mark.parametrize("name", ["observers", "warn", "finetune_objective", "finetune_seed"])
def test_a_setting_that_the_estimator_decides_is_refused(name):
    with pytest.raises(SettingsError, match=f"^settings: got {name}, which "):
        fitted(settings={name: 1})


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"finetune_epochs": -1}, "finetune_epochs"),
        ({"settings": {"finetune_unlabelled": "psudo"}}, "finetune_unlabelled"),
        ({"settings": {"finetune_dropout": 2}}, "finetune_dropout"),
        ({"epochs": -1}, "epochs"),
        ({"batch_size": -1}, "batch_size"),
    ],
)
def test_a_refusal_names_the_parameter_that_was_given(given, name):
    with pytest.raises(SettingsError, match=rf"^{name}: got "):
        fitted(**given)


@pytest.mark.parametrize("estimator", [DBNClassifier, DBNRegressor])
def test_visible_units_that_are_no_text_are_refused_where_a_committee_would_teach(estimator):
    with pytest.raises(SettingsError, match=r"^visible_units: got 3, expected text$"):
        estimator(visible_units=3).fit(ROWS, np.arange(30) % 2)


def test_a_name_that_is_no_text_is_refused():
    with pytest.raises(SettingsError, match=r"^settings: got the name 3, expected text"):
        fitted(settings={3: 1})


def frame_with(**columns):
    frame = pytest.importorskip("pandas").DataFrame(ROWS, columns=list("abc"))
    return frame.assign(**columns)


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


def test_dates_alone_are_refused():
    frame = frame_with(d=np.array(["2020-01-01"] * 30, dtype="M8[s]"))[["d"]]
    with pytest.raises(DataError, match=r"^X: column 'd' holds datetime64.s., expected numbers"):
        fitted(frame)


def test_two_columns_of_one_name_are_refused():
    frame = frame_with()
    frame.columns = ["a", "b", "a"]
    with pytest.raises(DataError, match=r"^X: got two columns of the name 'a'; rename one$"):
        fitted(frame)


def test_a_value_that_is_missing_at_a_prediction_may_be_a_whole_column():
    model = fitted(frame_with())
    assert model.predict(frame_with(a=np.nan)).shape == (30,)


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


@pytest.mark.parametrize("kind", ["M8[s]", "m8[s]"])
def test_an_array_of_dates_is_refused(kind):
    with pytest.raises(DataError, match=r"^X: got values of type .*64.s., expected numbers; take"):
        fitted(np.arange(90).reshape(30, 3).astype(kind))


def test_targets_whose_squares_are_infinite_are_refused():
    with pytest.raises(DataError, match=r"^y: got numbers up to .*e.300, expected ones whose squ"):
        DBNRegressor(**SMALL).fit(ROWS, ROWS[:, 0] * 1e300)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_numbers_that_float32_cannot_hold_are_named(estimator):
    """Not as infinity, into which they would turn."""
    words = r"^X: got \S+e\+(299|300) at row \d+, column \d .* divide by a larger unit"
    rows = np.abs(ROWS) * 1e300
    with pytest.raises(DataError, match=words):
        estimator(**SMALL).fit(rows, np.arange(len(rows)) % 2)


def test_minus_one_alone_is_said_to_be_no_label():
    with pytest.raises(DataError, match=r"^y: got 1 class, -1, .* two classes, with -1 for no lab"):
        DBNClassifier(**SMALL).fit(ROWS, np.full(len(ROWS), -1))


@pytest.mark.parametrize("unit", [1e-200, 1e-162])
def test_targets_whose_squares_are_0_or_lose_digits_are_refused(unit):
    y = np.column_stack([ROWS[:, 0], ROWS[:, 0] * unit])
    with pytest.raises(
        DataError, match=r"^y: got numbers that differ by .*e-\d+ at most, expected"
    ):
        DBNRegressor(**SMALL).fit(ROWS, y)


@pytest.mark.parametrize("scale", [1e308, 3e-320])
def test_weights_are_relative(scale):
    weights = np.repeat([1.0, 0.5, 0.25], 10)
    models = [DBNRegressor(**SMALL).fit(ROWS, ROWS[:, 0], weights * by) for by in (1, scale)]
    assert models[0].target_scale_ == pytest.approx(models[1].target_scale_, rel=1e-3)
    assert models[0].predict(ROWS) == pytest.approx(models[1].predict(ROWS), rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("estimator", [DBNClassifier, DBNRegressor])
def test_weights_of_0_in_all_rows_with_a_target_are_refused(estimator):
    with pytest.raises(DataError, match=r"^sample_weight: got 0 for every row with a target, expe"):
        estimator(**SMALL).fit(ROWS[:3], [np.nan, 1, 2], sample_weight=[1, 0, 0])


@pytest.mark.parametrize("weight", [0, -1, np.nan])
def test_weights_of_classes_that_are_wrong_are_refused_before_pretraining(weight):
    weights = {"né": weight, "oui": min(weight, 0)}
    with pytest.raises(DataError, match=r"^class_weight: got "):
        fitted(class_weight=weights, hidden=())


def test_weights_of_classes_and_of_rows_may_both_be_large():
    large = dict.fromkeys(("né", "oui"), 1e308)
    model = DBNClassifier(**SMALL, class_weight=large).fit(ROWS, TEXTS, np.full(30, 1e308))
    alike = DBNClassifier(**SMALL).fit(ROWS, TEXTS, np.ones(30))
    assert model.stack_.parameters_sha256 == alike.stack_.parameters_sha256


def test_fine_tuning_by_line_searches_takes_fewer_rows_than_its_minibatches_have():
    model = fitted(settings={"finetune_optimizer": "lbfgs"}, finetune_epochs=2)
    assert np.isfinite(model.predict_proba(ROWS)).all()
