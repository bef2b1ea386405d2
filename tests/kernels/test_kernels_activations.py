import numpy as np
import pytest
from unitkinds import MEANS

from syncpretrain.kernels.activations import activate, affine, product, times_derivative


@pytest.mark.parametrize("units", MEANS)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_affine_is_the_mean_of_the_units_behind_an_affine_map(units, kind):
    rng = np.random.default_rng(0)
    x, W, b = rng.normal(size=(7, 5)), rng.normal(size=(5, 4)), rng.normal(size=4)
    expected = MEANS[units](x @ W + b)
    out = np.empty((7, 4), dtype=kind)
    assert affine(kind(x), kind(W), kind(b), units, out=out) is out
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    again = affine(kind(x), kind(W), kind(b), units)
    assert again.dtype == kind
    np.testing.assert_array_equal(again, out)


def test_a_product_does_not_warn_of_what_its_blas_computes_beside_it():
    # In a float32 product of a vector of 5 numbers, OpenBLAS may set the same flag as inf times 0,
    # with a result that is right. What lay in memory before decides, so that a test cannot.
    assert np.isnan(product(np.array([[np.inf]]), np.array([[0.0]]))).all()


@pytest.mark.parametrize("units", MEANS)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("width", [3, 4, 8, 16])
def test_one_unit_of_several_has_the_bits_of_one_alone(units, kind, width):
    """A shard may own a column; NumPy 2.4 negates numbers wrongly that are 16 bytes apart."""
    x = np.random.default_rng(1).normal(size=(21, width)).astype(kind)
    alone = activate(x[:, 1:2].copy(), units)
    np.testing.assert_array_equal(activate(x[:, 1:2], units), alone)


def test_a_rectified_unit_that_is_off_passes_nothing_back():
    delta = np.ones(3, dtype=np.float32)
    times_derivative(delta, activate(np.float32([-1, 0, 1e-30]), "relu"), "relu")
    assert delta.tolist() == [0, 0, 1]


def test_softmax_sums_to_one_and_does_not_overflow():
    x = np.float32([[0, 0, 0, 0], [1e4, 1e4, -1e4, 0], [3e38, -3e38, 0, 0], [-1e30, -1e30, 0, -1]])
    with np.errstate(over="ignore"):  # -6e38 is -inf: the right limit
        activate(x, "softmax")
    np.testing.assert_allclose(x.sum(axis=1), 1, rtol=1e-6)
    e = 1 / (1 + np.exp(-1))
    expected = [[0.25] * 4, [0.5, 0.5, 0, 0], [1, 0, 0, 0], [0, 0, e, 1 - e]]
    np.testing.assert_allclose(x, expected, rtol=1e-6)


def test_sigmoid_is_right_at_every_size_and_in_place():
    x = np.float32([-1e30, -104, -88, -1, 0, 1, 88, 1e30])
    out = x.copy()
    assert activate(out, "bernoulli") is out
    with np.errstate(over="ignore"):
        expected = MEANS["bernoulli"](np.float64(x))
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-38)
    assert np.isfinite(out).all()
