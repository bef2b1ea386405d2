"""Exact answers for the optimizers' steps."""

import numpy as np
import pytest

from syncpretrain.kernels.optimizers import adam_step, sgd_step


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
        g = gradient_of(p)
        kept = g.copy()
        adam_step(p, g, m, v, step=t, learning_rate=0.01, scratch=scratch)
        np.testing.assert_array_equal(g, kept)
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


@pytest.mark.parametrize("block", [1, 7, 50, 64])
def test_sgd_subtracts_the_scaled_gradient_whatever_the_block(block):
    draw = np.random.default_rng(3)
    start, g = draw.normal(size=50), draw.normal(size=50)
    p = start.copy()
    sgd_step(p, g, np.empty(0), learning_rate=0.25, scratch=np.empty(block))
    np.testing.assert_array_equal(p, start - 0.25 * g)
