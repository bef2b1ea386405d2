"""Products of factors rounded to bfloat16: how factors are rounded, and the order of the sums."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from bfloat16bydefinition import by_pairs, by_tiles, factors
from compiledproducts import BFLOAT16_FORMS as FORMS
from compiledproducts import COMPILED, CPU_FLAGS
from compiledproducts import compiled as compiled_product

from syncpretrain.kernels import native
from syncpretrain.kernels.precision import multiply_bfloat16, rounded

INF, NAN = np.inf, np.nan
compiled = partial(compiled_product, "multiply_bfloat16")
LARGEST = float(np.finfo(np.float32).max)
LARGEST_BFLOAT16 = 255 * 2.0**120
ULP = 2.0**-7  # of a bfloat16 from 1 to 2
ROUNDED = {
    "zero": (0.0, 0.0),
    "negative zero": (-0.0, -0.0),
    "one": (1.0, 1.0),
    "a tie to the even one below": (1 + ULP / 2, 1.0),
    "a tie to the even one above": (1 + 3 * ULP / 2, 1 + 2 * ULP),
    "a negative tie": (-1 - 3 * ULP / 2, -1 - 2 * ULP),
    "just above a tie": (1 + ULP / 2 + 2.0**-23, 1 + ULP),
    "just below a tie": (1 + 3 * ULP / 2 - 2.0**-23, 1 + ULP),
    "a tie to the next power of two": (2 - ULP / 2, 2.0),
    "the largest bfloat16": (LARGEST_BFLOAT16, LARGEST_BFLOAT16),
    "just below a tie with infinity": (511 * 2.0**119 - 2.0**104, LARGEST_BFLOAT16),
    "a tie with infinity": (511 * 2.0**119, INF),
    "the largest float32": (LARGEST, INF),
    "the least float32": (-LARGEST, -INF),
    "infinity": (INF, INF),
    "negative infinity": (-INF, -INF),
    "the smallest with all digits": (2.0**-126, 2.0**-126),
    "one that is smaller": (2.0**-126 - 2.0**-149, 0.0),
    "a negative one that is smaller": (-(2.0**-127), -0.0),
    "the smallest float32": (2.0**-149, 0.0),
    "a small tie": (2.0**-126 * (1 + ULP / 2), 2.0**-126),
}
QUIET, SIGNALLING, ALL_ONES = 0x7FC00001, 0x7F800001, 0xFFFFFFFF  # numbers that are none


def as_float(bits: int) -> np.float32:
    return np.array([bits], dtype=np.uint32).view(np.float32)[0]


@pytest.mark.parametrize("what", ROUNDED)
def test_factors_are_rounded_to_the_nearest_and_of_two_to_the_even_one(what):
    number, expected = ROUNDED[what]
    found = rounded(np.full(3, number, dtype=np.float32))
    np.testing.assert_array_equal(found, np.full(3, expected, dtype=np.float32))
    assert (np.signbit(found) == np.signbit(expected)).all()


@pytest.mark.parametrize("bits", [QUIET, SIGNALLING, ALL_ONES])
def test_what_is_not_a_number_stays_none(bits):
    assert np.isnan(rounded(np.full(2, as_float(bits)))).all()


def test_rounding_is_that_of_the_nearest_of_all_bfloat16():
    every = (np.arange(0x0080, 0x7F80, dtype=np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(rounded(every), every)
    between = np.random.default_rng(0).random(len(every) - 1)
    low, high = every[:-1].astype(np.float64), every[1:].astype(np.float64)
    x = (low + between * (high - low)).astype(np.float32)
    nearest = np.where(x - low < high - x, low, high)
    np.testing.assert_array_equal(rounded(x), nearest.astype(np.float32))
    np.testing.assert_array_equal(rounded(-x), -nearest.astype(np.float32))


def test_other_types_and_strides_are_rounded_as_float32():
    x = np.random.default_rng(0).standard_normal((6, 8))
    expected = rounded(x.astype(np.float32))
    for have in (x, x[::-1][::-1], np.asfortranarray(x)):
        np.testing.assert_array_equal(rounded(have), expected)
    np.testing.assert_array_equal(rounded(x[::2, ::3]), expected[::2, ::3])
    assert rounded(x).dtype == np.float32


def test_the_factors_are_not_written_to():
    x, y = (np.random.default_rng(i).random((5, 5), dtype=np.float32) for i in range(2))
    copies = x.copy(), y.copy()
    multiply_bfloat16(x, y)
    rounded(x)
    np.testing.assert_array_equal((x, y), copies)


@COMPILED
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", ROUNDED)
def test_compiled_products_round_as_numpy_does(what, form):
    number, expected = ROUNDED[what]
    for rows, columns in ((1, 1), (3, 1), (33, 1), (1, 33)):
        x = np.full((rows, columns), number, dtype=np.float32)
        one = np.ones((1, 1), dtype=np.float32)
        for a, b in ((x, one),) if columns == 1 else ((one, x),):
            found = compiled(a, b, form=form)
            np.testing.assert_array_equal(found, np.full_like(x, expected) + 0)


@COMPILED
@pytest.mark.skipif(not CPU_FLAGS, reason="this system does not list what its CPU has")
def test_forms_with_instructions_are_those_that_the_cpu_has():
    assert ("pairs" in FORMS) == ({"avx512bw", "avx512vl", "avx512_bf16"} <= CPU_FLAGS)
    if "tiles" in FORMS:  # which the kernel may refuse
        assert {"amx_tile", "amx_bf16"} <= CPU_FLAGS


@COMPILED
def test_the_orders_of_sums_differ_in_their_bits():
    a, b = factors(20, 784, 30)
    assert {"portable pairs", "portable tiles"} <= set(FORMS)
    assert (by_pairs(a, b) != by_tiles(a, b)).any()
    assert native.extension.bfloat16_forms()[0] == FORMS[0]
    np.testing.assert_array_equal(multiply_bfloat16(a, b), compiled(a, b, form=FORMS[0]))


def test_factors_of_float64_are_products_of_float32():
    a, b = factors(6, 20, 5)
    found = multiply_bfloat16(a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(found, by_pairs(a, b), rtol=1e-5, atol=1e-5)
    assert found.dtype == np.float32
