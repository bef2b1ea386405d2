"""Few labels and all: columns that share a range, zeros and ones, and a committee that teaches."""

from functools import partial

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6", reason="the estimators are scikit-learn's")

from joblib import parallel_config
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import make_friedman1, make_hastie_10_2
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.ensemble import HistGradientBoostingClassifier as Boosting

from syncpretrain import finetune, load, pretrain
from syncpretrain.parallel.blas import at_once, blas_limit
from syncpretrain.sklearn import DBNClassifier, DBNRegressor, committee, fit_choices
from syncpretrain.sklearn.committee import ForClasses, ForNumbers, network_settings, with_mixed_rows
from syncpretrain.sklearn.fit_choices import Targets, in_shared_range, shared_range

asked = partial(committee.asked, at_once=partial(at_once, 1))

RNG = np.random.default_rng(0)
SMALL = {"hidden": (12, 6), "workers": 1, "random_state": 0}
MEMBERS = ["network", "guesses", "linear", "kernel", "trees", "boosting"]


def classifier(*hidden, **own):
    return DBNClassifier(**({"hidden": hidden, "workers": 1, "random_state": 0} | own))


def some(y, step=10):
    return np.where(np.arange(len(y)) % step == 0, y, -1)


# Zeros and ones of two kinds of rows, half of whose columns tell them apart.
DRAW = np.random.default_rng(0)
KINDS = DRAW.integers(2, size=200)
SHARES = np.where(np.arange(30) % 2, 0.5, np.where(KINDS[:, None], 0.9, 0.1))
BITS = (DRAW.random((200, 30)) < SHARES).astype(float)
PIXELS = np.round(BITS * 16 * RNG.random(BITS.shape) ** 0.2)
MEASURED = BITS + RNG.normal(size=BITS.shape)


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
    assert_array_equal(targets[[1, 3]], y)
    assert own is None if weights is None else own.tolist() == [0, 0.5, 0, 2]


def changed(X, rows, value):
    X = X.copy()
    X[rows, 7] = value
    return X


class TestSharedRange:
    def test_it_is_that_of_the_table(self):
        scaling = shared_range(PIXELS - 3)
        assert set(scaling.shift.tolist()) == {-3.0}
        assert set(scaling.scale.tolist()) == {16.0}
        assert_allclose(in_shared_range(PIXELS - 3, scaling), PIXELS / 16, atol=1e-6)

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
            changed(PIXELS, slice(5), 40),  # are several that lie far away
            changed(RNG.poisson(0.2, (200, 40)).astype(float), 3, 60),  # are counts of words
        ],
    )
    def test_none(self, X):
        assert shared_range(X) is None

    def test_a_sparse_matrix_and_missing_values_have_the_same(self):
        expected = shared_range(PIXELS)
        matrix = sparse.csr_matrix(PIXELS)
        holes = np.where(RNG.random(PIXELS.shape) < 0.1, np.nan, PIXELS)
        for X in (matrix, sparse.csr_array(PIXELS), holes, PIXELS.astype(np.float32)):
            assert_array_equal(shared_range(X).scale, expected.scale)
        scaled = in_shared_range(matrix, expected)
        assert_allclose(scaled.toarray(), in_shared_range(PIXELS, expected), rtol=1e-6)

    def test_columns_that_never_vary_have_no_part(self):
        assert shared_range(np.hstack([PIXELS, np.zeros_like(PIXELS)])) is not None

    @pytest.mark.parametrize("far", [40.0, 1e6, -500.0])
    @pytest.mark.parametrize("X", [PIXELS, PIXELS.astype(np.float32), BITS])
    def test_one_value_far_away_has_no_part(self, X, far):
        X = changed(X, 3, far)
        scaling = shared_range(X)
        assert set(scaling.shift.tolist()) == {0.0}
        assert set(scaling.scale.tolist()) == {X.max(where=far != X, initial=0)}
        assert in_shared_range(X, scaling)[3, 7] == (far > 0)

    @pytest.mark.parametrize("chunk", [30, 1 << 20])
    def test_the_inner_ends_leave_out_one_value_in_ten_thousand(self, monkeypatch, chunk):
        monkeypatch.setattr("syncpretrain.data.blocks.CHUNK_VALUES", chunk)
        X = RNG.permutation(30_000.0 - np.arange(30_000)).reshape(1000, 30)
        assert fit_choices._inner_ends(X) == (4.0, 29_997.0)  # three beyond either
        X[X == 2] = np.nan
        assert fit_choices._inner_ends(X) == (5.0, 29_997.0)

    def test_what_lies_beyond_is_cut_off(self):
        assert_array_equal(in_shared_range(np.full((1, 30), 40.0), shared_range(PIXELS)), 1)


@pytest.mark.parametrize(
    ("X", "expected"), [(BITS, True), (BITS * 2, False), (np.where(BITS > 0, np.nan, 0), False)]
)
def test_zeros_and_ones(X, expected):
    assert fit_choices.are_bits(X) is expected
    assert fit_choices.are_bits(sparse.csr_matrix(X)) is expected


@pytest.mark.parametrize(
    ("rows", "labels", "expected"),
    [(100, 19, True), (100, 20, False), (10**6, 9_999, True), (10**6, 10_000, False)],
)
def test_when_labels_are_few(rows, labels, expected):
    assert fit_choices.are_few(rows, labels) is expected


def stripes(rows=400):
    """Return two long clusters side by side, their classes, and labels of four rows."""
    draw = np.random.default_rng(0)
    y, along = draw.integers(2, size=rows), draw.uniform(-3, 3, rows)
    X = np.stack([along, 2 * y - 1 + draw.normal(0, 0.2, rows), 0.1 * along], axis=1)
    labels = np.full(rows, -1)
    for label, place in ((0, -2), (0, 1), (1, -1), (1, 2)):
        labels[np.abs(along - place + 9 * (y != label)).argmin()] = label
    return X, y, labels


@pytest.fixture
def steps(monkeypatch):
    """Return a function that lets the networks of a committee train for a few steps alone."""

    def let(number):
        monkeypatch.setattr(committee, "TRIAL_STEPS", number)
        monkeypatch.setattr(committee, "UNLABELLED_STEPS", number)

    return let


@pytest.fixture
def quick(steps):
    steps(10)


class TestCommittee:
    def test_rows_without_a_label_train_too(self):
        X, y, labels = stripes()
        fitted = classifier(32, 32).fit(X, labels)
        assert fitted.score(X, y) > 0.9
        (record,) = fitted.stack_.info["finetune"]
        assert (record["unlabelled"], record["normalization"]) == ("none", "batch")
        assert (fitted.stack_.units[1:], list(fitted.teachers_)) == (("relu", "relu"), MEMBERS)

    @pytest.mark.parametrize(
        ("own", "asks"),
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
    def test_another_training_that_is_asked_for_is_done(self, quick, own, asks):
        X, _, labels = stripes(60)
        model = classifier(8, **own)
        assert model._is_to_ask(X, 4, 2) is asks
        assert bool(model.fit(X, labels).teachers_) is asks

    def test_counts_are_for_rbms(self):
        X = RNG.poisson(0.3, (200, 40)).astype(float)
        model = classifier(8)
        assert not model._is_to_ask(X, 20, 2)
        model.set_params(visible_units="counts")
        assert not model._is_to_ask(X + 0.5, 20, 2)

    @pytest.mark.parametrize(
        ("X", "are_bits"),
        [
            (BITS, True),
            (255 * BITS, True),
            (np.where(RNG.random(BITS.shape) < 0.1, np.nan, BITS), True),
            (sparse.csr_matrix(255 * BITS), True),
            (BITS + RNG.normal(size=BITS.shape), False),
        ],
        ids=["bits", "black or white", "some missing", "sparse black or white", "numbers"],
    )
    def test_rbms_judge_zeros_and_ones(self, quick, X, are_bits):
        model = classifier(4).fit(X[:60], some(KINDS[:60]))
        assert ("rbms" in model.teachers_) is are_bits
        assert np.isfinite(model.predict_proba(X)).all()

    @pytest.mark.parametrize(
        ("labelled", "told"),
        [
            (4, "trees, boosting: learn from all 4 targets"),
            (4, "learns from the committee: network 0.17, guesses 0.17"),
            (12, "boosting: learn from two thirds of 12 targets, judged on the others, 3 times"),
        ],
    )
    def test_progress_tells_of_learning_and_weights(self, quick, capsys, labelled, told):
        X, y, few = stripes(60)
        labels = few if labelled == 4 else np.where(np.arange(60) % 5 == 0, y, np.nan)
        classifier(4, verbose=1).fit(X, labels)
        assert told in " ".join(capsys.readouterr().out.split())

    def test_the_result_does_not_depend_on_the_number_of_workers(self, steps):
        steps(100)
        X, y, _ = stripes()
        labels = some(y, 20)  # enough of each class for a trial
        one, two = (classifier(32, 32, workers=n).fit(X, labels) for n in (1, 2))
        assert one.teachers_ == two.teachers_
        assert one.stack_.parameters_sha256 == two.stack_.parameters_sha256
        for workers in (1, 2):  # even where scikit-learn's estimators have jobs of the user's
            with parallel_config("threading", n_jobs=2):
                three = clone(one).set_params(workers=workers).fit(X, labels)
            assert one.stack_.parameters_sha256 == three.stack_.parameters_sha256

    @pytest.mark.parametrize("weight", [1.0, 3.0])
    def test_equal_weights_are_as_none(self, quick, weight):
        X, y, _ = stripes(60)
        labels = some(y, 20)
        one = classifier(4).fit(X, labels)
        two = classifier(4).fit(X, labels, np.full(60, weight))
        assert one.teachers_ == two.teachers_
        assert one.stack_.parameters_sha256 == two.stack_.parameters_sha256

    def test_float32_teaches_as_float64(self, quick):
        X, y, _ = stripes(60)
        single, labels = X.astype(np.float32), some(y, 20)
        fits = [classifier(4).fit(rows, labels) for rows in (single, single.astype(np.float64))]
        assert fits[0].teachers_ == fits[1].teachers_
        assert fits[0].stack_.parameters_sha256 == fits[1].stack_.parameters_sha256

    def test_fits_in_threads_at_once_share_a_limit_of_blas(self, monkeypatch, quick):
        limits = []
        enter = blas_limit.__enter__
        monkeypatch.setattr(
            blas_limit, "__enter__", lambda own: (limits.append(own._threads), enter(own))[1]
        )
        assert "rbms" in classifier(8, workers=2).fit(BITS, some(KINDS, 20)).teachers_
        assert set(limits) == {1}

    def test_routing_of_metadata_changes_nothing(self, quick):
        X, _, labels = stripes(60)
        first = classifier(4).fit(X, labels, np.ones(60)).predict_proba(X)
        with config_context(enable_metadata_routing=True):
            second = classifier(4).fit(X, labels, np.ones(60)).predict_proba(X)
        assert_array_equal(first, second)

    def test_a_column_without_a_value_where_labels_are(self, quick):
        X, _, labels = stripes(60)
        X[labels >= 0, 1] = np.nan
        assert np.isfinite(classifier(4).fit(X, labels).predict_proba(X)).all()

    def test_other_forms_of_the_rows_train_the_same(self, steps):
        steps(100)
        X, y, _ = stripes(80)
        X, labels = X - X.min(axis=0) + 1, some(y, 7)  # no zeros: sparse columns keep their mean
        model = classifier(8)
        first = model.fit(X, labels).predict_proba(X)
        for rows in (sparse.csr_matrix(X), X.astype(np.float32)):
            found = clone(model).fit(rows, labels).predict_proba(rows)
            assert_allclose(found, first, rtol=0.1, atol=0.02)

    @pytest.mark.parametrize("weight", [{0: 1, 1: 0}, {0: 0, 1: 1}])
    def test_a_class_without_any_weight_stays_a_class(self, quick, weight):
        X, y, _ = stripes(60)
        labels = np.where(np.arange(60) < 11, y, -1)
        model = classifier(8, class_weight=weight)
        assert model.fit(X, labels).classes_.tolist() == [0, 1]
        assert set(model.teachers_.values()) == {1 / len(MEMBERS)}
        assert np.isfinite(model.predict_proba(X)).all()

    @pytest.mark.parametrize("batch_size", [1, 7])
    def test_small_minibatches_are_of_two_rows(self, quick, batch_size):
        X, y, _ = stripes(70)
        model = classifier(8, batch_size=batch_size).fit(X, np.where(np.arange(70) < 13, y, -1))
        assert np.isfinite(model.predict_proba(X)).all()

    def test_guesses_count_little_where_classes_part_inside_of_a_cluster(self):
        X = np.random.default_rng(0).normal(size=(600, 7))
        far = np.square(X).sum(axis=1)
        y = (far > np.median(far)).astype(int)  # a sphere cuts the cluster into two classes
        labels = np.where(np.arange(600) < 80, y, -1)
        model = classifier(32, 32).fit(X, labels)
        others = sum(model.teachers_.values()) - model.teachers_["guesses"]
        assert model.teachers_["guesses"] < 0.5 * others
        random = {"hidden_units": "relu", "visible_units": "gaussian", "schedule": "none"}
        start = pretrain(X, layers=[7, 32, 32], **random, warn=False)
        own = network_settings(ForClasses(2), X.shape, 80)
        guessed = finetune(start, X, labels, **own, warn=False)
        assert model.score(X, y) > (guessed.predict(X) == y).mean() + 0.02

    def test_names_of_classes_and_missing_values(self, steps):
        steps(200)
        X, y, _ = stripes()
        X[::7, 2] = np.nan
        names = np.array(["left", "right"], dtype=object)[y]
        model = classifier(16).fit(X, np.where(np.arange(len(y)) % 20 == 0, names, None))
        assert model.stack_.head.classes == ("left", "right")
        assert model.score(X, names) > 0.9


class Told:
    """A member that says what it is told, and remembers what it has learned from."""

    def __init__(self, share):
        self.share, self.seen = share, []

    def __call__(self, X, targets, steps):
        self.seen.append((X, targets, steps))
        return lambda rows: np.log(self.share(rows))


def right(certainty):
    """Return probabilities by the first column, which holds the class."""
    return lambda rows: np.where(np.arange(2) == rows[:, :1], certainty, 1 - certainty)


class TestAllLabels:
    @pytest.mark.parametrize(
        ("shape", "targets", "outputs", "expected"),
        [
            ((9_999, 10), 9_999, 2, True),
            ((50_000, 10), 10_000, 2, False),
            ((1 << 10, 1 << 10), 1 << 10, 2, True),
            ((1 << 10, 1 << 10), 1 << 10, 3, False),
            ((1 << 10, 1 << 10), 100, 3, True),  # few
            ((50, 2), 2, 2, True),
            ((50, 2), 1, 1, False),
        ],
    )
    def test_where_it_is_asked(self, shape, targets, outputs, expected):
        assert fit_choices.are_for_committee(shape, targets, outputs) is expected

    @pytest.mark.parametrize("X", [BITS, MEASURED], ids=["bits", "measurements"])
    def test_its_members(self, quick, X):
        fitted = classifier(8, 4).fit(X, KINDS)
        own = ["network", "exact"] + ["rbms"] * (X is BITS)
        assert list(fitted.teachers_) == [*own, "linear", "kernel", "trees", "boosting"]
        assert fitted.stack_.units[1:] == ("relu", "relu")
        (record,) = fitted.stack_.info["finetune"]
        assert record["normalization"] == "batch" and fitted.n_unlabelled_ == 0

    def test_curved_classes_are_learned(self):
        rows, y = make_hastie_10_2(1400, random_state=0)
        model = DBNClassifier(workers=1, random_state=0).fit(rows[:600], y[:600])
        assert model.score(rows[600:], y[600:]) > 0.88  # 0.7 by sigmoids

    def test_classes_on_a_grid_are_learned(self):
        rows = np.stack(np.meshgrid(*[np.arange(1.0, 6)] * 4), axis=-1).reshape(-1, 4)
        rows = np.random.default_rng(0).permutation(rows)
        y = np.sign(rows[:, 0] * rows[:, 1] - rows[:, 2] * rows[:, 3]).astype(int) + 1
        model = DBNClassifier(workers=1, random_state=0).fit(rows[:450], y[:450])
        assert model.teachers_["exact"] > model.teachers_["network"]
        assert model.score(rows[450:], y[450:]) > 0.95  # 0.92 without that member

    def test_tables_of_scikit_learn_and_missing_values(self, steps):
        pytest.importorskip("pandas")
        steps(100)
        X, y, _ = stripes(200)
        X[::7, 0] = np.nan
        with config_context(transform_output="pandas"):
            assert classifier(8).fit(X, y).score(X, y) > 0.9

    @pytest.mark.filterwarnings("ignore::syncpretrain.errors.PoorResultWarning")
    def test_two_labels_with_weight_are_trained_on(self, steps):
        steps(100)
        X, y, _ = stripes(200)
        two = np.isin(np.arange(200), [y.argmin(), y.argmax()]).astype(float)
        assert classifier(8).fit(X, y, two).score(X[two > 0], y[two > 0]) == 1


class TestAsked:
    X = np.stack([np.tile([0.0, 1.0], 30), np.arange(60.0)], axis=1)
    LABELS = Targets(np.arange(0, 60, 5), X[::5, 0].astype(int))

    def test_each_label_is_left_out_once_by_each_member(self):
        members = {"a": Told(right(0.8)), "b": Told(right(0.6))}
        weights = np.linspace(1, 2, 12)
        asked(ForClasses(2), members, self.X, self.LABELS._replace(weights=weights), 0)
        for member in members.values():
            *trial, (_, full, _) = member.seen
            assert len(trial) == 3 and full.rows.tolist() == self.LABELS.rows.tolist()
            learned = np.concatenate([part.rows for _, part, _ in trial])
            assert (np.bincount(learned, minlength=60)[self.LABELS.rows] == 2).all()
            for _, part, _ in trial:
                places = np.searchsorted(self.LABELS.rows, part.rows)
                assert_array_equal(part.weights, weights[places])

    def test_one_part_of_many_labels_is_left_out(self, monkeypatch):
        monkeypatch.setattr(committee, "MANY_TRIED", 12)
        member = Told(right(0.8))
        asked(ForClasses(2), {"a": member, "b": Told(right(0.6))}, self.X, self.LABELS, 0)
        (_, part, _), (_, full, _) = member.seen
        assert (len(part.rows), len(full.rows)) == (8, 12)

    @pytest.mark.parametrize(
        ("name", "learner", "size", "limit", "expected"),
        [
            ("trees", ExtraTreesClassifier, "n_estimators", ("MANY_TRIED", 8), [33, 100]),
            ("trees", ExtraTreesClassifier, "n_estimators", ("MANY_TRIED", 13), [100] * 4),
            ("boosting", Boosting, "max_iter", ("MOST_BOOSTED", 200), [100] * 3),
            ("boosting", Boosting, "max_iter", ("MOST_BOOSTED", 20), [4, 4, 4, 10]),
        ],
    )
    def test_less_is_judged_of_many_rows(self, monkeypatch, name, learner, size, limit, expected):
        """With many classes, each of which has a tree in each round, boosting has fewer rounds."""
        monkeypatch.setattr(committee, *limit)
        grown, grow = [], learner.fit

        def fit(model, *args, **how):
            grown.append(getattr(model, size))
            return grow(model, *args, **how)

        monkeypatch.setattr(learner, "fit", fit)
        own = committee.models(ForClasses(2), self.X, 0)[name]
        asked(ForClasses(2), {name: own, "other": Told(right(0.6))}, self.X, self.LABELS, 0)
        assert grown[: len(expected)] == expected
        assert len(grown) == len(expected) or name == "boosting"  # which may not be asked at last

    def test_a_wrong_member_is_not_asked(self):
        members = {"right": Told(right(0.9)), "wrong": Told(right(0.2))}
        shares, weights = asked(ForClasses(2), members, self.X, self.LABELS, 0)
        assert weights["wrong"] == 0 and weights["right"] > 1
        assert len(members["wrong"].seen) == 3  # in the trial alone
        assert (shares.argmax(axis=1) == self.X[:, 0]).all()
        assert_allclose(shares.sum(axis=1), 1)

    @pytest.mark.parametrize("labels", [5, 3])
    def test_fewer_than_three_labels_of_a_class_make_equal_weights(self, labels):
        members = {"a": Told(right(0.9)), "b": Told(right(0.2))}
        few = Targets(self.LABELS.rows[:labels], self.LABELS.y[:labels])
        shares, weights = asked(ForClasses(2), members, self.X, few, 0)
        assert weights == {"a": 0.5, "b": 0.5}
        ratio = np.sqrt(0.9 * 0.2 / (0.1 * 0.8))
        assert_allclose(shares[0], [ratio / (1 + ratio), 1 / (1 + ratio)])

    @pytest.mark.parametrize("own", [None, np.array([1.0, 2, 3, 4])])
    def test_weights_are_the_best_of_a_grid(self, own):
        logs = np.log(np.random.default_rng(1).dirichlet(np.ones(3), (2, 4)))
        y, counts = np.array([0, 1, 2, 1]), np.ones(4) if own is None else own / own.mean()

        def loss(a, b):
            pooled = a * logs[0] + b * logs[1]
            likely = pooled[np.arange(4), y] - np.log(np.exp(pooled).sum(axis=1))
            return 0.3 * ((a - 0.5) ** 2 + (b - 0.5) ** 2) - (counts * likely).sum()

        grid = np.linspace(0, 3, 301)
        best = min(((a, b) for a in grid for b in grid), key=lambda pair: loss(*pair))
        assert_allclose(committee.best_weights(ForClasses(3), logs, y, own), best, atol=0.01)

    def test_no_more_rows_than_are_seen_in_a_trial(self, monkeypatch):
        monkeypatch.setattr(committee, "MOST_ROWS", 10)
        rows, targets = committee.rows_to_learn(self.X, self.LABELS, 0)
        assert len(rows) == 22
        assert_array_equal(rows[targets.rows], self.X[self.LABELS.rows])
        few = self.LABELS.part(slice(4))
        assert committee.rows_to_learn(self.X[:20], few, 0)[0].shape == (14, 2)

    def test_the_labels_alone_are_seen_in_as_many_steps_as_beside_other_rows(self):
        # 140 labels are passed in three minibatches of at most 64 rows.
        settings = partial(network_settings, ForClasses(2), (4000, 5), 140)
        guesses, alone = settings(guess=True), settings(guess=False)
        assert (guesses["unlabelled"], alone["unlabelled"]) == ("pseudo", "none")
        assert (alone["batch_size"], alone["epochs"]) == (47, 500)

    @pytest.mark.parametrize(("columns", "rows"), [(512, 320), (2000, 81), (50_000, 32)])
    def test_wide_rows_take_smaller_minibatches(self, columns, rows):
        for settings, count in ((network_settings, 140), (committee.student_settings, None)):
            assert settings(ForClasses(2), (4000, columns), count)["batch_size"] == rows

    @pytest.mark.parametrize("right", [95, 94])
    def test_a_network_that_has_not_learned_the_classes_learns_longer(self, monkeypatch, right):
        shares, given = np.eye(2)[[0] * 100], []
        told = np.eye(2)[[0] * right + [1] * (100 - right)]
        monkeypatch.setattr(committee, "outputs_of", lambda stack, rows: told)

        def finetuned(rows, y, **settings):
            given.append((settings["epochs"], settings["learning_rate"]))
            return len(given)

        times = 1 if right == 95 else 2
        assert committee.learned(ForClasses(2), finetuned, np.zeros((100, 5)), shares, 50) == times
        assert given == [(750, 0.002), (2250, 0.004)][:times]

    def test_a_network_learns_many_labels_and_numbers_longer(self):
        few, many = (committee.steps_for(ForClasses(2), targets) for targets in (2999, 3000))
        assert (few, many, committee.steps_for(ForNumbers(1), 10)) == (1500, 4500, 4500)
        given = []
        answers, settings = np.eye(2)[[0] * 100], {"steps": 1500}
        committee.learned(
            ForClasses(2), lambda *_, **own: given.append(own), self.X, answers, 50, **settings
        )
        assert [(own["epochs"], own["learning_rate"]) for own in given] == [(750, 0.004)]

    @pytest.mark.parametrize(("columns", "share"), [(2, 0.0), (3, 0.1)])
    def test_of_two_columns_none_is_left_out(self, columns, share):
        assert network_settings(ForClasses(2), (100, columns), 20)["input_dropout"] == share


def told_numbers(times):
    """Return a member that says a multiple of the first column."""
    return lambda X, targets, steps: lambda rows: times * rows[:, :1]


class TestNumbers:
    X = np.random.default_rng(0).normal(size=(300, 3))
    Y = np.stack([X[:, 0] + 0.5 * np.abs(X[:, 1]), np.abs(X[:, 2]) - X[:, 0]], axis=1)

    @pytest.mark.parametrize("own", [None, np.array([1.0, 2, 3, 4])])
    def test_weights_are_the_best_of_a_grid(self, own):
        told, y = np.split(np.random.default_rng(1).normal(size=(3, 4, 2)), [2])
        y, counts = y[0], np.ones(4) if own is None else own / own.mean()

        def squares(a, b):
            return counts @ np.square(a * told[0] + b * told[1] - y).sum(axis=1)

        def loss(a, b):
            return 10 * ((a - 0.5) ** 2 + (b - 0.5) ** 2) + 4 * np.log(squares(a, b))

        grid = np.linspace(0, 3, 301)
        best = min(((a, b) for a in grid for b in grid), key=lambda pair: loss(*pair))
        assert_allclose(committee.best_weights(ForNumbers(2), told, y, own), best, atol=0.01)

    def test_the_slopes_of_the_losses(self):
        draws = np.random.default_rng(2)
        told, counts = draws.normal(size=(2, 5, 3)), draws.random(5) + 0.5
        for loss in (
            ForNumbers(3).loss(told, draws.normal(size=(5, 3)), counts),
            ForClasses(3).loss(told, np.array([0, 1, 2, 1, 0]), counts),
        ):
            at, step = np.array([0.7, 0.2]), 1e-6
            apart = [loss(at + d)[0] - loss(at - d)[0] for d in step * np.eye(2)]
            assert_allclose(loss(at)[1], np.divide(apart, 2 * step), rtol=1e-6)

    def test_a_wrong_member_counts_nothing(self):
        members = {"right": told_numbers(1.0), "wrong": told_numbers(-1.0)}
        few = Targets(np.arange(40), self.X[:40, :1])
        answers, weights = asked(ForNumbers(1), members, self.X, few, 0)
        assert weights["wrong"] < 0.001
        assert_allclose(answers, self.X[:, :1], rtol=0.01)

    def test_where_all_agree_weights_are_equal(self):
        members = {"a": told_numbers(1.0), "b": told_numbers(1.0)}
        few = Targets(np.arange(40), self.X[:40, :1])
        assert asked(ForNumbers(1), members, self.X, few, 0)[1] == {"a": 0.5, "b": 0.5}

    @pytest.mark.parametrize(("numbers", "answer"), [(5, 1.5), (6, 1.01)])
    def test_fewer_than_six_numbers_make_equal_weights(self, numbers, answer):
        members = {"a": told_numbers(1.0), "b": told_numbers(2.0)}
        few = Targets(np.arange(numbers), 100 * self.X[:numbers, :1])
        answers, _ = asked(ForNumbers(1), members, self.X, few, 0)
        assert np.allclose(answers, 1.5 * self.X[:, :1]) is (answer == 1.5)

    @pytest.mark.parametrize("outputs", [1, 2])
    def test_rows_without_a_number_train_too(self, outputs, tmp_path):
        y = 1000 + 10 * self.Y[:, :outputs]
        known = np.where(np.arange(300)[:, None] % 6 == 0, y, np.nan)
        model = DBNRegressor(workers=1, random_state=0)
        fitted = model.fit(self.X, known[:, 0] if outputs == 1 else known)
        assert list(fitted.teachers_) == ["network", "linear", "kernel", "trees"]
        assert fitted.stack_.units == ("gaussian", "relu", "bernoulli")
        assert fitted.n_unlabelled_ == 250
        assert fitted.score(self.X, y) > 0.75
        fitted.stack_.save(tmp_path / "model.safetensors")
        read = load(tmp_path / "model.safetensors").predict(self.X)
        assert_allclose(read.reshape(300, -1), fitted.predict(self.X).reshape(300, -1), rtol=1e-5)

    @pytest.mark.parametrize(
        ("numbers", "own", "asks"),
        [
            (59, {}, True),
            (60, {}, True),
            (300, {}, True),
            (2, {}, True),
            (1, {}, False),
            (30, {"finetune_epochs": 1}, False),
            (30, {"settings": {"finetune_dropout": 0.1}}, False),
        ],
    )
    def test_where_numbers_are_few(self, quick, numbers, own, asks):
        model = DBNRegressor(hidden=(4,), workers=1, random_state=0, **own)
        assert model._is_to_ask(self.X, numbers, 1) is asks
        if asks:
            fitted = model.fit(self.X, np.where(np.arange(300) < numbers, self.Y[:, 0], np.nan))
            assert fitted.teachers_ and np.isfinite(fitted.predict(self.X)).all()

    def test_curved_numbers_are_learned_with_all_of_them(self):
        rows, y = make_friedman1(1000, random_state=0)
        model = DBNRegressor(workers=1, random_state=0).fit(rows[:600], y[:600])
        assert list(model.teachers_) == ["network", "linear", "kernel", "trees", "boosting"]
        assert [layer.shape.hidden for layer in model.stack_.layers] == [256, 256]
        assert model.score(rows[600:], y[600:]) > 0.94

    def test_noise_is_not_learned_by_heart(self):
        X, noise = np.random.default_rng(1).normal(size=(2, 200, 4))
        model = DBNRegressor(hidden=(32, 32), workers=1, random_state=0).fit(X, noise[:, 0])
        assert model.score(X, noise[:, 0]) < 0.6 and model.score(noise, X[:, 0]) > -0.3

    def test_mixed_rows_are_of_near_ones(self):
        X = np.stack([np.arange(50.0), 100 + np.arange(50.0)], axis=1)
        mixed = with_mixed_rows(X, 0)
        assert len(mixed) == 8000 + 50
        assert_array_equal(mixed[:50], X)
        apart = mixed[50:, 1] - 100 - mixed[50:, 0]
        assert np.abs(apart).max() == 5  # the 5 nearest of the first row are 1 to 5 away
        assert 0.4 < (apart != 0).mean() < 0.6
        holes = np.where(np.arange(50)[:, None] == [7, 9], np.nan, X)
        assert 0.01 < np.isnan(with_mixed_rows(holes, 0)).mean() < 0.03
        assert_array_equal(with_mixed_rows(sparse.csr_matrix(X[8:]), 0)[:42], X[8:])
        assert_array_equal(with_mixed_rows(X[:5], 0), X[:5])  # none has 5 others

    @pytest.mark.parametrize(("n", "cells", "rows"), [(9000, 1 << 24, 18_000), (20, 30, 40)])
    def test_no_fewer_rows_are_mixed_than_there_are(self, monkeypatch, n, cells, rows):
        monkeypatch.setattr(committee, "MIXED_CELLS", cells)
        assert with_mixed_rows(np.random.default_rng(0).random((n, 2)), 0).shape == (rows, 2)

    def test_weights_and_zeros_and_ones(self, quick):
        y = np.where(np.arange(200) % 7 == 0, BITS @ np.arange(30), np.nan)
        weights = np.where(np.arange(200) < 100, 1.0, 0.0)
        fitted = DBNRegressor(hidden=(4,), workers=1, random_state=0).fit(BITS, y, weights)
        assert list(fitted.teachers_) == ["network", "rbms", "linear", "kernel", "trees"]
        others = np.where(weights > 0, y, -1e6)  # numbers that do not count
        again = clone(fitted).fit(BITS, np.where(np.isnan(y), y, others), weights)
        assert_array_equal(again.predict(BITS), fitted.predict(BITS))

    @pytest.mark.parametrize("scale", [1e-20, 1.0, 1e25])
    def test_rows_and_numbers_that_are_alike(self, quick, scale):
        X, y = np.repeat(self.X[:4], 75, axis=0), scale * np.repeat(self.Y[:4, 0], 75)
        few = np.where(np.arange(300) % 75 < 5, y, np.nan)
        model = DBNRegressor(hidden=(4,), workers=1, random_state=0)
        assert np.isfinite(model.fit(X, few).predict(X) / scale).all()
        constant = model.fit(X, np.where(np.isnan(few), few, scale)).predict(X)
        assert_allclose(constant, scale, rtol=1e-5)

    def test_a_network_that_has_not_learned_the_numbers_learns_longer(self):
        answers = np.arange(10.0)[:, None]
        assert ForNumbers(1).learned(answers, answers) == 1
        assert ForNumbers(1).learned(answers.mean() + 0 * answers, answers) == 0
        assert ForNumbers(1).learned(0 * answers, 0 * answers) == 1

    def test_one_number_far_from_all_others_is_learned_like_any(self, quick):
        X = np.random.default_rng(0).normal(size=(400, 4))
        y = np.where(np.arange(400) < 60, X[:, 0], np.nan)
        y[3] = 1e9
        model = DBNRegressor(hidden=(4,), workers=1, random_state=0).fit(X, y)
        assert model.teachers_
        assert np.isfinite(model.predict(X)).all()


class TestClassifier:
    def test_pixels_are_binary_units_with_a_scaling(self, tmp_path):
        fitted = DBNClassifier(**SMALL, epochs=2, finetune_epochs=2).fit(PIXELS, KINDS)
        stack = fitted.stack_
        assert stack.units[0] == "bernoulli"
        assert set(stack.scaling.scale.tolist()) == {16.0}
        stack.save(tmp_path / "model.safetensors")
        read = load(tmp_path / "model.safetensors")
        assert_array_equal(read.encode(PIXELS), stack.encode(PIXELS))
        assert 1 < stack.decode(stack.encode(PIXELS)).max() <= 16
        assert_array_equal(read.predict(PIXELS), fitted.predict(PIXELS))

    def test_pixels_train_as_what_the_user_scales(self):
        own = DBNClassifier(**SMALL, epochs=2, finetune_epochs=20)
        ours, by_hand = (clone(own).fit(X, some(KINDS)) for X in (PIXELS, PIXELS / 16))
        assert_allclose(ours.predict_proba(PIXELS), by_hand.predict_proba(PIXELS / 16), atol=1e-5)

    @pytest.mark.parametrize("form", [sparse.csr_matrix, lambda X: X.astype(np.float32)])
    @pytest.mark.parametrize("X", [BITS, PIXELS], ids=["bits", "pixels"])
    def test_other_forms_of_the_rows_train_the_same(self, form, X):
        X, y = X[:60], some(KINDS[:60])
        dense, other = (DBNClassifier(**SMALL, epochs=2).fit(rows, y) for rows in (X, form(X)))
        assert_allclose(dense.predict_proba(X), other.predict_proba(form(X)), rtol=1e-3, atol=1e-4)

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
    assert fit_choices.settings_for_bits(2)["weight_decay"] == [0.01, 0.0002]
    assert {len(values) for values in fit_choices.settings_for_bits(3).values()} == {3}
