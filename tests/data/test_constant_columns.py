"""Columns that never varied in training: left out, whatever their unit, and new values reported."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from estimatorkinds import ESTIMATORS
from sklearn.linear_model import LogisticRegression
from trialruns import notices_of

from syncpretrain import Minibatches, finetune, load, pretrain
from syncpretrain.data.columns import Column, Columns, columns_of
from syncpretrain.data.scaling import Scaling, check_varies
from syncpretrain.data.table import Table, texts_of
from syncpretrain.errors import DataError, DivergedError, NovelValueWarning, PoorResultWarning
from syncpretrain.models.inputs import constant_columns
from syncpretrain.models.scores import feature_scores, scores
from syncpretrain.sklearn import StackAnomalyDetector, StackedRBM

NORMAL = np.random.default_rng(0).normal(size=(120, 4)).astype(np.float32)
LABELS = np.arange(120) % 2
SHORT = {"epochs": 2, "batch_size": 20, "warn": False}
SMALL = {"hidden": (3,), "epochs": 1, "batch_size": 20, "random_state": 0, "workers": 1}
UNITS = [(5, 7), (0.005, 0.007), (5e6, 7e6), (0, 1e-9), (-3, -3.5)]


def with_column(value: float, *, rows: int = 120) -> np.ndarray:
    """Return normal columns, the third of which holds one value."""
    X = NORMAL[:rows].copy()
    X[:, 2] = value
    return X


def trained(value: float):
    return pretrain(with_column(value), hidden=[3], visible_units="gaussian", **SHORT)


def new_rows(before: float, after: float) -> np.ndarray:
    """Return the first ten rows, the fourth of which has another value in the third column."""
    X = with_column(before, rows=10)
    X[3, 2] = after
    return X


class TestScaling:
    @pytest.mark.parametrize("value", [0, 5, 0.005, -1e17])
    def test_a_constant_column_has_no_scale_and_comes_back_as_it_was(self, value):
        scaling = Scaling.of(with_column(value))
        assert scaling.constant.tolist() == [False, False, True, False]
        made = scaling.apply(with_column(value) * 2 + 1)
        assert not made[:, 2].any()
        assert not np.signbit(made[:, 2]).any(), "-0 stands for a missing value"
        np.testing.assert_array_equal(scaling.invert(made + 1)[:, 2], np.float32(value))

    def test_numbers_that_differ_by_rounding_are_one(self):
        assert Scaling.of(np.array([[0.1 + 0.2, 1e9], [0.3, 1e9]])).constant.all()
        assert Scaling.of(np.float32([[1, 1e9], [1, 1e9 + 64]])).constant.tolist() == [True, False]
        assert Scaling.of(np.float32([[0.3]] * 2)).novel_in(np.array([[0.1 + 0.2]]))[0] == 0

    def test_missing_values_stay_missing_and_are_not_new(self):
        X = with_column(5)
        X[::3, 2] = np.nan
        scaling = Scaling.of(X).marking()
        assert scaling.constant[2]
        made = scaling.apply(np.float32([[0, 0, np.nan, 0], [0, 0, 7, 0]]))[:, 2]
        np.testing.assert_array_equal(made, [np.nan, 10])

    def test_a_model_of_an_earlier_version_stays_as_it_was(self):
        before = Scaling(np.float32([1, 5]), np.float32([2, 1]))
        X = np.float32([[3, 7], [0, 5]])
        np.testing.assert_array_equal(before.marking().apply(X), [[1, 2], [-0.5, 0]])
        assert before.novel_in(X)[0] == 0


@pytest.mark.parametrize(("before", "after"), UNITS)
class TestNewValues:
    @pytest.mark.filterwarnings("ignore::syncpretrain.errors.NovelValueWarning")
    @pytest.mark.parametrize("by", ["reconstruction", "free-energy"])
    def test_they_are_outliers_in_every_unit(self, before, after, by):
        stack, rows = trained(before), new_rows(before, after)
        usual, found = scores(stack, with_column(before), by=by), scores(stack, rows, by=by)
        assert (found > usual.max()).tolist() == [i == 3 for i in range(10)]
        gain = found[3] - usual[3]
        assert gain == pytest.approx(100 if by == "reconstruction" else 50, rel=0.05)

    @pytest.mark.filterwarnings("ignore::syncpretrain.errors.NovelValueWarning")
    def test_the_column_has_the_part_in_the_score(self, before, after):
        parts = feature_scores(trained(before), new_rows(before, after))
        assert np.argwhere(parts > 50).tolist() == [[3, 2]]

    @pytest.mark.parametrize("what", ["encode", "reconstruct", "predict"])
    def test_the_model_leaves_them_out_and_says_so(self, before, after, what):
        stack = trained(before)
        if what == "predict":
            X = with_column(before)
            stack = finetune(stack, X, LABELS, epochs=1, batch_size=20, warn=False)
        usual = getattr(stack, what)(with_column(before, rows=10))
        words = r"X: 1 of 10 rows have new values in columns that never varied .* \(2; counted"
        with pytest.warns(NovelValueWarning, match=words):
            found = getattr(stack, what)(new_rows(before, after))
        np.testing.assert_array_equal(found, usual)

    def test_the_detector_finds_them(self, before, after):
        detector = StackAnomalyDetector(**SMALL, finetune_epochs=1).fit(with_column(before))
        with pytest.warns(NovelValueWarning, match="X: 1 of 10 rows"):
            found = detector.predict(new_rows(before, after))
        assert found[3] == -1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            usual = detector.score_samples(with_column(before, rows=10))
        assert usual.min() > -10


@pytest.mark.parametrize("value", [0.1, -1e9, 1_700_000_000])
def test_an_estimator_knows_the_value_that_never_varied(value, recwarn):
    X = np.hstack([np.full((120, 1), value), NORMAL])
    model = StackedRBM(**SMALL).fit(X)
    recwarn.clear()
    model.transform(X)
    assert not recwarn.list
    with pytest.warns(NovelValueWarning, match="120 of 120 rows have new values"):
        model.transform(X + np.eye(1, X.shape[1]))


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_every_estimator_reports_new_values_by_name(pandas, kind):
    fitted = kind(**SMALL).fit(pandas.DataFrame(with_column(5), columns=list("abcd")), LABELS)
    method = "transform" if hasattr(fitted, "transform") else "predict"
    rows = pandas.DataFrame(new_rows(5, 7), columns=list("abcd"))
    with pytest.warns(NovelValueWarning, match=r"X: 1 of 10 rows .* \('c'\), which the model"):
        getattr(fitted, method)(rows)


@pytest.mark.parametrize("kind", ["i2", ">f8", "f8", "u1"])
def test_the_type_of_a_number_makes_it_no_new_one(kind):
    X = np.round(30 + 5 * with_column(0)).astype(kind)
    stack = pretrain(X.astype("f4"), hidden=[3], **SHORT)
    np.testing.assert_array_equal(stack.scaling.constant, [False, False, True, False])
    if kind != "u1":  # bytes are shares of 255
        stack.encode(X)
        stack.encode(X.tolist())


def test_new_values_are_counted_in_files_and_sparse_rows(tmp_path, sparse):
    stack = trained(0)
    np.save(tmp_path / "x.npy", new_rows(0, 7))
    for rows in (sparse.csr_array(new_rows(0, 7)), np.load(tmp_path / "x.npy", mmap_mode="r")):
        with pytest.warns(NovelValueWarning, match="X: 1 of 10 rows"):
            codes = stack.encode(rows)
        np.testing.assert_array_equal(codes, stack.encode(with_column(0, rows=10)))


def test_fine_tuning_on_rows_in_which_the_column_varies_says_that_it_is_left_out():
    stack, options = trained(5), {**SHORT, "epochs": 1, "blas_threads": 1}
    with pytest.warns(NovelValueWarning, match="X: 120 of 120 rows"):
        tuned = finetune(stack, NORMAL, LABELS, **options)
    same = finetune(stack, with_column(5), LABELS, **options)
    assert tuned.parameters_sha256 == same.parameters_sha256


def test_a_model_keeps_its_constant_columns(tmp_path):
    stack = trained(5)
    stack.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert again.scaling.constant[2]
    assert again.parameters_sha256 == stack.parameters_sha256
    assert again.sample(3, steps=1)[:, 2].tolist() == [5, 5, 5]


class TestNotices:
    def test_training_counts_and_names_them(self, pandas):
        frame = pandas.DataFrame(with_column(5), columns=list("abcd")).assign(state="ok")
        found = []
        pretrain(frame, hidden=[3], visible_units="auto", observers=[found.append], **SHORT)
        assert [m for m in notices_of(found) if "never vary: 2 of 5 ('c', 'state')" in m]

    def test_there_is_none_where_all_vary_or_values_are_probabilities(self):
        found = []
        pretrain((with_column(0) > 0).astype("f4"), hidden=[3], observers=[found.append], **SHORT)
        pretrain(NORMAL, hidden=[3], observers=[found.append], **SHORT)
        assert not [message for message in notices_of(found) if "never vary" in message]

    def test_many_are_a_count_and_a_few_names(self):
        found = str(constant_columns(Scaling(*np.zeros((2, 784), dtype="f4")), None))
        assert "784 of 784 (0, 1, 2, 3, 4, ...; counted from 0)" in found
        columns = Columns((Column("1", "constant", ("x",)), Column("2", "number")), named=False)
        assert "1 of 2 ('1')" in str(constant_columns(None, columns))


class TestRowsThatAreAllTheSame:
    @pytest.mark.parametrize("value", [7.5, 0, 1, 0.5])
    @pytest.mark.parametrize("units", [None, "gaussian", "auto"])
    def test_they_are_refused(self, value, units):
        with pytest.raises(DataError, match=r"^X: all 4 columns are constant, got 9 times"):
            pretrain(np.full((9, 4), value), hidden=[2], visible_units=units)

    @pytest.mark.parametrize("estimator", ESTIMATORS)
    def test_every_estimator_refuses_them(self, estimator):
        with pytest.raises(DataError, match="all 4 columns are constant"):
            estimator(**SMALL).fit(np.full((120, 4), 7.5), LABELS)

    @pytest.mark.parametrize("y", [None, LABELS[:9], NORMAL[:9, 0]])
    def test_fine_tuning_on_them_has_them_as_its_verdict(self, y):
        with pytest.warns(PoorResultWarning, match="^all 4 columns are constant"):
            finetune(trained(5), np.full((9, 4), 5.0), y, epochs=1, batch_size=3)

    def test_holes_and_bytes_and_sparse_rows_are_no_difference(self, sparse):
        holes = np.where(np.eye(4, dtype=bool), np.nan, 3).astype("f4")
        for X in (holes, np.full((4, 3), 9, "u1"), sparse.csr_array(np.zeros((4, 3)))):
            with pytest.raises(DataError, match="columns are constant"):
                pretrain(X, hidden=[2], epochs=1, batch_size=2)

    def test_of_an_iterable_they_are_found_by_measuring(self):
        with pytest.raises(DataError, match="all 4 columns are constant"):
            X = Minibatches([np.full((9, 4), 7.5, "f4")])
            how = {"visible_units": "gaussian", "handoff": "minibatch", "batch_size": 3}
            pretrain(X, layers=[4, 2], **how)

    def test_a_table_of_one_text_a_column_is_refused(self):
        texts = Table("t", ("a", "b"), (texts_of("xx"), texts_of("yy")))
        with pytest.raises(DataError, match=r"^t: all columns are constant, with one text each"):
            columns_of(texts, encode=True)

    def test_one_row_is_permitted_and_so_are_rows_to_use(self):
        check_varies(np.ones((1, 4)))
        assert trained(5).encode(with_column(5)[[0, 0, 0]]).shape == (3, 3)


class TestParts:
    def parts(self):
        """Return parts that tell two classes by a column of thousands, constant in the first."""
        draws = np.random.default_rng(1)
        y = np.arange(1200) % 2
        X = draws.normal(size=(1200, 4))
        X[:, 2] = 1000 * (2 * y - 1 + 0.3 * X[:, 2])
        X[:200, 2] = 0
        return np.array_split(X, 6), y

    def test_a_column_is_scaled_when_it_first_varies(self):
        online = StackedRBM(**SMALL | {"hidden": (20,)})
        parts, y = self.parts()
        for part in parts * 5:
            online.partial_fit(part)
        codes, later = online.transform(np.concatenate(parts[1:])), y[200:]
        assert 900 < online.stack_.scaling.scale[2] < 1200
        assert ((codes > 0.01) & (codes < 0.99)).all()
        odds = np.log(codes / (1 - codes))
        assert LogisticRegression().fit(odds[:500], later[:500]).score(odds, later) > 0.9

    def test_it_is_the_scaling_of_the_new_values_and_the_old_one(self):
        scaling = Scaling.of(with_column(5)).varied_by(np.float32([[0, 0, 7, 0]] * 3))
        assert scaling.shift[2] == 6.5
        assert scaling.scale[2] == pytest.approx(np.std([5, 7, 7, 7]))
        again = scaling.varied_by(np.float32([[0, 0, 9, 0]]))
        assert again is scaling, "by which the model is trained from now on"

    def test_a_part_far_from_the_first_one_is_reported_by_name(self, pandas):
        parts, _ = self.parts()
        parts[0][:, 2] = NORMAL[:, 2].repeat(2)[:200] / 100
        frames = [pandas.DataFrame(part, columns=list("abcd")) for part in parts]
        online = StackedRBM(**SMALL).partial_fit(frames[0])
        with pytest.warns(PoorResultWarning) as caught:
            online.partial_fit(frames[1]).partial_fit(frames[2])
        told = {str(warning.message) for warning in caught}
        assert len(told) == 1, "what follows of it for the layers is not said"
        assert "lie more than 10 deviations from the mean of the first part ('c')" in told.pop()

    def test_a_column_that_hardly_varies_after_the_first_part_is_reported(self):
        X = np.random.default_rng(2).normal(size=(1600, 4))
        online = StackedRBM(**SMALL).partial_fit(1000 * X[:100])
        with pytest.warns(PoorResultWarning, match=r"vary by less than 0.01 .* \(0, 1, 2, 3; co"):
            online.partial_fit(X[100:])

    def test_layers_that_are_spoiled_are_reported_at_once(self):
        online = StackedRBM(**SMALL | {"learning_rate": 50})
        bits = np.random.default_rng(1).integers(2, size=(120, 4))
        with pytest.warns(PoorResultWarning, match="layer 1: . of its 3 units are off or on"):
            online.partial_fit(bits)
        assert online.stack_.info["verdict"]

    def test_a_layer_that_diverges_is_an_error_and_leaves_the_part_before(self):
        online = StackedRBM(**SMALL, settings={"hidden_units": "relu"}).partial_fit(NORMAL)
        before = online.stack_.parameters_sha256
        with pytest.raises(DivergedError, match=r"layer 1 diverged in .* than 10 deviations"):
            online.partial_fit(1e9 * NORMAL)
        assert online.stack_.parameters_sha256 == before
        assert np.isfinite(online.partial_fit(NORMAL).transform(NORMAL)).all()

    def test_layers_that_learned_nothing_are_reported_after_500_updates(self):
        online = StackedRBM(**SMALL | {"learning_rate": 1e-7})
        for _ in range(83):
            online.partial_fit(NORMAL)
        with pytest.warns(PoorResultWarning, match="hardly differ between examples; try more rows"):
            online.partial_fit(NORMAL)

    def test_constant_parts_are_taken_and_reported(self):
        with pytest.warns(PoorResultWarning, match="all 4 columns are constant so far"):
            online = StackedRBM(**SMALL).partial_fit(np.full((20, 4), 7.5))
        assert online.partial_fit(NORMAL).stack_.scaling.constant.sum() == 0


class TestCommandLine:
    @pytest.fixture
    def run(self, call, tmp_path, monkeypatch):
        """Return a function that calls a command; in its folder is a run on a table."""
        monkeypatch.chdir(tmp_path)
        rows = [f"{a:.3f},{b:.3f},5,ok" for a, b in NORMAL[:60, :2]]
        Path("t.csv").write_text("\n".join(["a,b,unit,state", *rows]) + "\n")
        Path("unit.csv").write_text("a,b,unit,state\n0,0,5,ok\n0,0,7,ok\n0,1,5,\n")
        Path("state.csv").write_text("a,b,unit,state\n0,0,5,ok\n0,0,5,FAILURE\n")
        options = ("--hidden", 3, "--visible-units", "auto", "--epochs", 2, "--batch-size", 10)
        _, err = call("train", "--data", "t.csv", *options, "--out", "run")
        assert err.count("columns that never vary: 2 of 4 ('unit', 'state'), which are left") == 1
        return call

    @pytest.mark.parametrize("command", ["score", "encode"])
    def test_another_text_is_refused_and_another_number_reported(self, run, command):
        _, err = run(command, "run", "--data", "state.csv", "--out", "s.csv", status=2)
        words = "column 'state' holds 'FAILURE' at row 1 (counted from 0), a category that was not"
        assert words in err
        _, err = run(command, "run", "--data", "unit.csv", "--out", "s.csv")
        assert err.startswith("warning: ")
        assert "1 of 3 rows have new values in columns" in err
        assert "('unit')" in err
        if command == "score":
            lines = Path("s.csv").read_text().split()
            assert [line.split(",")[1] for line in lines[1:]] == ["0", "1", "0"]

    @pytest.mark.parametrize("value", [7.5, 0.5])
    def test_a_file_of_one_value_is_refused_before_a_folder_is_made(self, call, tmp_path, value):
        np.save(tmp_path / "x.npy", np.full((50, 784), value, "f4"))
        options = ("--hidden", 3, "--out", tmp_path / "run")
        _, err = call("train", "--data", tmp_path / "x.npy", *options, status=2)
        assert "all 784 columns are constant" in err
        assert not (tmp_path / "run").exists()

    def test_quiet_is_quiet(self, call, tmp_path):
        X = with_column(5)
        X[-3:, 2] = 7
        np.savez(tmp_path / "x.npz", X_train=X[:100], X_test=X[100:])
        options = ("--data", tmp_path / "x.npz", "--hidden", 3, "--epochs", 1)
        assert call("train", *options, "--out", tmp_path / "a", "--quiet")[1] == ""
        out, err = call("evaluate", tmp_path / "a", "--json")
        assert err.count("3 of 20 rows have new values") == 1
        assert json.loads(out)
