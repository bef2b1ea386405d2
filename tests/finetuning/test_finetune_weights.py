"""Weights of examples in fine-tuning: gradients, every kind of network, refusals."""

import numpy as np
import pytest
from densechains import CHAINS, finite_differences, make_chain, make_examples
from minibatches import gradient
from randomstacks import normal_stack

from syncpretrain import pretrain
from syncpretrain.errors import DataError
from syncpretrain.finetuning import finetune
from syncpretrain.finetuning.network import Network

ROWS = 24
X = np.random.default_rng(1).random((ROWS, 9), dtype=np.float32)
CLASSES = np.arange(ROWS) % 3
NUMBERS = X @ np.linspace(-1, 1, 18, dtype=np.float32).reshape(9, 2)
TARGETS = {"classes": CLASSES, "numbers": NUMBERS, "reconstruction": None}
WEIGHTS = np.random.default_rng(2).random(6) * 2
FORMS = {"units": {}, "examples": {"split": "examples", "shards": 2, "replicas": 1}}


def dense():
    return normal_stack((9, 6, 4), scale=0.5)


def convolutional():
    layers = "1x3x3,conv:2x2,4"
    return pretrain(X, layers=layers, epochs=1, batch_size=8, runtime="serial", seed=1)


def tuned(stack, y, **options):
    given = {"epochs": 2, "batch_size": 8, "blas_threads": 1, **options}
    return finetune(stack, X, y, **given)


@pytest.mark.parametrize("split", ["units", "examples"])
@pytest.mark.parametrize("name", ["gaussian", "softmax", "bernoulli-cross-entropy"])
def test_gradient_matches_central_finite_differences(split, name):
    kinds, loss = CHAINS[name]
    x, target = make_examples(kinds[-1])
    network = Network(make_chain(kinds), loss=loss, batch_size=8, shards=2, split=split)
    gradient(network, x, target)
    plain = network.gradients.copy()
    gradient(network, x, target, WEIGHTS.reshape(-1, 1))
    found = network.gradients.copy()
    assert np.abs(found - plain).max() > 0.01
    expected = finite_differences(network, x, target, weights=WEIGHTS.reshape(-1, 1))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("y", TARGETS.values(), ids=TARGETS)
class TestEveryForm:
    @pytest.mark.parametrize("stack", [dense, convolutional])
    def test_equal_ones_are_as_none(self, y, form, stack):
        alike = tuned(stack(), y, weights=np.full(ROWS, 3.0), **form)
        assert alike.parameters_sha256 == tuned(stack(), y, **form).parameters_sha256

    @pytest.mark.parametrize("stack", [dense, convolutional])
    def test_rows_of_weight_zero_are_as_left_out(self, y, form, stack):
        first = np.arange(ROWS) < ROWS // 2
        whole = {"epochs": 3, "blas_threads": 1, **form}
        zero = tuned(stack(), y, weights=first * 5.0, batch_size=ROWS, **whole)
        some = None if y is None else y[first]
        few = finetune(stack(), X[first], some, batch_size=ROWS // 2, **whole)
        np.testing.assert_allclose(zero.encode(X), few.encode(X), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_a_heavy_class_wins(optimizer):
    if optimizer == "lbfgs":
        pytest.importorskip("scipy", reason="the optimizer is SciPy's")
    alike, weights = np.zeros_like(X), np.where(CLASSES == 1, 9.0, 1.0)
    given = {"optimizer": optimizer, "epochs": 200, "batch_size": ROWS, "learning_rate": 0.05}
    found = finetune(dense(), alike, CLASSES, weights=weights, **given).predict_proba(alike)
    np.testing.assert_allclose(found[:, 1], 9 / 11, atol=0.01)


def test_only_rows_with_a_target_count():
    y = np.where(np.arange(ROWS) % 2, CLASSES, -1)
    weights = np.where(y == -1, 100.0, 1.0)
    among, alone = tuned(dense(), y, weights=weights), tuned(dense(), y)
    assert among.parameters_sha256 == alone.parameters_sha256


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        (np.ones(3), r"weights: got shape \(3,\), expected \(24,\)"),
        (np.ones((ROWS, 1)), "weights: got shape"),
        (["a"] * ROWS, "got no numbers"),
    ],
)
def test_refusals(weights, match):
    with pytest.raises(DataError, match=match):
        tuned(dense(), CLASSES, weights=weights)
