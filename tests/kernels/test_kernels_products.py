"""Products of float32 and bfloat16 in every form, compiled or emulated; rounding of factors."""

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from itertools import product
from types import ModuleType
from typing import NamedTuple

import emulatedtiles
import numpy as np
import pytest
from bfloat16bydefinition import LAYOUTS, by_pairs, by_tiles, definition_of, factors, laid_out
from compiledproducts import (
    BFLOAT16_FORMS,
    COMPILED,
    CPU_FLAGS,
    FLOAT32_FORMS,
    LEFT_TO_NUMPY,
    PACKED,
    REFUSED,
    A,
    B,
    assert_bits,
    compiled,
    some_factors,
)

from syncpretrain.kernels import native
from syncpretrain.kernels.precision import PRECISIONS, multiply_bfloat16, multiply_float32, rounded
from syncpretrain.kernels.program import Program, in_turn

INF, NAN = np.inf, np.nan
OUT = LEFT_TO_NUMPY["float64"][2]


class Case(NamedTuple):
    """A compiled form of a product, and what it is compared with."""

    name: str
    form: str
    factors: Callable[..., tuple[np.ndarray, np.ndarray]]
    definition: Callable[[np.ndarray, np.ndarray], np.ndarray]
    check: Callable[[np.ndarray, np.ndarray], None]

    def told(self) -> str:
        return f"{self.name} {self.form}"

    def __call__(self, a, b, *, out: np.ndarray | None = None) -> np.ndarray:
        return compiled(self.name, a, b, form=self.form, out=out)


CASES = [
    Case("multiply_float32", form, some_factors, multiply_float32.__wrapped__, assert_bits)
    for form in FLOAT32_FORMS
]
CASES += [
    Case("multiply_bfloat16", form, factors, definition_of(form), np.testing.assert_array_equal)
    for form in BFLOAT16_FORMS
]


@cache
def emulated() -> ModuleType:
    return emulatedtiles.loaded(emulatedtiles.library())


class Emulated(Case):
    """A form of the extension with emulated tiles; they must be used without a fault."""

    def __call__(self, a, b, *, out: np.ndarray | None = None) -> np.ndarray:
        functions = emulatedtiles.functions_of(emulatedtiles.library())
        out = np.full((len(a), b.shape[1]), NAN, dtype=np.float32) if out is None else out
        assert emulated().multiply_bfloat16(a, b, out, self.form) is out
        assert functions.take_fault() is None
        assert not functions.tiles_in_use()
        return out


EMULATED = [
    Emulated("emulated", form, factors, by_tiles, np.testing.assert_array_equal)
    for form in ("tiles", "portable tiles")
]
EQUATIONS = {"multiply_float32": multiply_float32, "multiply_bfloat16": multiply_bfloat16}
ROUNDS = {"multiply_float32": np.float32, "multiply_bfloat16": rounded, "emulated": rounded}
NO_MATRICES = ("a vector", "many matrices")  # of which own products of float32 have no definition
LEFT = [
    (name, what)
    for name, what in product(EQUATIONS, LEFT_TO_NUMPY)
    if name == "multiply_bfloat16" or what not in NO_MATRICES
]
EDGES = (1, 2, 3, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 30, 31, 32, 33, 47, 48, 63, 64, 65, 97)
EDGES = (*EDGES, 127, 128, 129)
SHAPES = [
    *(tuple(np.random.default_rng(i).choice(EDGES, 3).tolist()) for i in range(100)),
    *((5, k, 70) for k in (511, 512, 513, 516, 517, 1021, 1022, 1023, 1024, 1025, 1026)),
    *((5, k, 70) for k in (2047, 2048, 2049)),
    *((rows, 512, 3) for rows in (251, 252, 253, 254, 505)),  # rows of a block, of float32
    *((rows, 1024, 3) for rows in (127, 128, 129, 257)),  # and of bfloat16
    *((1019, 2, 1), (1020, 1, 2), (1021, 2, 2), (2041, 3, 17)),
    *((65535, 2, 1), (65536, 1, 2), (65537, 2, 2)),
    *((0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)),
]
compiled_form = pytest.mark.parametrize("case", CASES, ids=Case.told)
every_form = pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(case, marks=PACKED) for case in EMULATED)], ids=Case.told
)


@COMPILED
@pytest.mark.skipif(not CPU_FLAGS, reason="this system does not list what its CPU has")
def test_forms_with_instructions_are_those_that_the_cpu_has():
    for form, flags in {
        "avx2": {"avx2", "fma"},
        "avx512": {"avx512bw", "avx512vl", "avx512dq"},
        "pairs": {"avx512bw", "avx512vl", "avx512_bf16"},
    }.items():
        assert (form in (*FLOAT32_FORMS, *BFLOAT16_FORMS)) == (flags <= CPU_FLAGS), form
    if "tiles" in BFLOAT16_FORMS:  # which the kernel may refuse
        assert {"amx_tile", "amx_bf16"} <= CPU_FLAGS
    assert FLOAT32_FORMS[-1] == "portable"


@every_form
@pytest.mark.parametrize("shape", SHAPES)
def test_every_form_has_the_bits_of_its_definition(shape, case):
    a, b = case.factors(*shape)
    expected = case.definition(a, b)
    for left, right in product(LAYOUTS, LAYOUTS):
        case.check(case(laid_out(a, left), laid_out(b, right)), expected)


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


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
@every_form
@pytest.mark.parametrize("inner", [3, 4, 41])
@pytest.mark.parametrize("columns", [40, 64])
def test_what_is_not_finite_reaches_the_product_as_in_numpy(columns, inner, case):
    a, b = case.factors(20, inner, columns)
    a[3, 0], a[5, 2], a[7, 1], a[9, 0] = INF, NAN, -INF, -INF
    if case.name != "multiply_float32":
        a[9, 1] = np.finfo(np.float32).max  # which rounds to infinity
    b[1, 5], b[2, 6], b[0, 39] = -INF, NAN, 0
    a[::2] = 0
    expected = ROUNDS[case.name](a) @ ROUNDS[case.name](b)
    assert np.isnan(expected).any()
    assert np.isinf(expected).any()
    for left, right in product(LAYOUTS, LAYOUTS):
        found = case(laid_out(a, left), laid_out(b, right))
        special = ~np.isfinite(expected)
        np.testing.assert_array_equal(found[special], expected[special])
        assert np.isfinite(found[~special]).all()
        case.check(found, case.definition(a, b))


@compiled_form
@pytest.mark.parametrize("what", LEFT_TO_NUMPY)
def test_what_has_no_compiled_form_is_left_to_numpy_untouched(what, case):
    before = [np.array(x, copy=True) for x in LEFT_TO_NUMPY[what]]
    function = getattr(native.extension, case.name)
    assert function(*LEFT_TO_NUMPY[what], case.form) is NotImplemented
    for x, old in zip(LEFT_TO_NUMPY[what], before, strict=True):
        np.testing.assert_array_equal(x, old)


@COMPILED
@pytest.mark.parametrize("name", EQUATIONS)
@pytest.mark.parametrize("arguments", [(), (A, B, OUT), (A, B, OUT, None, 1)])
def test_another_number_of_arguments_is_refused(arguments, name):
    with pytest.raises(TypeError, match=f"got {len(arguments)} arguments; it takes 4"):
        getattr(native.extension, name)(*arguments)


@COMPILED
@pytest.mark.parametrize("name", EQUATIONS)
@pytest.mark.parametrize(
    "form", ["", "avx", "pair", "fast tiles", True, 1, b"portable", b"portable pairs"]
)
def test_an_unknown_form_is_refused(form, name):
    with pytest.raises(ValueError, match=rf"got the form {form!r}, which this CPU does not have"):
        getattr(native.extension, name)(A, B, OUT, form)


@pytest.mark.parametrize("name", EQUATIONS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 9, 3), (30, 130, 70), (100, 784, 50)])
def test_products_are_near_to_those_of_the_exact_or_rounded_factors(shape, name):
    a, b = factors(*shape, seed=3)
    left, right = (ROUNDS[name](x).astype(np.float64) for x in (a, b))
    bound = shape[1] * 2.0**-24 * (abs(left) @ abs(right))
    for form in (EQUATIONS[name], EQUATIONS[name].__wrapped__):
        out = np.empty((len(a), b.shape[1]), dtype=np.float32)
        assert form(a, b, out=out) is out
        assert (abs(out - left @ right) <= bound).all()
        assert_bits(form(a, b), out)
    for case in CASES:
        assert case.name != name or (abs(case(a, b) - left @ right) <= bound).all(), case.form
    if name == "multiply_bfloat16":
        assert (out != a @ b).any(), "rounding matters"


@pytest.mark.parametrize(("name", "what"), LEFT)
def test_numpy_decides_what_it_is_left(name, what):
    multiply = EQUATIONS[name]
    if what in REFUSED:
        a, b, out = LEFT_TO_NUMPY[what]
        with pytest.raises(ValueError, match=r"mismatch|read-only"):
            multiply(a, b, out=out)
        return
    a, b, out = deepcopy(LEFT_TO_NUMPY[what])  # a product may still be one of its factors
    if name == "multiply_float32":
        expected = multiply.__wrapped__(np.float32(a), np.float32(b))
    else:
        expected = rounded(np.asarray(a)) @ rounded(b)
    found = multiply(a, b, out=out)
    assert found is out
    if name == "multiply_float32":
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


PROGRAMS = [("matmul_float32", case) for case in CASES if case.name == "multiply_float32"]
PROGRAMS += [(PRECISIONS["bfloat16"].operation, CASES[len(FLOAT32_FORMS)])] if CASES else []


@pytest.mark.usefixtures("usual_form")
@pytest.mark.parametrize(("operation", "case"), PROGRAMS, ids=[case.told() for _, case in PROGRAMS])
@pytest.mark.parametrize("shape", [(5, 8, 3), (50, 130, 66), (20, 1030, 40)])
def test_compiled_and_interpreted_programs_have_the_bits_of_the_definition(shape, operation, case):
    a, b = case.factors(*shape)
    half = shape[2] // 2
    if case.name == "multiply_float32":
        native.extension.keep_float32_form(case.form)
        assert native.extension.float32_forms()[0] == case.form
        assert sorted(native.extension.float32_forms()) == sorted(FLOAT32_FORMS)
    for run in (Program.work, lambda own: in_turn(own.phases, 2)):
        out, square = np.empty((shape[0], shape[2]), "f4"), np.empty((shape[1], shape[2]), "f4")
        shards = [
            [(operation, a, b[:, own], out[:, own])]
            for own in (slice(None, half), slice(half, None))
        ]
        program = Program([shards, [[(operation, a.T, out, square)], []]], 0)
        assert program.is_compiled
        run(program)
        assert_bits(out, case.definition(a, b))
        assert_bits(square, case.definition(a.T, out))


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


@pytest.mark.parametrize("what", ROUNDED)
def test_factors_are_rounded_to_the_nearest_and_of_two_to_the_even_one(what):
    number, expected = ROUNDED[what]
    found = rounded(np.full(3, number, dtype=np.float32))
    np.testing.assert_array_equal(found, np.full(3, expected, dtype=np.float32))
    assert (np.signbit(found) == np.signbit(expected)).all()


@pytest.mark.parametrize("bits", [QUIET, SIGNALLING, ALL_ONES])
def test_what_is_not_a_number_stays_none(bits):
    assert np.isnan(rounded(np.full(2, bits, np.uint32).view(np.float32))).all()


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
@pytest.mark.parametrize("form", BFLOAT16_FORMS)
@pytest.mark.parametrize("what", ROUNDED)
def test_compiled_products_round_as_numpy_does(what, form):
    number, expected = ROUNDED[what]
    for rows, columns in ((1, 1), (3, 1), (33, 1), (1, 33)):
        x = np.full((rows, columns), number, dtype=np.float32)
        one = np.ones((1, 1), dtype=np.float32)
        a, b = (x, one) if columns == 1 else (one, x)
        found = compiled("multiply_bfloat16", a, b, form=form)
        np.testing.assert_array_equal(found, np.full_like(x, expected) + 0)


@COMPILED
def test_the_orders_of_sums_differ_in_their_bits():
    a, b = factors(20, 784, 30)
    assert {"portable pairs", "portable tiles"} <= set(BFLOAT16_FORMS)
    assert (by_pairs(a, b) != by_tiles(a, b)).any()
    assert native.extension.bfloat16_forms()[0] == BFLOAT16_FORMS[0]
    found = compiled("multiply_bfloat16", a, b, form=BFLOAT16_FORMS[0])
    np.testing.assert_array_equal(multiply_bfloat16(a, b), found)


def test_factors_of_float64_are_products_of_float32():
    a, b = factors(6, 20, 5)
    found = multiply_bfloat16(a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(found, by_pairs(a, b), rtol=1e-5, atol=1e-5)
    assert found.dtype == np.float32
