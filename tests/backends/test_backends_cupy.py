"""What only a device has: a choice with reasons, streams, strict arrays, the kernels' source."""

import builtins
import sys
import threading
from types import SimpleNamespace

import fakecublas
import fakecuda
import fakecupy
import numpy as np
import pytest
from backends import backend_of
from devicearrays import normal

from syncpretrain import pretrain
from syncpretrain.backends import cupy_backend
from syncpretrain.backends.choice import USUAL_BACKEND, resolve_backend, select, why_no_gpu
from syncpretrain.backends.cuda_kernels import kernels_of
from syncpretrain.backends.cuda_source import cuda_source
from syncpretrain.backends.cupy_backend import CupyBackend
from syncpretrain.errors import DivergedError, SettingsError
from syncpretrain.kernels.activations import means
from syncpretrain.kernels.backprop import squared_error
from syncpretrain.kernels.dispatch import registered
from syncpretrain.rng import Address, Purpose
from syncpretrain.settings import settings_from

ADDRESS = Address(11, Purpose.HIDDEN, layer=1, epoch=2, step=3)
SOURCE = cuda_source()


@pytest.fixture
def cupy(monkeypatch):
    if fakecuda.COMPILER is None:
        pytest.skip("no g++ here to compile the kernels' source for the CPU")
    monkeypatch.delenv(USUAL_BACKEND, raising=False)
    return fakecupy.install(monkeypatch)


def raising(error: Exception):
    def fail(*_, **__):
        raise error

    return fail


def without_gpu(cupy, monkeypatch, status: int, driver: int) -> None:
    error = fakecupy.CUDARuntimeError(status, "cudaErrorUnknown: what the driver says")
    runtime = SimpleNamespace(**{**vars(cupy.cuda.runtime), "getDeviceCount": raising(error)})
    runtime.driverGetVersion = lambda: driver
    monkeypatch.setattr(cupy.cuda, "runtime", runtime)


NO_LIBRARY = ImportError('Failure finding "libcublasLt.so.12"')
UNUSABLE = {  # what makes a GPU so, and what the error says
    "no driver": (
        lambda cupy, patch: without_gpu(cupy, patch, 35, 0),
        "no NVIDIA driver is found; install the driver",
    ),
    "an old driver": (
        lambda cupy, patch: without_gpu(cupy, patch, 35, 11040),
        r"driver is too old: it knows CUDA up to 11\.4, .* built for 12\.9",
    ),
    "a driver that fails": (
        lambda cupy, patch: without_gpu(cupy, patch, 999, 13000),
        "what the driver says; see what nvidia-smi says",
    ),
    "no GPU": (lambda cupy, patch: fakecupy.install(patch, devices=0), "finds no NVIDIA GPU"),
    "no libraries of CUDA": (
        lambda cupy, patch: patch.setattr(cupy, "ones", raising(NO_LIBRARY)),
        r"libcublasLt.*pip install 'cupy-cuda12x\[ctk\]'",
    ),
    "no CuPy": (
        lambda cupy, patch: without_import(patch, ModuleNotFoundError("No module", name="cupy")),
        r"not installed; pip install 'syncpretrain\[cuda",
    ),
    "a library that is missing": (
        lambda cupy, patch: without_import(patch, ImportError("libfoo.so")),
        "CuPy cannot be imported: libfoo.so",
    ),
    "a module that is missing": (
        lambda cupy, patch: without_import(patch, ModuleNotFoundError("cupy_x", name="cupy_x")),
        "CuPy cannot be imported: cupy_x",
    ),
    "another result": (
        lambda cupy, patch: patch.setattr(cupy, "ones", cupy.zeros),
        r"GPU 0 computes 0\.0 where 4 is right",
    ),
}


def without_import(monkeypatch, error: ImportError) -> None:
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    real = builtins.__import__

    def importing(name, *args, **options):
        if name == "cupy":
            raise error
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", importing)


class TestSelect:
    def test_numpy_is_taken_without_looking_for_cupy(self, monkeypatch):
        without_import(monkeypatch, ImportError("nobody should ask"))
        assert select("numpy").name == "numpy"

    @pytest.mark.parametrize(
        ("name", "device", "devices"),
        [("auto", 0, (0, 1)), ("cupy", 0, (0, 1)), ("cupy:1", 1, (1,))],
    )
    def test_cupy_is_taken_where_there_is_a_gpu(self, cupy, name, device, devices):
        backend = select(name)
        assert backend.name == f"cupy:{device}"
        assert backend.devices() == devices
        assert [backend.for_layer(layer).name for layer in (1, 2, 3)] == [
            f"cupy:{devices[i % len(devices)]}" for i in range(3)
        ]

    @pytest.mark.parametrize("name", ["gpu", "cupy:", "cupy:x", "CUPY", "cupy:-1", ""])
    def test_an_unknown_name_is_refused_in_settings_and_where_it_is_taken(self, name):
        for work in (select, lambda name: settings_from((16, 8), backend=name)):
            with pytest.raises(SettingsError, match="expected auto, numpy, cupy or cupy:NUMBER"):
                work(name)

    @pytest.mark.parametrize("what", UNUSABLE)
    def test_a_gpu_that_is_none_or_cannot_compute_is_left_out_by_auto_and_told_of(
        self, cupy, monkeypatch, what
    ):
        prepare, expected = UNUSABLE[what]
        prepare(cupy, monkeypatch)
        assert select("auto").name == "numpy"
        with pytest.raises(SettingsError, match=expected):
            select("cupy")

    def test_a_number_that_no_gpu_has(self, cupy):
        with pytest.raises(SettingsError, match="no GPU number 2, expected cupy:0, cupy:1"):
            select("cupy:2")

    def test_the_trial_takes_the_product_and_the_kernels_of_training(self, cupy, monkeypatch):
        for _ in range(3):
            fakecupy.log.clear()
            assert select("cupy").name == "cupy:0"
            tried = [what for _, _, what in fakecupy.log]
            assert tried == ["sgemm", "squared_error", "synchronize"]
        assert len(kernels_of(cupy).blas._handles) == 1, "not one a trial"
        monkeypatch.setattr(fakecublas, "cublasSgemm_v2", lambda *_: 13)
        with pytest.raises(SettingsError, match="GPU 0 but cannot compute there: cublasSgemm_v2"):
            select("cupy")

    @pytest.mark.parametrize(
        "error",
        [fakecupy.CompileException("no header"), MemoryError("out of memory"), OSError("no file")],
    )
    def test_a_gpu_that_cannot_compute_is_left_out_by_auto_with_a_notice(
        self, cupy, monkeypatch, error
    ):
        monkeypatch.setattr(fakecupy.RawKernel, "__call__", raising(error))
        assert select("auto").name == "numpy"
        assert f"cannot compute there: {error}" in why_no_gpu("auto")
        with pytest.raises(SettingsError, match=f"cannot compute there: {error}"):
            select("cupy")

    @pytest.mark.parametrize("name", ["CUPY_TF32", "NVIDIA_TF32_OVERRIDE"])
    def test_products_of_rounded_factors_are_refused(self, cupy, monkeypatch, name):
        monkeypatch.setenv(name, "0")
        assert select("cupy").name == "cupy:0"
        monkeypatch.setenv(name, "1")
        assert select("auto").name == "numpy"
        with pytest.raises(SettingsError, match=rf"{name} is set.*unset it"):
            select("cupy")

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("numpy", "numpy"),
            ("cupy", "cupy"),
            ("cupy:1", "cupy:1"),
            ("auto", "cupy"),
            ("", "cupy"),
        ],
    )
    def test_the_environment_says_what_auto_is(self, cupy, monkeypatch, value, expected):
        monkeypatch.setenv(USUAL_BACKEND, value)
        assert resolve_backend("auto") == expected
        assert resolve_backend("auto", "for a reason") == "numpy"
        assert resolve_backend("cupy:0") == "cupy:0"

    def test_an_unknown_name_in_the_environment(self, monkeypatch):
        monkeypatch.setenv(USUAL_BACKEND, "gpu")
        with pytest.raises(SettingsError, match=r"^SYNCPRETRAIN_BACKEND: got 'gpu', expected auto"):
            select("auto")
        assert select("numpy").name == "numpy"

    def test_a_notice_needs_a_gpu_that_is_not_taken(self, cupy, monkeypatch):
        assert why_no_gpu("auto") is None
        assert why_no_gpu("numpy", "a reason") is why_no_gpu("cupy", "a reason") is None
        notice = "there is a GPU, but backend auto is numpy: why"
        assert why_no_gpu("auto", "why") == notice
        for value, found in (("cupy:1", notice), ("numpy", None)):
            monkeypatch.setenv(USUAL_BACKEND, value)
            assert why_no_gpu("auto", "why") == found
        monkeypatch.delenv(USUAL_BACKEND)
        fakecupy.install(monkeypatch, devices=0)
        assert why_no_gpu("auto", "a reason") is None
        without_import(monkeypatch, ModuleNotFoundError("No module named 'cupy'", name="cupy"))
        assert why_no_gpu("auto", "a reason") is None


class TestStreams:
    def test_all_work_of_a_block_goes_to_its_stream_and_device(self, double):
        backend = double.for_layer(2)
        stream = backend.stream()
        fakecupy.log.clear()
        with stream, stream:  # entered twice
            x = backend.asarray(normal(4, 4))
            means(x, backend.zeros(4), "bernoulli")
            x *= 2
        queued = [what for device, name, what in fakecupy.log if (device, name) != (1, "null")]
        assert len({entry[:2] for entry in fakecupy.log}) == 1
        assert queued == ["asarray", "unit_means", "multiply"]
        assert (fakecupy.current_device(), fakecupy.current_stream()) == (0, "null")

    def test_a_stream_is_of_the_thread_that_entered_it(self, double):
        seen = []
        with double.for_layer(2).stream():
            thread = threading.Thread(target=lambda: seen.append(fakecupy.current_device()))
            thread.start()
            thread.join(timeout=10)
        assert seen == [0]

    def test_an_error_in_its_block_leaves_the_stream(self, double):
        with pytest.raises(ZeroDivisionError), double.for_layer(2).stream():
            raise ZeroDivisionError
        assert fakecupy.current_device() == 0

    def test_an_array_of_another_device_is_copied_and_never_taken_as_it_is(self, double):
        first, second = double.for_layer(1), double.for_layer(2)
        array = first.asarray(normal(3, 3))
        copy = second.asarray(array)
        assert (array.device.id, copy.device.id) == (0, 1)
        np.testing.assert_array_equal(second.tohost(copy), first.tohost(array))
        with second.stream(), pytest.raises(ValueError, match="must be same as the current device"):
            means(array, copy[0], "bernoulli")

    def test_a_stream_is_lent_again_when_its_user_is_no_more(self, double):
        first = double.stream()
        lent = first._stream
        assert double.stream()._stream is not lent, "it is in use"
        del first
        assert double.stream()._stream is lent
        assert double.for_layer(2).stream()._stream is not lent, "it is another device's"
        assert double.stream(priority=-1)._stream is not lent, "it goes before others"

    def test_a_large_array_is_uploaded_without_pinned_memory(self, monkeypatch):
        backend = backend_of("deferred", monkeypatch)
        monkeypatch.setattr("syncpretrain.backends.cupy_backend.LARGE_BYTES", 100)
        host = normal(9, 8)
        fakecupy.log.clear()
        for array in (host, host[:, ::2]):
            copy = backend.asarray(array)
            assert [what for _, _, what in fakecupy.log][-2:] == ["upload", "synchronize"]
            np.testing.assert_array_equal(backend.tohost(copy), array)
        backend.asarray(host[:3])
        assert fakecupy.log[-1][2] == "asarray"

    def test_rows_are_gathered_from_more_elements_than_a_form_takes(self, double, monkeypatch):
        monkeypatch.setattr("syncpretrain.backends.cuda_source.MOST_ELEMENTS", 20)
        X = normal(9, 5)
        out = double.gather(double.asarray(X), np.array([8, 0]), out=double.empty((2, 5)))
        np.testing.assert_array_equal(double.tohost(out), X[[8, 0]])


class TestWaits:
    """The stand-in that does work as late as it may: what is not waited for is not there."""

    def test_training_without_its_waits_is_found_out(self, monkeypatch, bits):
        backend_of("deferred", monkeypatch)
        wanted = {"layers": (16, 8, 4), "epochs": 2, "backend": "cupy"}
        pretrain(bits, **wanted)
        monkeypatch.setattr(cupy_backend.DeviceStream, "synchronize", lambda self: None)
        with pytest.raises(DivergedError, match="the error is nan"):
            pretrain(bits, **wanted)


class TestStrictness:
    """The stand-in refuses what CuPy refuses; so a test on it fails where a GPU would."""

    @pytest.mark.parametrize(
        "mix",
        [
            lambda device, host: device + host,
            lambda device, host: np.add(device, host, out=device),
            lambda device, host: np.add(device, 1, out=host),
            lambda device, host: np.matmul(host, device),
            lambda device, host: host.__iadd__(device),
            lambda device, host: np.asarray(device),
            lambda device, host: np.take(device, device, axis=0, out=device, mode="clip"),
            lambda device, host: np.random.default_rng(0).random(out=device, dtype=np.float32),
            lambda device, host: np.copyto(device, host),
            lambda device, host: np.copyto(host, device),
            lambda device, host: device.__setitem__(slice(None), host),
        ],
    )
    def test_host_and_device_do_not_mix(self, double, mix):
        with pytest.raises((TypeError, ValueError)):
            mix(double.asarray(normal(3, 3)), normal(3, 3))

    def test_arguments_of_another_type_than_the_kernels_are_refused(self, double):
        x = double.zeros((2, 2))
        kernel = fakecupy.RawKernel(SOURCE, "unit_means")
        for args in [(x, 2, x, 2, 2), (x, 2.0, x, 2, 2, 0), (x, np.int32(2), x, 2, 2, 0)]:
            with pytest.raises(AssertionError, match="unit_means"):
                kernel((1,), (32,), args)

    def test_the_equations_have_their_forms(self, double):
        assert registered(double.array_type).keys() == {
            *("multiply", "multiply_bfloat16", "multiply_tf32", "means", "times_derivative"),
            *("sample_states", "phase_differences", "means_and_differences", "squared_error"),
            *("means_and_error", "output_delta", "derivative_and_sums", "count_errors"),
            *("momentum_step", "momentum_steps", "tree_steps", "sum_in_order", "shrink"),
            *("sgd_step", "adam_step", "convolve", "convolve_gradient", "convolve_back"),
            *("convolve_at", "visible_means", "sum_channels", "block_means", "draw_blocks"),
            "block_sums",
        }

    def test_a_refused_type_of_rows_and_draws(self, double):
        X, out = double.zeros((4, 3)), double.zeros((2, 3))
        with pytest.raises(TypeError, match="expected int64 of float32"):
            double.gather(X, np.zeros(2, dtype=np.int32), out=out)
        with pytest.raises(TypeError, match="expected float32"):
            double.generator(ADDRESS).random((2, 3))
        with pytest.raises(TypeError, match="strides"):
            double.generator(ADDRESS).random(out=out.T, dtype=np.float32)


class TestSource:
    """Launches of other sizes than usual; what kernels do to arrays is in test_backends.py."""

    def test_more_elements_than_threads(self, double, monkeypatch):
        monkeypatch.setattr("syncpretrain.backends.cuda_source.MOST_BLOCKS", 2)
        x = normal(40, 100)
        device = double.asarray(x.copy())
        means(device, double.zeros(100), "relu")
        np.testing.assert_array_equal(double.tohost(device), np.maximum(x, 0))
        double.generator(ADDRESS).random(out=device, dtype=np.float32)
        expected = ADDRESS.generator().random((40, 100), dtype=np.float32)
        np.testing.assert_array_equal(double.tohost(device), expected)
        means(device, double.zeros(100), "softmax")
        np.testing.assert_allclose(double.tohost(device).sum(axis=1), 1, rtol=1e-5)
        error = float(squared_error(device, double.zeros((40, 100)), out=device))
        assert error == pytest.approx(np.square(double.tohost(device)).sum(), rel=1e-5)

    def test_nothing_is_launched_for_no_elements(self, double):
        empty = double.zeros((0, 5))
        fakecupy.log.clear()
        means(empty, double.zeros(5), "bernoulli")
        assert float(squared_error(empty, empty, out=empty)) == 0
        assert not {"unit_means", "squared_error"} & {what for _, _, what in fakecupy.log}

    def test_a_barrier_that_a_part_of_a_block_never_reaches_is_found(self):
        if fakecuda.COMPILER is None:
            pytest.skip("no g++ here")
        source = """extern "C" __global__ void halves(float *x, long long n)
        { if (threadIdx.x < n) { __syncthreads(); } x[threadIdx.x] = 1; }"""
        x = fakecupy.ndarray(np.zeros(4, np.float32))
        fakecuda.launch(source, "halves", (1,), (4,), (x, 4))
        with pytest.raises(AssertionError, match="barrier"):
            fakecuda.launch(source, "halves", (1,), (4,), (x, 2))


def test_a_backend_shares_its_kernels_with_those_of_other_layers(cupy):
    backend = CupyBackend(cupy)
    assert backend.for_layer(2).forms["means"] == backend.for_layer(3).forms["means"]
