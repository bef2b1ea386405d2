"""Settings that follow from the data: what is left alone, and what small data gets."""

import itertools
import math
import signal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncpretrain import errors, finetune, pretrain
from syncpretrain.data.blocks import as_bits
from syncpretrain.data.dataset import Dataset
from syncpretrain.data.facts import look_at, units_of_array
from syncpretrain.errors import CheckpointError
from syncpretrain.events import EpochFinished, Notice
from syncpretrain.pretraining.call import SavedCall
from syncpretrain.runs.prepare import completed
from syncpretrain.runs.run import resume_run, train_run
from syncpretrain.settings import by_data, read_settings, settings_from
from syncpretrain.settings.by_data import Facts, Given, in_words
from syncpretrain.settings.sections import preset_path

MNIST = (784, 1000, 500, 250, 30)
STREAM = {"handoff": "minibatch"}


def chosen(facts, layers=(16, 8), **options):
    return by_data.pretrain_by_data(settings_from(layers, **options).pretrain, options, facts)[1]


def tuned(facts, layers=(16, 8), **options):
    settings = settings_from(layers, finetune=options)
    return by_data.finetune_by_data(settings.finetune, options, facts, settings.pretrain.shapes)[1]


def table(rows=60, columns=4, *, low=0.0, high=1.0):
    X = np.random.default_rng(1).random((rows, columns), dtype=np.float32)
    return low + (high - low) * X


def data_of(X, labels=None, name="toy"):
    return Dataset(name, "here", X, X[:0], X[:0], labels)


class TestRules:
    def test_mnist_has_the_usual_values(self):
        facts = Facts(50_000, 784)
        assert chosen(facts, MNIST) == {}
        assert tuned(facts, MNIST, objective="classification") == {}

    def test_a_small_table_gets_small_minibatches_and_many_epochs(self):
        found = chosen(Facts(105, 16))
        assert found["batch_size"] == 10
        assert found["epochs"] == [math.ceil(by_data.ENOUGH_UPDATES / 11)]

    def test_numbers_beyond_probabilities_get_gaussian_units_and_their_rate(self):
        found = chosen(Facts(105, 16, -3.0, 12.0), (16, 8, 4))
        assert (found["visible_units"], found["learning_rate"]) == ("gaussian", [0.001, 0.1])

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("epochs", 10),
            ("batch_size", 5),
            ("visible_units", "bernoulli"),
            ("epochs", "auto"),
            ("learning_rate", 0.02),
        ],
    )
    def test_what_is_given_stays(self, name, value):
        assert name not in chosen(Facts(105, 16, -3.0, 12.0), **{name: value})

    def test_a_minibatch_has_room_for_its_shards(self):
        assert chosen(Facts(200, 16), shards=16)["batch_size"] == 16

    @pytest.mark.parametrize(
        ("options", "names"),
        [
            ({}, ["learning_rate", "rate_schedule", "weight_decay"]),
            ({"learning_rate": 0.1}, ["rate_schedule", "weight_decay"]),
            ({"epochs": 3}, []),
            ({"optimizer": "sgd"}, []),
            ({"objective": "reconstruction"}, []),
        ],
    )
    def test_a_small_classifier_has_a_higher_rate_that_falls(self, options, names):
        found = tuned(Facts(9_999, 16), **{"objective": "classification", **options})
        assert sorted(found.keys() - {"batch_size", "epochs"}) == names
        assert not tuned(Facts(50_000, 16), **{"objective": "classification", **options})

    def test_few_labels_beside_many_rows_get_dropout(self):
        few, most = (Facts(20, 16, unlabelled=others) for others in (81, 79))
        options = {"objective": "classification"}
        found = tuned(few, **options)
        assert (found["dropout"], found["input_dropout"]) == (0.5, 0.2)
        assert "dropout" not in tuned(few, **options, dropout=0.1)
        assert "dropout" not in tuned(most, **options)
        assert "dropout" not in tuned(few, objective="reconstruction")

    def test_an_optimizer_that_searches_keeps_large_minibatches_or_all_of_few_rows(self):
        options = {"objective": "classification", "optimizer": "cg"}
        assert tuned(Facts(105, 16), **options) == {}
        assert tuned(Facts(60, 16), **options) == {"batch_size": 60}
        assert tuned(Facts(60, 16), **options, batch_size=100) == {}

    @given(st.integers(1, 10**7), st.integers(1, 2000), st.integers(1, 2000))
    def test_there_are_enough_updates_or_a_reason(self, rows, visible, hidden):
        settings = settings_from([visible, hidden]).pretrain
        after, _ = by_data.pretrain_by_data(settings, (), Facts(rows, visible))
        batch, epochs = after.batch_size, after.epochs[0]
        assert 1 <= batch <= min(rows, 100)
        assert epochs >= 10
        enough = epochs * math.ceil(rows / batch) >= by_data.ENOUGH_UPDATES
        costly = (epochs + 1) * rows * visible * hidden > by_data.MOST_WORK
        assert enough or costly or epochs == by_data.ENOUGH_EPOCHS
        if rows >= 50_000:
            assert (batch, epochs) == (100, 10)

    def test_one_line_says_it(self):
        facts = Facts(105, 4, -3.0, 12.0)
        assert in_words(facts, chosen(facts, (4, 8))) == (
            "settings for 105 rows of 4 numbers: visible units gaussian (values from -3 to 12,"
            " which are standardized), batch size 10, 455 epochs"
        )

    def test_the_line_has_the_rate_of_documents(self):
        facts = Facts(50_000, 4, high=9.0, are_counts=True, row_sum=100.0)
        line = in_words(facts, chosen(facts, (4, 8)))
        assert "whole numbers), learning rate 0.003, visible" in line


class TestSettled:
    @pytest.mark.parametrize(("given", "name"), [(None, "toy"), (Given(), "mnist")])
    def test_nothing_follows_for_a_preset_and_for_mnist_with_fewer_digits(self, given, name):
        settings, data = settings_from([4, 3]), data_of(table(), name=name)
        assert completed(settings, given, data) == (settings, data, None)

    def test_fine_tuning_counts_labelled_rows(self):
        labels = np.where(np.arange(60) < 8, np.arange(60) % 2, -1)
        settings = settings_from([4, 3], finetune={"objective": "classification"})
        after, _, line = completed(settings, Given(), data_of(table(), labels))
        assert after.finetune.batch_size == 8
        assert line.endswith(
            "; fine-tuning: settings for 8 rows of 4 numbers: batch size 8, 500 epochs, learning"
            " rate 0.003, falling as a cosine, weight decay 0.1, dropout 0.5, input dropout 0.2"
        )

    def test_digits_without_a_label_count_where_their_classes_are_guessed(self):
        labels = np.where(np.arange(60) < 8, np.arange(60) % 2, -1)
        own = {"objective": "classification", "unlabelled": "pseudo"}
        settings = settings_from([4, 3], finetune=own, data={"name": "mnist", "labels": 8})
        after, _, _ = completed(settings, Given(), data_of(table(), labels, name="mnist"))
        assert (after.finetune.batch_size, after.finetune.epochs) == (60, 1500)

    def test_the_preset_of_few_labels_has_what_follows_for_guesses(self):
        found, usual = read_settings(preset_path("few-labels")).finetune, by_data.OF_UNLABELLED
        assert {name: getattr(found, name) for name in usual} == usual

    def test_a_run_keeps_them_as_numbers(self, tmp_path):
        X = table(12, 3, low=-2, high=2)
        np.save(tmp_path / "x.npy", X)
        own = {"name": str(tmp_path / "x.npy"), "validation": 0.0}
        settings = settings_from([3, 2], data=own, seed=3)
        given = Given(frozenset({"seed"}))
        events = []
        report = train_run(settings, out=tmp_path / "a", given=given, observers=[events.append])
        kept = read_settings(tmp_path / "a" / "config.toml").pretrain
        assert (kept.visible_units, kept.batch_size, kept.epochs) == ("gaussian", 10, (500,))
        messages = [event.message for event in events if isinstance(event, Notice)]
        assert sum("settings for 12 rows" in message for message in messages) == 1
        alone = pretrain(X, layers=[3, 2], seed=3, runtime="serial")
        assert report["parameters_sha256"] == alone.parameters_sha256
        again = train_run(read_settings(tmp_path / "a" / "config.toml"), out=tmp_path / "b")
        assert again["parameters_sha256"] == alone.parameters_sha256
        with pytest.raises(errors.SettingsError, match="finished"):
            resume_run(tmp_path / "a")


class TestPython:
    def test_hidden_stands_for_layers_without_the_input(self):
        X, settings = table(), {"epochs": 1, "batch_size": 20}
        with pytest.warns(errors.PoorResultWarning):
            stacks = [
                pretrain(X, hidden=[3, 2], **settings),
                pretrain(X, layers=[4, 3, 2], **settings),
                pretrain(X.tolist(), hidden=(np.int64(3), 2), **settings),
            ]
        assert len({stack.parameters_sha256 for stack in stacks}) == 1

    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ({}, "^layers: got nothing, expected one of the two"),
            ({"hidden": 3, "layers": [4, 3]}, "^layers: got layers and hidden, expected one"),
            ({"hidden": "3"}, "^hidden: got '3', expected whole numbers"),
            ({"hidden": [3.5]}, r"^hidden: got \[3.5\], expected whole numbers"),
            ({"hiden": 3}, "^hiden: there is no such setting; did you mean hidden\\?"),
            ({"hidden": 3, "epoch": 3}, "^epoch: there is no such setting; did you mean epochs\\?"),
            ({"hidden": 3, "n_jobs": 2}, "^n_jobs: there is no such .* did you mean workers\\?"),
            ({"X": iter([]), "hidden": 3, **STREAM}, "^hidden: got it with an iterable"),
        ],
    )
    def test_wrong_arguments(self, arguments, match):
        with pytest.raises(errors.SettingsError, match=match):
            pretrain(**{"X": table(), **arguments})

    def test_a_wrong_argument_of_finetune(self):
        stack = pretrain(table(), hidden=3, epochs=1)
        with pytest.raises(errors.SettingsError, match=r"did you mean validation_y\?"):
            finetune(stack, table(), validaton_y=[])

    def test_what_followed_is_reported_and_kept(self):
        events = []
        stack = pretrain(table(20, high=9), hidden=2, epochs=1, observers=[events.append])
        followed = {"visible_units": "gaussian", "learning_rate": [0.001], "batch_size": 10}
        assert (stack.info["by_data"], stack.info["pretrain"]["batch_size"]) == (followed, 10)
        assert isinstance(events[0], Notice)
        assert events[0].message.startswith("settings for 20 rows of 4 numbers: visible units gau")

    def test_the_history_has_every_epoch(self):
        X, y = table(), np.arange(60) % 2
        stack = pretrain(X, hidden=[3, 2], epochs=2, refresh_epochs=0, validation=X[:9])
        assert [len(curve.train) for curve in stack.history.layers] == [2, 2]
        assert [len(curve.validation) for curve in stack.history.layers] == [2, 2]
        after = finetune(stack, X, y, epochs=3)
        assert len(after.history.finetune.train) == 3
        assert after.history.layers == stack.history.layers

    def test_verbose_prints_the_lines_of_the_command_line(self, capsys):
        pretrain(table(), hidden=3, epochs=1, verbose=True)
        printed = capsys.readouterr()
        assert not printed.out
        assert "settings for 60 rows of 4 numbers: batch size 10" in printed.err
        assert "layer 1  epoch 1/1" in printed.err


class TestBits:
    def test_bytes_of_0_and_1_are_on_and_off(self):
        X = (table(40) > 0.5).astype(np.uint8)
        settings = {"hidden": 3, "epochs": 1, "validation": X[:5]}
        stack, same = pretrain(X, **settings), pretrain(X.astype(bool), **settings)
        assert stack.parameters_sha256 == same.parameters_sha256
        assert np.array_equal(stack.encode(X), same.encode(X.astype(np.float32)))
        with pytest.raises(errors.DataError, match=r"^X: got the byte 255, expected 0 or 1"):
            stack.encode(X * 255)
        with pytest.raises(errors.DataError, match=r"^validation: got the byte 2, expected 0 or 1"):
            pretrain(X, **(settings | {"validation": X * 2}))

    def test_they_are_looked_at_without_a_copy(self):
        X = np.eye(3, dtype=np.uint8)
        assert np.shares_memory(as_bits(X), X)
        assert as_bits(X * 2).dtype == np.uint8

    @pytest.mark.parametrize(
        ("X", "spread"),
        [
            ([[0.0], [1.0]], 1.0),
            ([[0.4, 0.7], [0.6, 0.7]], 0.04),  # 0.01 of 0.25; what is constant has no part
            ([[0.4, 0.0], [0.6, 1.0], [np.nan, np.nan]], 0.52),
            ([[0.5], [0.5]], 1.0),
        ],
    )
    def test_the_variance_is_a_share_of_that_of_zeros_and_ones(self, X, spread):
        assert look_at(np.array(X)).facts.spread == pytest.approx(spread, rel=1e-6)

    def test_a_sparse_matrix_has_the_spread_of_the_dense_one(self):
        sparse = pytest.importorskip("scipy.sparse")
        X = table(30) * (table(30) > 0.5)
        dense, rows = (look_at(form).facts.spread for form in (X, sparse.csr_array(X)))
        assert 0 < dense == pytest.approx(rows, rel=1e-6)

    def test_values_that_hardly_vary_are_no_probabilities(self):
        X = table(low=0.5, high=0.51)
        assert look_at(X).facts.is_unit_interval
        assert chosen(look_at(X).facts, (4, 2))["visible_units"] == "gaussian"
        assert "visible_units" not in chosen(look_at(table()).facts, (4, 2))
        assert units_of_array(X) == "gaussian"
        assert units_of_array(table()) == "bernoulli"

    @pytest.mark.parametrize("X", [np.eye(3) * 1.0000000001, np.eye(3, dtype=bool), [[0, 1]]])
    def test_what_rounds_to_1_is_a_probability(self, X):
        assert look_at(X).facts.is_unit_interval


RESUMED = {"hidden": [3, 2], "epochs": 4, "batch_size": 20, "seed": 1, "runtime": "serial"}


class TestResume:
    def stopped(self, folder, **others):
        """Begin a call that is stopped after three epochs of the layers."""
        seen = itertools.count(1)

        def stop(event):
            if isinstance(event, EpochFinished) and next(seen) == 3:
                signal.raise_signal(signal.SIGINT)

        with pytest.raises(errors.RunInterrupted):
            pretrain(table(), observers=[stop], resume=folder, **(RESUMED | others))

    @pytest.mark.parametrize("others", [{}, STREAM])
    def test_the_same_call_goes_on_to_the_same_bits(self, tmp_path, others):
        options, events = RESUMED | others, []
        expected = pretrain(table(), **options).parameters_sha256
        self.stopped(tmp_path / "state", **others)
        stack = pretrain(table(), observers=[events.append], resume=tmp_path / "state", **options)
        assert stack.parameters_sha256 == expected
        assert sum(isinstance(event, EpochFinished) for event in events) < sum(stack.info["epochs"])
        assert not list((tmp_path / "state").iterdir())

    @pytest.mark.parametrize(
        ("others", "name"),
        [
            ({"seed": 2}, "seed"),
            ({"learning_rate": 0.2}, "learning_rate"),
            ({"hidden": [6]}, "layers"),
            (STREAM, "handoff"),
            ({"schedule": "async"}, "schedule"),
        ],
    )
    def test_another_call_is_refused(self, tmp_path, others, name):
        self.stopped(tmp_path)
        with pytest.raises(CheckpointError, match=f"in which {name} was (?!another)[^;]+; give"):
            pretrain(table(), resume=tmp_path, **(RESUMED | others))
        with pytest.raises(CheckpointError, match=r"is of another .* in which X was another"):
            pretrain(1 - table(), resume=tmp_path, **RESUMED)

    def test_a_state_that_names_no_validation_examples_goes_on(self, tmp_path, monkeypatch):
        compared = SavedCall._check

        def older(self, header):
            del header["data"]["validation"]
            compared(self, header)

        monkeypatch.setattr(SavedCall, "_check", older)
        self.stopped(tmp_path, validation=table()[:9])
        options = RESUMED | {"validation": table()[:9]}
        stack = pretrain(table(), resume=tmp_path, **options)
        assert stack.parameters_sha256 == pretrain(table(), **options).parameters_sha256

    def test_a_call_with_other_validation_examples_is_refused(self, tmp_path):
        for first in (table()[:9], None):
            self.stopped(tmp_path, validation=first)
            with pytest.raises(CheckpointError, match="in which validation was another; give"):
                pretrain(table(), resume=tmp_path, validation=table()[9:18], **RESUMED)
            pretrain(table(), resume=tmp_path, validation=first, **RESUMED)

    def test_a_file_is_no_folder(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(errors.SettingsError, match=r"^resume: got .*file, expected a folder"):
            pretrain(table(), resume=tmp_path / "file", **RESUMED)


DOCUMENTS = {"visible_bias": "log-odds", "cd_steps": [5, 1], "learning_rate": [0.003, 0.1]}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"visible_units": "counts"}, DOCUMENTS.keys()),
        ({"visible_units": "counts", "learning_rate": [0.02, 0.1]}, {"visible_bias", "cd_steps"}),
        ({"visible_units": "counts", "cd_steps": 1}, {"visible_bias", "learning_rate"}),
        ({"visible_units": "counts", "visible_bias": "zero"}, {"cd_steps", "learning_rate"}),
        ({"visible_units": "counts", "model": "autoencoder"}, {"visible_bias"}),
        ({"visible_units": "counts:8,softmax"}, {"visible_bias"}),
        ({"visible_units": "softmax"}, set()),
    ],
)
def test_documents_have_settings_of_their_own(options, names):
    found = chosen(Facts(50_000, 16, high=9.0, row_sum=100.0), (16, 8, 4), **options)
    assert found == {name: DOCUMENTS[name] for name in names}


@pytest.mark.parametrize("row_sum", [0.0, math.nan])
def test_documents_of_unknown_length_keep_their_rate(row_sum):
    found = chosen(Facts(50_000, 16, row_sum=row_sum), visible_units="counts")
    assert found.keys() == {"visible_bias", "cd_steps"}


@pytest.mark.parametrize("dtype", ["u1", "f4", "i8"])
def test_facts_have_the_mean_sum_of_a_row(dtype):
    assert look_at(np.array([[0, 1, 5], [2, 0, 2]], dtype=dtype)).facts.row_sum == 5
