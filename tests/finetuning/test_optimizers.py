"""The optimizers against their formulas, written down again in float64."""

import sys
from functools import partial

import numpy as np
import pytest
from minibatches import gradient, loss_of
from minibatches import train as take_step

from syncpretrain.errors import SettingsError
from syncpretrain.finetuning.chain import Affine
from syncpretrain.finetuning.network import Network
from syncpretrain.finetuning.optimizers import Descent, LineSearches, Update, adam, gradient_descent
from syncpretrain.kernels.optimizers import sgd_step

CURVATURE = np.linspace(0.1, 3, 50)
RATE, MOMENTUM, STEPS = 0.05, 0.9, 12


def slope(p):
    return CURVATURE * (p - 1)


def start():
    return np.random.default_rng(2).normal(size=50)


def make_network(dtype=np.float64, **options):
    draw = np.random.default_rng(1)
    arrays = [(draw.normal(size=s), draw.normal(size=s[1])) for s in ((6, 4), (4, 6))]
    chain = [Affine(w.astype(dtype), b.astype(dtype), "bernoulli") for w, b in arrays]
    return Network(chain, loss="squared", batch_size=20, **options)


def examples(dtype=np.float64):
    return np.random.default_rng(3).random((20, 6)).astype(dtype)


def train(optimizer, network, steps):
    x = examples(network.parameters.dtype)
    for step in range(steps):
        take_step(optimizer, x, x, rate=RATE, epoch=1, step=step)
    return network.parameters.copy()


def gradient_at(point):
    network = make_network()
    network.parameters[:] = point
    gradient(network, examples(), examples())
    return network.gradients.copy()


def is_weight():
    return np.r_[np.ones(24), np.zeros(4), np.ones(24), np.zeros(6)].astype(bool)


class TestMomentum:
    @pytest.mark.parametrize("block", [1, 7, 50, 64])
    def test_nesterov_is_the_one_of_sutskever_2013_at_the_point_looked_ahead_to(self, block):
        p, v, how = start(), np.zeros(50), {"learning_rate": RATE, "momentum": MOMENTUM}
        theta, velocity = start(), np.zeros(50)  # p = theta + momentum velocity
        for _ in range(STEPS):
            velocity = MOMENTUM * velocity - RATE * slope(theta + MOMENTUM * velocity)
            theta = theta + velocity
            sgd_step(p, slope(p), v, **how, nesterov=True, scratch=np.empty(block))
        np.testing.assert_allclose(p - MOMENTUM * v, theta, rtol=1e-11)

    @pytest.mark.parametrize("nesterov", [False, True])
    def test_the_optimizer_follows_the_formula(self, nesterov):
        network = make_network()
        p, v = network.parameters.copy(), 0.0
        for _ in range(STEPS):
            g = gradient_at(p)
            v = MOMENTUM * v - RATE * g
            p = p + (MOMENTUM * v - RATE * g if nesterov else v)
        optimizer = gradient_descent(network, momentum=MOMENTUM, nesterov=nesterov)
        np.testing.assert_allclose(train(optimizer, network, STEPS), p, rtol=1e-10)


class TestAdam:
    def test_the_optimizer_follows_the_paper(self):
        network = make_network()
        p, m, v = network.parameters.copy(), 0.0, 0.0
        for t in range(1, STEPS + 1):
            g = gradient_at(p)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            p = p - RATE * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        np.testing.assert_allclose(train(adam(network), network, STEPS), p, rtol=1e-9)


class TestWeightDecay:
    @pytest.mark.parametrize("kind", [gradient_descent, adam])
    def test_one_step_shrinks_weights_by_rate_times_decay_and_leaves_biases(self, kind):
        before = make_network().parameters
        plain, decayed = make_network(), make_network()
        without = train(kind(plain), plain, 1)
        found = train(kind(decayed, weight_decay=0.5), decayed, 1)
        # Decoupled: the gradient at the old point, and Adam's division, do not see the decay.
        expected = without - np.where(is_weight(), RATE * 0.5 * before, 0)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("method", ["cg", "lbfgs"])
class TestLineSearches:
    @pytest.fixture(autouse=True)
    def scipy(self):
        pytest.importorskip("scipy")

    def test_decay_shrinks_weights_and_leaves_biases(self, method):
        # Inputs of zero and weights that decay to it: only the biases have something to learn.
        draw = np.random.default_rng(6)
        chain = [Affine(draw.normal(size=(3, 2)), np.array([4.0, -4.0]), "gaussian")]
        network = Network(chain, loss="squared", batch_size=1)
        optimizer = LineSearches(network, method, weight_decay=0.01)
        x, target = np.zeros((1, 3)), np.array([[4.0, -4.0]])
        for step in range(5):
            take_step(optimizer, x, target, rate=1.0, epoch=1, step=step)
        weight, bias = network.chain[0]
        assert np.abs(weight).max() < 1e-3
        np.testing.assert_array_equal(bias, [4, -4])

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_each_minibatch_lowers_the_loss_and_reports_the_error_before(self, method, dtype):
        network, x = make_network(dtype), examples(dtype)
        optimizer = LineSearches(network, method)
        for step in range(3):
            before = loss_of(network, x, x)
            error = take_step(optimizer, x, x, rate=1.0, epoch=1, step=step)
            assert error / len(x) == pytest.approx(before, rel=1e-5)
            assert loss_of(network, x, x) < 0.98 * before

    def test_what_overflows_is_no_warning(self, method):
        network, x = make_network(np.float32), examples(np.float32)
        before = loss_of(network, x, x)
        optimizer = LineSearches(network, method, weight_decay=1e300)
        error = take_step(optimizer, x, x, rate=1.0, epoch=1, step=0)
        assert error / len(x) == pytest.approx(before, rel=1e-5)

    def test_without_scipy_says_what_to_install(self, method, monkeypatch):
        monkeypatch.setitem(sys.modules, "scipy.optimize", None)
        with pytest.raises(SettingsError, match=rf"finetune_optimizer: {method} needs SciPy; pip"):
            LineSearches(make_network(), method)


def lion(*, beta1=0.9, beta2=0.99):
    """Return Lion (Chen et al. 2023), which this library lacks: what a new optimizer takes."""

    def follow(parameters, gradients, *, momentum, rate, step):
        parameters -= rate * np.sign(beta1 * momentum + (1 - beta1) * gradients)
        momentum *= beta2
        momentum += (1 - beta2) * gradients

    def state(zeros, count):
        return {"momentum": zeros(count)}

    def moves(parameters, gradients, momentum):
        return [("update", parameters, gradients, partial(follow, momentum=momentum))]

    return Update(state, moves)


@pytest.mark.parametrize("split", ["units", "examples"])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_new_optimizer_is_a_pair_of_functions(split, shards):
    network = make_network(shards=shards, split=split)
    p, m = network.parameters.copy(), np.zeros_like(network.parameters)
    for _ in range(STEPS):
        g = gradient_at(p)
        p = p - RATE * np.sign(0.9 * m + 0.1 * g) - RATE * 0.1 * np.where(is_weight(), p, 0)
        m = 0.99 * m + 0.01 * g
    optimizer = Descent(network, lion(), weight_decay=0.1)
    np.testing.assert_allclose(train(optimizer, network, STEPS), p, rtol=1e-9)
    np.testing.assert_allclose(optimizer.state()["momentum"], m, rtol=1e-9)
