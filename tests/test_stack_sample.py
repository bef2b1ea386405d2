"""Sampling against the exact distribution of a small RBM."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from syncpretrain.errors import DataError
from syncpretrain.stack import Layer, Stack

VISIBLE, HIDDEN = 5, 4


def make_layer(visible: int = VISIBLE, hidden: int = HIDDEN, *, seed: int = 0) -> Layer:
    draws = np.random.default_rng(seed)
    shapes = ((visible, hidden), (hidden,), (visible,))
    return Layer(*(draws.normal(size=shape).astype(np.float32) for shape in shapes))


def exact_means(layer: Layer) -> np.ndarray:
    """E[v] under the RBM, by enumeration."""
    v = np.array(list(product((0.0, 1.0), repeat=VISIBLE)))
    free = v @ layer.visible_bias + np.logaddexp(0, v @ layer.weight + layer.hidden_bias).sum(1)
    p = np.exp(free - np.logaddexp.reduce(free))
    return p @ v


@pytest.mark.parametrize("start", [None, np.ones((4000, VISIBLE))])
def test_long_chains_have_the_means_of_the_rbm(start):
    layer = make_layer()
    samples = Stack((layer,)).sample(4000, steps=60, start=start)
    # A probability lies in [0, 1], so that its standard deviation is 1/2 at most.
    error = 5 * 0.5 / math.sqrt(4000)
    np.testing.assert_allclose(samples.mean(axis=0), exact_means(layer), atol=error)


def test_the_top_dreams_and_the_layers_below_decode():
    lower, top = make_layer(7, VISIBLE, seed=1), make_layer()
    dreams = Stack((top,)).sample(6, steps=5)
    expected = 1 / (1 + np.exp(-(dreams @ lower.weight.T + lower.visible_bias)))
    np.testing.assert_allclose(Stack((lower, top)).sample(6, steps=5), expected, rtol=1e-5)


def test_the_seed_decides():
    stack = Stack((make_layer(),))
    np.testing.assert_array_equal(stack.sample(3, steps=4), stack.sample(3, steps=4))
    assert (stack.sample(3, steps=4, seed=1) != stack.sample(3, steps=4)).any()


def test_a_chain_remembers_its_start():
    stiff = Layer(*(np.float32(x) for x in (200 * np.eye(4), [-100] * 4, [-100] * 4)))
    start = np.eye(4, dtype=np.float32)
    np.testing.assert_allclose(Stack((stiff,)).sample(4, steps=9, start=start), start, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0}, "expected 1 or more"),
        ({"count": 2, "steps": 0}, "expected 1 or more"),
        ({"count": 2, "start": np.zeros((3, VISIBLE))}, "3 examples for 2 chains"),
        ({"count": 2, "start": np.zeros((2, VISIBLE + 1))}, "start: got"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        Stack((make_layer(),)).sample(**arguments)


def test_a_fine_tuned_top_is_refused():
    layer = make_layer()
    untied = Layer(layer.weight, layer.hidden_bias, layer.visible_bias, layer.weight.T.copy())
    with pytest.raises(DataError, match="before fine-tuning"):
        Stack((untied,)).sample(1)
