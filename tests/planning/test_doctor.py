"""Doctor: every finding is there, and each fault is detected."""

import json
import re
import sys
from dataclasses import asdict
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from syncpretrain.parallel import precision_choice
from syncpretrain.planning import doctor
from syncpretrain.planning.doctor import diagnose, driver_version

TOPICS = ["versions", "platform", "cores", "blas", "kernels", "float32", "products", "speed"]
TOPICS += ["precision", "gpu"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.delenv(doctor.CORE_VARIABLE, raising=False)
    monkeypatch.setattr(doctor, "SECONDS", 0.01)
    monkeypatch.setattr(doctor, "SIDE", 64)
    monkeypatch.setattr(doctor, "REPEATS", 3)


def blas():
    return [info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"]


def fake_cupy(available):
    def properties(index):
        return {"name": b"NVIDIA A1", "totalGlobalMem": 80 * 2**30, "major": 9, "minor": 0}

    cupy = ModuleType("cupy")
    cupy.__version__ = "14.2.0"
    cupy.cuda = SimpleNamespace(
        is_available=lambda: available,
        runtime=SimpleNamespace(getDeviceCount=lambda: 2, getDeviceProperties=properties),
    )
    return cupy


def test_every_topic_is_found_as_json_values_and_blas_is_left_as_it_was():
    before = blas()
    findings = diagnose()
    assert [finding.topic for finding in findings] == TOPICS
    assert {finding.status for finding in findings} <= {"ok", "warning", "problem"}
    for finding in findings:
        assert finding.found
        assert finding.status == "ok" or finding.advice.endswith(".")
    json.dumps([asdict(finding) for finding in findings], allow_nan=False)
    assert blas() == before


def test_versions_tell_present_from_absent(monkeypatch):
    monkeypatch.setattr(doctor, "OPTIONAL", ("syncpretrain-is-never-this",))
    finding = doctor._versions()
    assert finding.facts["packages"]["numpy"] == np.__version__
    assert finding.facts["packages"]["syncpretrain-is-never-this"] is None
    assert "syncpretrain-is-never-this" in finding.advice


def test_a_check_that_raises_is_a_finding(monkeypatch):
    def broken():
        raise MemoryError("no room")

    monkeypatch.setattr(doctor, "CHECKS", {"speed": broken})
    (finding,) = diagnose()
    assert (finding.topic, finding.status) == ("speed", "problem")
    assert "MemoryError: no room" in finding.found


@pytest.mark.parametrize(
    ("usable", "present", "status", "words"),
    [(1, 8, "warning", "more than one core"), (4, 8, "ok", "quota"), (8, 8, "ok", "")],
)
def test_cores(monkeypatch, usable, present, status, words):
    monkeypatch.setattr(doctor, "usable_cores", lambda: usable)
    monkeypatch.setattr(doctor.os, "cpu_count", lambda: present)
    finding = doctor._cores()
    assert finding.status == status
    assert finding.found == f"{usable} of {present} cores usable"
    assert words in finding.advice and bool(words) == bool(finding.advice)


@pytest.mark.parametrize(
    ("threads", "status", "words"),
    [([], "warning", "VECLIB"), ([1], "warning", "Unset OMP_NUM_THREADS"), ([4], "ok", "")],
)
def test_blas(monkeypatch, threads, status, words):
    info = {"user_api": "blas", "internal_api": "openblas", "version": "0.3"}
    libraries = [{**info, "num_threads": number} for number in threads]
    monkeypatch.setattr(doctor, "threadpool_info", lambda: [{"user_api": "openmp"}, *libraries])
    monkeypatch.setattr(doctor, "usable_cores", lambda: 4)
    finding = doctor._blas()
    assert (finding.status, len(finding.facts["libraries"])) == (status, len(threads))
    assert words in finding.advice


@pytest.mark.parametrize(
    ("width", "core", "api", "status"),
    [
        (16, "Haswell", "openblas", "warning"),
        (16, "Nehalem", "openblas", "warning"),
        (16, "SkylakeX", "openblas", "ok"),
        (16, None, "openblas", "ok"),
        (16, "Haswell", "mkl", "ok"),
        (8, "Haswell", "openblas", "ok"),
    ],
)
def test_a_variable_that_holds_blas_back_is_named(monkeypatch, width, core, api, status):
    info = {"user_api": "blas", "internal_api": api, "version": "1", "num_threads": 1}
    monkeypatch.setattr(doctor, "threadpool_info", lambda: [info])
    monkeypatch.setattr(doctor, "usable_cores", lambda: 1)
    monkeypatch.setattr(doctor.native, "extension", SimpleNamespace(WIDTH=width))
    if core is not None:
        monkeypatch.setenv(doctor.CORE_VARIABLE, core)
    finding = doctor._blas()
    assert finding.status == status
    assert ("Unset OPENBLAS_CORETYPE" in finding.advice) == (status == "warning")


@pytest.mark.parametrize(("there", "status"), [(True, "ok"), (False, "warning")])
def test_kernels_are_compiled_or_not(monkeypatch, there, status):
    monkeypatch.setattr(doctor.native, "extension", object() if there else None)
    finding = doctor._kernels()
    assert (finding.status, finding.facts) == (status, {"compiled": there})
    assert bool(finding.advice) != there


BY_TILES = r"bfloat16 \(AMX\) are 3.0 times as fast as float32's on one core"


@pytest.mark.parametrize(
    ("forms", "order", "found"),
    [
        (("tiles", "pairs"), "", BY_TILES),
        (("pairs", "portable pairs"), "", r"bfloat16 \(AVX512-BF16\) are 3.0 times"),
        (("portable pairs",), "", "no products of bfloat16: this CPU has neither AMX nor AVX512"),
        (("portable tiles", "pairs"), "tiles", "BFLOAT16 is tiles, for which this CPU has no ins"),
        (None, "", "no products of bfloat16: the compiled kernels are missing"),
    ],
)
def test_the_instructions_for_bfloat16_are_named(monkeypatch, forms, order, found):
    extension = forms and SimpleNamespace(bfloat16_forms=lambda: forms)
    monkeypatch.setattr(doctor.native, "extension", extension)
    monkeypatch.setattr(precision_choice, "extension", extension)
    monkeypatch.setattr(doctor, "bfloat16_gain", lambda: 3.0)
    monkeypatch.setenv(doctor.native.ORDER_VARIABLE, order)
    finding = doctor._precision()
    assert re.search(found, finding.found)
    is_fast = forms is not None and not forms[0].startswith("portable")
    assert finding.advice.startswith("--precision bfloat16" if is_fast else "Keep")
    assert bool(finding.facts["instructions"]) == is_fast


def test_products_are_right_here():
    finding = doctor._products()
    assert finding.facts["one_blas_thread"] <= doctor.TOLERANCE
    assert finding.facts["threads"] >= 2


def test_a_wrong_product_is_noticed(monkeypatch):
    def wrong(a, b, out):
        np.matmul(a, b, out=out)
        out[3, 5] = np.nan

    monkeypatch.setattr(doctor, "_multiply", wrong)
    finding = doctor._products()
    assert finding.status == "problem"
    assert finding.facts["one_blas_thread"] == 1.0
    assert "--runtime serial" in finding.advice


@pytest.mark.parametrize(
    ("limited", "default", "status", "words"),
    [
        (0.5, 0.0, "problem", "even with 1 BLAS thread"),
        (1e-7, 0.0, "warning", "last bits"),
        (0.0, 0.5, "warning", "several BLAS threads"),
        (0.0, 1e-7, "ok", "are right"),
    ],
)
def test_products(monkeypatch, limited, default, status, words):
    deviations = iter([limited, default])
    monkeypatch.setattr(doctor, "deviation", lambda pairs: next(deviations))
    finding = doctor._products()
    assert finding.status == status
    assert words in finding.found


@pytest.mark.parametrize(
    ("cores", "together", "status", "words"),
    [(1, 0.0, "ok", ""), (2, 190.0, "ok", ""), (2, 80.0, "warning", "--workers 1"),
     (8, 300.0, "warning", "--workers 3"), (8, 400.0, "ok", "")],
)  # fmt: skip
def test_scaling(monkeypatch, cores, together, status, words):
    monkeypatch.setattr(doctor, "usable_cores", lambda: cores)
    monkeypatch.setattr(doctor, "rate", lambda pairs: together if len(pairs) > 1 else 100.0)
    finding = doctor._speed()
    assert finding.status == status
    assert finding.facts["scaling"] == (together / 100 if cores > 1 else 1)
    assert words in finding.advice and bool(words) == bool(finding.advice)


@pytest.mark.parametrize(
    ("cores", "found"),
    [
        (1, "1 core: BLAS 100 GFLOP/s"),
        (2, "1 core: BLAS 100 GFLOP/s; 2 cores: BLAS 200, own products 300 GFLOP/s"),
    ],
)
def test_float32_is_told_of_one_core_and_of_all(monkeypatch, cores, found):
    peaks = {1: {"blas": 1e11}, 2: {"own": 3e11, "blas": 2e11}}
    monkeypatch.setattr(doctor, "usable_cores", lambda: cores)
    monkeypatch.setattr(doctor, "core_peaks", lambda count, side: peaks[count])
    finding = doctor._float32()
    assert (finding.status, finding.found) == ("ok", found)
    assert finding.facts["gflops_by_cores"][1] == {"blas": 100}


def test_rate_counts_two_operations_a_weight(monkeypatch):
    monkeypatch.setattr(doctor, "_trial", lambda pairs, outs, repeats: 0.001 * repeats)
    pairs = doctor.factors(2)
    assert doctor.rate(pairs) == pytest.approx(2 * 2 * 100 * 784 * 1000 / 1e6)


@pytest.mark.parametrize(
    ("driver", "status", "words"),
    [
        (None, "ok", "syncpretrain[cuda12] or syncpretrain[cuda13]"),
        (12040, "warning", "Install syncpretrain[cuda12]."),
        (13000, "warning", "Install syncpretrain[cuda13]."),
    ],
)
def test_gpu_without_cupy(monkeypatch, driver, status, words):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(doctor, "driver_version", lambda: driver)
    finding = doctor._gpu()
    assert finding.status == status
    assert words in finding.advice
    assert driver != 12040 or "CUDA 12.4" in finding.found


@pytest.mark.parametrize(
    ("available", "found", "status", "advice"),
    [
        (False, "", "warning", "driver"),
        (True, "NVIDIA A1.*libcublas is not found; install it$", "problem", "takes the CPU"),
    ],
)
def test_gpu_without_driver_or_library(monkeypatch, available, found, status, advice):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(available))
    monkeypatch.setattr(doctor, "missing", lambda: "libcublas is not found; install it")
    finding = doctor._gpu()
    assert (finding.status, bool(finding.facts["devices"])) == (status, available)
    assert re.search(found, finding.found)
    assert advice in finding.advice


def test_gpu_at_hand(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(available=True))
    monkeypatch.setattr(doctor, "missing", lambda: None)
    monkeypatch.setattr(doctor, "backend_for", lambda name: name)
    peaks = {"cupy:0": 4.1e13, "cupy:1": 4.2e13}
    monkeypatch.setattr(doctor, "device_peak", peaks.__getitem__)
    monkeypatch.setattr(doctor, "unreadable_pairs", lambda cupy: pairs)
    pairs = []
    finding = doctor._gpu()
    assert (finding.status, finding.advice) == ("ok", "")
    assert finding.facts["devices"] == ["NVIDIA A1 (80 GiB, compute capability 9.0)"] * 2
    assert "(41000, 42000 GFLOP/s), and --backend auto" in finding.found
    pairs.append((0, 1))
    assert "without --replicas: some cannot read each other's memory" in doctor._gpu().advice


@pytest.mark.parametrize("error", [ImportError("libcublas"), OSError("x"), RuntimeError("y")])
def test_broken_cupy(monkeypatch, tmp_path, error):
    warns = 'import warnings\nwarnings.warn("CUDA path could not be detected")\n'
    (tmp_path / "cupy.py").write_text(f"{warns}raise {error!r}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    finding = doctor._gpu()
    assert finding.status == "problem"
    assert str(error) in finding.found


def test_driver_version_never_raises():
    assert driver_version() is None or driver_version() >= 1000
