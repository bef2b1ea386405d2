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


DEVICES = ["NVIDIA A1 (80 GiB, compute capability 9.0)"] * 2
HOMES = {"extension": doctor.native, "cpu_count": doctor.os}  # of what is not doctor's own


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


def test_rate_counts_two_operations_a_weight(monkeypatch):
    monkeypatch.setattr(doctor, "_trial", lambda pairs, outs, repeats: 0.001 * repeats)
    pairs = doctor.factors(2)
    assert doctor.rate(pairs) == pytest.approx(2 * 2 * 100 * 784 * 1000 / 1e6)


def on_cores(count, **others):
    """Return stand-ins for so many usable cores, of 8."""
    return {"usable_cores": lambda: count, "cpu_count": lambda: 8, **others}


def off_by(*deviations):
    """Return stand-ins for products off by that much in one thread of BLAS, and in several."""
    each = iter(deviations)
    return {"deviation": lambda pairs: next(each)}


def blas_of(*threads, api="openblas", width=8, **environment):
    """Return stand-ins for libraries of so many threads, on 4 cores with vectors of a width."""
    own = {"user_api": "blas", "internal_api": api, "version": "0.3"}
    found = [{"user_api": "openmp"}, *({**own, "num_threads": number} for number in threads)]
    vectors = SimpleNamespace(WIDTH=width)
    return on_cores(4, threadpool_info=lambda: found, extension=vectors, **environment)


def products_by(*forms, order=""):
    """Return stand-ins for compiled kernels with these forms of products of bfloat16, or none."""
    extension = SimpleNamespace(bfloat16_forms=lambda: forms) if forms else None
    own = {"extension": extension, "bfloat16_gain": lambda: 3.0}
    return own | {doctor.native.ORDER_VARIABLE: order}


def speeds(count, together):
    return on_cores(count, rate=lambda pairs: together if len(pairs) > 1 else 100.0)


def peaks(count):
    both = {1: {"blas": 1e11}, 2: {"own": 3e11, "blas": 2e11}}
    return on_cores(count, core_peaks=lambda count, side: both[count])


def gpu(cupy, driver=None):
    lacks = {"missing": lambda: "libcublas is not found; install it"}
    return {"cupy": cupy, "driver_version": lambda: driver, **lacks}


ALONE, LACKING = "1 core: BLAS 100 GFLOP/s", "NVIDIA A1.*libcublas is not found; install it$"
BOTH = "2 cores: BLAS 200, own products 300 GFLOP/s"
GFLOPS = {1: {"blas": 100}, 2: {"own": 300, "blas": 200}}
NEHALEM, HASWELL, SKYLAKE = (
    {doctor.CORE_VARIABLE: name} for name in ("Nehalem", "Haswell", "SkylakeX")
)
HELD_BACK = "Unset OPENBLAS_CORETYPE"
FOUR, OF_MKL = "^openblas 0.3 with 4 threads$", "^mkl 0.3 with 4 threads$"
TIMES, LACK = "are 3.0 times as fast as float32's on one core", "no products of bfloat16"
ORDERED = f"{LACK}: .*BFLOAT16 is tiles, for which this CPU has no ins"
WITHOUT = f"{LACK}: this CPU has neither AMX nor AVX512"
FAST, SLOW, NONE = "^--precision bfloat16", "^Keep", {"instructions": None}
CHECKS = [  # stand-ins; status, words that are found and words of the advice, and facts
    ("cores", on_cores(1), "warning", "^1 of 8 cores usable$", "more than one core", {}),
    ("cores", on_cores(4), "ok", "^4 of 8 cores usable$", "quota", {}),
    ("cores", on_cores(8), "ok", "^8 of 8 cores usable$", "", {}),
    ("blas", blas_of(), "warning", "^no BLAS that can", "VECLIB", {"libraries": []}),
    ("blas", blas_of(1), "warning", "with 1 threads$", "Unset OMP_NUM_THREADS", {}),
    ("blas", blas_of(4), "ok", FOUR, "", {}),
    ("blas", blas_of(4, width=16, **HASWELL), "warning", FOUR, HELD_BACK, {}),
    ("blas", blas_of(4, width=16, **NEHALEM), "warning", FOUR, HELD_BACK, {}),
    ("blas", blas_of(4, width=16, **SKYLAKE), "ok", FOUR, "", {}),
    ("blas", blas_of(4, width=16), "ok", FOUR, "", {}),
    ("blas", blas_of(4, width=16, api="mkl", **HASWELL), "ok", OF_MKL, "", {}),
    ("blas", blas_of(4, **HASWELL), "ok", FOUR, "", {}),
    ("precision", products_by("tiles", "pairs"), "ok", rf"\(AMX\) {TIMES}", FAST, {}),
    ("precision", products_by("pairs", "portable pairs"), "ok", rf"-BF16\) {TIMES}", FAST, {}),
    ("precision", products_by("portable pairs"), "ok", WITHOUT, SLOW, NONE),
    ("precision", products_by("portable tiles", "pairs", order="tiles"), "ok", ORDERED, SLOW, NONE),
    ("precision", products_by(), "ok", f"{LACK}: the compiled kernels are miss", SLOW, NONE),
    ("kernels", {"extension": object()}, "ok", "", "", {"compiled": True}),
    ("kernels", {"extension": None}, "warning", "", "Install", {"compiled": False}),
    ("products", off_by(0.5, 0.0), "problem", "even with 1 BLAS thread", "Install another", {}),
    ("products", off_by(1e-7, 0.0), "warning", "last bits", "Install another", {}),
    ("products", off_by(0.0, 0.5), "warning", "several BLAS threads", "Keep the default", {}),
    ("products", off_by(0.0, 1e-7), "ok", "are right", "", {}),
    ("speed", speeds(1, 0.0), "ok", "", "", {"scaling": 1}),
    ("speed", speeds(2, 190.0), "ok", "", "", {"scaling": 1.9}),
    ("speed", speeds(2, 80.0), "warning", "", "--workers 1", {"scaling": 0.8}),
    ("speed", speeds(8, 300.0), "warning", "", "--workers 3", {"scaling": 3}),
    ("speed", speeds(8, 400.0), "ok", "", "", {"scaling": 4}),
    ("float32", peaks(1), "ok", f"^{ALONE}$", "", {"gflops_by_cores": {1: {"blas": 100}}}),
    ("float32", peaks(2), "ok", f"^{ALONE}; {BOTH}$", "", {"gflops_by_cores": GFLOPS}),
    ("gpu", gpu(None), "ok", "", r"syncpretrain\[cuda12\] or syncpretrain\[cuda13\]", {}),
    ("gpu", gpu(None, 12040), "warning", "CUDA 12.4", r"Install syncpretrain\[cuda12\]\.", {}),
    ("gpu", gpu(None, 13000), "warning", "", r"Install syncpretrain\[cuda13\]\.", {}),
    ("gpu", gpu(fake_cupy(False)), "warning", "", "driver", {"devices": []}),
    ("gpu", gpu(fake_cupy(True)), "problem", LACKING, "takes the CPU", {"devices": DEVICES}),
]


@pytest.mark.parametrize(("topic", "stand_ins", "status", "found", "advice", "facts"), CHECKS)
def test_a_check_finds_what_there_is(monkeypatch, topic, stand_ins, status, found, advice, facts):
    if "extension" in stand_ins:
        monkeypatch.setattr(precision_choice, "extension", stand_ins["extension"])
    for name, value in stand_ins.items():
        if name == "cupy":
            monkeypatch.setitem(sys.modules, name, value)
        elif name.isupper():
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.setattr(HOMES.get(name, doctor), name, value)
    finding = doctor.CHECKS[topic]()
    assert finding.status == status
    assert re.search(found, finding.found)
    assert re.search(advice, finding.advice) and bool(advice) == bool(finding.advice)
    assert facts.items() <= finding.facts.items()


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
    assert finding.facts["devices"] == DEVICES
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
