"""The kernels against exact enumeration of an RBM of 6 visible and 4 hidden units."""

from __future__ import annotations

import numpy as np
from binaryunits import states

from syncpretrain.kernels.activations import affine
from syncpretrain.kernels.contrastive_divergence import (
    draw_noise,
    phase_differences,
    sample,
)

VISIBLE, HIDDEN = 6, 4


class TinyRBM:
    """Exact answers in float64."""

    def __init__(self, seed: int = 0, scale: float = 0.8) -> None:
        rng = np.random.default_rng(seed)
        self.W = rng.normal(0, scale, (VISIBLE, HIDDEN))
        self.a = rng.normal(0, 0.5, VISIBLE)
        self.b = rng.normal(0, 0.5, HIDDEN)
        self.data = (rng.random((12, VISIBLE)) < 0.4).astype(float)

    def joint(self) -> np.ndarray:
        """p(v, h) of every pair of states, from the energy alone."""
        v, h = states(VISIBLE), states(HIDDEN)
        energy = -(v @ self.a)[:, None] - h @ self.b - v @ self.W @ h.T
        weights = np.exp(-energy)
        return weights / weights.sum()

    def posterior(self) -> np.ndarray:
        """p(h | v) of every hidden state for each example, from the joint."""
        joint = self.joint()
        rows = [int("".join(str(int(x)) for x in v), 2) for v in self.data]
        return joint[rows] / joint[rows].sum(axis=1, keepdims=True)

    def positive(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """E_data of v h, v and h, summing over every hidden state."""
        expected_h = self.posterior() @ states(HIDDEN)
        n = len(self.data)
        return self.data.T @ expected_h / n, self.data.mean(axis=0), expected_h.mean(axis=0)

    def negative(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """E_model of v h, v and h."""
        p, v, h = self.joint(), states(VISIBLE), states(HIDDEN)
        return v.T @ p @ h, p.sum(axis=1) @ v, p.sum(axis=0) @ h

    def float32(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return tuple(np.float32(x) for x in (self.W, self.a, self.b))


def run_statistics(v0, v1, h0, h1):
    v = np.concatenate([v0, v1]).astype(np.float32)
    h = np.concatenate([h0, h1]).astype(np.float32)
    dW = np.empty((v.shape[1], h.shape[1]), dtype=np.float32)
    da, db = np.empty(v.shape[1], dtype=np.float32), np.empty(h.shape[1], dtype=np.float32)
    phase_differences(v, h, da=da, db=db, examples=len(v) // 2)
    np.matmul(v.T, h, out=dW)
    return dW, da, db


def test_the_positive_phase_is_the_expectation_over_the_data():
    rbm = TinyRBM()
    W, _, b = rbm.float32()
    v0 = rbm.data.astype(np.float32)
    h0 = affine(v0, W, b)
    found = run_statistics(v0, np.zeros_like(v0), h0, np.zeros_like(h0))
    for have, expected in zip(found, rbm.positive(), strict=True):
        np.testing.assert_allclose(have, expected, atol=2e-6)


def test_the_negative_phase_is_the_expectation_of_the_model_once_the_chains_have_mixed():
    """A Gibbs chain built of the kernels, its visible units sampled too, after 60 steps."""
    rbm, chains, rng = TinyRBM(), 40_000, np.random.default_rng(1)
    W, a, b = rbm.float32()
    v = np.float32(rng.random((chains, VISIBLE)) < 0.5)
    h = np.empty((chains, HIDDEN), dtype=np.float32)
    for_v, for_h = np.empty_like(v), np.empty_like(h)
    for _ in range(60):
        sample(v @ W + b, "bernoulli", draw_noise(rng, "bernoulli", out=for_h), out=h)
        sample(h @ W.T + a, "bernoulli", draw_noise(rng, "bernoulli", out=for_v), out=v)
    p_h = affine(v, W, b)
    found = run_statistics(np.zeros_like(v), v, np.zeros_like(p_h), p_h)
    products = v[:, :, None] * p_h[:, None, :]
    spreads = (products.std(axis=0), v.std(axis=0), p_h.std(axis=0))
    for have, expected, spread in zip(found, rbm.negative(), spreads, strict=True):
        error_bar = spread / np.sqrt(chains)
        assert (np.abs(-have - expected) < 5 * error_bar + 1e-6).all()


def test_a_binary_unit_fires_if_the_draw_is_below_its_probability():
    x = np.float32([-1e30, 0, 0, 1e30])
    u = np.float32([0, 0.5, 0.4999, 1 - 2**-24])
    out = np.empty_like(x)
    assert sample(x, "bernoulli", u, out=out) is out
    assert out.tolist() == [0, 0, 1, 1]  # never at probability 0, always at 1
    assert x.tolist() == [0, 0.5, 0.5, 1]
