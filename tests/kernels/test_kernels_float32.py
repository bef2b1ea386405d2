"""Products of float32 with the same bits on every processor: their order, and their zeros."""

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from itertools import product

import numpy as np
import pytest
from bfloat16bydefinition import LAYOUTS, laid_out
from compiledproducts import COMPILED, assert_bits, digest, some_factors
from compiledproducts import FLOAT32_FORMS as FORMS
from compiledproducts import compiled as compiled_product

from syncpretrain.kernels import native
from syncpretrain.kernels.precision import multiply_float32

NAN = np.nan
compiled = partial(compiled_product, "multiply_float32")
definition = multiply_float32.__wrapped__


def nearest(exact: Fraction) -> np.float32:
    """Return the float32 nearest to a number, of two as near the even one."""
    if exact == 0:
        return np.float32(0)
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent - 23, -149)
    return np.float32(float(round(exact / unit) * unit))


def sum_of(a, b) -> np.float32:
    """Return the sum of products of two vectors, each term by a fused multiply-add."""
    total = np.float32(0)
    for x, y in zip(a, b, strict=True):
        total = nearest(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(total)))
    return total


ULP = 2.0**-23
HARD = {  # (1 + x y), where rounding the sum to float64 and then to float32 is wrong
    "just above a tie": ([1, 1 + ULP], [1, (2**-24) * (1 - ULP)]),
    "a tie to the even one": ([1, 1], [1, 2.0**-24]),
    "a tie to the even one above": ([1, 1], [1 + ULP, 2.0**-24]),
    "far below a tie": ([1, 2.0**-80], [1 + 2 * ULP, 2.0**-60]),
    "a hair above a tie": ([1, 1, 2.0**-60], [2**24 + 2, 1, 2.0**-60]),
    "a hair below a tie": ([1, 1 + ULP], [-1, 2.0**-24 * (1 + ULP)]),
    "cancelled": ([1 + ULP, 1 + ULP], [1 + ULP, -(1 + ULP)]),
    "what is lost by rounding the product": ([1 + ULP, -1], [1 - ULP, 1]),
    "below 2^-126": ([2.0**-75, 2.0**-70], [2.0**-74, 1.5 * 2.0**-79]),
    "a tie below 2^-126": ([2.0**-75, 1], [1.5 * 2.0**-74, 2.0**-140]),
    "too small": ([2.0**-100, 1], [2.0**-100, 0]),
    "negative and too small": ([-(2.0**-100), 1], [2.0**-100, 0]),
}


@pytest.mark.parametrize("what", HARD)
def test_the_definition_rounds_each_exact_sum_once(what):
    a, b = (np.array(x, dtype=np.float32) for x in HARD[what])
    expected = np.full((1, 1), sum_of(a, b), dtype=np.float32) + np.float32(0)
    assert_bits(definition(a[None], b[:, None]), expected)
    for form in FORMS:
        for one, other in ((a, b), (b, a)):
            wide = np.repeat(other[:, None], 21, axis=1)
            found = compiled(np.repeat(one[None], 8, axis=0), wide, form=form)
            assert_bits(found, np.full((8, 21), expected[0, 0]), form)


def test_the_definition_is_that_of_exact_sums_over_the_whole_range():
    rng = np.random.default_rng(0)
    for spread in (3, 40, 74):
        a, b = some_factors(4, 30, 5, seed=spread)
        a *= np.float32(2.0) ** rng.integers(-spread, spread // 2, a.shape)
        b *= np.float32(2.0) ** rng.integers(-spread, spread // 2, b.shape)
        expected = [[sum_of(a[i], b[:, j]) for j in range(5)] for i in range(4)]
        assert_bits(definition(a, b), np.array(expected, dtype=np.float32) + np.float32(0))


# These bits are the same on every processor, with any version of NumPy and any BLAS.
DIGESTS = {
    (100, 784, 1000): "5f21c2efaa25cd5b",
    (784, 200, 1000): "70e7ba200b4b7207",
    (100, 1000, 784): "6bd28bea72e45079",
    (100, 250, 30): "1c2f679c32eb3022",
    (7, 1300, 65): "30a21b0e8c602dea",
}


@COMPILED
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", DIGESTS)
def test_bits_are_those_of_the_table_for_any_form_and_number_of_threads(shape, form, threads):
    if form == "portable" and shape[0] * shape[1] * shape[2] > 2**20:
        shape = (7, 1300, 65)  # it takes long
    a, b = some_factors(*shape)
    whole, down = np.full((shape[0], shape[2]), NAN, "f4"), np.full((shape[0], shape[2]), NAN, "f4")
    rows, columns = (np.array_split(np.arange(n), threads) for n in (shape[0], shape[2]))

    def work(i):
        own = slice(columns[i][0], columns[i][-1] + 1)
        compiled(a, b[:, own], form=form, out=whole[:, own])
        own = slice(rows[i][0], rows[i][-1] + 1)
        compiled(a[own], b, form=form, out=down[own])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads), timeout=120))
    assert digest(whole) == digest(down) == DIGESTS[shape]


@COMPILED
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("by", range(16))
def test_where_the_numbers_lie_does_not_matter(by, form):
    a, b = some_factors(13, 70, 75)
    expected = definition(a, b)
    for left, right in product(LAYOUTS, LAYOUTS):
        out = np.full((13, 75 + by), NAN, dtype=np.float32)[:, by:]
        factor = laid_out(a, left, beside=by)
        compiled(factor, laid_out(b, right, beside=by + 2), out=out, form=form)
        assert_bits(np.ascontiguousarray(out), expected, left, right)


@COMPILED
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("zeros", [0, 0.5, 0.9])
@pytest.mark.parametrize("columns", [20, 45, 300])  # copied, listed, or neither, by the number
def test_zeros_and_what_is_not_finite_may_lie_anywhere(columns, zeros, form):
    rng = np.random.default_rng(columns)
    for inner in (1, 2, 3, 4, 5, 6, 7, 37):
        a, b = some_factors(14, inner, columns)
        a[:, rng.random(inner) < zeros] = 0
        a[-1, 0], b[0] = 2.0**-140, b[0] * 2.0**100  # smaller than normal numbers, and yet felt
        for k, j in ((-1, -1), (0, rng.integers(columns)), (rng.integers(inner), 0)):
            b[k, j] = rng.choice([np.inf, np.nan, 1])
            expected = definition(a, b)
            for left, right in product(LAYOUTS, LAYOUTS):
                found = compiled(laid_out(a, left), laid_out(b, right), form=form)
                assert_bits(found, expected, inner, left, right)


@COMPILED
@pytest.mark.parametrize("form", FORMS)
def test_a_sum_of_zero_has_no_sign(form):
    tiny = np.float32(1e-30)
    a = np.array([[-tiny, 0], [-tiny, -0.0], [0, -tiny], [-0.0, -0.0]] * 3, dtype=np.float32)
    b = np.full((2, 20), tiny, dtype=np.float32)
    assert_bits(compiled(a, b, form=form), np.zeros((12, 20), dtype=np.float32))
    assert_bits(definition(a, b), np.zeros((12, 20), dtype=np.float32))


@COMPILED
@pytest.mark.parametrize("form", FORMS)
def test_operations_in_registers_are_counted(form):
    lanes = {"portable": 0, "avx2": 8, "avx512": 16}[form]
    sums = {8: 12, 16: 24}.get(lanes, 0)  # as many vectors as there are registers for
    assert native.extension.multiply_in_registers(1000, form) == 2 * 1000 * sums * lanes
    assert native.extension.multiply_in_registers(0, form) == 0
    with pytest.raises(TypeError, match="got 1 arguments; it takes 2"):
        native.extension.multiply_in_registers(1000)
    with pytest.raises(TypeError, match="integer"):
        native.extension.multiply_in_registers(form, form)
    with pytest.raises(ValueError, match="got the form 'none'"):
        native.extension.multiply_in_registers(1, "none")
