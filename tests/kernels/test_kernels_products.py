"""What products of float32 and of bfloat16 have in common: every compiled form of both."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from bfloat16bydefinition import LAYOUTS, definition_of, factors, laid_out
from compiledproducts import (
    BFLOAT16_FORMS,
    COMPILED,
    FLOAT32_FORMS,
    LEFT_TO_NUMPY,
    A,
    B,
    assert_bits,
    compiled,
    some_factors,
)

from syncpretrain.kernels import native
from syncpretrain.kernels.precision import multiply_float32

pytestmark = COMPILED
INF, NAN = np.inf, np.nan
OUT = LEFT_TO_NUMPY["float64"][2]


class Case(NamedTuple):
    """A compiled form of a product, and what it is compared with."""

    name: str
    form: str
    factors: Callable[..., tuple[np.ndarray, np.ndarray]]
    definition: Callable[[np.ndarray, np.ndarray], np.ndarray]
    check: Callable[[np.ndarray, np.ndarray], None]

    def __call__(self, a, b, *, out: np.ndarray | None = None) -> np.ndarray:
        return compiled(self.name, a, b, form=self.form, out=out)


FUNCTIONS = ("multiply_float32", "multiply_bfloat16")
CASES = [
    Case("multiply_float32", form, some_factors, multiply_float32.__wrapped__, assert_bits)
    for form in FLOAT32_FORMS
]
CASES += [
    Case("multiply_bfloat16", form, factors, definition_of(form), np.testing.assert_array_equal)
    for form in BFLOAT16_FORMS
]
every_form = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {case.form}")


@every_form
@pytest.mark.parametrize(
    "shape",
    [(1, 3, 1), (7, 9, 17), (6, 16, 64), (3, 16, 128), (13, 1025, 65), (13, 1025, 129), (3, 0, 4)],
)
def test_nothing_is_written_beside_a_product(shape, case):
    a, b = case.factors(*shape)
    wide = np.full((len(a) + 2, b.shape[1] + 40), 77, dtype=np.float32)
    out = wide[1:-1, 19:-21]
    case(a, b, out=out)
    case.check(np.ascontiguousarray(out), case.definition(a, b))
    out[:] = 77
    assert (wide == 77).all()


@every_form
def test_a_part_of_a_product_has_the_bits_of_the_whole(case):
    a, b = case.factors(140, 1100, 150)
    whole = case(a, b)
    rng = np.random.default_rng(2)
    for _ in range(20):
        i, j = sorted(rng.integers(0, 141, 2)), sorted(rng.integers(0, 151, 2))
        rows, columns = slice(*i), slice(*j)
        part = case(a[rows], b[:, columns])
        case.check(part, np.ascontiguousarray(whole[rows, columns]))
        part = case(b.T[columns], a.T[:, rows])
        case.check(part, np.ascontiguousarray(whole[rows, columns].T))


@every_form
def test_a_product_may_be_that_of_one_matrix_with_itself(case):
    a, _ = case.factors(21, 37, 1)
    found = case(a, a.T)
    case.check(found, case.definition(a, a.T))
    np.testing.assert_array_equal(found, found.T)


@every_form
@pytest.mark.parametrize("share", [0.0, 0.1, 0.9, 1.0])
@pytest.mark.parametrize("shape", [(1, 2, 1), (10, 31, 17), (28, 784, 130), (50, 1100, 20)])
def test_zeros_add_nothing_wherever_they_are(shape, share, case):
    a, b = case.factors(*shape)
    rng = np.random.default_rng(4)
    a[rng.random(a.shape) >= share] = rng.choice([0, -0.0])
    a[:, : a.shape[1] // 3] = -0.0  # as at the edge of images
    a[len(a) // 2 : len(a) // 2 + 7] = 0
    expected = case.definition(a, b)
    for left, right in product(LAYOUTS, LAYOUTS):
        case.check(case(laid_out(a, left), laid_out(b, right)), expected)


@pytest.mark.filterwarnings("ignore:invalid value")
@every_form
@pytest.mark.parametrize("rows", [9, 19])
@pytest.mark.parametrize("columns", [5, 64, 300])
@pytest.mark.parametrize("what", [INF, -INF, NAN, -NAN])
def test_zeros_times_what_is_not_finite_are_not_a_number(what, columns, rows, case):
    a, b = np.zeros((rows, 40), dtype=np.float32), np.ones((40, columns), dtype=np.float32)
    for row in (0, 21, 39):
        b[:] = 1
        b[row, columns - 1] = what
        for left, right in product(LAYOUTS, LAYOUTS):
            found = case(laid_out(a, left), laid_out(b, right))
            assert np.isnan(found[:, -1]).all()
            assert (found[:, :-1] == 0).all()


@every_form
@pytest.mark.parametrize("what", LEFT_TO_NUMPY)
def test_what_has_no_compiled_form_is_left_to_numpy_untouched(what, case):
    before = [np.array(x, copy=True) for x in LEFT_TO_NUMPY[what]]
    function = getattr(native.extension, case.name)
    assert function(*LEFT_TO_NUMPY[what], case.form) is NotImplemented
    for x, old in zip(LEFT_TO_NUMPY[what], before, strict=True):
        np.testing.assert_array_equal(x, old)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("arguments", [(), (A, B, OUT), (A, B, OUT, None, 1)])
def test_another_number_of_arguments_is_refused(arguments, name):
    with pytest.raises(TypeError, match=f"got {len(arguments)} arguments; it takes 4"):
        getattr(native.extension, name)(*arguments)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "form", ["", "avx", "pair", "fast tiles", True, 1, b"portable", b"portable pairs"]
)
def test_an_unknown_form_is_refused(form, name):
    with pytest.raises(ValueError, match=rf"got the form {form!r}, which this CPU does not have"):
        getattr(native.extension, name)(A, B, OUT, form)
