"""Binary states drawn from the input of a layer, in place of its means."""

import numpy as np
import pytest
from chainedlearners import VISIBLE, make

from syncpretrain import pretrain
from syncpretrain.errors import SettingsError


def drawn(rbm, X, *, epoch=1):
    """Return the visible units of the positive phase, which a gradient leaves scaled."""
    rbm.gradient(X, np.arange(len(X)), epoch=epoch, step=0)
    v0 = np.abs(rbm._v[: len(X)])
    return v0 / v0.max()


@pytest.mark.parametrize("chains", [0, 7])
@pytest.mark.parametrize("persistent", [False, True])
def test_states_have_the_input_as_their_means(persistent, chains):
    p, n = np.linspace(0, 1, VISIBLE, dtype=np.float32), 10_000
    own = {"persistent": persistent, "chains": chains * persistent}
    states = drawn(make(batch_size=n, sample_input=True, **own), np.tile(p, (n, 1)))
    assert set(np.unique(states)) == {0, 1}
    error = 4.5 * np.sqrt(p * (1 - p) / n)
    assert (np.abs(states.mean(axis=0) - p) <= error).all()


def test_each_epoch_draws_anew_and_a_seed_draws_the_same():
    X = np.full((10, VISIBLE), 0.5, np.float32)
    first, again = (drawn(make(sample_input=True), X) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (drawn(make(sample_input=True), X, epoch=2) != first).any()
    assert len(np.unique(first)) == 2
    assert (drawn(make(), X) == 1).all()  # all alike: the means


@pytest.mark.parametrize(
    "given", [{"handoff": "epoch"}, {"handoff": "minibatch"}, {"visible_units": "gaussian"}]
)
def test_states_of_0_and_1_stay_and_a_layer_above_gets_states(bits, given):
    """As do data of other units, which are states."""
    how = {"hidden": [12, 8], "epochs": 2, "seed": 4, **given}
    plain, first, both = (
        pretrain(bits, sample_input=own, **how) for own in (False, (True, False), True)
    )
    assert plain.parameters_sha256 == first.parameters_sha256
    np.testing.assert_array_equal(first.layers[0].weight, both.layers[0].weight)
    assert (first.layers[1].weight != both.layers[1].weight).any()


def test_binary_columns_beside_others_are_drawn():
    X = np.tile(np.linspace(0.1, 0.9, VISIBLE, dtype=np.float32), (10, 1))
    rbm = make(sample_input=True, visible_units=f"bernoulli:2,gaussian:{VISIBLE - 2}")
    rbm._sample_input(v0 := X.copy(), 1, 0)
    assert set(np.unique(v0[:, :2])) == {0, 1}
    np.testing.assert_array_equal(v0[:, 2:], X[:, 2:])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hidden_units": "relu"}, "sample_input: got it for layer 2 with .* visible units"),
        ({"model": "autoencoder"}, "sample_input: got True with model autoencoder"),
        ({"split": "units", "shards": 2}, "split: got units with sample_input"),
    ],
)
def test_it_is_refused_where_nothing_binary_is_drawn(bits, given, message):
    with pytest.raises(SettingsError, match=message):
        pretrain(bits, hidden=[12, 8], sample_input=True, **given)
