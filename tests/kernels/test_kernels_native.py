"""The compiled kernels against the NumPy forms, and what happens where they are missing."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from unitkinds import KINDS, MEANS, RBM_UNITS

from syncpretrain.kernels import activations, backprop, contrastive_divergence, native, optimizers
from syncpretrain.kernels.dispatch import equations, registered
from syncpretrain.kernels.program import Program, in_turn
from syncpretrain.parallel import waiting
from syncpretrain.rng import Address, Purpose

ROOT = Path(__file__).parents[2]
compiled = pytest.mark.skipif(not native.available(), reason="the compiled kernels are not in use")
SHAPES = [(1, 1), (1, 1000), (1000, 1), (3, 7), (100, 30), (7, 513), (5, 2500), (0, 4), (4, 0)]
LAYOUTS = ("whole", "columns")
UNITS = tuple(native.extension.UNITS) if native.available() else ()
SIGMOID = {"rtol": 1e-6, "atol": 1e-38}
FORMS = registered(np.ndarray)
NUMPY_FORMS = {
    name: getattr(module, name).__wrapped__
    for module in (activations, backprop, contrastive_divergence, optimizers)
    for name in FORMS
    if hasattr(module, name) and getattr(module, name).__module__ == module.__name__
}


def array(shape, seed, *, layout="whole", spread=1.0):
    """Return float32 normal draws, as an array of their own or as columns of a wider one."""
    draws = np.random.default_rng(seed)
    values = (spread * draws.standard_normal(shape)).astype(np.float32)
    if layout == "whole":
        return values
    return within(values)


def within(values):
    """Return an array as columns of a wider one of 77."""
    wide = np.full((*values.shape[:-1], values.shape[-1] + 9), 77, dtype=np.float32)
    wide[..., 4:-5] = values
    return wide[..., 4:-5]


def both(name, arrays, *args, **options):
    """Call the compiled form and the NumPy form with copies; return results and arrays of both."""
    outcomes = []
    for form in (FORMS[name], NUMPY_FORMS[name]):
        own = {key: a.copy() if a.base is None else within(a) for key, a in arrays.items()}
        plain = [a for key, a in own.items() if key not in OUTPUTS]
        named = {key: a for key, a in own.items() if key in OUTPUTS}
        with np.errstate(all="ignore"):
            result = form(*plain, *args, **named, **options)
        assert result is not NotImplemented, name
        for a in own.values():
            if a.base is not None:
                assert (a.base[..., :4] == 77).all(), "wrote beside the array"
                assert (a.base[..., -5:] == 77).all(), "wrote beside the array"
        outcomes.append((result, own))
    return outcomes


OUTPUTS = {"da", "db", "out", "noise"}  # given by their names


def assert_bits(a, b):
    np.testing.assert_array_equal(a, b)


@compiled
def test_every_form_is_compared_here():
    # these in test_convolution_native.py, test_sparse.py, test_binary_products.py,
    # test_kernels_products.py and test_fixed_draws.py
    elsewhere = {"convolve", "convolve_gradient", "convolve_back", "visible_means"}
    elsewhere |= {"sparse_product", "transposed_product", "csr_product", "draw_documents"}
    elsewhere |= {"reconstruct_documents", "binary_product", "multiply_bfloat16"}
    elsewhere |= {"multiply_float32", "fill_normal"}
    assert set(NUMPY_FORMS) | elsewhere == set(FORMS)
    assert len(FORMS) == 23


@compiled
@pytest.mark.parametrize("units", UNITS)
def test_extreme_inputs(units):
    x = np.array([[1e4, -1e4, np.inf, -np.inf, np.nan, -np.nan, 3e38, -3e38, 0, -0.0, 1e-40]], "f4")
    x = np.tile(x, (3, 5)).copy()  # in the vectors' middle and in the rest of a row
    bias = np.zeros(x.shape[1], dtype=np.float32)
    ours, theirs = (own["x"] for _, own in both("means", {"x": x, "bias": bias}, units))
    assert_bits(ours, theirs)
    if units == "bernoulli":
        assert ours[0, :4].tolist() == [1, 0, 1, 0]
        assert np.isnan(ours[0, 4:6]).all()


@compiled
@pytest.mark.parametrize("units", [name for name in UNITS if KINDS[name].is_bounded])
@pytest.mark.parametrize("ends", [(-87, 40), (-0.1, 0.1), (-1e-30, 1e-30)])
def test_a_mean_is_within_three_units_in_the_last_place_of_its_true_value(units, ends):
    x = np.linspace(*ends, 200_001, dtype=np.float32).reshape(1, -1)
    true = MEANS[units](x.astype(np.float64))
    FORMS["means"](x, np.zeros(x.shape[1], dtype=np.float32), units)
    assert (np.abs(x - true) <= 3 * np.spacing(np.abs(true).astype(np.float32))).all()
    assert (np.diff(x) >= -2 * np.spacing(np.abs(x[:, 1:]))).all()


@compiled
def test_a_mean_does_not_depend_on_where_it_stands():
    x = array((1, 257), 3, spread=6)
    zeros = np.zeros(257, dtype=np.float32)
    each = [FORMS["means"](v.reshape(1, 1).copy(), zeros[:1], UNITS[0]) for v in x.T]
    alone = np.concatenate(each)
    for start in range(40):
        own = FORMS["means"](x[:, start:].copy(), zeros[start:], UNITS[0])
        assert_bits(own.ravel(), alone[start:].ravel())


@compiled
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 127, 128, 129, 2047, 2048, 2049, 100_003])
def test_the_uniform_numbers_are_numpys(count):
    out = np.full(count, 9, dtype=np.float32)
    most = 2**64 - 1
    for address in [
        Address(0, Purpose.HIDDEN),
        Address(most, Purpose.VISIBLE, 3, most, most, most),
        Address(20, Purpose.CORRUPTION, 1, epoch=5, step=599, shard=2 | 1 << 32),
    ]:
        assert native.extension.uniform(out, address.key, address.counter) is out
        assert_bits(out, address.generator().random(count, dtype=np.float32))


@compiled
@pytest.mark.parametrize(("shape", "layout"), list(product(SHAPES, LAYOUTS)))
def test_states(shape, layout):
    address = Address(7, Purpose.HIDDEN, layer=2, epoch=3, step=4, shard=5)
    x, out = array(shape, 1, layout=layout), array(shape, 2, layout=layout)
    arrays = {"x": x, "bias": array(shape[1:], 3), "noise": array(shape, 4), "out": out}
    (result, ours), (_, theirs) = both("sample_states", arrays, "bernoulli", address)
    assert result is ours["out"]
    np.testing.assert_allclose(ours["x"], theirs["x"], **SIGMOID)
    uniform = address.generator().random(shape, dtype=np.float32)
    assert_bits(ours["out"], uniform < ours["x"])
    unclear = np.isclose(uniform, theirs["x"], **SIGMOID)  # between the two forms' means
    assert_bits(ours["out"][~unclear], theirs["out"][~unclear])


@compiled
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("rows", "groups", "choices"),
    [(9, 100, 21), (50, 3, 1), (60, 7, 2), (4, 1, 3000), (2, 5, 400)],
)
def test_choices(rows, groups, choices, layout):
    address = Address(7, Purpose.VISIBLE, layer=2, epoch=3, step=4, shard=5)
    shape = (rows, groups * choices)
    x, out = array(shape, 1, layout=layout, spread=3), array(shape, 2, layout=layout)
    arrays = {"x": x, "bias": array(shape[1:], 3), "noise": array(shape, 4), "out": out}
    units = f"softmax:{groups}x{choices}"
    (result, ours), (_, theirs) = both("sample_states", arrays, units, address)
    assert result is ours["out"]
    np.testing.assert_allclose(ours["x"], theirs["x"], rtol=1e-5, atol=1e-38)
    shares, states = (ours[key].reshape(rows * groups, choices) for key in ("x", "out"))
    uniform = address.generator().random(shape, dtype=np.float32)
    limits = np.cumsum(shares, axis=1)[:, :-1]
    first = uniform.reshape(shares.shape)[:, :1]
    assert_bits(states, np.arange(choices) == (limits <= first).sum(axis=1, keepdims=True))
    is_clear = ~np.isclose(limits, first, rtol=1e-5, atol=0).any(axis=1)
    assert_bits(states[is_clear], theirs["out"].reshape(states.shape)[is_clear])


@compiled
def test_choices_beside_others_and_other_units_draw_with_numpy():
    x, out, address = array((4, 6), 1), array((4, 6), 2), Address(7, Purpose.VISIBLE)
    blocks = ("bernoulli:2,softmax:2x2", "softmax:1x2,softmax:2x2", "counts:6")
    for units in (*blocks, *set(RBM_UNITS) - set(native.extension.DRAWN)):
        form = FORMS["sample_states"]
        assert form(x, x[0].copy(), units, address, noise=x, out=out) is NotImplemented, units
    draw = native.extension.sample_choices
    assert draw(x, x[0].copy(), out, 4, address.key, address.counter) is NotImplemented
    assert draw(x, x[0].copy(), x, 3, address.key, address.counter) is NotImplemented


@compiled
def test_a_number_that_is_no_word_of_the_generator_is_refused():
    x, bias = array((4, 5), 1), array((5,), 2)
    for address in (Address(-1, Purpose.HIDDEN), Address(2**64, Purpose.HIDDEN)):
        with pytest.raises(OverflowError):
            FORMS["sample_states"](x, bias, "bernoulli", address, noise=x, out=x.copy())


@compiled
@pytest.mark.parametrize("whose", [0, 1, 2])
@pytest.mark.parametrize(("shape", "layout"), list(product(SHAPES, LAYOUTS)))
def test_squared_error(shape, layout, whose):
    arrays = [array(shape, seed, layout=layout) for seed in (1, 2, 3)]
    x, y, out = arrays[0], arrays[1], arrays[whose]
    difference = y - x
    total = FORMS["squared_error"](x, y, out=out)
    assert isinstance(total, float)
    assert_bits(out, difference)
    expected = (difference.astype(np.float64) ** 2).sum()
    assert total == pytest.approx(expected, rel=1e-6, abs=0)


@compiled
def test_squared_error_tells_what_is_not_finite():
    x, y = array((9, 50), 1), array((9, 50), 2)
    for bad in (np.nan, np.inf):
        y[8, 49] = bad
        assert not np.isfinite(FORMS["squared_error"](x, y, out=np.empty_like(x)))


SPECIAL = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3e38, 0.5], "f4")


def bits(array):
    """Return the bits of numbers, the same for every nan; 0 and -0 differ."""
    return np.where(np.isnan(array), np.float32(np.nan), array).view(np.uint32)


def drawn(draws, *shape):
    """Return normal draws, some of them special, as columns of a wider array or not."""
    values = draws.standard_normal(shape).astype(np.float32)
    places = draws.random(shape) < draws.choice([0, 0.2, 1])
    values[places] = draws.choice(SPECIAL, int(places.sum()))
    return within(values) if draws.random() < 0.5 else values


def same_bits(name, arrays, *args, written, **options):
    """Compare the arrays that both forms write."""
    (_, ours), (_, theirs) = both(name, arrays, *args, **options)
    for key in written:
        np.testing.assert_array_equal(bits(ours[key]), bits(theirs[key]), err_msg=name)


@compiled
@pytest.mark.parametrize(("seed", "shape"), enumerate([None] * 40 + 2 * SHAPES))
def test_both_forms_have_the_same_bits_whatever_the_shape_and_the_numbers(seed, shape):
    draws = np.random.default_rng(seed)
    rows, n, m = (int(draws.choice([0, 1, 2, 3, 17, 65])) for _ in range(3))
    rows, n = shape or (rows, n)
    x, y, z = (drawn(draws, rows, n) for _ in range(3))
    for units in UNITS:
        (result, ours), (_, theirs) = both("means", {"x": x, "bias": drawn(draws, n)}, units)
        assert result is ours["x"]
        if KINDS[units].is_bounded:  # by an exponential, of which NumPy has another
            np.testing.assert_allclose(result, theirs["x"], **SIGMOID)
        else:
            assert_bits(bits(result), bits(theirs["x"]))
        same_bits("times_derivative", {"delta": x, "a": y}, units, written=["delta"])
    if rows and n != 1:  # NumPy adds up a single column in another order
        same_bits("normalize", {"x": x, "spread": drawn(draws, n)}, written=["x", "spread"])
        spread = np.abs(drawn(draws, n))
        normal = {"delta": x, "normal": y, "spread": spread}
        same_bits("denormalize", normal, written=["delta"])
    same_bits("squared_error", {"x": x, "y": y, "out": z}, written=["out"])
    rates = {"learning_rate": draws.choice([0.1, 1e-50]), "momentum": draws.choice([0, 0.9])}
    for decay, l1 in product((0, 1e-3), (0, 1e-3)):
        decays = {"weight_decay": decay, "l1": l1}
        three = {"p": x, "g": y, "v": z}
        same_bits("momentum_step", three, **rates, **decays, written=["p", "v"])
    flat = {key: a.flatten() for key, a in {**three, "w": np.abs(x)}.items()}
    scratch = np.empty(50, dtype=np.float32)
    for step in (1, 3, 1000):
        adam = {"learning_rate": rates["learning_rate"], "step": step, "scratch": scratch}
        same_bits("adam_step", flat, **adam, written=list("pgvw"))
    sgd = {key: flat[key] for key in "pgv"}
    for momentum, nesterov in ((0, False), (0.9, False), (0.9, True)):
        rates |= {"momentum": momentum, "nesterov": nesterov, "scratch": scratch}
        same_bits("sgd_step", sgd, **rates, written=list("pgv"))
    rates |= {"momentum": 0, "nesterov": False}
    same_bits("sgd_step", {**sgd, "v": np.empty(0, "f4")}, **rates, written=["p"])
    if rows:
        two = {"v": drawn(draws, 2 * rows, n), "h": drawn(draws, 2 * rows, m)}
        sums = {"da": drawn(draws, n), "db": drawn(draws, m)}
        same_bits("phase_differences", {**two, **sums}, examples=rows, written=[*two, *sums])


@compiled
@pytest.mark.parametrize("columns", [1, 2, 40])
def test_a_program_sums_rows_as_without_the_extension(columns):
    x = array((1001, columns), 5)
    ours, theirs = np.empty((2, columns), dtype=np.float32)
    in_turn(Program([[[("sum_rows", x, ours)]]], 0), 1)
    contrastive_divergence.sum_rows(x, out=theirs)
    assert_bits(ours, theirs)
    np.testing.assert_array_equal(ours, np.add.accumulate(x)[-1], err_msg="row after row")


@compiled
def test_a_program_counts_a_row_with_nan_as_numpy_does():
    target = np.tile(np.eye(3, dtype=np.float32)[0], (4, 1))
    y = np.array([[9, np.nan, 1], [np.nan, 9, np.nan], [1, 0, 0], [0, np.nan, np.nan]], "f4")
    program = Program([[[("wrong", target, y, 0)]]], 1)
    assert program.is_compiled
    in_turn(program, 1)
    assert program.results[0] == backprop.count_errors(target, y) == 2


def misaligned(array, by):
    """Return a view of an array's numbers that begins ``by`` bytes behind a multiple of 8."""
    memory = np.zeros(array.nbytes + 16, dtype=np.uint8)
    start = -memory.ctypes.data % 8 + by
    memory[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
    flat = memoryview(memory)[start : start + array.nbytes]
    return flat.cast(array.dtype.char, array.shape)


@compiled
@pytest.mark.parametrize("by", range(1, 8))
def test_misaligned_numbers_are_left_to_numpy(by):
    kernels, points = native.extension, np.ones(4)
    ends, shares, factor = np.array([2, 4]), array((2, 3), 1), array((3, 2), 2)
    indices, indptr = np.zeros(2, dtype=np.int32), np.array([0, 1, 2])
    calls = [
        (kernels.draw_documents, [shares, misaligned(points, by), ends]),
        (kernels.draw_documents, [shares, points, misaligned(ends, by)]),
        (kernels.csr_product, [np.ones(2, "f4"), factor, np.ones((2, 2), "f4"), indices]),
    ]
    calls[2][1].append(misaligned(indptr, by))
    if by % 4:
        out = np.ones((2, 2), "f4")
        calls += [
            (kernels.multiply_bfloat16, [misaligned(shares, by), factor, out, None]),
            (kernels.multiply_bfloat16, [shares, misaligned(factor, by), out, None]),
            (kernels.multiply_float32, [shares, misaligned(factor, by), out, None]),
            (kernels.csr_product, [points[:2].astype("f4"), factor, out]),
        ]
        calls[-1][1].extend([misaligned(indices, by), indptr])
    for call, arguments in calls:
        assert call(*arguments) is NotImplemented
    program = Program([[[("scale", shares, 2)]]], 0)
    program._numbers = misaligned(np.zeros(4), by)
    with pytest.raises(ValueError, match="fit no program"):
        program.work()


@compiled
def test_a_result_that_lies_on_the_places_it_is_read_from_is_left_to_numpy():
    memory = np.zeros(64, dtype=np.float32)
    ends, shares = memory.view(np.int64)[:2], memory.reshape(2, 32)
    ends[:] = [2, 4]
    assert native.extension.draw_documents(shares, np.ones(4), ends) is NotImplemented
    data, weight, indices = np.ones(1, "f4"), np.ones((1, 32), "f4"), np.zeros(1, np.int32)
    indptr = memory.view(np.int64)[:3]
    indptr[:] = [0, 1, 1]
    assert native.extension.csr_product(data, weight, shares, indices, indptr) is NotImplemented


def means_refused(x, bias):
    before = x.copy()
    assert FORMS["means"](x, bias, "bernoulli") is NotImplemented
    assert_bits(x, before)


@compiled
def test_what_is_not_rows_of_float32_goes_to_numpy():
    x, bias = array((4, 6), 1), array((6,), 2)
    means_refused(x.astype(np.float64), bias.astype(np.float64))
    means_refused(x.astype(">f4"), bias)
    means_refused(x, bias.astype(np.float64))
    means_refused(np.asfortranarray(x), bias)
    means_refused(array((4, 12), 1)[:, ::2], bias)
    means_refused(x[::-1], bias)
    means_refused(np.lib.stride_tricks.sliding_window_view(x.ravel(), 6, writeable=True), bias)
    means_refused(x.reshape(2, 2, 6), bias)
    means_refused(x, bias[:1])
    means_refused(x, x[:1])
    means_refused(x, x[1])  # which would change meanwhile
    means_refused(
        np.frombuffer(bytearray(97), dtype=np.uint8)[1:].view(np.float32).reshape(4, 6), bias
    )
    assert FORMS["means"](x, bias, "softmax") is NotImplemented


@compiled
def test_numpy_tells_what_is_wrong():
    x, y = array((4, 6), 1), array((4, 5), 2)
    with pytest.raises(ValueError, match="broadcast"):
        backprop.squared_error(x, y, out=x)
    x.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        activations.means(x, x[0].copy(), "bernoulli")


@compiled
def test_arrays_that_overlap_go_to_numpy():
    x = array((1, 100), 1)
    form = FORMS["squared_error"]
    assert form(x[:, :50], x[:, 50:], out=x[:, 1:51]) is NotImplemented
    assert form(x[:, :50], x[:, 50:], out=x[:, 50:]) is not NotImplemented
    wide = array((8, 30), 2)
    assert form(wide[:, :10], wide[:, 10:20], out=wide[:, 20:]) is not NotImplemented
    assert form(wide[:, :10], wide[:, 10:20], out=wide[:, 19:29]) is NotImplemented
    assert form(wide[:4, :10], wide[:4, 10:20], out=wide[1:5, 20:]) is not NotImplemented
    assert form(wide[:4, :10], wide[:4, 10:20], out=wide[1:5, :10]) is NotImplemented


def python(*arguments, cwd=None, **environment):
    command = [sys.executable, *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=60)


CHOSEN = """
import numpy
from syncpretrain.kernels import activations, native
from syncpretrain.kernels.dispatch import registered
print(native.available(), len(registered(numpy.ndarray)))
"""


def test_every_registered_form_is_of_an_equation():
    assert FORMS.keys() <= equations()


MISSING = "import sys; sys.modules['syncpretrain.kernels._native'] = None\n"
COMPILED, NUMPY = ["True", "23"], ["False", "0"]
SUMS = "import syncpretrain.kernels.native as n; print(n.extension.bfloat16_forms()[0].split()[-1])"


@pytest.mark.parametrize(
    ("code", "chosen", "expected"),
    [
        (CHOSEN, {"SYNCPRETRAIN_KERNELS": "numpy"}, NUMPY),
        pytest.param(CHOSEN, {"SYNCPRETRAIN_KERNELS": ""}, COMPILED, marks=compiled),
        pytest.param(CHOSEN, {"SYNCPRETRAIN_KERNELS": "native"}, COMPILED, marks=compiled),
        (MISSING + CHOSEN, {"SYNCPRETRAIN_KERNELS": ""}, NUMPY),
        pytest.param(SUMS, {"SYNCPRETRAIN_BFLOAT16": "pairs"}, ["pairs"], marks=compiled),
        pytest.param(SUMS, {"SYNCPRETRAIN_BFLOAT16": "tiles"}, ["tiles"], marks=compiled),
    ],
)
def test_the_environment_chooses_the_forms_and_the_order_of_sums(code, chosen, expected):
    assert python("-c", code, **chosen).stdout.split() == expected


ORDER = "got SYNCPRETRAIN_BFLOAT16='rows'; expected 'pairs', 'tiles' or none"


@pytest.mark.parametrize(
    ("code", "chosen", "expected"),
    [
        (MISSING + CHOSEN, "native", "NativeKernelsError: got SYNCPRETRAIN_KERNELS=native"),
        (MISSING + CHOSEN, "native", "C compiler"),
        (CHOSEN, "fast", "got SYNCPRETRAIN_KERNELS='fast'; expected 'native', 'numpy'"),
        (CHOSEN, "", ORDER),
        (CHOSEN, "numpy", ORDER),
    ],
)
def test_what_cannot_be_chosen_is_refused(code, chosen, expected):
    order = {"SYNCPRETRAIN_BFLOAT16": "rows"} if expected == ORDER else {}
    assert expected in python("-c", code, SYNCPRETRAIN_KERNELS=chosen, **order).stderr
    assert issubclass(native.NativeKernelsError, ImportError)


def build(folder, compiler):
    for path in ("setup.py", "README.rst", "syncpretrain/__init__.py", "syncpretrain/kernels"):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, target, ignore=shutil.ignore_patterns("*.so", "*.pyc"))
        else:
            shutil.copy(ROOT / path, target)
    arguments = ("setup.py", "build_ext", "--inplace")
    return python(*arguments, cwd=folder, PYTHONPATH="", CC=compiler)


def test_a_machine_without_a_compiler_can_build_the_package(tmp_path):
    pytest.importorskip("setuptools")
    built = build(tmp_path, shutil.which("false") or "false")
    assert built.returncode == 0, built.stderr
    assert "optional" in built.stdout + built.stderr or "failed" in built.stdout + built.stderr
    assert not list(tmp_path.rglob("_native*.so"))


BROKEN = 7  # the counter that breaks waits


@pytest.fixture(params=["compiled", "python"])
def counters(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(waiting, "extension", None)
    elif not native.available():
        pytest.skip("the compiled kernels are not in use")
    return np.zeros(8, dtype=np.int64)


def test_counters_that_have_reached_the_target_are_not_waited_for(counters):
    counters[2:5] = [3, 4, 3]
    assert waiting.wait_for_counters(counters, 2, 3, 3, BROKEN, 0, 10) == 0
    assert waiting.wait_for_counters(counters, 2, 0, 9, BROKEN, 0, 10) == 0, "no counters"


@pytest.mark.parametrize("spin", [0, 0.01, 10])
def test_a_wait_ends_in_time(counters, spin):
    counters[2:5] = [3, 4, 2]
    assert waiting.wait_for_counters(counters, 2, 3, 3, BROKEN, spin, 0.05) == 2
    assert waiting.wait_for_counters(counters, 2, 3, 3, BROKEN, spin, 0) == 2


def test_a_broken_wait_says_so_even_at_its_target(counters):
    counters[BROKEN] = -1
    assert waiting.wait_for_counters(counters, 0, 2, 1, BROKEN, 0, 10) == 1
    assert waiting.wait_for_counters(counters, 0, 2, 0, BROKEN, 0, 10) == 1
    assert waiting.wait_for_counters(counters, 0, 2, 5, BROKEN, 0, 10, arrives=0) == 1
    assert counters[0] == 5


@pytest.mark.parametrize(("counter", "expected"), [(3, 0), (BROKEN, 1)])
@pytest.mark.parametrize("spin", [0, 10])
def test_another_thread_ends_the_wait(counters, spin, counter, expected):
    """The waiting thread holds no lock that the storing one needs."""
    counters[2] = 1
    waits = threading.Event()

    def wait():
        waits.set()
        return waiting.wait_for_counters(counters, 2, 2, 1, BROKEN, spin, 30)

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(wait)
        assert waits.wait(30)
        waiting.store_counter(counters, counter, 1)
        assert found.result(20) == expected


def test_threads_meet_at_every_step(counters):
    """Each sees what all wrote before they arrived, and none runs ahead."""
    workers, steps = 3, 200
    written = np.zeros(workers, dtype=np.int64)

    def work(rank):
        for step in range(1, steps + 1):
            written[rank] = step
            for target in (2 * step - 1, 2 * step):
                waits = 0, workers, target, BROKEN, 1e-4, 30
                assert waiting.wait_for_counters(counters, *waits, arrives=rank) == 0, "in vain"
                assert target == 2 * step or (written == step).all()

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers), timeout=60))
    assert counters[:workers].tolist() == [2 * steps] * workers


def test_a_signal_ends_the_wait(counters):
    def interrupt(signum, frame):
        raise InterruptedError("by the test's handler")

    before = signal.signal(signal.SIGUSR1, interrupt)
    main = threading.main_thread().ident
    sender = threading.Thread(target=lambda: signal.pthread_kill(main, signal.SIGUSR1))
    try:
        with pytest.raises(InterruptedError, match="by the test's handler"):
            sender.start()
            waiting.wait_for_counters(counters, 0, 1, 1, BROKEN, 0, 30)
    finally:
        sender.join(30)
        signal.signal(signal.SIGUSR1, before)


def test_counters_that_are_none_are_refused(counters):
    none = [(-1, 1, 7), (0, 9, 7), (9, 0, 7), (0, 1, 8), (0, -1, 7), (0, 1, -1)]
    calls = [(*each, arrival) for each in none for arrival in ({}, {"arrives": 0})]
    calls += [(0, 1, BROKEN, {"arrives": rank}) for rank in (-1, 8)]
    for first, count, broken, arrival in calls:
        with pytest.raises(IndexError, match="counted from 0"):
            waiting.wait_for_counters(counters, first, count, 1, broken, 0, 0, **arrival)
    for rank in (-1, 8):
        with pytest.raises(IndexError, match="counted from 0"):
            waiting.store_counter(counters, rank, 1)
    assert not counters.any(), "nothing was stored"
    for other in (counters.astype(np.int32), counters.astype(float), counters.reshape(2, 4)):
        with pytest.raises(ValueError, match="expected one of int64"):
            waiting.wait_for_counters(other, 0, 1, 1, 1, 0, 0)
        with pytest.raises(ValueError, match="expected one of int64"):
            waiting.store_counter(other, 0, 1)


@compiled
def test_counters_lie_in_memory_of_any_kind():
    memory = memoryview(bytearray(64)).cast("q")
    native.extension.store_counter(memory, 1, -(2**63))
    assert memory[1] == -(2**63)
    assert native.extension.wait_for_counters(memory, 0, 1, 0, 7, 0, 0, 0) == 0
