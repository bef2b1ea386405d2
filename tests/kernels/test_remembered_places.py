"""Convolutions read at remembered places, against their definition and their transposed."""

from __future__ import annotations

import numpy as np
import pytest
from convolutionbydefinition import matrix_of, pooled

from syncpretrain.kernels import convolution
from syncpretrain.kernels.convolution import convolve, convolve_at, convolve_back, scratch_size
from syncpretrain.shapes import ConvolutionShape

SHAPES = [
    ConvolutionShape(2, 5, 7, 3, 2, pool=2),
    ConvolutionShape(1, 7, 7, 2, 3, pad=2, pool=3, channels_first=True),
    ConvolutionShape(2, 5, 7, 3, 2, pool=2, pooling="mean"),
    ConvolutionShape(2, 4, 4, 3, 3, pad=1),
]


def drawn(shape, *lengths, kind="f8", seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(lengths).astype(kind)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["f4", "f8"])
@pytest.mark.parametrize("block", [1, 100, 2**18])
def test_it_is_the_transposed_of_what_goes_back_to_the_places(shape, kind, block, monkeypatch):
    monkeypatch.setattr(convolution, "LONG_BLOCK", block)
    x, y = (drawn(shape, 5, shape.visible, kind=kind, seed=seed) for seed in (1, 2))
    weight = drawn(shape, shape.fan_in, shape.filters, kind=kind)
    code, places, at, back = (np.empty((5, n), kind) for n in 3 * [shape.hidden] + [shape.visible])
    scratch, bias = np.empty(scratch_size(shape), kind), np.zeros(shape.filters, kind)
    convolve(x, weight, bias, code, places, scratch, shape, "gaussian")
    convolve_at(x, weight, places, at, scratch, shape)
    rounding = 1e-4 if kind == "f4" else 1e-12
    np.testing.assert_allclose(at, code, rtol=rounding, atol=rounding)  # the maxima themselves
    convolve_at(y, weight, places, at, scratch, shape)
    delta = drawn(shape, 5, shape.hidden, kind=kind, seed=3)
    convolve_back(delta, places, weight, back, scratch, shape)
    assert np.vdot(at, delta) == pytest.approx(np.vdot(y, back), rel=rounding, abs=rounding)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_number_is_that_of_the_place(shape):
    x, y = (drawn(shape, 3, shape.visible, seed=seed) for seed in (1, 2))
    weight = drawn(shape, shape.size, shape.size, shape.channels, shape.filters)
    flat, matrix = weight.reshape(shape.fan_in, -1), matrix_of(shape, weight)
    code, places, at = (np.empty((3, shape.hidden)) for _ in range(3))
    scratch, bias = np.empty(scratch_size(shape)), np.zeros(shape.filters)
    convolve(x, flat, bias, code, places, scratch, shape, "gaussian")
    convolve_at(y, flat, places, at, scratch, shape)
    _, counts = pooled(shape, x @ matrix)
    parts = (y @ matrix * counts).reshape(
        3, shape.output.height, shape.pool, shape.output.width, shape.pool, shape.filters
    )
    np.testing.assert_allclose(at, parts.sum(axis=(2, 4)).reshape(3, -1), rtol=1e-12, atol=1e-12)
