"""The zero-sum gauge and couplings against enumeration and their definitions."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from binaryunits import states

from syncpretrain.errors import DataError
from syncpretrain.models.couplings import NOT_IN_GAUGE, couplings, outside_gauge, positions_of
from syncpretrain.models.stack import DenseLayer, Stack
from syncpretrain.units.kinds import kind_of

UNITS = [
    "softmax:3x3",
    "softmax:1x2,softmax:2x3",
    "bernoulli:2,softmax:2x3",
    "softmax:2x3,gaussian:1",
]


def make_layer(units: str, hidden: int = 3, seed: int = 0) -> DenseLayer:
    draws = np.random.default_rng(seed)
    width = kind_of(units).blocks.width
    arrays = (draws.normal(size=x) for x in ((width, hidden), (hidden,), (width,)))
    return DenseLayer(*arrays, visible_units=units)


def visible_states(units: str) -> np.ndarray:
    """Return all states of the visible units; a Gaussian unit has a few values."""
    parts = []
    for part in kind_of(units).blocks.parts:
        if part.groups:
            parts += [np.eye(part.choices)] * part.groups
        else:
            values = {"bernoulli": [0, 1], "gaussian": [-1, 0.5, 2]}[part.kind]
            parts += [np.array(values)[:, None]] * (part.stop - part.start)
    return np.array([np.concatenate(choice) for choice in product(*parts)])


def log_p(layer: DenseLayer) -> np.ndarray:
    """Return log p of every joint state, normalized over the states, in float64."""
    v, h = visible_states(layer.visible_units), states(layer.weight.shape[1])
    energy = v @ layer.visible_bias
    for part in kind_of(layer.visible_units).blocks.normal:
        energy = energy - np.square(v[:, part.columns]).sum(axis=1) / 2
    logs = energy[:, None] + v @ layer.weight @ h.T + h @ layer.hidden_bias
    return logs - np.logaddexp.reduce(logs, axis=None)


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("seed", range(3))
def test_the_gauge_changes_no_probability(units, seed):
    layer = make_layer(units, seed=seed)
    (found,) = Stack((layer,)).zero_sum().layers
    before, after = log_p(layer), log_p(found)
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-10)
    broken = log_p(replace(found, hidden_bias=layer.hidden_bias))
    assert np.abs(broken - before).max() > 1e-3, "the biases are part of the gauge"
    # Observed values alone: the probability of a mask is a sum over the missing ones.
    v = visible_states(units)
    for position in range(positions_of(layer)[-1] + 1):
        seen = v[:, positions_of(layer) != position]
        _, owner = np.unique(seen, axis=0, return_inverse=True)
        for own in range(owner.max() + 1):
            rows = owner.ravel() == own
            sums = [np.logaddexp.reduce(logs[rows], axis=0) for logs in (after, before)]
            np.testing.assert_allclose(*sums, rtol=0, atol=1e-10)


@pytest.mark.parametrize("units", UNITS)
def test_sums_are_zero_and_other_units_stay(units):
    layer = make_layer(units)
    (found,) = Stack((layer,)).zero_sum().layers
    for part in kind_of(units).blocks.parts:
        if part.groups:
            own = found.weight[part.columns].reshape(part.groups, part.choices, -1)
            np.testing.assert_allclose(own.sum(axis=1), 0, atol=1e-12)
            np.testing.assert_allclose(part.grouped(found.visible_bias).sum(axis=1), 0, atol=1e-12)
        else:
            np.testing.assert_array_equal(found.weight[part.columns], layer.weight[part.columns])
    (again,) = Stack((found,)).zero_sum().layers
    np.testing.assert_allclose(again.weight, found.weight, atol=1e-14)
    # A missing group counts as the mean of its choices.
    part = next(part for part in kind_of(units).blocks.parts if part.groups)
    v = visible_states(units)[:1]
    v[:, part.start : part.start + part.choices] = 0
    choices = np.repeat(v, part.choices, axis=0)
    choices[:, part.start : part.start + part.choices] = np.eye(part.choices)
    mean = (choices @ layer.weight + layer.hidden_bias).mean(axis=0)
    np.testing.assert_allclose((v @ found.weight + found.hidden_bias)[0], mean)


def test_stacks_without_groups_stay_and_fine_tuned_ones_are_refused():
    plain = DenseLayer(*(np.ones(x, np.float32) for x in ((3, 2), (2,), (3,))))
    assert Stack((plain,)).zero_sum().layers[0].weight is plain.weight
    counts = replace(plain, visible_units="counts:3")
    assert Stack((counts,)).zero_sum().layers[0].weight is plain.weight, "words are no choices"
    with pytest.raises(DataError, match="layer 1: is an autoencoder"):
        Stack((replace(make_layer("softmax:3x3"), model="autoencoder"),)).zero_sum()


def test_a_regularized_model_outside_the_gauge_is_told():
    layer = make_layer("softmax:3x3")
    decayed = {"pretrain": {"weight_decay": [0.0002], "l1": [0.0]}}
    (inside,) = Stack((layer,)).zero_sum().layers
    share = 1 - np.square(inside.weight).sum() / np.square(layer.weight).sum()
    assert outside_gauge([layer], decayed) == [NOT_IN_GAUGE.format(1, 100 * share)]
    assert not outside_gauge([inside], decayed)
    assert not outside_gauge([layer], {"pretrain": {"weight_decay": [0.0], "l1": [0.0]}})
    assert not outside_gauge([layer], {})


@pytest.mark.parametrize("units", UNITS[:3])
def test_couplings_are_the_norms_of_blocks(units):
    layer = make_layer(units)
    (centred,) = Stack((layer,)).zero_sum().layers
    owners = positions_of(layer)
    count = owners[-1] + 1
    norms = np.zeros((count, count))
    for i, j in product(range(count), repeat=2):
        if i != j:
            block = centred.weight[owners == i] @ centred.weight[owners == j].T
            norms[i, j] = np.linalg.norm(block)
    np.testing.assert_allclose(couplings(layer, corrected=False), norms, atol=1e-10)
    off = ~np.eye(count, dtype=bool)
    mean = norms[off].mean()
    rows = norms.sum(axis=0) / (count - 1)
    expected = np.where(off, norms - np.outer(rows, rows) / mean, 0)
    np.testing.assert_allclose(couplings(layer), expected, atol=1e-10)


def test_two_positions_alone_keep_their_coupling():
    layer = make_layer("softmax:2x3")
    assert couplings(layer)[0, 1] > 0.1
    np.testing.assert_array_equal(couplings(layer), couplings(layer, corrected=False))


def test_positions_are_groups_and_single_units():
    layer = make_layer("bernoulli:2,softmax:2x3")
    np.testing.assert_array_equal(positions_of(layer), [0, 1, 2, 2, 2, 3, 3, 3])
    with pytest.raises(DataError, match="no dense RBM"):
        couplings(replace(layer, model="autoencoder"))
