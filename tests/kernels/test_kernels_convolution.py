"""Convolutions against dense matrices, their transposed maps, and finite differences."""

import numpy as np
import pytest
from convolutionbydefinition import channel_of, matrix_of, pooled
from convolutioncases import SHAPES
from learnersteps import slopes_of
from randomconvolutions import ungrouped

from syncpretrain.kernels import convolution
from syncpretrain.shapes import ConvolutionShape

REMEMBERED = [
    ConvolutionShape(2, 5, 7, 3, 2, pool=2),
    ConvolutionShape(1, 7, 7, 2, 3, pad=2, pool=3, channels_first=True),
    ConvolutionShape(2, 5, 7, 3, 2, pool=2, pooling="mean"),
    ConvolutionShape(2, 4, 4, 3, 3, pad=1),
]


def drawn(shape, examples=3, dtype="f8", seed=5):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((examples, shape.visible)).astype(dtype)
    weight = rng.standard_normal((shape.fan_in, shape.filters)).astype(dtype)
    bias = rng.standard_normal(shape.filters).astype(dtype)
    return x, weight, bias


def forward(x, weight, bias, shape):
    out = np.empty((len(x), shape.hidden), dtype=x.dtype)
    places = np.zeros(out.shape if shape.pooling == "max" else 0, dtype=x.dtype)
    scratch = np.empty(convolution.scratch_size(shape), dtype=x.dtype)
    convolution.convolve(x, weight, bias, out, places, scratch, shape, "gaussian")
    return out, places


@pytest.mark.parametrize("shape", SHAPES)
def test_a_convolution_is_that_of_its_matrix(shape):
    x, weight, bias = drawn(shape)
    out, _ = forward(x, weight, bias, shape)
    by_place = ungrouped(weight, shape).reshape(shape.size, shape.size, shape.channels, -1)
    expected, _ = pooled(shape, x @ matrix_of(shape, by_place))
    np.testing.assert_allclose(out, expected + np.resize(bias, shape.hidden), atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_finite_differences(shape):
    x, weight, bias = drawn(shape)
    target = np.random.default_rng(3).standard_normal((len(x), shape.hidden))
    places = forward(x, weight, bias, shape)[1]
    scratch = np.empty(convolution.scratch_size(shape))
    dW, dx = np.empty_like(weight), np.empty_like(x)
    convolution.convolve_gradient(x, target, places, dW, scratch, shape)
    convolution.convolve_back(target, places, weight, dx, scratch, shape)
    slopes = slopes_of(lambda given: np.vdot(forward(*given, bias, shape)[0], target), [x, weight])
    for gradient, slope in zip((dx, dW), slopes, strict=True):
        np.testing.assert_allclose(gradient, slope, rtol=5e-6, atol=5e-8)


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_of_channels(shape):
    x, _, _ = drawn(shape)
    sums = convolution.sum_channels(x, shape, out=np.empty(shape.channels))
    np.testing.assert_allclose(sums, np.bincount(channel_of(shape), x.sum(axis=0)))


@pytest.mark.parametrize("shape", REMEMBERED, ids=str)
@pytest.mark.parametrize("kind", ["f4", "f8"])
@pytest.mark.parametrize("block", [1, 100, 2**18])
def test_each_number_is_that_of_the_place(shape, kind, block, monkeypatch):
    monkeypatch.setattr(convolution, "LONG_BLOCK", block)
    x, y = (drawn(shape, 5, kind, seed)[0] for seed in (1, 2))
    _, weight, bias = drawn(shape, dtype=kind)
    _, places = forward(x, weight, 0 * bias, shape)
    at = np.empty((5, shape.hidden), kind)
    scratch = np.empty(convolution.scratch_size(shape), kind)
    convolution.convolve_at(y, weight, places, at, scratch, shape)
    matrix = matrix_of(shape, weight.reshape(shape.size, shape.size, shape.channels, -1))
    _, counts = pooled(shape, x @ matrix)
    parts = (y @ matrix * counts).reshape(
        5, shape.output.height, shape.pool, shape.output.width, shape.pool, shape.filters
    )
    rounding = 1e-4 if kind == "f4" else 1e-12
    expected = parts.sum(axis=(2, 4)).reshape(5, -1)
    np.testing.assert_allclose(at, expected, rtol=rounding, atol=rounding)
