"""Missing values: NaN is left out of gradients, errors and energies, and can be imputed."""

import numpy as np
import pytest
from onelayer import layer_settings
from randomstacks import layer_errors

from syncpretrain import Stack, finetune, pretrain
from syncpretrain.data.examples import mark_missing
from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import DataError, SettingsError
from syncpretrain.events import EpochFinished, Notice
from syncpretrain.kernels.conditions import is_missing, known_means
from syncpretrain.learners.autoencoder import Autoencoder
from syncpretrain.learners.early_stopping import EarlyStopping
from syncpretrain.learners.rbm import RBM
from syncpretrain.models.diagnosis import stack_error
from syncpretrain.models.layer import DenseLayer
from syncpretrain.models.likelihood import free_energy
from syncpretrain.settings import MomentumSchedule

pytestmark = pytest.mark.usefixtures("forked_layers")
UNITS = ["bernoulli", "gaussian"]


def rows(n: int = 40, width: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((n, width)).astype(np.float32)


def with_holes(X: np.ndarray, share: float = 0.3, seed: int = 1) -> np.ndarray:
    found = X.copy()
    found[np.random.default_rng(seed).random(X.shape) < share] = np.nan
    return found


def test_marks_are_negative_zeros_and_no_other_value_is_one():
    X = np.float32([[np.nan, 0.0, -0.0, 1.0]])
    marked = mark_missing(X.copy())
    np.testing.assert_array_equal(is_missing(marked), [[True, False, False, False]])
    np.testing.assert_array_equal(marked, [[0, 0, 0, 1]])


def test_means_and_scaling_are_those_of_the_known_values():
    X = with_holes(3 * rows() + 5)
    known = [column[~np.isnan(column)].astype("f8") for column in X.T]
    scaling = Scaling.of(X)
    np.testing.assert_allclose(scaling.shift, [c.mean() for c in known], rtol=1e-6)
    np.testing.assert_allclose(scaling.scale, [c.std() for c in known], rtol=1e-5)
    expected = [c.mean() for c in known]
    np.testing.assert_allclose(known_means(mark_missing(X.copy())), expected, rtol=1e-6)


def learner_of(model: str, visible: int, units: str, **more):
    own = {"batch_size": 8, "learning_rate": 0.1, "momentum": MomentumSchedule("0"), "seed": 3}
    own |= {"visible_units": units, **more}
    if model == "rbm":
        return RBM(1, visible, 3, layer_settings(**own))
    loss = "cross-entropy" if units == "bernoulli" else "squared"
    return Autoencoder(1, visible, 3, layer_settings(loss=loss, **own))


@pytest.mark.parametrize("model", ["rbm", "autoencoder"])
@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize(
    "more", [{}, {"persistent": True}, {"cd_steps": 3}, {"corruption": ("gaussian", 0.5)}]
)
def test_units_that_are_missing_are_as_if_they_were_not_there(model, units, more):
    if (model == "rbm") == ("corruption" in more):
        more = {}
    whole = learner_of(model, 6, units, missing=True, **more)
    X = rows(8)
    X[:, 4:] = np.nan
    error = whole.gradient(mark_missing(X), np.arange(8), epoch=1, step=0)
    assert not whole.gradients[0][4:].any()
    assert not whole.gradients[1][4:].any()
    if more:
        return  # the draws are others
    part = learner_of(model, 4, units)
    part.weight[:] = whole.weight[:4]
    assert error == pytest.approx(part.gradient(X[:, :4].copy(), np.arange(8), epoch=1, step=0))
    for have, want in zip(whole.gradients, part.gradients, strict=True):
        np.testing.assert_allclose(have[: len(want)], want, rtol=1e-5, atol=1e-7)


def test_biases_start_from_the_known_values():
    X = with_holes(rows())
    options = {"visible_bias": "log-odds", "learning_rate": 1e-30}
    stack = pretrain(X, layers=[6, 2], epochs=1, batch_size=8, **options)
    mean = np.nanmean(X, axis=0)
    np.testing.assert_allclose(stack.layers[0].visible_bias, np.log(mean / (1 - mean)), rtol=1e-4)


@pytest.mark.parametrize("units", UNITS)
def test_errors_are_those_of_the_known_values(units):
    X, found = with_holes(rows()), []
    options = {"visible_units": units, "validation": X[:20], "observers": [found.append]}
    stack = pretrain(X, layers=[6, 4, 3], epochs=2, batch_size=8, **options)
    prepared = stack.prepared(X, missing=True)
    away = prepared - stack.layers[0].reconstruct(prepared)
    away[np.isnan(X)] = 0
    errors = layer_errors(stack, X)
    assert errors[0] == pytest.approx(np.square(away).sum() / len(X), rel=1e-4)
    assert np.isfinite([*errors, stack_error(stack, X)]).all()
    judged = [e for e in found if isinstance(e, EpochFinished) and e.layer == 1]
    expected = np.square(away[:20]).sum() / 20
    assert judged[-1].validation_error == pytest.approx(expected, rel=1e-4)
    assert any(isinstance(e, Notice) and "missing values" in e.message for e in found)


@pytest.mark.parametrize("units", UNITS)
def test_codes_and_energies_leave_missing_values_out(units):
    X = rows()
    stack = pretrain(X, layers=[6, 4], visible_units=units, epochs=1, batch_size=8)
    layer, prepared = stack.layers[0], stack.prepared(X)
    X[:, 2] = np.nan
    rest = [0, 1, 3, 4, 5]
    own = layer.weight[rest], layer.hidden_bias, layer.visible_bias[rest]
    smaller = DenseLayer(*own, visible_units=units)
    np.testing.assert_allclose(stack.encode(X), smaller.up(prepared[:, rest]), rtol=1e-5)
    found = free_energy(layer, stack.prepared(X, missing=True), missing=True)
    np.testing.assert_allclose(found, free_energy(smaller, prepared[:, rest]), rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "metric"), [("rbm", "free-energy-gap"), ("autoencoder", "validation-error")]
)
def test_early_stopping_judges_known_values(monkeypatch, model, metric):
    judged, stops = [], EarlyStopping.stops
    monkeypatch.setattr(EarlyStopping, "stops", lambda *own: judged.append(own) or stops(*own))
    X = with_holes(rows())
    options = {"epochs": 1, "batch_size": 8, "validation": X[:10], "runtime": "serial"}
    options |= {"model": model, "early_stopping": metric, "visible_units": "gaussian"}
    pretrain(X, layers=[6, 3], learning_rate=0.1, **options)
    stopping, layer, *parts = judged[0]
    if model == "rbm":
        train, held_out = (free_energy(layer, part, missing=True).mean() for part in parts)
        expected = held_out - train
    else:
        away = (parts[1] - layer.reconstruct(parts[1])) * ~is_missing(parts[1])
        expected = np.square(away).sum() / 10
    assert stopping.state[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"layers": "1x2x3,conv:2x2,3"}, "got NaN, .* with convolutions"),
        ({"split": "units", "shards": 2}, "got NaN, .* with split units"),
        ({"early_stopping": "pseudo-likelihood", "validation": rows()}, "pseudo-likelihood"),
    ],
)
def test_what_cannot_leave_values_out_is_refused(more, message):
    options = {"layers": [6, 3], "batch_size": 8} | more
    with pytest.raises(SettingsError, match=message):
        pretrain(with_holes(rows()), **options)


@pytest.mark.parametrize(
    ("empty", "units", "message"),
    [
        (3, "bernoulli", "got NaN in every row of column 3"),
        (slice(None), "bernoulli", "all 6 columns are without a value, got 40 times"),
        (slice(None), "gaussian", "all 6 columns are without a value, got 40 times"),
    ],
)
def test_columns_without_values_are_refused(empty, units, message):
    X = rows()
    X[:, empty] = np.nan
    with pytest.raises(DataError, match=f"X: {message}"):
        pretrain(X, layers=[6, 3], batch_size=8, visible_units=units)


def test_an_iterable_has_no_missing_values():
    X = with_holes(rows())
    with pytest.raises(DataError, match="expected finite numbers"):
        pretrain(lambda number: [X], layers=[6, 3], batch_size=8, handoff="minibatch")


def test_labels_can_be_learned_from_incomplete_rows_but_reconstruction_needs_targets():
    X = with_holes(rows())
    stack = pretrain(X, layers=[6, 3], epochs=1, batch_size=8)
    assert set(finetune(stack, X, np.arange(40) % 2, epochs=1, batch_size=8).predict(X)) <= {0, 1}
    with pytest.raises(DataError, match=r"^X: got NaN, .*Stack.impute"):
        finetune(stack, X, epochs=1, batch_size=8)


class TestImputation:
    def copies(self, units: str) -> np.ndarray:
        """Columns that are copies of one another, or of its opposite."""
        bit = np.random.default_rng(0).random((300, 1)) < 0.5
        X = np.hstack([bit, bit, ~bit, bit, ~bit]).astype(np.float32)
        return X if units == "bernoulli" else 20 + 10 * X

    @pytest.mark.parametrize("units", UNITS)
    @pytest.mark.parametrize("model", ["rbm", "denoising"])
    def test_what_others_tell_is_found(self, units, model):
        X = self.copies(units)
        holes = with_holes(X, 0.2)
        rate = {"bernoulli": 0.1, "gaussian": 0.02}[units]
        options = {"layers": [5, 6], "visible_units": units, "model": model, "learning_rate": rate}
        stack = pretrain(holes, epochs=30, batch_size=10, **options)
        found, lost = stack.impute(holes), np.isnan(holes)
        np.testing.assert_array_equal(found[~lost], X[~lost])
        by_mean = np.broadcast_to(np.nanmean(holes, axis=0), X.shape)
        error, usual = (np.square(y - X)[lost].mean() for y in (found, by_mean))
        assert error < 0.5 * usual

    def test_the_seed_decides_and_the_type_stays(self):
        holes = with_holes(rows())
        stack = pretrain(holes, layers=[6, 3], epochs=1, batch_size=8)
        first, again, other = (stack.impute(holes, seed=seed) for seed in (0, 0, 1))
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, other)
        precise = holes.astype(np.float64) / 3
        lost = np.isnan(precise)
        found = stack.impute(precise)
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found[~lost], precise[~lost])

    def test_missing_choices_have_probabilities(self):
        choice = np.eye(3, dtype=np.float32)[np.arange(60) % 3]
        X = np.hstack([choice, choice])
        X[::2, :3] = np.nan
        options = {"visible_units": "softmax:2x3", "learning_rate": 1}
        found = pretrain(X, layers=[6, 8], epochs=40, batch_size=10, **options).impute(X)[::2, :3]
        np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-4)
        np.testing.assert_array_equal(found.argmax(axis=1), np.arange(0, 60, 2) % 3)

    def test_chains_come_to_the_enumerated_conditional_distribution(self):
        draws = np.random.default_rng(2)
        W, b, a = (draws.normal(0, 1, s).astype("f4") for s in ((3, 2), 2, 3))
        layer = DenseLayer(W, b, a)
        X = np.tile(np.float32([1, np.nan, 0]), (400, 1))
        found = Stack((layer,)).impute(X, samples=200)[:, 1].mean(dtype="f8")
        on, off = free_energy(layer, np.float32([[1, 1, 0], [1, 0, 0]]))
        assert found == pytest.approx(1 / (1 + np.exp(on - off)), abs=0.01)

    def test_numbers_of_steps_are_checked(self):
        stack = pretrain(rows(), layers=[6, 3], epochs=1, batch_size=8)
        with pytest.raises(DataError, match="steps, samples: got 0 and 0"):
            stack.impute(rows(), steps=0, samples=0)
        with pytest.raises(DataError, match=r"steps: got 1\.5, expected a whole number"):
            stack.impute(rows(), steps=1.5)
        np.testing.assert_array_equal(stack.impute(rows()), rows())
