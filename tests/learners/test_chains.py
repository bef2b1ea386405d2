"""Persistent chains of their own number, and the centred gradient."""

from importlib import import_module
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from chainedlearners import HIDDEN, KINDS, VISIBLE, WORDS, make, rows

from syncpretrain import load, pretrain
from syncpretrain.errors import DataError, ModelFileError, SettingsError
from syncpretrain.kernels.activations import activate
from syncpretrain.kernels.contrastive_divergence import centre, phase_differences
from syncpretrain.learners.rbm import OFFSET_RATE
from syncpretrain.learners.steps import load_state
from syncpretrain.pretraining.build import step_for
from syncpretrain.units.kinds import kind_of


def log_sums(x: np.ndarray, units: str) -> np.ndarray:
    """Return the log of the sum over visible states, for inputs of shape (states, 6)."""
    whole = {
        "bernoulli": lambda x: np.logaddexp(0, x).sum(axis=1),
        "gaussian": lambda x: np.square(x).sum(axis=1) / 2,
        "softmax:2x3": lambda x: sum(np.logaddexp.reduce(y, axis=1) for y in (x[:, :3], x[:, 3:])),
        "counts:6": lambda x: WORDS * np.logaddexp.reduce(x, axis=1),
    }
    if units in whole:
        return whole[units](x)
    parts = zip(("bernoulli", "gaussian"), (x[:, :1], x[:, 1:3]), strict=True)
    return sum(whole[name](y) for name, y in parts) + np.logaddexp.reduce(x[:, 3:], axis=1)


@pytest.mark.parametrize("units", KINDS)
def test_the_negative_phase_of_a_frozen_machine_is_the_enumerated_one(units):
    """100,000 chains beside 10 rows, 30 steps; each number within 4 standard errors."""
    chains = 100_000
    rbm = make(units, chains=chains, cd_steps=30)
    X = rows(units)
    rbm.gradient(X, np.arange(10), epoch=1, step=0)
    W, a, b = (np.float64(p) for p in (rbm.weight, rbm.visible_bias, rbm.hidden_bias))
    h = np.array(list(product((0.0, 1.0), repeat=HIDDEN)))
    p = np.exp(h @ b + log_sums(h @ W.T + a, units))
    p /= p.sum()
    v = activate(h @ W.T + a, units) * (WORDS if units.startswith("counts") else 1)
    h0 = 1 / (1 + np.exp(-(X @ W + b)))
    v1, h1 = np.float64(rbm._v[10:]) * -chains, np.float64(rbm._h[10:])
    products = np.einsum("cv,ch->cvh", v1, h1)
    wanted = [
        (X.T @ h0 / 10 - np.einsum("s,sv,sh->vh", p, v, h), products.std(axis=0)),
        (X.mean(axis=0) - p @ v, v1.std(axis=0)),
        (h0.mean(axis=0) - p @ h, h1.std(axis=0)),
    ]
    if kind_of(units).are_counts:
        wanted.pop()
    for have, (want, deviation) in zip(rbm.gradients, wanted, strict=False):
        assert (np.abs(have - want) < 4 * deviation / np.sqrt(chains) + 2e-6).all()


@pytest.mark.parametrize("units", ["bernoulli", "gaussian"])
def test_a_short_minibatch_moves_all_chains_alike(units):
    """A chain's draws are its own, whatever rows are beside it."""
    long, short = make(units), make(units)
    for step in range(2):
        long.gradient(rows(units), np.arange(10), epoch=1, step=step)
        short.gradient(rows(units), np.arange(3), epoch=1, step=step)
        np.testing.assert_array_equal(long._states, short._states)
    before = short._states.copy()
    short.gradient(rows(units), np.arange(1), epoch=1, step=2)
    assert (before != short._states).any(axis=1).mean() > 0.5


@pytest.mark.parametrize("units", KINDS)
def test_the_chains_of_a_shard_without_rows_move_too(units):
    rbm = make(units, chains=8)
    training = step_for(rbm, 4, "examples")
    X = rows(units)
    training.train_step(X, np.arange(10), epoch=1, step=0)
    before = [part._states.copy() for part in training.parts]
    training.train_step(X, np.arange(2), epoch=1, step=1)
    for number, (part, was) in enumerate(zip(training.parts, before, strict=True)):
        assert (part._states != was).any(), number
        assert np.shares_memory(part._states, rbm._states)
    without = [part for part in training.parts if not part._v[0].any() and not part._h[0].any()]
    assert len(without) == 2, "the positive phase is of the others"


def test_a_shard_without_rows_has_no_part_in_the_mean_activity():
    rbm = make(chains=8, sparsity_cost=0.5)
    training = step_for(rbm, 4, "examples")
    training.train_step(rows("bernoulli"), np.arange(10), epoch=1, step=0)
    before = [part._activity.copy() for part in training.parts]
    training.begin(rows("bernoulli"), np.arange(2), epoch=1, step=1)
    for shard in range(4):
        training.gradient(shard)
    moved = [
        bool((p._activity != was).any()) for p, was in zip(training.parts, before, strict=True)
    ]
    assert sum(moved) == 2


def test_chains_of_the_batch_have_the_bits_of_one_a_row(bits):
    how = {"hidden": [12, 5], "epochs": 2, "batch_size": 40, "persistent": True, "warn": False}
    for more in ({}, {"shards": 3}, {"handoff": "minibatch", "cd_steps": 2}):
        given = pretrain(bits, **how, **more, chains=40)
        assert given.parameters_sha256 == pretrain(bits, **how, **more).parameters_sha256


def test_chains_start_where_they_are_asked_to():
    """With such weights a chain stays where it is."""
    ends = {}
    for start in ("data", "noise"):
        rbm = make(chain_start=start, chains=25)
        rbm.weight[:] = 0
        rbm.weight[0, 0] = rbm.weight[1, 1] = 60
        rbm.visible_bias[:] = rbm.hidden_bias[:] = -30
        rbm.visible_bias[2:] = 0
        X = np.zeros((10, VISIBLE), np.float32)
        X[np.arange(10), np.arange(10) % 2] = 1
        for step in range(2):
            rbm.gradient(X, np.arange(10), epoch=1, step=step)
        ends[start] = rbm._states[:, :2].copy()
    wanted = np.eye(2)[np.arange(25) % 10 % 2]
    np.testing.assert_array_equal(ends["data"], wanted)
    assert not ends["noise"].any()


def test_chains_start_at_data_once():
    """Chains that have hidden states of 0 alone go on from these, after a load of the state too."""
    rbm, other = (make(chain_start="data") for _ in range(2))
    rbm.hidden_bias[:] = 100
    X = rows("bernoulli")
    rbm.gradient(X, np.arange(10), epoch=1, step=0)
    rbm.hidden_bias[:] = rbm.weight[:] = 0
    state = rbm.state() | {"chains": np.zeros_like(rbm._states)}
    rbm.visible_bias[:] = -100
    load_state(other, step_for(other, 1, "examples"), rbm.snapshot(), state)
    other.weight[:] = 200
    other.gradient(X, np.arange(10), epoch=1, step=1)
    assert not other._v[10:].any(), "with a hidden unit on, visible ones would be on"
    step_for(other, 1, "examples").restart()
    other.gradient(X, np.arange(10), epoch=1, step=2)
    assert other._v[10:].any(), "they start at data anew"


def test_centring_is_its_definition():
    draws = np.random.default_rng(0)
    v, h = draws.normal(size=(14, 6)), draws.normal(size=(14, 4))
    mu, lam = draws.normal(size=6), draws.normal(size=4)
    dW, da, db = np.empty((6, 4)), np.empty(6), np.empty(4)
    differences = v.copy()
    phase_differences(differences, h, da=da, db=db, examples=len(v) // 2)
    np.matmul(differences.T, h, out=dW)
    centre(dW, da, db, mu, lam)
    products = [(v[own] - mu).T @ (h[own] - lam) / 7 for own in (slice(7), slice(7, 14))]
    slope = products[0] - products[1]
    np.testing.assert_allclose(dW, slope, atol=1e-6)
    np.testing.assert_allclose(da, (v[:7] - v[7:]).mean(axis=0) - slope @ lam, atol=1e-6)
    np.testing.assert_allclose(db, (h[:7] - h[7:]).mean(axis=0) - mu @ slope, atol=1e-6)


@pytest.mark.parametrize("units", KINDS)
@pytest.mark.parametrize("persistent", [True, False])
def test_the_centred_gradient_is_recombined_from_the_plain_one(units, persistent):
    """By running means of the minibatches before: the first gradient is the plain one."""
    how = {"persistent": persistent, "chains": 50 if persistent else 0, "learning_rate": 1e-30}
    plain, centred = make(units, **how), make(units, **how, centred=True)
    means, share = np.zeros(VISIBLE + HIDDEN), 0.0
    for step in range(4):
        X, own = rows(units, seed=step), np.arange(10 - step)
        for rbm in (plain, centred):
            rbm.gradient(X, own, epoch=1, step=step)
        want = [np.float64(g) for g in plain.gradients]
        if share:
            mu = means[:VISIBLE] / share * (not kind_of(units).are_counts)
            centre(*want, mu, means[VISIBLE:] / share)
        for have, each in zip(centred.gradients, want, strict=False):
            np.testing.assert_allclose(have, each, atol=1e-6)
        h0 = np.float64(plain._h[: len(own)]).mean(axis=0)
        now = np.concatenate([np.float64(X[own]).mean(axis=0), h0])
        means, share = means + OFFSET_RATE * (now - means), share + OFFSET_RATE * (1 - share)
        centred.update(epoch=1)
    assert share == pytest.approx(centred._offsets[-1])


def test_centring_learns_spins_in_a_few_updates(monkeypatch):
    """At most 0.35 from the truth after 500 updates, where the plain gradient is further."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "benchmarks"))
    ising = import_module("ising")
    p = ising.truth()
    X = np.float32(ising.STATES[np.random.default_rng(0).choice(len(p), ising.ROWS, p=p)])
    plain, centred = (
        ising.divergence(p, ising.trained(X, 500, centred=kind, seed=0)) for kind in (False, True)
    )
    assert centred < 0.35 < plain


CONVOLUTIONS = {"hidden": None, "layers": "1x4x4,conv:4x2,5"}


@pytest.fixture(scope="module")
def stack(bits):
    how = {"hidden": [12, 5], "epochs": 1, "batch_size": 40, "warn": False}
    return pretrain(bits, **how, persistent=(True, False), chains=(30, 0))


def test_a_model_file_keeps_the_chains(stack, tmp_path):
    path = tmp_path / "model.safetensors"
    stack.save(path)
    again = load(path)
    assert again.chains(1).shape == (30, 12)
    np.testing.assert_array_equal(again.chains(1), stack.chains(1))
    assert set(np.unique(again.chains(1))) == {0, 1}
    data = path.read_bytes()
    at = data.index(stack.chains(1).tobytes())
    path.write_bytes(data[:at] + b"\1" + data[at + 1 :])
    with pytest.raises(ModelFileError, match="its chains do not match their checksum"):
        load(path)


def test_chains_are_a_copy(stack):
    found = stack.chains(1)
    found[:] = 7
    assert set(np.unique(stack.chains(1))) == {0, 1}


@pytest.mark.parametrize(
    ("layer", "message"),
    [(0, "layer: got 0, expected 1 to 2"), (3, "layer: got 3"), (2, "layer 2 keeps no chains")],
)
def test_chains_that_are_not_there(stack, layer, message):
    with pytest.raises(DataError, match=message):
        stack.chains(layer)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"persistent": False}, "chains: got 9 without persistent"),
        ({"hidden_dropout": 0.5}, "chains: got 9 with hidden_dropout"),
        ({"chains": 0, "chain_start": "data"}, "chain_start: got data without chains"),
        ({"chains": 2, "shards": 3}, "chains: got 2 for 3 shards of layer 1"),
        ({"schedule": "async"}, "chains: got 9 with schedule async, where each replica"),
        ({"schedule": "async", "chains": 0, "centred": True}, "centred: got True with schedule"),
        ({"split": "units", "shards": 2, "persistent": False, "chains": 0, "centred": True},
         "split: got units with centred"),
        ({"backend": "cupy", "chain_start": "data"}, "backend: got cupy with chains that start at"),
        ({"backend": "cupy", "shards": 2}, "backend: got cupy with chains in shards"),
        ({"backend": "cupy", "centred": True}, "backend: got cupy with the centred gradient"),
        ({"model": "autoencoder", "persistent": False}, "chains: got 9 with model autoencoder"),
        (CONVOLUTIONS, "for layer 1, a convolution"),
        (CONVOLUTIONS | {"persistent": False, "chains": 0, "centred": True},
         "for layer 1, a convolution"),
    ],
)  # fmt: skip
def test_chains_and_centring_are_refused_where_they_cannot_be(bits, given, message):
    how = {"hidden": [12], "persistent": True, "chains": 9} | given
    with pytest.raises(SettingsError, match=message):
        pretrain(bits, **how)
