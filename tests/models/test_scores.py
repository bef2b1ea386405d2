"""Scores of single examples: known answers, and who has none."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from randomstacks import normal_stack

from syncpretrain.data.columns import Column, Columns
from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import DataError
from syncpretrain.finetuning import finetune
from syncpretrain.models.diagnosis import stack_error
from syncpretrain.models.likelihood import free_energy
from syncpretrain.models.scores import feature_names, feature_scores, scores

X = np.random.default_rng(3).random((50, 6), dtype=np.float32)


@pytest.fixture
def stack():
    return normal_stack((6, 5, 4))


def test_by_reconstruction(stack):
    found = scores(stack, X)
    expected = np.square(X.astype(np.float64) - stack.reconstruct(X)).sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.mean() == pytest.approx(stack_error(stack, X))


def test_by_free_energy(stack):
    expected = free_energy(stack.layers[0], X)
    np.testing.assert_array_equal(scores(stack, X, by="free-energy"), expected)


@pytest.mark.parametrize("kind", ["bernoulli", "gaussian"])
def test_missing_values_are_left_out(kind):
    holes = X.copy()
    holes[::3, 2] = np.nan
    scaling = Scaling.of(X) if kind == "gaussian" else None
    stack = normal_stack((6, 5), units=(kind, "bernoulli"), scaling=scaling)
    errors = feature_scores(stack, holes)
    assert not errors[::3, 2].any()
    np.testing.assert_allclose(scores(stack, holes), errors.sum(axis=1))
    assert scores(stack, holes).mean() == pytest.approx(stack_error(stack, holes))
    energies, whole = (scores(stack, rows, by="free-energy") for rows in (holes, X))
    keep = np.arange(50) % 3 > 0
    np.testing.assert_array_equal(energies[keep], whole[keep])
    layer, rows = stack.layers[0], np.delete(stack.prepared(X), 2, axis=1)[::3]
    weight, bias = np.delete(layer.weight, 2, axis=0), np.delete(layer.visible_bias, 2)
    part = replace(layer, weight=weight, visible_bias=bias)
    np.testing.assert_allclose(energies[::3], free_energy(part, rows), rtol=1e-5)


def test_a_few_rows_at_a_time(stack, monkeypatch):
    expected = scores(stack, X), feature_scores(stack, X)
    monkeypatch.setattr("syncpretrain.models.layer.rows_at_once", lambda *arguments: 7)
    for found, whole in zip((scores(stack, X), feature_scores(stack, X)), expected, strict=True):
        np.testing.assert_allclose(found, whole, rtol=1e-6)


def test_the_values_of_a_category_count_together(stack):
    each = feature_scores(stack, X)
    np.testing.assert_allclose(each.sum(axis=1), scores(stack, X))
    assert feature_names(stack) == list("012345")
    category, constant = Column("k", "category", tuple("abc")), Column("c", "constant", ("x",))
    columns = Columns((category, constant, *(Column(name, "number") for name in "uvw")))
    stack.info["columns"] = msgspec.to_builtins(columns)
    found = feature_scores(stack, X)
    assert feature_names(stack) == ["k", "u", "v", "w"]
    np.testing.assert_allclose(found[:, 0], each[:, :3].sum(axis=1))
    np.testing.assert_array_equal(found[:, 1:], each[:, 3:])


def test_what_has_no_such_score(stack):
    with pytest.raises(DataError, match=r"^by: got 'x', expected reconstruction or free-energy"):
        scores(stack, X, by="x")
    with pytest.raises(DataError, match=r"^X: got shape \(6,\), expected \(n_examples, width\)"):
        scores(stack, X[0])
    tuned = finetune(stack, X, np.arange(50) % 2, epochs=1, batch_size=10)
    with pytest.raises(DataError, match=r"^by: got reconstruction, but the stack was fine-tuned"):
        scores(tuned, X)
    with pytest.raises(DataError, match="is an autoencoder, or was fine-tuned"):
        scores(tuned, X, by="free-energy")
