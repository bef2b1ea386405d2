"""``compare``: several starts and seeds, fine-tuned alike, and what the outcomes come to."""

import math
import sys
from dataclasses import replace
from functools import partial
from operator import attrgetter
from unittest.mock import Mock

import numpy as np
import pytest
from comparisondata import WIDTH, make_data, make_settings
from sklearn.svm import SVC

import syncpretrain.runs.compare as comparing
from syncpretrain.errors import DataError, SettingsError
from syncpretrain.finetuning.prepared import Finetuning
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.runs.compare import (
    USUAL_STARTS,
    Outcome,
    compare,
    measured,
    random_stack,
    summarized,
)
from syncpretrain.settings import settings_from


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(comparing, "FEWEST_STEPS", 20)


class TestRandomStack:
    @pytest.mark.parametrize(
        ("layers", "units", "sizes", "fans"),
        [
            ((16, 3000, 1000), ("bernoulli", "relu"), [(16, 3000), (3000, 1000)], (3016, 3000)),
            (  # convolutions count the weights of a filter
                "1x4x4,conv:3000x3,conv:2000x2,6",
                ("bernoulli", "relu", "bernoulli"),
                [(3, 3, 1, 3000), (2, 2, 3000, 2000), (2000, 6)],
                (9 + 27_000, 12_000, 2006),
            ),
        ],
    )
    def test_deviations_are_glorots_and_below_rectified_units_hes(self, layers, units, sizes, fans):
        settings = settings_from(layers, hidden_units=units).pretrain
        made = random_stack(settings, make_data(), seed=0).layers
        assert tuple(layer.hidden_units for layer in made) == units
        assert tuple(layer.shape for layer in made) == settings.shapes
        assert [layer.weight.shape for layer in made] == sizes
        for layer, fan in zip(made, fans, strict=True):
            assert layer.weight.std() == pytest.approx(math.sqrt(2 / fan), rel=0.02)
            assert abs(layer.weight.mean()) < 4 * layer.weight.std() / math.sqrt(layer.weight.size)
            assert not layer.hidden_bias.any()
            assert not layer.visible_bias.any()

    def test_another_seed_gives_other_weights(self):
        settings = make_settings().pretrain
        hashes = [random_stack(settings, make_data(), seed=n).parameters_sha256 for n in (0, 0, 1)]
        assert hashes[0] == hashes[1] != hashes[2]

    def test_layers_of_one_shape_differ(self):
        settings = settings_from((WIDTH, WIDTH, WIDTH)).pretrain
        lower, upper = random_stack(settings, make_data(), seed=0).layers
        assert not np.array_equal(lower.weight, upper.weight)

    def test_gaussian_visible_units_standardize(self):
        settings = make_settings(visible_units="gaussian", hidden_units="relu").pretrain
        stack = random_stack(settings, make_data(scale=5), seed=0)
        assert stack.units == ("gaussian", "relu", "relu")
        assert [layer.visible_units for layer in stack.layers] == ["gaussian", "gaussian"]
        assert stack.scaling is not None
        assert random_stack(make_settings().pretrain, make_data(), seed=0).scaling is None


class TestSteps:
    @pytest.mark.parametrize(("how", "batch", "epochs"), [("none", 10, 20), ("pseudo", 60, 3)])
    def test_rows_without_a_label_keep_the_minibatches_of_the_settings(
        self, quick, monkeypatch, how, batch, epochs
    ):
        taken, real = [], Finetuning.run
        record = lambda self, stack: (taken.append(self.options), real(self, stack))[1]  # noqa: E731
        monkeypatch.setattr(Finetuning, "run", record)
        settings = make_settings(finetune={"unlabelled": how, "batch_size": 60, "epochs": 3})
        compare(settings, make_data(), starts=("random",), seeds=(0,), labels=(10,))
        (options,) = taken
        assert (options.batch_size, options.epochs) == (batch, epochs)


class TestBaselines:
    def test_each_is_measured_with_the_labels_of_the_starts(self, quick):
        names = ("svc", "extra-trees", "spreading")
        how = {"starts": ("random",), "seeds": (0,), "labels": (10,), "baselines": names}
        found = compare(make_settings(), make_data(), **how)
        assert [(x.start, x.labels) for x in found] == [("random", 10), *((n, 10) for n in names)]
        for outcome in found[1:]:  # of two prototypes with a tenth of the bits flipped
            assert outcome.test <= 0.2
            assert (outcome.passes, outcome.pretrain_seconds) == (0, 0)

    def test_svc_is_scikit_learns_on_the_same_rows(self):
        y = make_data().train_labels.copy()
        y[5:] = -1
        data = make_data(train_labels=y)
        errors, _ = measured("svc", data, seed=0)
        model = SVC().fit(data.train[:5], y[:5])
        assert errors["test"] == pytest.approx(1 - model.score(data.test, data.test_labels))

    def test_values_out_of_the_unit_interval_are_standardized_and_missing_ones_filled_in(self):
        data = make_data(scale=1e6)
        data.train[3, 2] = np.nan
        assert measured("svc", data, seed=0)[0]["test"] <= 0.1

    def test_without_scikit_learn_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "sklearn", None)
        with pytest.raises(SettingsError, match=r"pip install 'syncpretrain\[sklearn\]'"):
            compare(make_settings(), make_data(), baselines=("svc",))


class TestCompare:
    def test_one_outcome_for_each_start_seed_and_number_of_labels(self, quick):
        reported = []
        outcomes = compare(
            make_settings(), make_data(), seeds=(3, 4), labels=(10, None), report=reported.append
        )
        assert reported == outcomes
        assert [(x.seed, x.start, x.labels) for x in outcomes] == [
            (seed, start, labels)
            for seed in (3, 4)
            for start in USUAL_STARTS
            for labels in (10, 60)
        ]
        for outcome in outcomes:
            assert 0 <= outcome.validation <= 1
            assert outcome.test * 20 == pytest.approx(round(outcome.test * 20)), "a share of 20"

    def test_the_same_seed_gives_the_same_figures(self, quick):
        how = {"starts": ("synchronized", "random"), "seeds": (0,), "labels": (10,)}
        but_times = attrgetter("start", "seed", "labels", "validation", "test")
        runs = [compare(make_settings(), make_data(), **how) for _ in range(2)]
        first, again = (list(map(but_times, run)) for run in runs)
        assert first == again

    def test_reconstruction_ignores_labels(self):
        settings = make_settings("reconstruction")
        outcomes = compare(settings, make_data(), seeds=(0,), labels=(10, 20, None))
        assert [(x.start, x.labels) for x in outcomes] == [(start, None) for start in USUAL_STARTS]
        assert outcomes[0].test != outcomes[-1].test, "pretraining changes the result"
        assert all(0 < x.test < WIDTH and x.validation > 0 for x in outcomes)

    def test_it_learns_what_is_easy(self):
        data = make_data()
        outcome = compare(make_settings(), data, starts=("random",), seeds=(0,))[0]
        assert outcome.test < 0.2, "half of the classes is chance"

    def test_every_start_takes_the_same_budget(self, monkeypatch):
        taken = []

        def record(tuning, stack):
            options = tuning.options
            taken.append((options.batch_size, options.epochs, tuning.examples))
            raise ArithmeticError

        monkeypatch.setattr(Finetuning, "run", record)
        for start in USUAL_STARTS:
            with pytest.raises(ArithmeticError):
                compare(make_settings(), make_data(), starts=(start,), seeds=(0,), labels=(20,))
        assert taken == [(10, 1000, 20)] * 3


@pytest.mark.parametrize(
    ("labelled", "expected"),
    [
        (5, {"batch_size": 5, "epochs": 2000}),
        (100, {"batch_size": 10, "epochs": 200}),
        (1000, {"batch_size": 100, "epochs": 200}),
        (50_000, {"batch_size": 100, "epochs": 10}),
    ],
)
def test_the_budget(labelled, expected):
    assert comparing._budget(labelled, 100, 10) == expected
    assert math.ceil(labelled / expected["batch_size"]) * expected["epochs"] >= 2000


RECONSTRUCTION, REGRESSION = {"objective": "reconstruction"}, {"objective": "regression"}
ENTROPY = {**RECONSTRUCTION, "loss": "cross-entropy"}
STRANGE_STARTS = ("greedy", "warm")
BEGIN = partial(pytest.fail, "work was begun")


class TestRefused:
    @pytest.fixture(autouse=True)
    def no_work(self, monkeypatch):
        fail = Mock(side_effect=AssertionError("work was begun"))
        for place, name in ((comparing, "random_stack"), (Pretraining, "run"), (Finetuning, "run")):
            monkeypatch.setattr(place, name, fail)

    @pytest.mark.parametrize(
        ("match", "changes"),
        [
            ("data: toy has no test examples", {"test": np.zeros((0, WIDTH), np.float32)}),
            ("data: toy has no labels to classify by", {"train_labels": None}),
            ("data: toy has no labels to classify by", {"test_labels": None}),
            ("data: toy has no labelled test examples", {"test_labels": np.full(20, -1)}),
        ],
    )
    def test_data_without_examples_or_labels(self, match, changes):
        with pytest.raises(SettingsError, match=f"^{match}"):
            compare(make_settings(), make_data(**changes), begin=BEGIN)

    @pytest.mark.parametrize("method", ["cg", "lbfgs"])
    def test_an_optimizer_without_scipy(self, method, monkeypatch):
        monkeypatch.setitem(sys.modules, "scipy.optimize", None)
        with pytest.raises(SettingsError, match=f"^finetune_optimizer: {method} needs SciPy"):
            compare(make_settings(finetune={"optimizer": method}), make_data())

    @pytest.mark.parametrize(
        ("match", "settings", "others"),
        [
            ("finetune: got none, expected reconstr", {"finetune": {"objective": "none"}}, {}),
            ("finetune: got regression, expected reconstr", {"finetune": REGRESSION}, {}),
            ("finetune_patience: got a number, expected none", {"finetune": {"patience": 2}}, {}),
            ("starts: got 'warm', expected greedy or synchr", {}, {"starts": STRANGE_STARTS}),
            *(
                (f"labels: got {count}, expected 1 to 60", {}, {"labels": (10, count)})
                for count in (0, -1, 61)
            ),
            ("labels: got 1 class, ., expected two", {}, {"labels": (60, 1)}),
            (
                "finetune_shards: got more than the 5 examples of a minibatch",
                {"finetune": {"split": "examples", "shards": 8}},
                {"labels": (None, 5)},
            ),
            (
                "finetune_loss: got cross-entropy for gaussian",
                {"finetune": ENTROPY, "visible_units": "gaussian"},
                {},
            ),
            ("finetune_batch_size: got 61", {"finetune": {**RECONSTRUCTION, "batch_size": 61}}, {}),
            ("batch_size: got 61, expected at most 60", {"batch_size": 61}, {}),
            ("seed: got 9223372036854775808", {}, {"seeds": (2**63 - 1, 2**63)}),
            ("seed: got -1", {}, {"seeds": (0, -1)}),
            ("baselines: got 'svm', expected some of svc, extra-trees", {}, {"baselines": ["svm"]}),
            (
                "baselines: got svc with reconstruction, expected class",
                {"finetune": RECONSTRUCTION},
                {"baselines": ("svc",)},
            ),
        ],
    )
    def test_settings_and_options(self, match, settings, others):
        is_of_data = match.startswith(("labels", "finetune_loss"))
        kind = DataError if is_of_data else SettingsError
        with pytest.raises(kind, match=f"^{match}"):
            compare(make_settings(**settings), make_data(), begin=BEGIN, **others)

    def test_fine_tuning_that_does_not_fit_the_memory(self, monkeypatch):
        monkeypatch.setattr("syncpretrain.parallel.available_memory.available_bytes", lambda: 9_000)
        with pytest.raises(SettingsError, match=r"^layers: fine-tuning 16,8,4 on 60 examples need"):
            compare(make_settings(), make_data())

    def test_what_is_fine_begins_to_work(self):
        begin, labels = Mock(), (10, 60, None)
        with pytest.raises(AssertionError, match="work was begun"):
            compare(make_settings(), make_data(), labels=labels, begin=begin)
        begin.assert_called_once_with()


class TestSummarized:
    OUTCOMES = (
        Outcome("greedy", 0, 1000, None, 0.10, 4.0, 1.0),
        Outcome("random", 0, 1000, None, 0.20, 0.0, 3.0),
        Outcome("greedy", 0, 100, None, 0.3, 4.0, 1.0),
        Outcome("greedy", 1, 1000, None, 0.14, 6.0, 2.0),
        Outcome("random", 1, 1000, None, 0.30, 0.0, 3.0),
    )

    def test_means_spread_and_gain(self):
        few, greedy, random = summarized(self.OUTCOMES)
        assert [(x.labels, x.start, x.seeds) for x in (few, greedy, random)] == [
            (100, "greedy", 1),
            (1000, "greedy", 2),
            (1000, "random", 2),
        ]
        assert (few.test, few.spread, few.gain) == (0.3, None, None)
        assert greedy.test == pytest.approx(0.12)
        assert greedy.spread == pytest.approx(0.04 / math.sqrt(2))
        assert greedy.gain == pytest.approx(0.13)
        assert (greedy.pretrain_seconds, greedy.finetune_seconds) == (5.0, 1.5)
        assert random.test == pytest.approx(0.25)
        assert random.spread == pytest.approx(0.1 / math.sqrt(2))
        assert random.gain is None

    def test_without_labels_starts_keep_their_order(self):
        outcomes = [replace(self.OUTCOMES[i], labels=None) for i in (1, 0)]
        assert [(x.labels, x.start) for x in summarized(outcomes)] == [
            (None, "random"),
            (None, "greedy"),
        ]
        assert summarized(outcomes)[1].gain == pytest.approx(0.1)

    def test_nothing(self):
        assert summarized([]) == []
