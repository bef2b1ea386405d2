"""Exact answers for backpropagation and for the optimizers' steps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from syncpretrain.kernels.backprop import backward, forward, output_delta
from syncpretrain.kernels.losses import squared_error
from syncpretrain.kernels.optimizers import adam_step, sgd_step

WIDTHS = (6, 5, 3, 5, 6)
KINDS = ("bernoulli",) * 4


def make_chain(dtype, seed=0, widths=WIDTHS):
    draw = np.random.default_rng(seed)
    return [
        (draw.normal(size=(below, above)).astype(dtype), draw.normal(size=above).astype(dtype))
        for below, above in pairwise(widths)
    ]


def buffers(examples, dtype):
    return [np.empty((examples, width), dtype) for width in WIDTHS[1:]]


def empty_like(chain):
    return [(np.full_like(weight, np.nan), np.full_like(bias, np.nan)) for weight, bias in chain]


def gradients(x, chain):
    activations, deltas = buffers(len(x), x.dtype), buffers(len(x), x.dtype)
    out = empty_like(chain)
    y = forward(x, chain, KINDS, out=activations)
    total = output_delta(x, y, out=deltas[-1])
    backward(x, chain, KINDS, activations, deltas, out=out)
    return total / len(x), out


def loss_of(x, chain):
    y = x
    for weight, bias in chain:
        y = 1 / (1 + np.exp(-(y @ weight + bias)))
    return ((y - x) ** 2).sum() / len(x)


def test_forward_and_loss_are_the_plain_formula():
    x, chain = np.random.default_rng(1).random((4, 6)), make_chain(np.float64)
    loss, _ = gradients(x, chain)
    assert loss == pytest.approx(loss_of(x, chain), rel=1e-13)


def test_gradient_matches_central_finite_differences():
    x, chain = np.random.default_rng(1).random((4, 6)), make_chain(np.float64)
    _, found = gradients(x, chain)
    step = 1e-5
    for pair, pair_gradient in zip(chain, found, strict=True):
        for array, gradient in zip(pair, pair_gradient, strict=True):
            for place in np.ndindex(array.shape):
                kept = array[place]
                array[place] = kept + step
                above = loss_of(x, chain)
                array[place] = kept - step
                below = loss_of(x, chain)
                array[place] = kept
                expected = (above - below) / (2 * step)
                assert gradient[place] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_gradient_in_float32_agrees_with_float64():
    x, chain = np.random.default_rng(1).random((7, 6)), make_chain(np.float64)
    single = [(w.astype(np.float32), b.astype(np.float32)) for w, b in chain]
    _, expected = gradients(x, chain)
    _, found = gradients(x.astype(np.float32), single)
    for pair, expected_pair in zip(found, expected, strict=True):
        for array, expected_array in zip(pair, expected_pair, strict=True):
            assert array.dtype == np.float32
            np.testing.assert_allclose(array, expected_array, rtol=1e-4, atol=1e-6)


def test_parameters_and_minibatch_are_not_changed():
    x, chain = np.random.default_rng(1).random((4, 6)), make_chain(np.float64)
    kept, kept_chain = x.copy(), make_chain(np.float64)
    gradients(x, chain)
    np.testing.assert_array_equal(x, kept)
    for pair, kept_pair in zip(chain, kept_chain, strict=True):
        np.testing.assert_array_equal(pair[0], kept_pair[0])
        np.testing.assert_array_equal(pair[1], kept_pair[1])


def test_squared_error_leaves_the_difference():
    x, y = np.array([[0.0, 1.0]]), np.array([[0.5, 0.75]])
    out = np.empty_like(x)
    assert squared_error(x, y, out=out) == 0.3125
    np.testing.assert_array_equal(out, [[0.5, -0.25]])


def test_too_few_buffers_are_refused():
    x, chain = np.random.default_rng(1).random((4, 6)), make_chain(np.float64)
    with pytest.raises(IndexError):
        forward(x, chain, KINDS, out=buffers(4, np.float64)[:-1])


def textbook_adam(p, gradient_of, steps, rate=0.01, beta1=0.9, beta2=0.999, epsilon=1e-8):
    p, m, v = p.copy(), np.zeros_like(p), np.zeros_like(p)
    for t in range(1, steps + 1):
        g = gradient_of(p)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        p = p - rate * m_hat / (np.sqrt(v_hat) + epsilon)
    return p


def blocked_adam(p, gradient_of, steps, block):
    p, m, v = p.copy(), np.zeros_like(p), np.zeros_like(p)
    scratch = np.empty(block, p.dtype)
    for t in range(1, steps + 1):
        adam_step(p, gradient_of(p), m, v, step=t, learning_rate=0.01, scratch=scratch)
    return p


@pytest.mark.parametrize("block", [1, 7, 49, 50, 51, 100])
def test_adam_is_the_textbook_one_whatever_the_block(block):
    start = np.random.default_rng(2).normal(size=50)

    def gradient_of(p):
        return 2 * (p - 1) * np.linspace(1e-9, 3, 50)  # tiny ones show where epsilon stands

    expected = textbook_adam(start, gradient_of, steps=25)
    found = blocked_adam(start, gradient_of, 25, block)
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_adam_in_float32_has_the_same_bits_for_every_block():
    start = np.random.default_rng(2).normal(size=1001).astype(np.float32)
    found = [blocked_adam(start, lambda p: p - 1, 5, block) for block in (64, 500, 1001, 4096)]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
    expected = textbook_adam(start.astype(np.float64), lambda p: p - 1, 5)
    np.testing.assert_allclose(found[0], expected, atol=2e-6)


def test_adam_leaves_the_gradient_alone():
    p, g = np.ones(5), np.full(5, 2.0)
    adam_step(p, g, np.zeros(5), np.zeros(5), step=1, learning_rate=0.5, scratch=np.empty(2))
    np.testing.assert_array_equal(g, 2.0)
    np.testing.assert_allclose(p, 0.5)  # the first step is the learning rate, whatever the slope


@pytest.mark.parametrize("block", [1, 7, 50, 64])
def test_sgd_subtracts_the_scaled_gradient_whatever_the_block(block):
    draw = np.random.default_rng(3)
    start, g = draw.normal(size=50), draw.normal(size=50)
    p = start.copy()
    sgd_step(p, g, np.empty(0), learning_rate=0.25, scratch=np.empty(block))
    np.testing.assert_array_equal(p, start - 0.25 * g)
