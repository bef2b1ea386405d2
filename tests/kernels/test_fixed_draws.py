"""Normal draws, means and states with the same bits on every processor."""

import numpy as np
import pytest
from compiledproducts import COMPILED, digest
from compiledproducts import FLOAT32_FORMS as FORMS

from syncpretrain import pretrain
from syncpretrain.backends.base import Backend
from syncpretrain.kernels import contrastive_divergence as cd
from syncpretrain.kernels import native
from syncpretrain.kernels.activations import means
from syncpretrain.kernels.backprop import corrupt
from syncpretrain.rng import Address, Purpose
from syncpretrain.units.kinds import logarithm

ADDRESS = Address(7, Purpose.NOISE, layer=2, epoch=3, step=4, shard=5)
TAIL = np.float32(3.6541529)  # beyond it a draw is the logarithm of another


# These bits are the same on every processor, with any version of NumPy and any C library.
NORMALS = "a5f136a7f93c057c"


@COMPILED
def test_normal_draws_have_the_bits_of_the_table():
    out = np.empty((1000, 300), dtype=np.float32)
    cd.fill_normal(out, ADDRESS)
    assert digest(out) == NORMALS
    assert (abs(out) > TAIL).sum() > 50


@COMPILED
@pytest.mark.parametrize("seed", range(3))
def test_normal_draws_are_numpys_but_for_the_last_bit_of_the_tail(seed):
    address = ADDRESS._replace(seed=seed)
    out = np.empty(500_000, dtype=np.float32)
    cd.fill_normal(out, address)
    numpys = address.generator().standard_normal(len(out), dtype=np.float32)
    is_tail = abs(numpys) > TAIL
    np.testing.assert_array_equal(out[~is_tail], numpys[~is_tail])
    np.testing.assert_array_max_ulp(out[is_tail], numpys[is_tail], maxulp=2)


@COMPILED
@pytest.mark.parametrize("columns", [slice(None), slice(3, 20)])
def test_rows_that_lie_apart_take_the_draws_in_their_order(columns):
    whole = np.full((30, 40), 7, dtype=np.float32)
    own = whole[:, columns]
    cd.fill_normal(own, ADDRESS)
    flat = np.empty(own.size, dtype=np.float32)
    cd.fill_normal(flat, ADDRESS)
    np.testing.assert_array_equal(own.ravel(), flat)
    own[:] = 7
    assert (whole == 7).all()


def test_draws_are_taken_by_the_names_of_numpys():
    x = np.zeros((4, 5), dtype=np.float32)
    corrupt(x, "gaussian", 2.0, cd.FixedDraws(ADDRESS))
    drawn = ADDRESS.generator().standard_normal((4, 5), dtype=np.float32)
    np.testing.assert_allclose(x, 2 * drawn, rtol=1e-6)
    uniform = cd.FixedDraws(ADDRESS).random((4, 5), dtype=np.float32)
    np.testing.assert_array_equal(uniform, ADDRESS.generator().random((4, 5), dtype=np.float32))


@COMPILED
@pytest.mark.usefixtures("usual_form")
@pytest.mark.parametrize("units", ["bernoulli", "tanh"])
def test_means_have_the_same_bits_with_any_form(units):
    exponents = np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32).view(np.float32)
    found = []
    for form in FORMS:
        native.extension.keep_float32_form(form)
        x = exponents[~np.isnan(exponents)].copy()
        found.append(means(x, np.zeros_like(x), units).view(np.uint32))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@COMPILED
@pytest.mark.usefixtures("usual_form")
@pytest.mark.parametrize("units", ["bernoulli", "gaussian", "relu", "softmax:10x7"])
def test_states_have_the_same_bits_with_any_form_and_those_of_numpy_but_for_rounding(units):
    draw = np.random.default_rng(0).integers(-(2**20), 2**20, (60, 70)) / 2**18
    bias = np.linspace(-1, 1, 70, dtype=np.float32)

    def states(function):
        x, noise, out = (np.array(draw, dtype=np.float32) for _ in range(3))
        function(x, bias, units, ADDRESS, noise=noise, out=out)
        return np.stack([x, out])

    expected, found = states(cd.sample_states), []
    for form in FORMS:
        native.extension.keep_float32_form(form)
        found.append(states(cd.sample_fixed))
        np.testing.assert_array_equal(found[-1], found[0])
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-6)


def test_logarithms_are_right_to_the_last_bits():
    x = np.concatenate([np.geomspace(1e-300, 1e300, 9999), np.linspace(0.4, 2.1, 9999), [1.0]])
    np.testing.assert_allclose(logarithm(np, x), np.log(x), rtol=1e-15, atol=1e-17)
    assert logarithm(np, np.float64(1)) == 0


@pytest.mark.parametrize("wanted", ["avx", "numpy", "AVX2"])
def test_vectors_that_there_are_not_are_refused(wanted, monkeypatch):
    monkeypatch.setenv(native.VECTORS_VARIABLE, wanted)
    with pytest.raises(native.NativeKernelsError, match=f"got SYNCPRETRAIN_VECTORS='{wanted}'"):
        native._keep_vectors(native.extension)


@COMPILED
@pytest.mark.usefixtures("usual_form")
@pytest.mark.parametrize("wanted", FORMS)
def test_the_environment_chooses_the_vectors(wanted, monkeypatch):
    monkeypatch.setenv(native.VECTORS_VARIABLE, wanted)
    native._keep_vectors(native.extension)
    assert native.extension.float32_forms()[0] == wanted


@pytest.mark.parametrize("own", [{}, {"split": "filters", "shards": (2, 1)}])
def test_noise_for_own_products_is_never_numpys(own, monkeypatch):
    asked = []
    draw = Backend.generator

    def generator(self, address):
        asked.append(address.purpose)
        return draw(self, address)

    monkeypatch.setattr(Backend, "generator", generator)
    X = np.random.default_rng(0).random((20, 16), dtype=np.float32)
    stack = {"layers": "1x4x4,conv:4x2,5", "model": "denoising", "corruption": "gaussian:0.1"}
    for products in ("own", "blas"):
        asked.clear()
        pretrain(X, **stack, products=products, epochs=1, schedule="greedy", warn=False, **own)
        assert (Purpose.CORRUPTION in asked) == (products == "blas")
