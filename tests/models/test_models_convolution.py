"""Convolutional layers: codes and reconstructions of known answers."""

from __future__ import annotations

import numpy as np

from syncpretrain.models.layer import ConvolutionalLayer
from syncpretrain.shapes import ConvolutionShape


def layer_of(shape, **options):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((shape.size, shape.size, shape.channels, shape.filters))
    biases = (rng.standard_normal(n) for n in reversed(shape.biases))
    return ConvolutionalLayer(
        weight.astype("f4"), *(bias.astype("f4") for bias in biases), shape, **options
    )


def test_a_filter_of_one_pixel_is_a_dense_layer_of_each_position():
    shape = ConvolutionShape(2, 3, 3, 4, 1)
    layer = layer_of(shape)
    X = np.random.default_rng(1).random((5, 18), dtype="f4")
    inputs = X.reshape(5, 9, 2) @ layer.weight.reshape(2, 4) + layer.hidden_bias
    np.testing.assert_allclose(layer.up(X), 1 / (1 + np.exp(-inputs.reshape(5, -1))), rtol=1e-5)
    H = np.random.default_rng(2).random((5, 36), dtype="f4")
    inputs = H.reshape(5, 9, 4) @ layer.weight.reshape(2, 4).T + layer.visible_bias
    np.testing.assert_allclose(layer.down(H), 1 / (1 + np.exp(-inputs.reshape(5, -1))), rtol=1e-5)


def test_a_filter_as_large_as_the_image_is_a_dense_layer():
    shape = ConvolutionShape(2, 3, 3, 4, 3, channels_first=True)
    layer = layer_of(shape, hidden_units="relu", visible_units="gaussian")
    X = np.random.default_rng(1).random((5, 18), dtype="f4")
    weight = layer.weight.transpose(2, 0, 1, 3).reshape(18, 4)
    expected = np.maximum(X @ weight + layer.hidden_bias, 0)
    np.testing.assert_allclose(layer.up(X), expected, rtol=1e-5, atol=1e-6)
    expected = layer.up(X) @ weight.T + layer.visible_bias.repeat(9)
    np.testing.assert_allclose(layer.down(layer.up(X)), expected, rtol=1e-5, atol=1e-5)


def test_a_code_is_spread_evenly_over_its_block():
    shape = ConvolutionShape(1, 4, 4, 1, 1, pool=2)
    layer = layer_of(shape, hidden_units="relu", visible_units="gaussian")
    down = layer.down(np.array([[4, 0, 0, 0]], "f4")) - layer.visible_bias
    expected = np.zeros((4, 4))
    expected[:2, :2] = layer.weight.item()
    np.testing.assert_allclose(down.reshape(4, 4), expected, rtol=1e-6, atol=1e-6)
