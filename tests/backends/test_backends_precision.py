"""Precisions on a GPU: products of rounded factors beside whole steps, settings, and training.

The stand-in for cuBLAS leaves out digits of factors where it is to take TF32, without rounding.
"""

import fakecupy
import numpy as np
import pytest
from backends import on_devices
from devicearrays import framed, normal, relative

from syncpretrain import finetune, pretrain
from syncpretrain.backends.choice import resolve_backend
from syncpretrain.errors import SettingsError
from syncpretrain.kernels.precision import PRECISIONS, multiply_bfloat16, multiply_tf32, rounded
from syncpretrain.parallel.precision_choice import resolve_precision
from syncpretrain.runs.identity import BFLOAT16_SUMS, _bfloat16_sums
from syncpretrain.settings import settings_from
from syncpretrain.settings.devices import why_not_on_a_device, why_not_tuned_on_a_device

LAYERS = (16, 12, 8)
ROUNDED = ["tf32", "bfloat16"]
NETWORKS = [LAYERS, ("1x4x4", "conv:3x3", 8)]
STACKS = [
    {},
    {"model": "autoencoder"},
    {"layers": ("1x4x4", "conv:3x3", 8)},
    {"layers": ("1x4x4", "conv:3x3,pool:2", 8)},
]
# How far weights of the same run may be apart on CPU and GPU: numbers that differ in their last bit
# are rounded to neighbours, which are 2^-8 or 2^-11 of them apart, and a draw between the means
# that come of it is another state, which moves a bias by the rate over a minibatch, 0.003.
APART = {"float32": 3e-6, "tf32": 4e-3, "bfloat16": 1e-2}


PLACED = {
    "as it is": lambda backend, x: backend.asarray(x),
    "transposed": lambda backend, x: backend.asarray(np.ascontiguousarray(x.T)).T,
    "in a frame": lambda backend, x: framed(backend, x)[0],
}


class TestProducts:
    @pytest.mark.parametrize("left", [*PLACED, "a row"])
    @pytest.mark.parametrize("right", PLACED)
    def test_rounded_factors_against_float64(self, backend, left, right):
        a, b = normal(9, 14), normal(14, 11, seed=1)
        a = a[0] if left == "a row" else a
        a_there = PLACED.get(left, PLACED["as it is"])(backend, a)
        b_there = PLACED[right](backend, b)
        exact = np.float64(a) @ b
        found = backend.tohost(multiply_bfloat16(a_there, b_there))
        assert relative(found, np.float64(rounded(a)) @ rounded(b)) < 1e-6
        assert relative(found, exact) > 1e-4
        found = backend.tohost(multiply_tf32(a_there, b_there))
        assert 0 < relative(found, exact) < 2.0**-9

    @pytest.mark.parametrize("name", ROUNDED)
    def test_into_an_array_and_then_in_float32_again(self, backend, name):
        a, b = normal(9, 14), normal(14, 11, seed=1)
        there = [backend.asarray(x) for x in (a, b)]
        before = backend.tohost(PRECISIONS["float32"].multiply(*there))
        out = backend.empty((9, 11))
        assert PRECISIONS[name].multiply(*there, out=out) is out
        assert relative(backend.tohost(out), np.float64(a) @ b) > 1e-5
        after = backend.tohost(PRECISIONS["float32"].multiply(*there))
        np.testing.assert_array_equal(before, after)
        for ours, x in zip(there, (a, b), strict=True):
            np.testing.assert_array_equal(backend.tohost(ours), x, "factors stay")

    def test_each_number_has_the_bits_of_the_cpus(self, backend):
        """Ties, the largest numbers, those below 2^-126, infinities and NaN."""
        bits = np.arange(0x3F7F0000, 0x3F830000, 0x800, dtype=np.uint32)
        bits = (bits[:, None] + np.uint32([0, 1, 0x7FF])).reshape(-1)
        more = [0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F7F0000, 0x7F800000, 0x7F800001]
        more += [0x7FFFFFFF, 0x7FC00000]
        both = np.concatenate([bits, np.uint32(more)])
        x = np.concatenate([both, both | np.uint32(0x80000000)]).view(np.float32).reshape(2, -1)
        products = next(part for part in backend._kernels._parts if hasattr(part, "_rounded"))
        found = backend.tohost(products._rounded(backend.asarray(x)))
        np.testing.assert_array_equal(np.isnan(found), np.isnan(x))
        numbers = ~np.isnan(x)
        np.testing.assert_array_equal(
            found[numbers].view(np.uint32), rounded(x)[numbers].view(np.uint32)
        )


class TestLaunches:
    @pytest.mark.parametrize(
        ("name", "product"),
        [
            ("float32", ["sgemm"]),
            ("tf32", ["tf32 sgemm"]),
            ("bfloat16", ["round_factor", "round_factor", "tf32 sgemm"]),
        ],
    )
    def test_of_a_product(self, double, name, product):
        a, b = double.asarray(normal(9, 14)), double.asarray(normal(14, 11))
        fakecupy.log.clear()
        PRECISIONS[name].multiply(a, b, out=double.empty((9, 11)))
        assert [what for _, _, what in fakecupy.log if what != "reshape"] == product


class TestTraining:
    @pytest.fixture(params=["75", "90"], ids=["in parts", "whole steps"])
    def capability(self, request, monkeypatch):
        monkeypatch.setattr(fakecupy, "CAPABILITY", request.param)

    def compare(self, run) -> None:
        """Check the weights of a run in each precision on a GPU against those on the CPU."""
        sums = set()
        for precision in PRECISIONS:
            ours, info = run(precision=precision, backend="cupy")
            assert info["precision"] == precision
            on_cpu = "float32" if precision == "tf32" else precision
            theirs, _ = run(precision=on_cpu, backend="numpy")
            for own, other in zip(ours.layers, theirs.layers, strict=True):
                for (name, x), (_, y) in zip(own.parameters(), other.parameters(), strict=True):
                    told = f"{precision}, {name}"
                    np.testing.assert_allclose(x, y, atol=APART[precision], err_msg=told)
            sums.add(ours.parameters_sha256)
        assert len(sums) == len(PRECISIONS), "each multiplies other numbers"

    @pytest.mark.parametrize(("backend", "settings"), on_devices(STACKS), indirect=["backend"])
    def test_of_a_stack_comes_to_the_cpus_weights(self, capability, backend, bits, settings):
        wanted = {"layers": LAYERS, "epochs": 2, "batch_size": 30} | settings

        def run(**options):
            stack = pretrain(bits, **wanted, **options)
            return stack, stack.info["pretrain"]

        self.compare(run)

    @pytest.mark.parametrize(("backend", "layers"), on_devices(NETWORKS), indirect=["backend"])
    def test_of_a_network_comes_to_the_cpus_weights(self, capability, backend, bits, layers):
        stack = pretrain(bits, layers=layers, epochs=1, batch_size=30, backend="numpy")
        own = {"epochs": 2, "batch_size": 30, "optimizer": "sgd"}

        def run(**options):
            shards = {"shards": 1} if options["backend"] == "numpy" else {}
            tuned = finetune(stack, bits, **own, **options, **shards)
            return tuned, tuned.info["finetune"][0]

        self.compare(run)


class TestSettings:
    def test_auto_is_float32_on_a_gpu(self, double, bits):
        assert resolve_precision("auto", "cupy") == "float32"
        stack = pretrain(bits, layers=(16, 8), epochs=1, precision="auto", backend="cupy")
        assert stack.info["pretrain"]["precision"] == "float32"

    @pytest.mark.parametrize("backend", ["numpy", "auto"])
    def test_tf32_is_refused_on_the_cpu(self, bits, monkeypatch, backend):
        monkeypatch.setenv("SYNCPRETRAIN_BACKEND", "numpy")
        expected = "got tf32 on the CPU, which does not multiply it; take float32, bfloat16 or auto"
        with pytest.raises(SettingsError, match=f"^precision: {expected}"):
            pretrain(bits, layers=(16, 8), epochs=1, precision="tf32", backend=backend)
        stack = pretrain(bits, layers=(16, 8), epochs=1, backend="numpy")
        with pytest.raises(SettingsError, match=f"^finetune_precision: {expected}"):
            finetune(stack, bits, epochs=1, precision="tf32", backend=backend)

    def test_what_only_the_cpu_does_is_refused_tf32(self, double, bits, monkeypatch):
        monkeypatch.setenv("SYNCPRETRAIN_BACKEND", "")
        with pytest.raises(SettingsError, match=r"^precision: got tf32 on the CPU"):
            pretrain(bits, layers=(16, 8), epochs=1, precision="tf32", runtime="processes")

    @pytest.mark.parametrize("precision", ROUNDED)
    def test_a_gpu_is_taken_for_it(self, double, precision):
        tuning = {"objective": "reconstruction", "precision": precision}
        wanted = settings_from(LAYERS, precision=precision, finetune=tuning, backend="cupy")
        assert why_not_on_a_device(wanted.pretrain) is None
        assert why_not_tuned_on_a_device(wanted.finetune) is None
        assert resolve_backend("auto", why_not_on_a_device(wanted.pretrain)) == "cupy"

    def test_the_identity_of_a_run_tells_whose_sums_they_are(self):
        for backend, expected in (("numpy", True), ("cupy", False)):
            wanted = settings_from(LAYERS, precision="bfloat16", backend=backend)
            assert (_bfloat16_sums(wanted) != {BFLOAT16_SUMS: "by a GPU"}) == expected
        assert _bfloat16_sums(settings_from(LAYERS, precision="tf32", backend="cupy")) == {}
