from __future__ import annotations

import numpy as np
import pytest
from binaryunits import means
from randomstacks import layer_errors, normal_stack

from syncpretrain import Stack
from syncpretrain.models.diagnosis import stack_error

WIDTHS = (7, 5, 3)


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def stack(request) -> Stack:
    return normal_stack(WIDTHS, tied=request.param)


def examples(n: int) -> np.ndarray:
    return np.random.default_rng(1).random((n, WIDTHS[0])).astype(np.float32)


def mean_error(x: np.ndarray, y: np.ndarray) -> float:
    """The papers': squared, summed over units, averaged over examples."""
    return float(np.square(np.float64(x) - y).sum(axis=1).mean())


@pytest.mark.parametrize("n", [1, 30, 2345])  # the last is more than one chunk of rows
def test_layer_errors_equal_plain_numpy(stack, n):
    X = below = examples(n)
    expected = []
    for layer in stack.layers:
        above = means(below, layer.weight, layer.hidden_bias)
        expected.append(mean_error(below, means(above, layer.decoding, layer.visible_bias)))
        below = above
    assert layer_errors(stack, X) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("n", [1, 30, 2345])
def test_stack_error_equals_plain_numpy(stack, n):
    X = x = examples(n)
    for layer in stack.layers:
        x = means(x, layer.weight, layer.hidden_bias)
    for layer in reversed(stack.layers):
        x = means(x, layer.decoding, layer.visible_bias)
    assert stack_error(stack, X) == pytest.approx(mean_error(X, x), rel=1e-5)


def test_of_one_layer_both_are_the_same(stack):
    single = Stack(stack.layers[:1])
    X = examples(12)
    assert layer_errors(single, X) == (pytest.approx(stack_error(single, X), rel=1e-6),)


def test_without_examples_there_is_no_error(stack):
    assert layer_errors(stack, examples(0)) == ()
    assert stack_error(stack, examples(0)) is None


def test_the_examples_are_not_written_to(stack):
    X = examples(30)
    copy = X.copy()
    layer_errors(stack, X)
    stack_error(stack, X)
    np.testing.assert_array_equal(X, copy)
