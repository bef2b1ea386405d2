"""The convolutional RBM against the dense one whose weights are a filter at every position."""

from dataclasses import replace

import numpy as np
import pytest
from binaryunits import logistic, states
from convolutionbydefinition import channel_of, filters_of, pooled
from learnersteps import assert_close, unrolled, usual
from transcribedrbm import Transcription
from unitkinds import INPUT_UNITS, MEANS, RBM_UNITS, examples_for

from syncpretrain.learners.convolution import ConvolutionalRBM
from syncpretrain.pretraining.build import step_for
from syncpretrain.shapes import ConvolutionShape

TINY = ConvolutionShape(1, 3, 3, 2, 2, pool=2)  # 9 visible and 8 hidden units
SHAPE = ConvolutionShape(2, 5, 7, 3, 2, pool=2)
SHAPES = {
    "tiny": TINY,
    "max": SHAPE,
    "mean": replace(SHAPE, pooling="mean"),
    "channel by channel": replace(SHAPE, channels_first=True),
    "padded": ConvolutionShape(1, 4, 6, 2, 3, pad=1, pool=2, channels_first=True),
    "as large as the image": ConvolutionShape(2, 3, 3, 4, 3),
}


def make(shape: ConvolutionShape = SHAPE, *, layer: int = 1, **changed) -> ConvolutionalRBM:
    return ConvolutionalRBM(layer, shape, usual(**{"weight_decay": 0.001, **changed}))


def set_parameters(rbm: ConvolutionalRBM, *, scale: float = 0.8) -> tuple[np.ndarray, ...]:
    """Give it parameters that matter; return them for every unit, float64."""
    rng = np.random.default_rng(0)
    for parameter, own in zip(rbm.parameters, (scale, 0.5, 0.5), strict=True):
        parameter[:] = rng.normal(0, own, parameter.shape)
    return unrolled(rbm)


def shared(shape: ConvolutionShape, dW, da, db) -> tuple[np.ndarray, ...]:
    """Return what shared parameters get of each unit's: averaged over positions, and pixels."""
    channels, P = channel_of(shape), shape.positions
    visible = [da[channels == channel].mean() for channel in range(shape.channels)]
    return filters_of(shape, dW) / P, np.array(visible), db.reshape(P, -1).mean(axis=0)


def gradients_of(rbm, v0, **address):
    error = rbm.gradient(v0, np.arange(len(v0)), **{"epoch": 3, "step": 5, **address})
    return error, [gradient.copy() for gradient in rbm.gradients]


def test_conditionals_are_those_of_the_enumerated_joint_distribution():
    rbm, v, h = make(TINY), states(9), states(8)
    W, a, b = set_parameters(rbm)
    energies = -(v @ W @ h.T + (v @ a)[:, None] + h @ b)
    p = np.exp(energies.min() - energies)
    layer = replace(rbm.current(), shape=replace(TINY, pool=1))
    above = (p @ h) / p.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(layer.up(v.astype("f4")), above, rtol=2e-6)
    below = (p.T @ v) / p.sum(axis=0)[:, None]
    np.testing.assert_allclose(layer.down(h.astype("f4")), below, rtol=2e-6)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("cd_steps", [1, 3])
@pytest.mark.parametrize("visible_units", INPUT_UNITS)
@pytest.mark.parametrize("hidden_units", RBM_UNITS)
@pytest.mark.parametrize("changed", [{}, {"persistent": True}, {"hidden_dropout": 0.5}])
def test_gradient_equals_that_of_the_dense_rbm(
    name, cd_steps, visible_units, hidden_units, changed
):
    shape, kinds = SHAPES[name], {"visible_units": visible_units, "hidden_units": hidden_units}
    rbm = make(shape, cd_steps=cd_steps, layer=2, **kinds, **changed)
    dense = Transcription(rbm, set_parameters(rbm, scale=0.2))
    v0 = examples_for(visible_units, 7, shape.visible)
    for step in range(3):
        wanted = shared(shape, *dense.gradient(np.float64(v0), epoch=3, step=step))
        error, found = gradients_of(rbm, v0, step=step)
        assert_close(found, wanted, atol=3e-6)
    if not rbm.settings.persistent:
        assert error == pytest.approx(dense.error, rel=1e-4)
    assert (rbm.hidden_means(7) is None) == ("hidden_dropout" in changed or shape.pooling == "mean")


@pytest.mark.parametrize(
    ("units", "cost", "start"),
    [
        ("bernoulli", 1.0, np.log(0.05 / 0.95)),
        ("bernoulli", 0.0, 0),
        ("relu", 1.0, 0),  # of which no bias has a mean whatever the weights are
    ],
)
def test_binary_units_of_sparse_filters_start_at_the_target(units, cost, start):
    rbm = make(hidden_units=units, sparsity_cost=cost, sparsity_target=0.05)
    np.testing.assert_allclose(rbm.hidden_bias, start, rtol=1e-6)
    rbm.hidden_bias.fill(3)
    before = rbm.snapshot()
    rbm.restore(before)
    assert (rbm.hidden_bias == 3).all(), "a state is gone on from as it is"


@pytest.mark.parametrize("shards", [1, 2])
def test_sparsity_moves_the_hidden_biases_to_the_target_and_nothing_else(shards):
    x, sums = examples_for("bernoulli", 9, SHAPE.visible), []
    for cost in (0.0, 0.5):
        rbm = make(batch_size=9, sparsity_cost=cost, sparsity_target=0.05, learning_rate=1.0)
        W, _, b = set_parameters(rbm)
        before = [parameter.copy() for parameter in rbm.parameters]
        step_for(rbm, shards, "examples").train_step(x, np.arange(9), epoch=1, step=0)
        pairs = zip(rbm.parameters, before, strict=True)
        sums.append([now - then for now, then in pairs])
    activity = logistic(x @ W + b).reshape(-1, SHAPE.filters).mean(axis=0)
    for plain, sparse, added in zip(*sums, (0, 0, 0.5 * (0.05 - activity)), strict=True):
        np.testing.assert_allclose(sparse - plain, added * np.ones_like(plain), atol=2e-6)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("units", RBM_UNITS)
def test_what_it_hands_up_is_the_code_of_the_positive_phase(name, units):
    shape = SHAPES[name]
    rbm, x = make(shape, hidden_units=units), examples_for("bernoulli", 4, shape.visible)
    W, _, _ = set_parameters(rbm)
    code = rbm.current().up(x)
    inputs, _ = pooled(shape, x @ W)
    biases = np.tile(rbm.hidden_bias, inputs.shape[1] // shape.filters)
    np.testing.assert_allclose(code, MEANS[units](inputs + biases), rtol=2e-5, atol=2e-6)
    gradients_of(rbm, x)
    if shape.pooling == "mean":
        assert rbm.hidden_means(4) is None
    else:
        np.testing.assert_allclose(rbm.hidden_means(4), code, rtol=1e-6)


def test_the_validation_error_is_of_the_maps_before_pooling():
    rbm, x = make(), examples_for("bernoulli", 5, SHAPE.visible)
    W, a, b = set_parameters(rbm)
    down = logistic(logistic(x @ W + b) @ W.T + a)
    assert rbm.validation_error(x) == pytest.approx(np.square(down - x).sum() / 5, rel=1e-5)


@pytest.mark.parametrize("shards", [2, 3])
def test_shards_by_examples_are_of_one_minibatch(shards):
    """Their draws are their own; without any, with linear units' means, they are the whole."""
    x = examples_for("bernoulli", 11, SHAPE.visible)
    one, other = (make(batch_size=11, sparsity_cost=0.3) for _ in range(2))
    for rbm in (one, other):
        rbm.weight.fill(0)  # then the states do not matter
        rbm.hidden_bias.fill(0.3)
        rbm.visible_bias.fill(-0.2)
    step_for(one, 1, "examples").train_step(x, np.arange(11), epoch=1, step=0)
    step_for(other, shards, "examples").train_step(x, np.arange(11), epoch=1, step=0)
    assert_close(one, other, atol=1e-7)
