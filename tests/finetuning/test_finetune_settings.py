"""Settings of fine-tuning: patience, schedules, optimizers, kinds of units, and refusals."""

import numpy as np
import pytest
from toyclasses import epochs_of, make_stack, numbers, refused, toy, tuned

from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import DataError, SettingsError
from syncpretrain.finetuning.network import Network
from syncpretrain.finetuning.optimizers import Descent


class TestPatience:
    @pytest.mark.parametrize(
        ("epochs", "own"),
        [
            (500, {"patience": 4, "learning_rate": 0.02}),
            (60, {"patience": 59, "learning_rate": 0.05, "seed": 2}),  # to the last epoch
        ],
    )
    def test_stops_and_keeps_the_best(self, epochs, own):
        X, events = toy()[0], []
        # Validated with other numbers than trained with: learning soon makes it worse.
        wrong = numbers(X[::-1])
        how = {"validation": X, "validation_y": wrong, "epochs": epochs, **own}
        after = tuned(None, X, numbers(X), **how, observers=[events.append])
        errors = [event.validation_error for event in epochs_of(events)]
        best, last = int(np.argmin(errors)) + 1, len(errors)
        assert best < last == min(best + own["patience"], epochs)
        assert (last == epochs) == (epochs == 60)
        kept = np.square(after.predict(X) - wrong).sum() / len(X)
        assert kept == pytest.approx(min(errors), rel=1e-5)
        record = {"best_epoch": best, "epochs": last, "patience": own["patience"]}
        assert record.items() <= after.info["finetune"][0].items()

    def test_without_any_finite_error_nothing_was_better_than_the_start(self, monkeypatch):
        monkeypatch.setattr(Network, "error", lambda self, X, target: np.inf)
        stack = make_stack()
        after = tuned(stack, validation=toy()[0], patience=1, batch_size=60)
        for old, new in zip(stack.layers, after.layers, strict=True):
            np.testing.assert_array_equal(old.weight, new.weight)
        assert after.info["finetune"][0]["best_epoch"] == 0

    def test_a_state_behind_the_last_epoch_gives_its_best(self):
        X, states = toy()[0], []
        own = {"validation": X, "patience": 3, "batch_size": 60}
        tuned(None, X, **own, epochs=3, save=lambda state, **_: states.append(state()))
        after = tuned(None, X, **own, epochs=1, resume=states[-1])
        record = after.info["finetune"][0]
        assert (record["epochs"], record["best_epoch"]) == (2, states[-1].best_epoch)

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
        seen, real = [], Descent.train

        def recorded(self, examples, rows, at, run):
            seen.append(at.rate)
            return real(self, examples, rows, at, run)

        monkeypatch.setattr(Descent, "train", recorded)
        settings = {"optimizer": "sgd", "learning_rate": 0.2, "rate_schedule": schedule}
        tuned(epochs=2, batch_size=30, **settings)
        assert seen == pytest.approx(rates)


class TestOptimizers:
    @pytest.mark.parametrize(
        "settings",
        [
            {"optimizer": "sgd"},
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
        X = 50 * draw.normal(size=(60, 2)) @ draw.normal(size=(2, 8)) + 1000
        X = X.astype(np.float32)
        stack = make_stack(units=("gaussian", "bernoulli", "gaussian"), scaling=Scaling.of(X))
        after = tuned(stack, X, epochs=100, learning_rate=0.02)
        before, now = (np.square(s.reconstruct(X) - X).mean() for s in (stack, after))
        assert now < 0.2 * X.var(axis=0).mean() < before
        assert after.scaling is stack.scaling
        assert after.units == ("gaussian", "bernoulli", "gaussian")

    def test_a_classifier_on_gaussian_visible_units(self):
        X, y = toy()
        X = 100 * X - 30
        stack = make_stack(units=("gaussian", "relu", "gaussian"), scaling=Scaling.of(X))
        after = tuned(stack, X, y, epochs=40, learning_rate=0.02)
        np.testing.assert_array_equal(after.predict(X), y)


HOLE = np.where(np.arange(8) == 0, np.nan, toy()[0])
NARROW = toy()[0][:, 1:]
GAUSSIAN = make_stack(units=("gaussian", "bernoulli", "bernoulli"))


@pytest.mark.parametrize(
    ("match", "given"),
    [
        ("epochs", {"epochs": 0}),
        ("epochs", {"epochs": 1.5}),
        ("optimizer", {"optimizer": "rmsprop"}),
        ("learning_rate", {"learning_rate": 0.0}),
        ("learning_rate", {"learning_rate": float("nan")}),
        ("batch_size", {"batch_size": 0}),
        ("batch_size: got 61, expected at most 60", {"batch_size": 61}),
        ("seed", {"seed": -1}),
        ("seed", {"seed": 2**63}),
        ("blas_threads", {"blas_threads": 0}),
        ("momentum: got momentum with optimizer cg", {"optimizer": "cg", "momentum": 0.9}),
        ("nesterov: got nesterov with optimizer adam.*above 0", {"nesterov": True}),
        ("dropout", {"dropout": 1.0}),
        ("input_dropout", {"input_dropout": -0.1}),
        ("momentum", {"optimizer": "sgd", "momentum": 1.0}),
        ("rate_schedule", {"rate_schedule": "step"}),
        ("patience", {"patience": 0}),
        ("patience: got a number without validation", {"patience": 2}),
        ("loss: got 'hinge', expected squared or cross-entropy", {"loss": "hinge"}),
        ("objective: got none", {"objective": "none"}),
        ("objective: got classification without targets", {"objective": "classification"}),
        ("objective: got regression without targets", {"objective": "regression"}),
        (
            "objective: got reconstruction with targets",
            {"y": toy()[1], "objective": "reconstruction"},
        ),
    ],
)
def test_settings_that_are_refused(match, given):
    refused(SettingsError, match, **given)


@pytest.mark.parametrize(
    ("match", "given"),
    [
        ("loss: got cross-entropy for gaussian", {"stack": GAUSSIAN, "loss": "cross-entropy"}),
        (r"X: got shape \(60, 7\), expected \(examples, 8\)", {"X": NARROW}),
        (r"validation: got shape \(60, 7\)", {"validation": NARROW}),
        ("X", {"X": HOLE}),
    ],
)
def test_examples_that_are_refused(match, given):
    refused(DataError, match, **given)
