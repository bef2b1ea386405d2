"""Probabilistic max pooling: enumerated blocks, the RBM that has it, and what is made of it."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from convolutionbydefinition import filters_of
from learnersteps import assert_same_bits, unrolled, usual
from linkedchains import backwards
from onelayer import set_parameters

from syncpretrain import finetune, load, pretrain
from syncpretrain.errors import SettingsError
from syncpretrain.kernels.convolution import block_means
from syncpretrain.learners.convolution import ProbabilisticRBM, convolutional_rbm
from syncpretrain.pretraining.build import step_for
from syncpretrain.rng import Address, Purpose
from syncpretrain.settings import settings_from
from syncpretrain.shapes import ConvolutionShape

TINY = ConvolutionShape(1, 3, 3, 2, 2, pool=2, pooling="prob")  # 2 blocks of 4 units
SHAPE = ConvolutionShape(2, 5, 7, 3, 2, pool=2, pooling="prob")


def make(shape: ConvolutionShape = SHAPE, **changed) -> ProbabilisticRBM:
    rbm = convolutional_rbm(2, shape, usual(**changed))
    set_parameters(rbm)
    return rbm


def blocks_of(shape: ConvolutionShape, maps: np.ndarray) -> np.ndarray:
    """Return maps as an array of shape (B, Q F, places in a block), by definition."""
    maps = maps.reshape(-1, shape.map_height, shape.map_width, shape.filters)
    size, code = shape.pool, shape.output
    found = np.empty((len(maps), code.height, code.width, shape.filters, size**2))
    for row, column in np.ndindex(code.height, code.width):
        part = maps[:, row * size : (row + 1) * size, column * size : (column + 1) * size]
        found[:, row, column] = part.reshape(len(maps), size**2, -1).transpose(0, 2, 1)
    return found.reshape(len(maps), -1, size**2)


def maps_of(shape: ConvolutionShape, blocks: np.ndarray) -> np.ndarray:
    """Return the maps of blocks: the inverse of ``blocks_of``."""
    numbers = np.arange(shape.units, dtype=float)[None]
    places = blocks_of(shape, numbers).astype(int).reshape(-1)
    maps = np.empty((len(blocks), shape.units))
    maps[:, places] = blocks.reshape(len(blocks), -1)
    return maps


def conditional(inputs: np.ndarray) -> np.ndarray:
    """Return p(on) of units in blocks, of which one or none is on: a softmax with a 0."""
    e = np.exp(inputs)
    return e / (1 + e.sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("size", [1e3, -1e3, 80])
def test_no_input_is_too_large(size):
    found = block_means(np.full((1, TINY.units), size, dtype="f4"), TINY)
    np.testing.assert_allclose(found, 0.25 if size > 0 else 0, atol=1e-6)


def test_conditionals_are_those_of_the_enumerated_joint_distribution():
    rbm = make(TINY)
    W, a, b = unrolled(rbm)
    v = np.array(list(product((0, 1), repeat=9)))
    h = np.array(
        [s for s in product((0, 1), repeat=8) if max(s[::2].count(1), s[1::2].count(1)) < 2]
    )
    assert len(h) == 25, "each of 2 filters has one unit on, or none"
    energies = -(v @ W @ h.T + (v @ a)[:, None] + h @ b)
    p = np.exp(energies.min() - energies)
    above = (p @ h) / p.sum(axis=1, keepdims=True)
    code = np.stack([above[:, ::2].sum(axis=1), above[:, 1::2].sum(axis=1)], axis=1)
    np.testing.assert_allclose(rbm.current().up(v.astype("f4")), code, rtol=1e-5)
    below = (p.T @ v) / p.sum(axis=0)[:, None]
    layer = replace(rbm.current(), shape=TINY.unpooled)
    np.testing.assert_allclose(layer.down(h.astype("f4")), below, rtol=1e-5)


@pytest.mark.parametrize("cd_steps", [1, 3])
@pytest.mark.parametrize("shape", [TINY, SHAPE, replace(SHAPE, channels_first=True)], ids=str)
def test_gradient_equals_its_transcription(shape, cd_steps):
    rbm = make(shape, cd_steps=cd_steps)
    W, a, b = unrolled(rbm)
    v0 = np.random.default_rng(1).random((7, shape.visible)).astype("f4")
    h0 = p = conditional(blocks_of(shape, v0 @ W + b))
    for k in range(cd_steps):
        u = Address(3, Purpose.HIDDEN, 2, 3, 5, k << 32).generator().random(p.shape[:2], dtype="f4")
        ends = p.cumsum(axis=-1)
        on = (u[..., None] < ends) & (u[..., None] >= ends - p)
        v = 1 / (1 + np.exp(-(maps_of(shape, on) @ W.T + a)))
        p = conditional(blocks_of(shape, v @ W + b))
    error = rbm.gradient(v0, np.arange(7), epoch=3, step=5)
    assert error == pytest.approx(np.square(v0 - v).sum(), rel=1e-4)
    statistics = v0.T @ maps_of(shape, h0) - v.T @ maps_of(shape, p)
    wanted = filters_of(shape, statistics) / 7 / shape.positions
    np.testing.assert_allclose(rbm.gradients[0], wanted, rtol=1e-4, atol=3e-6)
    difference = maps_of(shape, h0 - p).reshape(7, -1, shape.filters).mean(axis=(0, 1))
    np.testing.assert_allclose(rbm.gradients[2], difference, rtol=1e-4, atol=3e-6)
    np.testing.assert_allclose(rbm.hidden_means(7), h0.sum(axis=-1), rtol=1e-5)
    np.testing.assert_allclose(rbm.current().up(v0), h0.sum(axis=-1), rtol=1e-5)


def test_the_validation_error_is_of_the_means_of_blocks():
    rbm, x = make(), np.random.default_rng(1).random((5, SHAPE.visible)).astype("f4")
    W, a, b = unrolled(rbm)
    h = maps_of(SHAPE, conditional(blocks_of(SHAPE, x @ W + b)))
    down = 1 / (1 + np.exp(-(h @ W.T + a)))
    assert rbm.validation_error(x) == pytest.approx(np.square(down - x).sum() / 5, rel=1e-5)


def test_the_order_of_shards_changes_no_bit():
    x = np.random.default_rng(1).random((10, SHAPE.visible)).astype("f4")
    one, other = make(), make()
    step_for(one, 3, "examples").train_step(x, np.arange(10), epoch=1, step=0)
    step_for(other, 3, "examples").train_step(x, np.arange(10), epoch=1, step=0, run=backwards)
    assert_same_bits(one, other)


LAYERS = "1x8x8,conv:4x3,pool:2:prob,6"


def test_a_file_keeps_it(images, tmp_path):
    stack, plain = (
        pretrain(images, layers=layers, epochs=1, batch_size=20)
        for layers in (LAYERS, LAYERS.replace(":prob", ""))
    )
    assert "pool 2 prob" in repr(stack)
    assert plain.parameters_sha256 != stack.parameters_sha256
    stack.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.encode(images), stack.encode(images))


@pytest.mark.parametrize("labels", [None, np.arange(130) % 3])
def test_fine_tuning_takes_the_maximum_in_its_place(images, labels):
    stack = pretrain(images, layers=LAYERS, epochs=1, batch_size=20)
    tuned = finetune(stack, images, labels, epochs=1, batch_size=20)
    assert tuned.layers[0].shape.pooling == "max"
    first = tuned.layers[0]
    expected = replace(first, shape=replace(first.shape, pooling="max")).up(images)
    np.testing.assert_array_equal(tuned.encode(images, layer=1), expected)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "denoising"}, r"layers: got conv:4x3,pool:2:prob for layer 1, .* max or mean"),
        ({"hidden_units": "relu"}, r"hidden_units: got relu for layer 1, .* bernoulli"),
        ({"hidden_dropout": 0.5}, r"hidden_dropout: got 0\.5 for layer 1, .* expected 0"),
    ],
)
def test_what_has_no_such_pooling_is_refused(given, message):
    with pytest.raises(SettingsError, match=message):
        settings_from(LAYERS, **given)


def test_the_text_is_kept():
    settings = settings_from(LAYERS).pretrain
    assert settings.architecture == LAYERS
    assert settings.shapes[0].pooling == "prob"
    assert settings_from("1x8x8,conv:4x3,pool:1:prob,6").pretrain.shapes[0].pooling == "max"
