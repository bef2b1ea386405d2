import tracemalloc

import numpy as np
import pytest
from binaryunits import logistic, states
from learnersteps import train_whole, usual
from onelayer import set_parameters

from syncpretrain.errors import DivergedError
from syncpretrain.learners.epoch import train_epoch
from syncpretrain.learners.rbm import RBM
from syncpretrain.learners.steps import WholeStep

VISIBLE, HIDDEN = 6, 4


def make_rbm(visible: int = VISIBLE, hidden: int = HIDDEN, *, layer: int = 1, **changed) -> RBM:
    return RBM(layer, visible, hidden, usual(**changed))


def probability(p: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Of every binary state h, of shape (states, units), under p, of shape (rows, units)."""
    return np.where(h[None] == 1, p[:, None], 1 - p[:, None]).prod(axis=2)


def expected_gradient(parameters, data: np.ndarray, cd_steps: int):
    """The exact expectation of CD-k, whose way down passes means on (Hinton 2010, section 3.2)."""
    W, a, b = parameters
    every_h = states(HIDDEN)
    v1 = logistic(every_h @ W.T + a)
    h1 = logistic(v1 @ W + b)
    transition = probability(h1, every_h)
    h0 = logistic(data @ W + b)
    occupied = probability(h0, every_h).mean(axis=0)
    for _ in range(cd_steps - 1):
        occupied = occupied @ transition
    n = len(data)
    negative = (np.einsum("s,sv,sh->vh", occupied, v1, h1), occupied @ v1, occupied @ h1)
    positive = (data.T @ h0 / n, data.mean(axis=0), h0.mean(axis=0))
    squares = (np.einsum("s,sv,sh->vh", occupied, v1**2, h1**2), occupied @ v1**2, occupied @ h1**2)
    spreads = [np.sqrt(s - m**2) for s, m in zip(squares, negative, strict=True)]
    return [p - n for p, n in zip(positive, negative, strict=True)], spreads


@pytest.mark.parametrize("cd_steps", [1, 3, 40])
def test_gradient_averages_to_the_exact_expectation_of_cd(cd_steps):
    chains, data = 30_000, (np.random.default_rng(2).random((6, VISIBLE)) < 0.4).astype(float)
    rbm = make_rbm(cd_steps=cd_steps, batch_size=chains)
    exact, spreads = expected_gradient(set_parameters(rbm), data, cd_steps)
    X = np.zeros((2 * chains, VISIBLE), dtype=np.float32)
    X[1::2] = np.tile(data, (chains // len(data), 1))  # no minibatch has the rows in between
    rbm.gradient(X, np.arange(1, len(X), 2), epoch=1, step=0)
    for have, want, spread in zip(rbm.gradients, exact, spreads, strict=True):
        error_bar = spread / np.sqrt(chains)
        assert (np.abs(have - want) < 5 * error_bar + 1e-5).all()


def bars_and_stripes() -> np.ndarray:
    """The 14 pictures of 3x3 pixels whose rows, or columns, are full or empty."""
    lines = states(3)
    stripes = np.repeat(lines[:, :, None], 3, axis=2).reshape(-1, 9)
    bars = np.repeat(lines[:, None, :], 3, axis=1).reshape(-1, 9)
    return np.unique(np.concatenate([stripes, bars]), axis=0)


def exact_log_likelihood(rbm: RBM, data: np.ndarray) -> float:
    """Mean over the data, the partition function summed over all 512 pictures."""
    W, a, b = map(np.float64, (rbm.weight, rbm.visible_bias, rbm.hidden_bias))

    def minus_free_energy(v):
        return v @ a + np.logaddexp(0, v @ W + b).sum(axis=1)

    every = minus_free_energy(states(9))
    return float(minus_free_energy(data).mean() - np.logaddexp.reduce(every))


def test_it_learns_bars_and_stripes():
    pictures = bars_and_stripes()
    assert len(pictures) == 14
    X = np.tile(pictures, (10, 1)).astype(np.float32)
    rbm = make_rbm(9, 16, weight_decay=0.0, batch_size=14, cd_steps=3, learning_rate=0.05)
    likelihoods = [exact_log_likelihood(rbm, pictures)]
    for first in range(1, 400, 100):
        train_whole(rbm, X, range(first, first + 100))
        likelihoods.append(exact_log_likelihood(rbm, pictures))
    assert likelihoods[0] == pytest.approx(-9 * np.log(2), abs=0.05), "it starts at chance"
    assert likelihoods[1] > likelihoods[0] + 1
    assert likelihoods[-1] > -np.log(14) - 1.2, f"{likelihoods}"


def test_an_epoch_trains_every_row_once_the_smaller_last_minibatch_too():
    rbm, seen, reported = make_rbm(), [], []
    X = np.random.default_rng(5).random((27, VISIBLE)).astype(np.float32)
    training = WholeStep(rbm)
    original = training.train_step

    def train_step(X, rows, *, run, **address):
        seen.append((rows, address))
        return original(X, rows, run=run, **address)

    training.train_step = train_step
    train_epoch(rbm, training, X, epoch=2, stop=lambda: False, progress=reported.append)
    assert [len(rows) for rows, _ in seen] == [10, 10, 7]
    assert sorted(np.concatenate([rows for rows, _ in seen])) == list(range(27))
    assert [address for _, address in seen] == [{"epoch": 2, "step": step} for step in range(3)]
    assert reported == [1 / 3, 2 / 3, 1]


def test_a_step_allocates_no_big_array():
    rbm = make_rbm(500, 400, batch_size=100)
    X = np.random.default_rng(6).random((200, 500)).astype(np.float32)
    rows, training = np.arange(0, 200, 2), WholeStep(rbm)
    training.train_step(X, rows, epoch=1, step=0)
    buffers = [id(x) for x in vars(rbm).values()]
    tracemalloc.start()
    try:
        for step in range(3):
            training.train_step(X, rows, epoch=1, step=step)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < rbm._states.nbytes / 2, f"{peak:,} bytes; the smallest array has 160,000"
    assert [id(x) for x in vars(rbm).values()] == buffers


def test_divergence_is_told_with_layer_epoch_and_a_lower_rate():
    rbm = make_rbm(layer=3, learning_rate=1e6)
    X = np.random.default_rng(8).random((30, VISIBLE)).astype(np.float32)
    with pytest.raises(DivergedError, match=r"layer 3 diverged in epoch 1: .*try 0\.1"):
        train_whole(rbm, X, range(1, 20))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_it_knows_whether_its_parameters_are_finite(bad):
    rbm = make_rbm()
    assert rbm.is_finite()
    for array in (rbm.weight, rbm.hidden_bias, rbm.visible_bias):
        array.flat[-1] = bad
        assert not rbm.is_finite()
        array.flat[0] = -bad  # inf - inf is told without a warning
        assert not rbm.is_finite()
        array.fill(0)


def test_validation_error_is_the_reconstruction_without_sampling():
    rbm = make_rbm()
    W, a, b = set_parameters(rbm)
    X = np.random.default_rng(9).random((13, VISIBLE)).astype(np.float32)
    down = logistic(logistic(X @ W + b) @ W.T + a)
    assert rbm.validation_error(X) == pytest.approx(np.square(X - down).sum() / 13, rel=1e-5)
