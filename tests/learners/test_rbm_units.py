"""An RBM's other kinds of units and ways to train, each against a float64 transcription."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from learnersteps import assert_close as assert_parameters
from learnersteps import train_whole, usual
from transcribedrbm import Transcription
from unitkinds import INPUT_UNITS, RBM_UNITS, examples_for, logistic

from syncpretrain.learners.rbm import RBM
from syncpretrain.learners.steps import WholeStep
from syncpretrain.settings import MomentumSchedule

VISIBLE, HIDDEN, BATCH = 5, 4, 10
ADDRESS = {"epoch": 3, "step": 7}
assert_close = partial(assert_parameters, rtol=2e-5, atol=5e-6)


def make_rbm(visible: int = VISIBLE, hidden: int = HIDDEN, *, scale: float = 0.4, **changed) -> RBM:
    rbm = RBM(2, visible, hidden, usual(**{"momentum": MomentumSchedule("0"), **changed}))
    rng = np.random.default_rng(0)
    for parameter, own in zip(rbm.parameters, (scale, 0.5, 0.5), strict=True):
        parameter[:] = rng.normal(0, own, parameter.shape)
    return rbm


def examples(n: int = BATCH, units: str = "bernoulli", seed: int = 1) -> np.ndarray:
    return examples_for(units, n, VISIBLE, seed)


def gradient(rbm: RBM, X: np.ndarray, **address: int) -> list[np.ndarray]:
    rbm.gradient(X, np.arange(len(X)), **(ADDRESS | address))
    return [g.copy() for g in rbm.gradients]


@pytest.mark.parametrize("visible_units", INPUT_UNITS)
@pytest.mark.parametrize("hidden_units", RBM_UNITS)
@pytest.mark.parametrize("cd_steps", [1, 3])
@pytest.mark.parametrize("changed", [{}, {"persistent": True}, {"hidden_dropout": 0.4}])
def test_the_gradient_of_every_kind_of_units(visible_units, hidden_units, cd_steps, changed):
    kinds = {"visible_units": visible_units, "hidden_units": hidden_units}
    rbm = make_rbm(cd_steps=cd_steps, **kinds, **changed)
    X = examples(7, visible_units)
    transcription = Transcription(rbm)
    expected = transcription.gradient(np.float64(X), **ADDRESS)
    reported = rbm.gradient(X, np.arange(7), **ADDRESS)
    assert_close(rbm.gradients, expected)
    if not rbm.settings.persistent:
        assert reported == pytest.approx(transcription.error, rel=1e-5)


DECAYING = {"momentum": MomentumSchedule("0.5:2,0.9"), "weight_decay": 0.001}
CHAINS = {"persistent": True, "momentum": MomentumSchedule("0:2,0.5")}


@pytest.mark.parametrize("changed", [DECAYING, CHAINS, CHAINS | {"cd_steps": 2}])
def test_training_equals_its_transcription(changed):
    """Momentum by epoch, weight decay of the weights alone, over 4 epochs of 3 minibatches.

    Chains go on from step to step, the smaller last minibatch too.
    """
    rbm = make_rbm(**changed)
    expected, training, X = Transcription(rbm), WholeStep(rbm), examples(28)
    for epoch, step in product(range(1, 5), range(3)):
        rows = np.arange(10 * step, min(10 * step + 10, 28))
        expected.train_step(
            np.float64(X[rows]), changed["momentum"].at(epoch), epoch=epoch, step=step
        )
        training.train_step(X, rows, epoch=epoch, step=step)
        if rbm.settings.persistent:
            np.testing.assert_allclose(rbm._states, expected.chains, atol=1e-5)
        assert_close(rbm.parameters, (expected.W, expected.a, expected.b))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_with_persistent_chains_the_error_is_estimated_on_a_tenth_without_sampling(dropout):
    """It is of what dropout leaves, scaled up."""
    rbm = make_rbm(persistent=True, batch_size=40, hidden_dropout=dropout)
    X, kept = examples(40), Transcription(rbm).kept(ADDRESS)
    reported = rbm.gradient(X, np.arange(40), **ADDRESS)
    h = logistic(X @ rbm.weight + rbm.hidden_bias) * kept / (1 - dropout)
    down = logistic(h @ rbm.weight.T + rbm.visible_bias)
    assert reported == pytest.approx(10 * np.square(X - down)[::10].sum(), rel=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_sparsity_adds_the_distance_of_the_decaying_mean_activity_to_its_target(dropout):
    """Of units that are left out a smaller activity is aimed at."""
    plain = make_rbm(hidden_dropout=dropout)
    sparse = make_rbm(hidden_dropout=dropout, sparsity_target=0.2, sparsity_cost=0.5)
    target = 0.2 * (1 - dropout)
    activity = np.full(HIDDEN, target)
    for step in range(3):
        X, kept = examples(seed=step), Transcription(plain).kept(ADDRESS | {"step": step})
        dW, da, db = gradient(plain, X, step=step)
        means = (logistic(X @ plain.weight + plain.hidden_bias) * kept).mean(axis=0)
        activity = 0.9 * activity + 0.1 * means
        push = 0.5 * (target - activity)
        expected = dW + np.outer(X.mean(axis=0), push), da, db + push
        assert_close(gradient(sparse, X, step=step), expected)


def test_visible_biases_start_from_the_log_odds_of_binary_units():
    X = np.zeros((100, VISIBLE), dtype=np.float32)
    for column, ones in enumerate((0, 20, 50, 75, 100)):
        X[:ones, column] = 1
    rbm = make_rbm(visible_bias="log-odds")
    rbm.start(X)
    expected = np.log([0.01 / 0.99, 0.25, 1, 3, 0.99 / 0.01])
    np.testing.assert_allclose(rbm.visible_bias, expected, rtol=1e-6, atol=1e-7)


def test_visible_biases_start_from_the_mean_of_gaussian_units():
    rbm = make_rbm(visible_bias="log-odds", visible_units="gaussian")
    X = examples(30, "gaussian") + 3
    rbm.start(X)
    np.testing.assert_allclose(rbm.visible_bias, np.float64(X).mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize("start", ["zero", "log-odds"])
def test_the_first_epoch_alone_begins_with_the_start(start):
    rbm = make_rbm(visible_bias=start, learning_rate=1e-30)
    before, X = rbm.visible_bias.copy(), np.full((20, VISIBLE), 0.75, dtype=np.float32)
    for epoch in (1, 2):
        train_whole(rbm, X, range(epoch, epoch + 1))
        expected = before if start == "zero" else np.full(VISIBLE, np.log(3))
        np.testing.assert_allclose(rbm.visible_bias, expected, rtol=1e-6)
        X = X / 3
