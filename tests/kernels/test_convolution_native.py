"""The compiled convolutions against the NumPy forms, on drawn shapes and parts of arrays."""

from dataclasses import replace

import numpy as np
import pytest
from compiledproducts import COMPILED
from convolutioncases import ASIDE, FORMS, Case, Drawn, part_of, shapes
from hypothesis import given, settings
from hypothesis import strategies as st

from syncpretrain.kernels import native
from syncpretrain.kernels.convolution import (
    convolve,
    convolve_back,
    convolve_gradient,
    scratch_size,
    sum_channels,
    visible_means,
)
from syncpretrain.kernels.native import shape_numbers
from syncpretrain.kernels.program import Program, in_turn
from syncpretrain.shapes import ConvolutionShape

pytestmark = COMPILED


def assert_same(ours, theirs, shape):
    """Compare exactly, but for means over blocks whose size is no power of two."""
    if shape.pool == 3:
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)
    else:
        assert (ours == theirs).all()


@settings(max_examples=150, deadline=None)
@given(st.data(), shapes(), st.integers(0, 5), st.booleans())
def test_every_part_is_that_of_numpy(data, shape, examples, places):
    case = Case(shape, examples, seed=data.draw(st.integers(0, 99)), places=places)
    filters, channels = part_of(data.draw, shape.filters), part_of(data.draw, shape.channels)
    units = data.draw(st.sampled_from(["gaussian", "relu"]))
    ours = case.up(FORMS["convolve"], units, filters)
    theirs = case.up(convolve.__wrapped__, units, filters)
    assert_same(ours[0], theirs[0], shape)
    assert (ours[1] == theirs[1]).all()
    for name, own, form in (
        ("gradient", filters, convolve_gradient),
        ("back", channels, convolve_back),
    ):
        results = (getattr(case, name)(f, own) for f in (FORMS[form.__name__], form.__wrapped__))
        assert_same(*results, shape)


@settings(max_examples=50, deadline=None)
@given(shapes(), st.integers(0, 3), st.sampled_from(["gaussian", "relu", "bernoulli", "tanh"]))
def test_means_of_visible_units_are_those_of_numpy(shape, examples, units):
    case = Case(shape, examples)
    bias, expected = case.whole_numbers(1, shape.channels)[0], case.x.astype(np.float64)
    assert visible_means(case.x, bias, shape, units) is case.x
    visible_means(expected, bias, shape, units)
    np.testing.assert_allclose(case.x, expected, rtol=1e-6)
    assert (case.x.base[:, :4] == ASIDE).all()
    assert (case.x.base[:, -5:] == ASIDE).all()


LARGE = [
    ConvolutionShape(1, 28, 28, 20, 5, pool=2, channels_first=True),
    ConvolutionShape(20, 12, 12, 50, 5, pool=2),
    ConvolutionShape(3, 20, 20, 8, 11, pad=5, channels_first=True),
    ConvolutionShape(64, 30, 30, 40, 3, pad=1, pool=3),  # a row of blocks is beyond a band
    ConvolutionShape(64, 30, 30, 40, 3, pad=1, pool=2, pooling="mean"),
]


@pytest.mark.parametrize("shape", LARGE)
@pytest.mark.parametrize("units", ["bernoulli", "tanh"])
def test_more_than_a_band_and_other_units(shape, units):
    case = Case(shape, 13 if shape.height < 30 else 2)
    case.weight /= 16
    ours, theirs = case.up(FORMS["convolve"], units), case.up(convolve.__wrapped__, units)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-6)
    assert (ours[1] == theirs[1]).all()
    for name, form in (("gradient", convolve_gradient), ("back", convolve_back)):
        ours, theirs = (getattr(case, name)(f) for f in (FORMS[form.__name__], form.__wrapped__))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-3)
        assert (getattr(case, name)(FORMS[form.__name__]) == ours).all(), "the same bits again"


@pytest.mark.parametrize("shape", [LARGE[1], replace(LARGE[1], pooling="mean")])
def test_filters_have_the_bits_of_the_whole(shape):
    case = Case(shape, 5)
    case.x[...] = case.draws.standard_normal(case.x.shape)
    some, by_filter = slice(7, 30), (5, -1, shape.filters)
    whole, part = (case.up(FORMS["convolve"], "tanh", which)[0] for which in (slice(None), some))
    assert (whole.reshape(by_filter)[..., some] == part.reshape(by_filter)[..., some]).all()
    whole, part = (case.gradient(FORMS["convolve_gradient"], f) for f in (slice(None), some))
    assert (part[:, some] == whole[:, some]).all()


def test_nan_is_larger_than_any_number():
    shape = ConvolutionShape(1, 4, 4, 1, 1, pool=2)
    case = Case(shape, 2)
    case.weight[...], case.bias[...] = 1, 0
    case.x[0, 5] = case.x[1, 0] = np.nan
    ours, theirs = case.up(FORMS["convolve"]), case.up(convolve.__wrapped__)
    np.testing.assert_array_equal(ours[0], theirs[0])
    assert np.isnan(ours[0]).sum() == 2
    np.testing.assert_array_equal(ours[1], theirs[1])


@pytest.mark.parametrize("n", [1, 12])
def test_places_without_rows_are_none(n):
    """The sanitizers tell of what lies outside; here results are compared."""
    case, none = Case(SHAPE), Case(SHAPE, places=False)
    case.places = case.places.base[:0, :n]
    for name in ("gradient", "back"):
        form = FORMS[f"convolve_{name}"]
        np.testing.assert_array_equal(getattr(case, name)(form), getattr(none, name)(form))
    out, scratch = case.filled(*case.delta.shape), case.scratch()
    FORMS["convolve"](case.x, case.weight, case.bias, out, case.places, scratch, SHAPE, "gaussian")
    np.testing.assert_array_equal(out, none.up(FORMS["convolve"])[0])


@pytest.mark.parametrize("others", [(4, 0, 3), (-1, 0, 3), (1e30, 0, 3), (1, 0, 4), (1, -1, 3)])
def test_units_and_filters_that_are_none_are_left_to_numpy(others):
    assert worked({}, (*NUMBERS[:-3], *others)) is NotImplemented


@pytest.mark.parametrize("place", [-1, 4, 1e30, np.nan, np.inf, 1.5])
def test_a_place_that_is_none_has_no_derivative(place):
    case = Case(ConvolutionShape(2, 6, 6, 3, 3, pool=2), 2)
    case.places[0] = place
    for name, form in (("gradient", convolve_gradient), ("back", convolve_back)):
        ours, theirs = (getattr(case, name)(f) for f in (FORMS[form.__name__], form.__wrapped__))
        assert (ours == theirs).all()


SHAPE = ConvolutionShape(2, 6, 6, 3, 3, pool=2)
WRONG = {
    "fewer visible units": {"x": (3, 71)},
    "fewer weights": {"weight": (17, 3)},
    "fewer filters": {"weight": (18, 2)},
    "a matrix of biases": {"bias": (1, 3)},
    "fewer hidden units": {"out": (3, 11)},
    "fewer examples": {"out": (2, 12)},
    "fewer places": {"places": (2, 12)},
    "a smaller scratch": {"scratch": (scratch_size(SHAPE) // 2,)},
    "a matrix of scratch": {"scratch": (1, scratch_size(SHAPE))},
}
ARRAYS = {
    "x": (3, 72),
    "weight": (18, 3),
    "bias": (3,),
    "out": (3, 12),
    "places": (3, 12),
    "scratch": (scratch_size(SHAPE),),
}
NUMBERS = (*shape_numbers(SHAPE), 1, 0, 3)


def worked(shapes, numbers=NUMBERS):
    arrays = [np.zeros(shape, dtype=np.float32) for shape in {**ARRAYS, **shapes}.values()]
    return native.extension.convolve(*arrays, numbers)


def test_what_fits_is_worked():
    assert worked({}) is None


@pytest.mark.parametrize("what", WRONG)
def test_the_extension_leaves_alone_what_does_not_fit(what):
    assert worked(WRONG[what]) is NotImplemented


@pytest.mark.parametrize("at", [*range(7), 9])  # not those that are yes or no
@pytest.mark.parametrize("number", [-1, 7, 1e9, 1e300, float("nan")])
def test_the_extension_leaves_alone_a_shape_of_other_sizes(at, number):
    assert worked({}, (*NUMBERS[:at], number, *NUMBERS[at + 1 :])) is NotImplemented


@pytest.mark.parametrize("numbers", [None, (), NUMBERS[1:], list(NUMBERS), (*NUMBERS[1:], "3")])
def test_the_extension_refuses_what_are_no_numbers(numbers):
    with pytest.raises(TypeError):
        worked({}, numbers)


def test_arrays_that_share_memory_are_left_to_numpy():
    arrays = [np.zeros(shape, dtype=np.float32) for shape in ARRAYS.values()]
    arrays[4] = arrays[3]
    assert native.extension.convolve(*arrays, NUMBERS) is NotImplemented


def test_steps_of_filters_and_other_units_are_left_to_numpy():
    case = Case(SHAPE)
    out, _ = case.up(convolve, "gaussian", slice(None, None, 2))
    assert (out.reshape(-1, 3)[:, 1] == -7).all()
    assert (out.reshape(-1, 3)[:, ::2] == case.up(convolve)[0].reshape(-1, 3)[:, ::2]).all()
    assert FORMS["visible_means"](case.x, case.bias[:2], SHAPE, "softmax") is NotImplemented
    assert FORMS["visible_means"](case.x, case.bias, SHAPE, "relu") is NotImplemented, "too long"
    ours, theirs = case.up(convolve, "softmax")[0], case.up(convolve.__wrapped__, "softmax")[0]
    assert (ours == theirs).all()


PROGRAMMED = [SHAPE, replace(SHAPE, channels_first=True), LARGE[0]]
ROUNDED = [
    ConvolutionShape(3, 9, 8, 5, 3, pad=1, pool=1, rounded=True),
    ConvolutionShape(2, 8, 8, 5, 3, pool=2, channels_first=True, rounded=True),
]


@pytest.mark.parametrize("shape", [*PROGRAMMED, *ROUNDED], ids=str)
@pytest.mark.parametrize("units", ["gaussian", "relu", "bernoulli"])
def test_a_program_has_the_bits_of_its_equations(shape, units):
    case = Drawn(shape, 4)
    (out, places), bias = case.up(convolve, units), case.whole_numbers(1, shape.channels)[0]
    case.places[...] = places
    own = [np.full_like(a, -7) for a in (out, places, case.weight, case.x)]
    image, sums = case.x.copy(), np.empty(shape.channels, dtype=np.float32)
    pixels = Case(shape, 4).x  # whole numbers, whose sums have no order
    scratch, filters, channels = case.scratch(), (0, shape.filters), (0, min(2, shape.channels))
    up = (case.x, case.weight, case.bias, *own[:2], scratch, shape, units, *filters)
    phases = [
        [[("convolve", *up)]],
        [[("convolve_gradient", case.x, case.delta, own[1], own[2], scratch, shape, *filters)]],
        [[("convolve_back", case.delta, own[1], case.weight, own[3], scratch, shape, *channels)]],
        [[("visible_means", image, bias, shape, units)]],
        [[("sum_channels", pixels, sums, shape)]],
    ]
    program = Program(phases, 0)
    assert program.is_compiled
    in_turn(program, 1)
    back = case.back(convolve_back, slice(*channels))
    expected = (out, places, case.gradient(convolve_gradient), back)
    for ours, theirs in zip(own, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    means = visible_means(case.x.astype(np.float64), bias, shape, units)
    np.testing.assert_allclose(image, means, rtol=1e-6)
    assert (sums == sum_channels(pixels, shape, out=np.empty_like(sums))).all()
