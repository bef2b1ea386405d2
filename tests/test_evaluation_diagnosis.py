from __future__ import annotations

import json

import numpy as np
import pytest

from syncpretrain.evaluation.diagnosis import diagnose_layers
from syncpretrain.evaluation.likelihood import free_energy, log_z
from syncpretrain.kernels.activations import affine_sigmoid
from syncpretrain.stack import Layer, Stack

NONE = np.empty((0, 6), dtype=np.float32)


@pytest.fixture
def stack() -> Stack:
    draws = np.random.default_rng(0)

    def layer(visible: int, hidden: int) -> Layer:
        weight = draws.normal(size=(visible, hidden)).astype(np.float32)
        bias = np.zeros(hidden, dtype=np.float32)
        bias[:2] = 50, -50  # one is on whatever comes, one is off
        return Layer(weight, bias, np.zeros(visible, dtype=np.float32))

    return Stack((layer(6, 5), layer(5, 4)))


@pytest.fixture
def examples() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 2, (40, 6)).astype(np.float32)


def test_dead_and_saturated_units_are_counted(stack, examples):
    for row in diagnose_layers(stack, examples, NONE):
        assert (row["dead_units"], row["saturated_units"]) == (1, 1)


def test_the_gap_is_that_of_the_layers_own_input(stack, examples):
    train, held_out = examples[:25], examples[25:]
    rows = diagnose_layers(stack, train, held_out)
    for layer, row in zip(stack.layers, rows, strict=True):
        gap = free_energy(layer, held_out).mean() - free_energy(layer, train).mean()
        assert row["free_energy_gap"] == pytest.approx(gap)
        train, held_out = (
            affine_sigmoid(x, layer.weight, layer.hidden_bias) for x in (train, held_out)
        )


def test_without_held_out_examples_there_is_no_gap(stack, examples):
    rows = diagnose_layers(stack, examples, NONE)
    assert [row["free_energy_gap"] for row in rows] == [None, None]
    assert all(row["pseudo_likelihood"] < 0 for row in rows)


def test_a_partition_function_makes_likelihoods_of_energies(stack, examples):
    row = diagnose_layers(stack, NONE, examples, partition=True)[0]
    exact = log_z(stack.layers[0]).value
    assert row["log_z"] == {"value": exact, "low": exact, "high": exact}
    expected = -free_energy(stack.layers[0], examples).mean() - exact
    assert row["log_likelihood"] == pytest.approx(expected)
    assert json.loads(json.dumps(row)) == row, "JSON values"


def test_a_fine_tuned_layer_has_only_what_needs_no_rbm(stack, examples):
    lower, upper = stack.layers
    untied = Layer(lower.weight, lower.hidden_bias, lower.visible_bias, lower.weight.T.copy())
    row = diagnose_layers(Stack((untied, upper)), examples, NONE, partition=True)[0]
    assert row["pseudo_likelihood"] is None
    assert row["log_z"] is None
    assert row["dead_units"] == 1
