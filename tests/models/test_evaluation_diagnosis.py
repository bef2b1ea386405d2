import json
from dataclasses import replace

import numpy as np
import pytest
from binaryunits import means
from randomstacks import layer_errors, normal_stack

from syncpretrain.data.scaling import Scaling
from syncpretrain.kernels.activations import affine
from syncpretrain.models.diagnosis import diagnose_layers, stack_error
from syncpretrain.models.likelihood import free_energy, log_z
from syncpretrain.models.stack import Stack

NONE = np.empty((0, 6), dtype=np.float32)
RBM_FIGURES = ("free_energy_gap", "pseudo_likelihood", "log_z", "log_likelihood")


@pytest.fixture
def stack() -> Stack:
    found = normal_stack((6, 5, 4))
    for layer in found.layers:
        layer.hidden_bias[:2] = 50, -50  # one is on whatever comes, one is off
    return found


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
        train, held_out = (affine(x, layer.weight, layer.hidden_bias) for x in (train, held_out))


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
    tuned = Stack((replace(lower, model="autoencoder"), upper))
    rows = diagnose_layers(tuned, examples, examples, partition=True)
    assert all(rows[0][name] is None for name in RBM_FIGURES)
    assert (rows[0]["dead_units"], rows[0]["saturated_units"]) == (1, 1)
    assert all(rows[1][name] is not None for name in RBM_FIGURES), "the other one is an RBM"


NOT_BINARY = {"pseudo_likelihood", "log_z", "log_likelihood"}
PARTITION = {"log_z", "log_likelihood"}
IDLE = {"dead_units", "saturated_units"}


@pytest.mark.parametrize(
    ("visible", "hidden", "missing"),
    [
        ("bernoulli", "bernoulli", set()),
        ("bernoulli", "gaussian", PARTITION | IDLE),
        ("bernoulli", "relu", PARTITION | {"saturated_units"}),
        ("gaussian", "bernoulli", {"pseudo_likelihood"}),
        ("gaussian", "gaussian", NOT_BINARY | IDLE),
        ("gaussian", "relu", NOT_BINARY | {"saturated_units"}),
    ],
)
def test_a_figure_without_a_meaning_for_units_is_none(stack, examples, visible, hidden, missing):
    layer = replace(stack.layers[0], visible_units=visible, hidden_units=hidden)
    row = diagnose_layers(Stack((layer,)), examples[:25], examples[25:], partition=True)[0]
    assert {name for name, value in row.items() if value is None} == missing
    assert json.loads(json.dumps(row)) == row, "JSON values"


def test_rectified_units_that_are_off_are_dead(stack, examples):
    layer = replace(stack.layers[0], hidden_units="relu")
    assert diagnose_layers(Stack((layer,)), examples, NONE)[0]["dead_units"] == 1


def test_gaussian_visible_units_are_looked_at_standardized(stack, examples):
    layer = replace(stack.layers[0], visible_units="gaussian")
    data = 7 * examples - 3
    scaling = Scaling.of(data)
    rows = diagnose_layers(Stack((layer,), scaling=scaling), data[:25], data[25:])
    plain = diagnose_layers(Stack((layer,)), scaling.apply(data[:25]), scaling.apply(data[25:]))
    assert rows == plain


def mean_error(x: np.ndarray, y: np.ndarray) -> float:
    """The papers': squared, summed over units, averaged over examples."""
    return float(np.square(np.float64(x) - y).sum(axis=1).mean())


@pytest.mark.parametrize("tied", [True, False])
class TestErrors:
    @pytest.mark.parametrize("n", [1, 30, 2345])  # the last is more than one chunk of rows
    def test_they_equal_plain_numpy_and_the_examples_stay(self, tied, n):
        stack = normal_stack((7, 5, 3), tied=tied)
        X = np.random.default_rng(1).random((n, 7)).astype(np.float32)
        below, expected, copy = X, [], X.copy()
        for layer in stack.layers:
            above = means(below, layer.weight, layer.hidden_bias)
            expected.append(mean_error(below, means(above, layer.decoding, layer.visible_bias)))
            below = above
        assert layer_errors(stack, X) == pytest.approx(expected, rel=1e-5)
        for layer in reversed(stack.layers):
            below = means(below, layer.decoding, layer.visible_bias)
        assert stack_error(stack, X) == pytest.approx(mean_error(X, below), rel=1e-5)
        np.testing.assert_array_equal(X, copy)

    def test_without_examples_there_is_none(self, tied):
        stack = normal_stack((6, 5, 3), tied=tied)
        assert (layer_errors(stack, NONE), stack_error(stack, NONE)) == ((), None)
