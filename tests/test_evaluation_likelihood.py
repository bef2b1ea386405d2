"""Free energy, pseudo-likelihood and log Z against enumeration of every state."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from syncpretrain.errors import DataError
from syncpretrain.evaluation.likelihood import (
    free_energy,
    log_z,
    log_z_ais,
    pseudo_likelihood,
)
from syncpretrain.stack import Layer

VISIBLE, HIDDEN = 7, 5


def states(units: int) -> np.ndarray:
    return np.array(list(product((0.0, 1.0), repeat=units)))


def make_layer(visible: int = VISIBLE, hidden: int = HIDDEN, *, scale: float = 0.8) -> Layer:
    draws = np.random.default_rng(3)
    weight, b, a = (
        (scale * draws.normal(size=shape)).astype(np.float32)
        for shape in ((visible, hidden), (hidden,), (visible,))
    )
    return Layer(weight, b, a)


def negative_energies(layer: Layer) -> np.ndarray:
    """-E of every pair of states, of shape (2**V, 2**H)."""
    v, h = states(len(layer.visible_bias)), states(len(layer.hidden_bias))
    W, a, b = (np.float64(x) for x in (layer.weight, layer.visible_bias, layer.hidden_bias))
    return v @ W @ h.T + (v @ a)[:, None] + (h @ b)[None, :]


def test_free_energy_sums_the_hidden_units_out():
    layer = make_layer()
    expected = -np.logaddexp.reduce(negative_energies(layer), axis=1)
    have = free_energy(layer, states(VISIBLE).astype(np.float32))
    np.testing.assert_allclose(have, expected, rtol=1e-6)


@pytest.mark.parametrize(("visible", "hidden"), [(7, 5), (5, 7), (1, 1), (13, 2)])
def test_enumeration_is_exact_from_either_side(visible, hidden):
    layer = make_layer(visible, hidden)
    found = log_z(layer)
    assert found.value == pytest.approx(np.logaddexp.reduce(negative_energies(layer), axis=None))
    assert found.low == found.value == found.high


def test_annealing_agrees_with_enumeration_within_its_error_bar():
    layer = make_layer(12, 8)
    exact = log_z(layer).value
    for seed in range(5):
        found = log_z_ais(layer, chains=200, steps=200, seed=seed)
        assert found.low <= exact <= found.high
        assert found.high - found.low < 0.5


def test_annealing_is_exact_where_there_is_nothing_to_anneal():
    layer = make_layer(30, 25, scale=0)
    assert log_z(layer).value == pytest.approx(55 * math.log(2))


def test_annealing_is_a_function_of_its_seed():
    layer = make_layer()
    assert log_z_ais(layer, chains=9, steps=9) == log_z_ais(layer, chains=9, steps=9)
    assert log_z_ais(layer, chains=9, steps=9, seed=1) != log_z_ais(layer, chains=9, steps=9)


def test_one_chain_has_no_error_bar():
    found = log_z_ais(make_layer(), chains=1, steps=50)
    assert found.low == -math.inf
    assert found.high == math.inf


def test_pseudo_likelihood_tends_to_the_exact_one():
    layer = make_layer()
    v = states(VISIBLE)[77]
    energy = {tuple(s): -np.logaddexp.reduce(row) for s, row in exact_rows(layer)}
    exact = 0.0
    for i in range(VISIBLE):
        other = v.copy()
        other[i] = 1 - other[i]
        exact -= np.logaddexp(0, energy[tuple(v)] - energy[tuple(other)])
    X = np.tile(v, (20_000, 1)).astype(np.float32)
    # A unit's term is at most some nats; 20,000 draws leave well under a percent.
    assert pseudo_likelihood(layer, X) == pytest.approx(exact, rel=0.05)


def exact_rows(layer: Layer) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(states(VISIBLE), negative_energies(layer), strict=True))


def test_pseudo_likelihood_does_not_change_its_input():
    X = np.zeros((4, VISIBLE), dtype=np.float32)
    pseudo_likelihood(make_layer(), X)
    assert not X.any()


def test_a_fine_tuned_layer_is_no_rbm():
    layer = make_layer()
    untied = Layer(layer.weight, layer.hidden_bias, layer.visible_bias, layer.weight.T.copy())
    with pytest.raises(DataError, match="before fine-tuning"):
        free_energy(untied, np.zeros((1, VISIBLE), dtype=np.float32))
