from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from binaryunits import means
from randomstacks import normal_stack

from syncpretrain import Stack
from syncpretrain.errors import DataError
from syncpretrain.models.stack import DenseLayer, Head

WIDTHS = (6, 5, 4, 3)
make_stack = partial(normal_stack, WIDTHS, info={"made by": "a test"})


@pytest.fixture(name="X")
def examples() -> np.ndarray:
    return np.random.default_rng(1).random((9, WIDTHS[0])).astype(np.float32)


def encoded(stack: Stack, X: np.ndarray, depth: int) -> np.ndarray:
    for layer in stack.layers[:depth]:
        X = means(X, layer.weight, layer.hidden_bias)
    return X


def decoded(stack: Stack, codes: np.ndarray) -> np.ndarray:
    for layer in reversed(stack.layers):
        down = layer.weight.T if layer.decoder_weight is None else layer.decoder_weight
        codes = means(codes, down, layer.visible_bias)
    return codes


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("layer", [None, 1, 2, 3])
def test_encode_equals_plain_numpy(X, tied, layer):
    stack = make_stack(tied=tied)
    codes = stack.encode(X, layer=layer)
    assert codes.dtype == np.float32
    assert codes.shape == (9, WIDTHS[layer or 3])
    np.testing.assert_allclose(codes, encoded(stack, X, layer or 3), atol=1e-6)


@pytest.mark.parametrize("layer", [None, 1, 2])
def test_log_odds_equal_plain_numpy(X, layer):
    stack = make_stack()
    codes = stack.encode(X, layer=layer, log_odds=True)
    top, below = stack.layers[(layer or 3) - 1], encoded(stack, X, (layer or 3) - 1)
    np.testing.assert_allclose(codes, below @ top.weight + top.hidden_bias, atol=1e-6)
    np.testing.assert_allclose(1 / (1 + np.exp(-codes)), stack.encode(X, layer=layer), atol=1e-6)
    assert stack.units == ("bernoulli",) * 4, "the stack stays as it is"


@pytest.mark.parametrize("units", ["gaussian", "relu", "tanh"])
def test_units_without_log_odds(X, units):
    stack = make_stack()
    odd = replace(stack.layers[1], hidden_units=units)
    stack = Stack((stack.layers[0], odd, stack.layers[2]))
    with pytest.raises(DataError, match=f"log_odds: got {units} units .* expected bernoulli"):
        stack.encode(X, layer=2, log_odds=True)
    assert stack.encode(X, log_odds=True).shape == (9, 3)


@pytest.mark.parametrize("tied", [True, False])
def test_decode_and_reconstruct_equal_plain_numpy(X, tied):
    stack = make_stack(tied=tied)
    codes = encoded(stack, X, 3)
    np.testing.assert_allclose(stack.reconstruct(X), decoded(stack, codes), atol=1e-6)
    outside = np.float64([[-3, 0, 7]])
    np.testing.assert_allclose(stack.decode(outside), decoded(stack, outside), atol=1e-6)


def test_the_layout_and_type_of_the_input_do_not_matter(X):
    expected = make_stack().encode(X)
    strided = np.zeros((18, 12), dtype=np.float32)
    strided[::2, ::2] = X
    for other in (np.asfortranarray(X), strided[::2, ::2], X.tolist(), X.astype(np.float64)):
        np.testing.assert_array_equal(make_stack().encode(other), expected)


@pytest.mark.parametrize("layer", [0, -1, 4])
def test_a_layer_that_there_is_not(X, layer):
    with pytest.raises(DataError, match=rf"layer: got {layer}, expected 1 to 3"):
        make_stack().encode(X, layer=layer)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros((4, 5)), r"got shape \(4, 5\), expected \(examples, 6\)"),
        (np.zeros(6), r"got shape \(6,\)"),
        (np.zeros((2, 3, 6)), r"got shape \(2, 3, 6\)"),
        (np.zeros((0, 6)), "got no values"),
        (np.full((2, 6), np.inf), "expected finite numbers"),
        (np.full((2, 6), 1.5), r"expected values in \[0, 1\]"),
        ([["a"] * 6], "expected numbers"),
        ([[1, 2], [3]], "no array of numbers"),
        (None, "expected numbers"),
    ],
)
def test_wrong_examples_are_refused(bad, message):
    with pytest.raises(DataError, match=f"X: .*{message}"):
        make_stack().encode(bad)
    with pytest.raises(DataError, match=f"X: .*{message}"):
        make_stack().reconstruct(bad)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros((4, 6)), r"got shape \(4, 6\), expected \(examples, 3\)"),
        (np.zeros(3), r"got shape \(3,\)"),
        (np.full((2, 3), np.nan), "NaN or infinite"),
        (np.full((2, 3), 1e300), "NaN or infinite"),  # too large for float32
        ([["a"] * 3], "expected numbers"),
    ],
)
def test_wrong_codes_are_refused(bad, message):
    with pytest.raises(DataError, match=f"codes: .*{message}"):
        make_stack().decode(bad)


def test_the_checksum_covers_every_parameter_and_not_its_layout():
    head = Head(np.ones((3, 2), np.float32), np.ones(2, np.float32), "regression", ())
    stack = replace(make_stack(tied=False), head=head)
    arrays = [array for layer in stack.layers for _, array in layer.parameters()]
    seen = {stack.parameters_sha256, make_stack(tied=False).parameters_sha256}
    for array in (*arrays, head.weight, head.bias):
        before = array.flat[0]
        array.flat[0] += 1
        seen.add(stack.parameters_sha256)
        array.flat[0] = before
    assert len(seen) == 16
    first = make_stack().layers[0]
    transposed = DenseLayer(*(np.asfortranarray(array) for _, array in first.parameters()))
    assert Stack((transposed,)).parameters_sha256 == Stack((first,)).parameters_sha256


def test_stacks_and_layers_compare_without_an_error():
    stack = make_stack()
    assert stack == stack
    assert stack != make_stack()
    assert len({stack.layers[0], stack.layers[0], stack.layers[1]}) == 2


def test_on_the_way_down_units_are_those_of_the_way_up(X):
    """A layer above rectified units sees them as Gaussian ones; going down they are rectified."""
    lower, middle, top = make_stack().layers
    lower = replace(lower, hidden_units="relu")
    middle = replace(middle, visible_units="gaussian")
    stack = Stack((lower, middle, top))
    codes = stack.encode(X)
    linear = middle.down(top.down(codes))
    assert (linear < 0).any()
    np.testing.assert_allclose(stack.down(codes), lower.down(np.maximum(linear, 0)), atol=1e-6)


class TestHead:
    WEIGHT = np.float32([[1, -1], [0, 2], [0.5, 0]])
    BIAS = np.float32([0.25, -0.5])

    def test_classes_are_named_as_in_the_labels(self, X):
        head = Head(self.WEIGHT, self.BIAS, "classification", (7, -3))
        stack = replace(make_stack(), head=head)
        z = encoded(stack, X, 3) @ np.float64(self.WEIGHT) + self.BIAS
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(stack.predict_proba(X), p, rtol=1e-5)
        np.testing.assert_array_equal(stack.predict(X), np.where(p[:, 0] > p[:, 1], 7, -3))

    def test_a_stack_without_a_head_predicts_nothing(self, X):
        with pytest.raises(DataError, match=r"predicts nothing.*fine-tune it"):
            make_stack().predict(X)
        with pytest.raises(DataError, match=r"is no classifier.*fine-tune it"):
            make_stack().predict_proba(X)
