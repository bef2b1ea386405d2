"""Programs: what is refused when one is made, and which BLAS works its products."""

import ctypes
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from syncpretrain.kernels import dispatch, native, program
from syncpretrain.kernels.activations import means
from syncpretrain.kernels.convolution import scratch_size
from syncpretrain.kernels.operations import INTERPRETED, SIGNATURES
from syncpretrain.kernels.program import SHARED_COUNTERS, Program, Sgemm, in_turn, sgemm_of
from syncpretrain.rng import Address, Purpose
from syncpretrain.shapes import ConvolutionShape, DenseShape

COMPILED = pytest.mark.skipif(native.extension is None, reason="the compiled kernels are not there")
INT_MAX = 2**31 - 1


@pytest.fixture(params=["numpy", pytest.param("compiled", marks=COMPILED)])
def form(request, monkeypatch):
    """Make programs that are interpreted, or compiled where they can be."""
    if request.param == "numpy":
        monkeypatch.setattr(program, "compiled_program", lambda phases: None)
    return request.param


def floats(*shape):
    return np.ones(shape, dtype=np.float32)


def read_only(*shape):
    array = floats(*shape)
    array.setflags(write=False)
    return array


X, WIDE, SQUARE = floats(4, 6), floats(4, 10), floats(6, 6)
LINE = floats(20)

POOLED = ConvolutionShape(2, 5, 7, 3, 2, pool=2)  # 70 visible units, 18 hidden ones
IMAGES, MAPS, FILTERS = floats(4, 70), floats(4, 18), floats(8, 3)
SCRATCH = floats(scratch_size(POOLED))


def convolution(x=IMAGES, weight=FILTERS, bias=LINE[:3], out=MAPS, places=MAPS * 0, **others):
    """Return an operation with some of its arguments changed."""
    given = {"scratch": SCRATCH, "shape": POOLED, "units": "relu", "first": 0, "last": 3, **others}
    return ("convolve", x, weight, bias, out, places, *given.values())


def changed(**fields):
    return convolution(shape=replace(POOLED, **fields))


GOOD = {
    "matmul": [(X, floats(6, 3), floats(4, 3)), (X.T, X, SQUARE), (X[:, :0], SQUARE[:0], X.copy())],
    "matmul_bfloat16": [(X, floats(6, 3), floats(4, 3)), (X.T, X, SQUARE), (X[:0], SQUARE, X[:0])],
    "matmul_float32": [(X, floats(6, 3), floats(4, 3)), (X.T, X, SQUARE), (X[:0], SQUARE, X[:0])],
    "matmul_tf32": [(X, floats(6, 3), floats(4, 3)), (X.T, X, SQUARE)],
    "multiply": [(X, X.copy(), X.copy()), (X, X.copy(), X), (X.copy(), X, X)],
    "add": [(X, X.copy(), X), (LINE, LINE.copy(), floats(20))],
    "means": [(X, floats(6), "bernoulli"), (floats(4, 0), floats(0), "relu")],
    "softmax": [(X,)],
    "softmax_fixed": [(X,)],
    "normalize": [(X, floats(6)), (WIDE[:, :5], floats(5))],
    "denormalize": [(X, X.copy(), floats(6))],
    "times_derivative": [(X, X.copy(), "gaussian")],
    "sum_rows": [(X, floats(6))],
    "scale": [(X, 2), (LINE, 0.5)],
    "decay": [(LINE, 0.5)],
    "copy": [(WIDE[:, :4], WIDE[:, 4:8])],
    "sample_states": [(X, floats(6), X.copy(), X.copy(), "bernoulli", 1 | 3 << 32, 5)],
    "sample_fixed": [(X, floats(6), X.copy(), X.copy(), "relu", 1, 0)],
    "squared_error": [(X, X.copy(), X.copy(), 1), (X, X.copy(), X, 0)],
    "wrong": [(X, X.copy(), 1), (X, X, 0)],
    "output_delta": [(X, X.copy(), X.copy(), floats(6), "relu", "squared", 1)],
    "derivative_and_sums": [(X, X.copy(), floats(6), "tanh")],
    "documents": [(X, X.copy(), "gaussian:4,softmax:2"), (X, X.copy(), "relu")],
    "update": [(LINE, LINE.copy(), lambda p, g, rate, step: np.subtract(p, rate * g, out=p))],
    "phase_differences": [(X, floats(4, 3), floats(6), floats(3), floats(3), 2)],
    "momentum_step": [(X, X.copy(), X.copy(), 0.1, 0.0)],
    "adam_step": [tuple(floats(5) for _ in range(4)), tuple(floats(0) for _ in range(4))],
    "sgd_step": [
        (floats(5), floats(5), floats(5), 0.9, True),
        (floats(5), floats(5), floats(0), 0.0, 0),
        (floats(0), floats(0), floats(0), 0.9, True),
    ],
    "convolve": [
        convolution()[1:],
        convolution(places=floats(0), first=1, last=2)[1:],
        convolution(first=3)[1:],
        convolution(x=IMAGES[:0], out=MAPS[:0], places=floats(0, 18))[1:],
    ],
    "convolve_gradient": [
        (IMAGES, MAPS, MAPS, FILTERS, SCRATCH, POOLED, 0, 3),
        (IMAGES, MAPS, floats(0), FILTERS, floats(SCRATCH.size + 7), POOLED, 1, 1),
        (IMAGES[:0], MAPS[:0], MAPS[:0], FILTERS, SCRATCH, POOLED, 0, 2),
    ],
    "convolve_back": [
        (MAPS, MAPS, FILTERS, IMAGES, SCRATCH, POOLED, 0, 2),
        (MAPS, floats(0), FILTERS, IMAGES, SCRATCH, POOLED, 2, 2),
        (MAPS[:0], MAPS[:0], FILTERS, IMAGES[:0], SCRATCH, POOLED, 0, 1),
    ],
    "visible_means": [(IMAGES, floats(2), POOLED, "tanh")],
    "sum_channels": [(IMAGES, floats(2), POOLED), (IMAGES[:0], floats(2), POOLED)],
}

PRODUCTS = ("matmul", "matmul_bfloat16", "matmul_float32", "matmul_tf32")
BAD = {
    "an update that is no function": ("update", LINE, LINE.copy(), "sgd"),
    "an unknown loss": ("output_delta", X, X.copy(), X.copy(), floats(6), "relu", "hinge", 1),
    "no such operation": ("divide", X, X),
    "no name": (5,),
    "too few arguments": ("matmul", X, SQUARE),
    "too many arguments": ("softmax", X, X),
    "a product into another shape": ("matmul", X, SQUARE, floats(6, 4)),
    "a product into a part of its factor": ("matmul", WIDE[:, :6], SQUARE, WIDE[:, 2:8]),
    **{f"{name} of other sizes": (name, X, floats(5, 3), floats(4, 3)) for name in PRODUCTS},
    **{f"{name} into its factor": (name, SQUARE, SQUARE.copy(), SQUARE) for name in PRODUCTS},
    **{f"{name} of vectors": (name, LINE, LINE.copy(), floats(20)) for name in PRODUCTS},
    "a copy to another shape": ("copy", floats(300, 300), floats(2, 2)),
    "a copy of fewer axes": ("copy", floats(1, 6), floats(6)),
    "a copy onto itself": ("copy", X, X),
    "a copy to its neighbours": ("copy", LINE[:10], LINE[5:15]),
    "float64": ("copy", X.astype(np.float64), X),
    "a list": ("scale", [1.0, 2.0], 2.0),
    "nothing to write to": ("scale", read_only(4, 6), 2.0),
    "a factor that is none": ("scale", X, "2"),
    "a bias of another length": ("means", X, floats(4), "bernoulli"),
    "a bias among its units": ("means", X, X[0], "bernoulli"),
    "unknown units": ("means", X, floats(6), "cubic"),
    "units by number": ("means", X, floats(6), 0),
    "a spread of another length": ("normalize", X, floats(5)),
    "a spread of no rows": ("normalize", floats(0, 6), floats(6)),
    "inputs that are the delta": ("denormalize", X, X, floats(6)),
    "softmax without a class": ("softmax", floats(4, 0)),
    "blocks of another name": ("documents", X, X.copy(), "gaussian:4,cubic:2"),
    "a derivative of itself": ("times_derivative", X, X, "relu"),
    "a sum of no rows": ("sum_rows", floats(0, 6), floats(6)),
    "a sum into a matrix": ("sum_rows", X, floats(1, 6)),
    "a mask of another shape": ("multiply", X, floats(4, 5), X.copy()),
    "a shifted mask": ("multiply", WIDE[:, :6], X, WIDE[:, 1:7]),
    "no noise for all": ("sample_states", X, floats(6), floats(6), X.copy(), "bernoulli", 0, 0),
    "states in place": ("sample_states", X, floats(6), SQUARE[:4], X, "bernoulli", 0, 0),
    "a negative shard": ("sample_states", X, floats(6), SQUARE[:4], X.copy(), "bernoulli", -1, 0),
    "states of units without": ("sample_states", X, floats(6), SQUARE[:4], X.copy(), "tanh", 0, 0),
    "half a shard": ("sample_states", X, floats(6), SQUARE[:4], X.copy(), "bernoulli", 0.5, 0),
    "a slot too far": ("squared_error", X, X.copy(), X.copy(), 2),
    "a slot very far": ("squared_error", X, X.copy(), X.copy(), 10**9),
    "a negative slot": ("wrong", X, X.copy(), -1),
    "a slot that is no integer": ("wrong", X, X.copy(), 1.0),
    "targets of another number": ("wrong", X, floats(5, 6), 0),
    "an odd number of phases": (
        *("phase_differences", floats(5, 6), floats(5, 3)),
        *(floats(6), floats(3), floats(3), 2),
    ),
    "no examples": ("phase_differences", X, floats(4, 3), floats(6), floats(3), floats(3), 0),
    "small scratch": ("phase_differences", X, floats(4, 3), floats(6), floats(3), floats(2), 2),
    "a velocity of another shape": ("momentum_step", X, X.copy(), floats(4, 5), 0.0, 0.0),
    "moments that are one": ("adam_step", floats(5), floats(5), LINE[:5], LINE[:5]),
    "a matrix of moments": ("adam_step", *(X.copy() for _ in range(4))),
    "no velocity": ("sgd_step", floats(5), floats(5), floats(0), 0.9, False),
    "two types": ("copy", X, X.astype(np.float64)),
    "images of another size": convolution(x=floats(4, 71)),
    "other weights": convolution(weight=floats(8, 2)),
    "another bias": convolution(bias=floats(2)),
    "maps of another size": convolution(out=floats(4, 19)),
    "maps of other examples": convolution(out=floats(3, 18)),
    "places of other examples": convolution(places=floats(3, 18)),
    "places by position": convolution(places=floats(18)),
    "a small scratch": convolution(scratch=SCRATCH[1:]),
    "a scratch of rows": convolution(scratch=SCRATCH[None]),
    "a scratch among the places": convolution(scratch=LINE, places=LINE[:0]),
    "maps into places": convolution(places=MAPS),
    "no shape": convolution(shape=(2, 5, 7)),
    "the shape of a dense layer": convolution(shape=DenseShape(70, 18)),
    "no channels": changed(channels=0),
    "half a filter": changed(size=2.5),
    "less than no pad": changed(pad=-1),
    "another pooling": changed(pooling="median"),
    "a filter larger than the image": changed(size=6),
    "blocks that overlap the border": changed(pool=4),
    "units of no convolution": convolution(units="cubic"),
    "filters from behind": convolution(first=2, last=1),
    "filters before the first": convolution(first=-1),
    "filters beyond the last": convolution(last=4),
    "filters by halves": convolution(last=2.0),
    "more channels": ("convolve_back", MAPS, MAPS * 0, FILTERS, IMAGES, SCRATCH, POOLED, 0, 3),
    "a gradient of other filters": (
        *("convolve_gradient", IMAGES, MAPS, MAPS * 0, floats(8, 2), SCRATCH, POOLED, 0, 2),
    ),
    "a visible bias a filter": ("visible_means", IMAGES, floats(3), POOLED, "relu"),
    "sums a filter": ("sum_channels", IMAGES, floats(3), POOLED),
}
TYPES = {
    *("two types", "no shape", "the shape of a dense layer", "filters by halves"),
    *("too few arguments", "too many arguments", "float64", "a list", "a factor that is none"),
    "an update that is no function",
    *("half a shard", "a slot that is no integer"),
}


def test_every_operation_has_its_good_arguments_and_both_forms():
    assert GOOD.keys() == SIGNATURES.keys() == program._INTERPRETED.keys()


@pytest.mark.parametrize("name", GOOD)
def test_what_fits_is_worked(form, name):
    for arguments in GOOD[name]:
        own = Program([[[(name, *arguments)]]], 2)
        own.prepare(rate=0.1, steps=1)
        assert own.is_compiled == (form == "compiled" and name not in INTERPRETED)
        if own.is_compiled:
            own.work()
        else:
            own.phases[0](0)


def test_an_equation_without_a_faster_form_for_an_array_is_called_as_it_is_written(monkeypatch):
    class Elsewhere(np.ndarray):
        """An array of a backend."""

    x = X.view(Elsewhere)
    assert dispatch.form_for(means, x) is means.__wrapped__
    monkeypatch.setitem(dispatch._faster["means"], Elsewhere, lambda *given: NotImplemented)
    assert dispatch.form_for(means, x) is means, "the form may leave it to the equation"


@pytest.mark.parametrize("units", ["bernoulli", "relu"])
@pytest.mark.parametrize("noise", [WIDE[:, 4:], np.ones((4, 6))], ids=["a part", "float64"])
def test_states_are_the_same_through_noise_of_another_place_or_type(form, units, noise):
    found = []
    for through in (floats(4, 6), noise):
        x, bias, out = (np.ones(shape, through.dtype) for shape in ((4, 6), (6,), (4, 6)))
        own = Program([[[("sample_states", x, bias, through, out, units, 3, 2)]]], 0)
        own.prepare(rate=0.1, address=Address(5, Purpose.HIDDEN))
        in_turn(own, 1)
        found.append(out)
    np.testing.assert_allclose(*found, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("what", BAD)
def test_what_does_not_fit_is_refused_at_once_by_both_forms(form, what):
    expected = TypeError if what in TYPES else ValueError
    name = BAD[what][0] if isinstance(BAD[what][0], str) else "operation"
    with pytest.raises(expected, match=rf"{name}.*(got|expected)"):
        Program([[[("scale", floats(3), 1.0), BAD[what]]]], 2)


SCALE = ("scale", floats(3), 2.0)
NO_PHASES = {
    "nothing": [],
    "no shards": [[]],
    "ragged shards": [[[SCALE], []], [[SCALE]]],
    "none": None,
    "an array": floats(2, 2),
    "a phase that is none": [None],
    "a shard that is an operation": [[SCALE]],
    "an operation that is a list": [[[list(SCALE)]]],
    "an operation of nothing": [[[()]]],
}


@pytest.mark.parametrize("what", NO_PHASES)
def test_what_is_no_phases_is_refused(form, what):
    with pytest.raises(TypeError, match="expected"):
        Program(NO_PHASES[what], 1)


def test_phases_may_be_tuples(form):
    assert Program((((SCALE,), ()),), 0).shards == 2


@COMPILED
@pytest.mark.parametrize(
    ("phases", "message"),
    [
        *((phases, "lists") for phases in ((), ([[SCALE]],), [([SCALE],)], [[(SCALE,)]])),
        ([[[list(SCALE)]]], "lists"),
        *((phases, "of one length") for phases in ([[[], []], [[]]], [[[]], [[], []]])),
    ],
)
def test_the_extension_takes_lists_of_lists_of_tuples(phases, message):
    with pytest.raises(TypeError, match=message):
        native.extension.program(phases, *program._blas_sgemm())


COUNTERS = np.zeros(SHARED_COUNTERS + 1, dtype=np.int64)
PLACES = {
    "a failure's counter that is none": {"broken": 10**12},
    "a failure's counter before the first": {"broken": -1},
    "fewer than no shards before": {"base": -1},
    "shards before that were not taken": {"base": 1},
    "counters of float64": {"counters": np.zeros(len(COUNTERS))},
    "counters apart": {"counters": np.zeros(2 * len(COUNTERS), dtype=np.int64)[::2]},
    "too few counters": {"counters": COUNTERS[:-2]},
}


@COMPILED
@pytest.mark.parametrize("what", PLACES)
def test_a_place_that_is_none_is_refused(what):
    own = Program([[[SCALE], [SCALE]]], 0)
    place = {"counters": COUNTERS, "base": 0, "broken": SHARED_COUNTERS, **PLACES[what]}
    with pytest.raises((ValueError, IndexError, BufferError)):
        own.share(is_owner=True, **place)
    assert not COUNTERS.any()


@COMPILED
def test_results_that_are_too_few_are_refused():
    own = Program([[[("wrong", X, X, 1)]]], 2)
    own.results = np.zeros(1)
    with pytest.raises(ValueError, match="fit no program"):
        own.work()


def far_apart(rows: int, columns: int, stride: int) -> np.ndarray:
    """Return rows so far from each other that there is no such memory; not to be looked at."""
    return as_strided(floats(1), (rows, columns), (4 * stride, 4), writeable=True)


@COMPILED
@pytest.mark.parametrize(
    ("a", "b"),
    [
        (far_apart(2, 2, INT_MAX + 1), floats(2, 2)),
        (far_apart(2, 2, INT_MAX + 1).T, floats(2, 2)),
        (far_apart(2, INT_MAX + 1, INT_MAX + 1), far_apart(INT_MAX + 1, 2, 2)),
    ],
)
def test_products_too_large_for_a_narrow_blas_are_left_to_numpy(a, b, monkeypatch):
    address = program._blas_sgemm().address
    phases = [[[("matmul", a, b, floats(2, 2))]]]
    for wide in (False, True):
        monkeypatch.setattr(program, "_blas_sgemm", lambda wide=wide: Sgemm(address, wide))
        assert (program.compiled_program(phases) is not None) == wide
    monkeypatch.setattr(program, "_blas_sgemm", lambda: Sgemm(address, False))
    small = [[[("matmul", floats(2, 2), floats(2, 2), floats(2, 2))]]]
    assert program.compiled_program(small) is not None


def blas(integer, *, template="cblas_{}", copies=True, has_copy=True) -> SimpleNamespace:
    """Return a BLAS whose integers are of a type, as ctypes opens one."""
    pointer = ctypes.POINTER(ctypes.c_float)

    @ctypes.CFUNCTYPE(None, integer, pointer, integer, pointer, integer)
    def scopy(n, x, x_step, y, y_step):
        for i in range(n if copies else 0):
            y[i * y_step] = x[i * x_step]

    @ctypes.CFUNCTYPE(None)
    def sgemm():
        raise AssertionError("it was called")

    functions = {"sgemm": sgemm, "scopy": scopy} if has_copy else {"sgemm": sgemm}
    return SimpleNamespace(**{template.format(name): f for name, f in functions.items()})


@pytest.mark.parametrize("template", program.BLAS_NAMES)
def test_the_width_of_integers_is_what_the_library_does(template):
    wide = sgemm_of(blas(ctypes.c_int64, template=template), template)
    assert wide is not None
    assert wide.wide, "whatever its name"
    narrow = sgemm_of(blas(ctypes.c_int32, template=template), template)
    if "64" in template:
        assert narrow is None, "the name and the library contradict each other"
    else:
        assert narrow is not None
        assert not narrow.wide


@pytest.mark.parametrize("integer", [ctypes.c_int32, ctypes.c_int64])
@pytest.mark.parametrize("changed", [{"copies": False}, {"has_copy": False}])
def test_an_unsure_blas_is_left_to_numpy(integer, changed):
    assert sgemm_of(blas(integer, **changed), "cblas_{}") is None


def test_the_products_of_scipy_are_of_the_width_that_it_says():
    linalg = pytest.importorskip("scipy.linalg", reason="SciPy is not installed")
    found = [
        info["filepath"]
        for info in program.threadpool_info()
        if info["prefix"] == "libscipy_openblas" and "64_" not in info["filepath"]
    ]
    if not found:
        pytest.skip(f"{linalg.__name__} has no OpenBLAS of its own")
    library = ctypes.CDLL(found[0])
    config = library.scipy_openblas_get_config
    config.restype = ctypes.c_char_p
    sgemm = sgemm_of(library, "scipy_cblas_{}")
    assert sgemm is not None
    assert sgemm.wide == (b"USE64BITINT" in config())
