"""Sampling against the exact distribution of a small RBM."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from binaryunits import states

from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import DataError
from syncpretrain.models.stack import DenseLayer, Stack

VISIBLE, HIDDEN = 5, 4


def make_layer(visible: int = VISIBLE, hidden: int = HIDDEN, *, seed: int = 0) -> DenseLayer:
    draws = np.random.default_rng(seed)
    shapes = ((visible, hidden), (hidden,), (visible,))
    return DenseLayer(*(draws.normal(size=shape).astype(np.float32) for shape in shapes))


def exact_means(layer: DenseLayer) -> np.ndarray:
    """E[v] under the RBM, by enumeration."""
    v = states(VISIBLE)
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
    stiff = DenseLayer(*(np.float32(x) for x in (200 * np.eye(4), [-100] * 4, [-100] * 4)))
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
    with pytest.raises(DataError, match="before fine-tuning"):
        Stack((replace(layer, model="autoencoder"),)).sample(1)


def test_an_autoencoder_below_the_top_decodes():
    lower, top = replace(make_layer(7, VISIBLE, seed=1), model="autoencoder"), make_layer()
    dreams = Stack((top,)).sample(6, steps=5)
    np.testing.assert_array_equal(Stack((lower, top)).sample(6, steps=5), lower.down(dreams))


def test_gaussian_dreams_have_the_mean_of_the_rbm_in_data_units():
    """Without weights v ~ N(a, 1); the last way down keeps the means, which are a."""
    layer = DenseLayer(
        np.zeros((2, 3), dtype=np.float32),
        np.zeros(3, dtype=np.float32),
        np.float32([0.5, -2]),
        visible_units="gaussian",
    )
    scaling = Scaling(np.float32([100, 0]), np.float32([10, 1]))
    samples = Stack((layer,), scaling=scaling).sample(4, steps=3)
    np.testing.assert_allclose(samples, [[105, -2]] * 4, rtol=1e-6)


def test_the_joint_gaussian_of_linear_units_is_sampled():
    """E = (v^2 + h^2) / 2 - w v h: v has variance 1 / (1 - w^2), its last mean w h."""
    w = 0.6
    layer = DenseLayer(
        np.float32([[w]]),
        np.zeros(1, dtype=np.float32),
        np.zeros(1, dtype=np.float32),
        hidden_units="gaussian",
        visible_units="gaussian",
    )
    means = Stack((layer,)).sample(40_000, steps=25)
    expected = w**2 / (1 - w**2)  # of w h, where h has the variance of v
    assert means.var() == pytest.approx(expected, rel=5 * math.sqrt(2 / 40_000))


@pytest.mark.parametrize("save", [5, True, "x.txt", ["x.npy"]])
def test_what_names_no_npy_file_is_refused(save):
    with pytest.raises(DataError, match=r"^save: got .*, expected a file that ends in .npy"):
        Stack((make_layer(),)).sample(2, save=save)
