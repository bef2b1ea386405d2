from inspect import unwrap

import fakecuda
import numpy as np
import pytest
from backends import BACKENDS, backend_of
from devicearrays import framed, normal, same_bits, unframed
from devicedraws import DeviceNumbers
from unitkinds import KINDS, MEANS, RBM_UNITS, SLOPES, UNITS

from syncpretrain.backends.cuda_source import cuda_source
from syncpretrain.kernels import backprop
from syncpretrain.kernels import contrastive_divergence as cd
from syncpretrain.kernels.activations import means, times_derivative
from syncpretrain.kernels.optimizers import adam_step, sgd_step
from syncpretrain.rng import Address, Purpose

ADDRESS = Address(2**63 + 5, Purpose.HIDDEN, layer=3, epoch=600, step=7, shard=1 << 32 | 2)
OUTPUTS = [
    *((units, "squared") for units in UNITS),
    *((units, "cross-entropy") for units in KINDS if KINDS[units].loss == "cross-entropy"),
]
GENERATOR = Address.generator
SHAPES = [(1, 1), (3, 5), (7, 33), (100, 30), (13, 257)]


@pytest.fixture(params=[*BACKENDS, "backwards"])
def backend(request, monkeypatch):
    """A backend; or the stand-in with its threads and blocks in the other order."""
    if request.param != "backwards":
        yield backend_of(request.param, monkeypatch)
        return
    found = backend_of("double", monkeypatch)
    library = fakecuda.compiled(cuda_source())
    library.shim_set_backwards(1)
    yield found
    library.shim_set_backwards(0)


@pytest.fixture
def put(backend):
    """Puts a matrix into a larger one of a backend, whose rest must stay as it is."""
    frames = []

    def put_into_frame(host):
        inner, frame = framed(backend, host)
        frames.append(frame)
        return inner

    yield put_into_frame
    for frame in frames:
        unframed(backend, frame)


def numbers_of(backend):
    """Return a generator of the host whose numbers are those that a backend draws."""
    return DeviceNumbers(ADDRESS) if backend.devices() else GENERATOR(ADDRESS)


def alike(actual, expected, atol=1e-6):
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=atol)


class TestBackend:
    """What every backend does; NumPy's plain equations are the oracle."""

    def test_arrays_go_to_the_device_and_back(self, backend):
        host = normal(4, 6)
        array = backend.asarray(host)
        assert isinstance(array, backend.array_type)
        assert backend.asarray(array) is array
        np.testing.assert_array_equal(backend.tohost(array), host)
        np.testing.assert_array_equal(backend.tohost(array[1:3]), host[1:3])
        assert backend.empty((2, 3)).dtype == np.float32
        np.testing.assert_array_equal(backend.tohost(backend.zeros((2, 3))), np.zeros((2, 3)))

    def test_rows_are_gathered_from_numbers_on_host_or_device(self, backend, put):
        host, rows = normal(9, 11), np.array([3, 0, 8, 3, 99, -5])  # clipped, as NumPy does
        X, out = put(host), put(normal(6, 11))
        for given in (rows, backend.asarray(rows)):
            out[...] = 0
            found = backend.gather(X, given, out=out)
            np.testing.assert_array_equal(backend.tohost(found), host[[3, 0, 8, 3, 8, 0]])

    @pytest.mark.parametrize("shape", SHAPES)
    def test_uniform_draws_are_bit_for_bit_those_of_numpy(self, backend, put, shape):
        draws, expected = backend.generator(ADDRESS), ADDRESS.generator()
        # NumPy draws into contiguous arrays only.
        part = put(normal(*shape)) if backend.devices() else backend.empty(shape)
        outs = [backend.empty(shape), part, backend.empty(shape)]
        for out in outs:  # the second one's draws begin within a block of 8
            draws.random(out=out, dtype=np.float32)
            same_bits([backend.tohost(out)], [expected.random(shape, dtype=np.float32)])

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("uniform", [0, 3, 8])
    def test_normal_draws_are_those_of_numpy_or_of_devices(self, backend, shape, uniform):
        draws, expected = backend.generator(ADDRESS), numbers_of(backend)
        for own in (draws, expected):
            own.random(uniform, dtype=np.float32)
        actual = draws.standard_normal(shape, dtype=np.float32)
        alike(backend.tohost(actual), expected.standard_normal(shape, dtype=np.float32))

    def test_draws_of_a_device_go_on_where_they_ended(self, backend):
        whole, parts = (backend.generator(ADDRESS) for _ in range(2))
        once = backend.tohost(whole.standard_normal(60, dtype=np.float32))
        thrice = [backend.tohost(parts.standard_normal(20, dtype=np.float32)) for _ in range(3)]
        np.testing.assert_array_equal(np.concatenate(thrice), once)

    @pytest.mark.parametrize("kind", ["masking", "salt-and-pepper", "gaussian"])
    def test_examples_are_corrupted_alike(self, backend, kind):
        host = np.random.default_rng(1).random((6, 11), dtype=np.float32)
        x = backend.asarray(host.copy())
        backprop.corrupt(x, kind, 0.3, backend.generator(ADDRESS))
        backprop.corrupt(host, kind, 0.3, numbers_of(backend))
        alike(backend.tohost(x), host)

    @pytest.mark.parametrize("units", KINDS)
    @pytest.mark.parametrize("shape", SHAPES)
    def test_means(self, backend, put, units, shape):
        x, bias = 3 * normal(*shape), normal(shape[1], seed=1)
        actual = means(put(x), backend.asarray(bias), units)
        alike(backend.tohost(actual), unwrap(means)(x, bias, units), 1e-7)

    @pytest.mark.parametrize("units", KINDS)
    def test_means_of_what_overflows(self, backend, units):
        x = np.array([[-2e38, 200, 1], [np.nan, 1, 0], [-90, 90, 0]], dtype=np.float32)
        actual = means(backend.asarray(x.copy()), backend.zeros(3), units)
        with np.errstate(all="ignore"):
            expected = unwrap(means)(x, np.zeros(3, dtype=np.float32), units)
        alike(backend.tohost(actual), expected)

    @pytest.mark.parametrize("units", UNITS)
    def test_derivatives(self, backend, put, units):
        delta, a = normal(70, 330), np.float32(MEANS[units](normal(70, 330, seed=1)))
        own, given = put(delta), put(a)
        times_derivative(own, given, units)
        unwrap(times_derivative)(delta, a.copy(), units)
        same_bits(map(backend.tohost, (own, given)), (delta, a))

    @pytest.mark.parametrize("units", RBM_UNITS)
    @pytest.mark.parametrize("shape", SHAPES)
    def test_states_are_drawn_alike(self, backend, put, units, shape, monkeypatch):
        x, bias = normal(*shape), normal(shape[1], seed=1)
        inputs, drawn, states = put(x), put(x), put(x)
        cd.sample_states(inputs, backend.asarray(bias), units, ADDRESS, noise=drawn, out=states)
        noise, expected = np.empty_like(x), np.empty_like(x)
        monkeypatch.setattr(Address, "generator", lambda _: numbers_of(backend))
        unwrap(cd.sample_states)(x, bias, units, ADDRESS, noise=noise, out=expected)
        alike(backend.tohost(inputs), x, 1e-7)
        alike(backend.tohost(states), expected)

    @pytest.mark.parametrize("shape", [*SHAPES, (70, 330), (300, 300)])
    def test_squared_error(self, backend, put, shape):
        x, y = normal(*shape), normal(*shape, seed=1)
        target, own, apart = put(x), put(y), put(x)
        for out in (apart, own):
            error = backprop.squared_error(target, own, out=out)
            np.testing.assert_array_equal(backend.tohost(out), y - x)
            assert float(error) == pytest.approx(np.square((y - x).astype(float)).sum(), rel=1e-6)

    @pytest.mark.parametrize("units", KINDS)
    def test_means_and_their_error(self, backend, put, units):
        y, bias, x = normal(70, 330), normal(330, seed=1), normal(70, 330, seed=2)
        own, out, device_bias = put(y), put(x), backend.asarray(bias)
        error = backprop.means_and_error(own, device_bias, units, put(x), out=out)
        apart, difference = put(y), put(x)
        alone = backprop.squared_error(put(x), means(apart, device_bias, units), out=difference)
        same_bits(*([*map(backend.tohost, made)] for made in ((own, out), (apart, difference))))
        expected = unwrap(means)(y, bias, units)
        alike(backend.tohost(own), expected)
        alike(backend.tohost(out), expected - x)
        assert float(error) == float(alone)
        assert float(error) == pytest.approx(np.square(expected - x).sum(dtype=float), rel=1e-5)

    @pytest.mark.parametrize("units", UNITS)
    @pytest.mark.parametrize(("rows", "visible", "hidden"), [(1, 1, 1), (5, 33, 70), (50, 64, 3)])
    def test_means_and_phase_differences(self, backend, put, units, rows, visible, hidden):
        v, h, bias = normal(2 * rows, visible), normal(2 * rows, hidden, seed=1), normal(hidden)
        device, apart = (
            (put(v), put(h), backend.zeros(visible), backend.zeros(hidden)) for _ in range(2)
        )
        device_bias, options = backend.asarray(bias), {"examples": 2 * rows}
        cd.means_and_differences(
            *device[:2], device_bias, units, da=device[2], db=device[3], **options
        )
        means(apart[1][rows:], device_bias, units)
        before = backend.tohost(apart[1]).copy()
        cd.phase_differences(*apart[:2], da=apart[2], db=apart[3], **options)
        same_bits(map(backend.tohost, device), map(backend.tohost, apart))
        np.testing.assert_array_equal(backend.tohost(apart[1]), before)
        da, db = np.zeros(visible, np.float32), np.zeros(hidden, np.float32)
        unwrap(means)(h[rows:], bias, units)
        unwrap(cd.phase_differences)(v, h, da=da, db=db, **options)
        np.testing.assert_allclose(backend.tohost(device[0]), v, rtol=1e-6)
        for actual, expected in zip(device[1:], (h, da, db), strict=True):
            np.testing.assert_allclose(backend.tohost(actual), expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize(("units", "loss"), OUTPUTS)
    @pytest.mark.parametrize("sums", [True, False])
    def test_the_delta_of_an_output_and_its_sums(self, backend, put, units, loss, sums):
        x, y = normal(70, 333), np.float32(MEANS[units](normal(70, 333, seed=1)))
        out, total = put(x), backend.empty(333) if sums else None
        error = backprop.output_delta(put(x), put(y), units, loss, out=out, share=-0.5, sums=total)
        factor, slope = (2, SLOPES[units](y)) if loss == "squared" else (1, np.float32(1))
        expected = (y - x) * np.float32(factor * -0.5 / 70) * np.float32(slope)
        # Its slope is a product, which the equation rounds first.
        most = 2 if units == "bernoulli" else 0
        np.testing.assert_array_max_ulp(backend.tohost(out), expected, most)
        if sums:
            found = backend.tohost(total)
            np.testing.assert_allclose(found, expected.sum(axis=0), rtol=1e-5, atol=1e-6)
        assert float(error) == pytest.approx(np.square(y - x).sum(dtype=float), rel=1e-5)

    @pytest.mark.parametrize("units", UNITS)
    def test_derivatives_and_their_sums(self, backend, put, units):
        delta, a = normal(70, 330), np.float32(MEANS[units](normal(70, 330, seed=1)))
        own, given, sums = put(delta), put(a), backend.empty(330)
        backprop.derivative_and_sums(own, given, units, sums=sums)
        unwrap(times_derivative)(delta, a.copy(), units)
        same_bits(map(backend.tohost, (own, given)), (delta, a))
        np.testing.assert_allclose(backend.tohost(sums), delta.sum(axis=0), rtol=1e-5, atol=2e-6)

    def test_wrong_classes_are_counted_by_the_first_of_the_largest(self, backend):
        x = np.eye(4, dtype=np.float32)[np.arange(600) % 4]
        y = normal(600, 4)
        y[::3] = x[::3]
        y[0], y[4], y[5] = (1, 1, 0, 0), (np.nan, 2, 3, 4), (9, np.nan, 0, np.nan)
        expected = (x.argmax(axis=1) != y.argmax(axis=1)).sum()
        assert 100 < expected < 400
        assert float(backprop.count_errors(backend.asarray(x), backend.asarray(y))) == expected

    @pytest.mark.parametrize("weights", [0, 700, 1001])
    def test_flat_momentum_steps_are_bit_for_bit_those_of_numpy(self, backend, weights):
        hosts = [normal(1001, seed=seed) for seed in range(3)]
        hosts[0][::50] = 0
        device = [backend.asarray(array.copy()) for array in hosts]
        options = {"momentum": 0.9, "learning_rate": 0.1}
        decay = {"weight_decay": 2e-4, "l1": 1e-3}
        cd.momentum_steps(*device, weights=weights, **options, **decay)
        for part, own in ((slice(weights), decay), (slice(weights, None), {})):
            unwrap(cd.momentum_step)(*(host[part] for host in hosts), **options, **own)
        same_bits(map(backend.tohost, device[::2]), hosts[::2])

    @pytest.mark.parametrize(("weight_decay", "l1"), [(0, 0), (2e-4, 0), (0, 1e-3), (2e-4, 1e-3)])
    def test_momentum_steps_are_bit_for_bit_those_of_numpy(self, backend, put, weight_decay, l1):
        hosts = [normal(17, 19, seed=seed) for seed in range(3)]
        hosts[0][0] = 0  # whose sign is 0
        device = [put(host) for host in hosts]
        options = {"momentum": 0.9, "learning_rate": 0.1, "weight_decay": weight_decay, "l1": l1}
        cd.momentum_step(*device, **options)
        if backend.devices():
            np.testing.assert_array_equal(backend.tohost(device[1]), hosts[1])
        unwrap(cd.momentum_step)(*hosts, **options)
        same_bits(map(backend.tohost, device[::2]), hosts[::2])

    @pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
    def test_gradient_steps_are_bit_for_bit_those_of_numpy(self, backend, momentum, nesterov):
        hosts = [normal(1001, seed=seed) for seed in range(3)]
        hosts[2] = hosts[2] if momentum else hosts[2][:0]
        device = [backend.asarray(array.copy()) for array in hosts]
        options = {"learning_rate": 0.1, "momentum": momentum, "nesterov": nesterov}
        sgd_step(*device, scratch=backend.empty(64), **options)
        unwrap(sgd_step)(*hosts, scratch=np.empty(64, np.float32), **options)
        same_bits(map(backend.tohost, device[::2]), hosts[::2])

    def test_adams_steps_are_bit_for_bit_those_of_numpy(self, backend):
        hosts = [normal(1001), normal(1001, seed=1), *np.zeros((2, 1001), np.float32)]
        device = [backend.asarray(array.copy()) for array in hosts]
        for step in (1, 2, 3):
            options = {"step": step, "learning_rate": 0.001}
            adam_step(*device, scratch=backend.empty(64), **options)
            unwrap(adam_step)(*hosts, scratch=np.empty(64, np.float32), **options)
        for i in (0, 2, 3):
            np.testing.assert_array_equal(backend.tohost(device[i]), hosts[i])

    def test_double_precision_is_computed_as_written(self, backend):
        x, bias = normal(3, 5).astype(np.float64), np.ones(5)
        actual = means(backend.asarray(x.copy()), backend.asarray(bias), "bernoulli")
        assert actual.dtype == np.float64
        np.testing.assert_allclose(backend.tohost(actual), 1 / (1 + np.exp(-x - 1)), rtol=1e-14)
