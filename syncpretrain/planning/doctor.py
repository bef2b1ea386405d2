"""Checks that this machine and installation are fit for parallel training, as findings.

Nothing is printed here and nothing raises: a check that fails is a finding too. Two checks multiply
matrices in several threads at the same time: whether the products are right, and how fast.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import numpy as np
from threadpoolctl import threadpool_info

import syncpretrain
from syncpretrain.backends.choice import backend_for
from syncpretrain.backends.gpu_check import import_cupy, missing
from syncpretrain.kernels import native
from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.blas import at_once, blas_limit, usable_cores
from syncpretrain.parallel.precision_choice import PAYING_GAIN, bfloat16_gain, bfloat16_instructions
from syncpretrain.planning.peaks import core_peaks, device_peak, in_words, unreadable_pairs

Status = Literal["ok", "warning", "problem"]
Factors = tuple[Array, Array]

REQUIRED = ("numpy", "msgspec", "click", "rich", "safetensors", "threadpoolctl")
OPTIONAL = ("mlxtend", "pooch", "scikit-learn", "pillow")
MAX_THREADS = 16  # enough for a verdict, and 5 MB each
TOLERANCE = 1e-5  # of float32 sums over 784 terms, relative to the largest
BATCH, VISIBLE, HIDDEN = 100, 784, 1000  # the widest product of the paper's stack
REPEATS = 12  # of each concurrent product
SIDE = 512  # of the matrices by which float32 is measured: some ms a product
SECONDS = 0.1  # of each measurement
TRIALS = 4  # of each measurement; fewer on a busy machine
CORE_VARIABLE = "OPENBLAS_CORETYPE"  # the CPU whose kernels OpenBLAS is to use
NARROW_CORES = {  # as OpenBLAS names them; their kernels have no AVX-512
    *("prescott", "atom", "core2", "penryn", "dunnington", "nehalem", "sandybridge", "haswell"),
    *("athlon", "opteron", "barcelona", "bobcat", "bulldozer", "piledriver", "steamroller"),
    *("excavator", "zen", "nano"),
}
AVX512_FLOATS = 16  # of a vector
FAIR_SHARE = 0.45  # of the usable cores; two hyper-threads of one core are worth half each


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one check.

    ``found`` says it in a sentence, ``advice`` what to do about it (empty where nothing is to be
    done), and ``facts`` holds the same as JSON values.
    """

    topic: str
    status: Status
    found: str
    advice: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


def diagnose() -> tuple[Finding, ...]:
    """Run every check, in about two seconds, and return what each found; it never raises.

    The whole process's BLAS is held at a limit meanwhile, so no training may run in it.
    """
    return tuple(_checked(topic, check) for topic, check in CHECKS.items())


def _checked(topic: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:
        found = f"this check failed: {type(error).__name__}: {error}"
        return Finding(topic, "problem", found, "Report it, with the other findings.")


def _versions() -> Finding:
    packages = {name: _version(name) for name in REQUIRED + OPTIONAL}
    python, own = platform.python_version(), syncpretrain.__version__
    present = ", ".join(f"{name} {number}" for name, number in packages.items() if number)
    absent = [name for name in OPTIONAL if packages[name] is None]
    found = f"syncpretrain {own}, Python {python}, {present}"
    advice = f"Not installed, and only needed by some features: {', '.join(absent)}."
    facts = {"python": python, "syncpretrain": own, "packages": packages}
    return Finding("versions", "ok", found, advice if absent else "", facts)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _platform() -> Finding:
    python, system = platform.python_implementation(), platform.platform()
    facts = {"implementation": python, "platform": system, "machine": platform.machine()}
    return Finding("platform", "ok", f"{python} on {system}", facts=facts)


def _cores() -> Finding:
    usable, present = usable_cores(), os.cpu_count() or 1
    facts = {"usable": usable, "present": present}
    found = f"{usable} of {present} cores usable"
    if usable == 1:
        advice = "Give this process more than one core: with one, layers train in turns."
        return Finding("cores", "warning", found, advice, facts)
    limit = "An affinity or a container's quota holds the others back."
    return Finding("cores", "ok", found, limit if usable < present else "", facts)


def _blas() -> Finding:
    libraries = [
        {key: info.get(key) for key in ("internal_api", "version", "num_threads", "architecture")}
        for info in threadpool_info()
        if info["user_api"] == "blas"
    ]
    facts: dict[str, Any] = {"libraries": libraries}
    if not libraries:  # such as Apple's Accelerate
        advice = (
            "Set OMP_NUM_THREADS=1 and VECLIB_MAXIMUM_THREADS=1 before Python starts, since the"
            " threads of this NumPy's BLAS cannot be limited later."
        )
        return Finding("blas", "warning", "no BLAS that can be limited", advice, facts)
    found = ", ".join(
        f"{x['internal_api']} {x['version']} with {x['num_threads']} threads"
        + (f" and kernels for {x['architecture']}" if x["architecture"] else "")
        for x in libraries
    )
    if usable_cores() > 1 and min(x["num_threads"] for x in libraries) == 1:
        advice = (
            "Unset OMP_NUM_THREADS, OPENBLAS_NUM_THREADS and MKL_NUM_THREADS, where one of them"
            " is 1: pretraining does not need it, and fine-tuning gets only one core."
        )
        return Finding("blas", "warning", found, advice, facts)
    is_wide = getattr(native.extension, "WIDTH", 0) == AVX512_FLOATS
    reads = any(x["internal_api"] == "openblas" for x in libraries)
    if is_wide and reads and os.environ.get(CORE_VARIABLE, "").lower() in NARROW_CORES:
        advice = (
            f"Unset {CORE_VARIABLE}, unless bits are to equal those of a CPU without AVX-512: it"
            " keeps OpenBLAS from its kernels for AVX-512, which were up to 1.8 times as fast."
        )
        return Finding("blas", "warning", found, advice, facts)
    return Finding("blas", "ok", found, facts=facts)


def _kernels() -> Finding:
    compiled = native.available()
    advice = "Install syncpretrain again where there is a C compiler: training takes a tenth less."
    found = "compiled" if compiled else "NumPy's"
    status: Status = "ok" if compiled else "warning"
    return Finding("kernels", status, found, "" if compiled else advice, {"compiled": compiled})


def _float32() -> Finding:
    peaks = {n: core_peaks(n, SIDE) for n in sorted({1, min(usable_cores(), MAX_THREADS)})}
    found = "; ".join(f"{n} core{'s' * (n > 1)}: {in_words(peak)}" for n, peak in peaks.items())
    gflops = {n: {name: speed / 1e9 for name, speed in peak.items()} for n, peak in peaks.items()}
    return Finding("float32", "ok", found, facts={"gflops_by_cores": gflops})


def _products() -> Finding:
    pairs = factors(min(max(2, usable_cores()), MAX_THREADS))
    with blas_limit(1):
        limited = deviation(pairs)
    default = deviation(pairs)
    facts = {"threads": len(pairs), "one_blas_thread": limited, "default_blas_threads": default}
    if limited > TOLERANCE:
        found = f"concurrent products are wrong (by {limited:.2g}) even with 1 BLAS thread each"
        advice = "Install another build of NumPy, and until then train with --runtime serial."
        return Finding("products", "problem", found, advice, facts)
    if limited > 0:
        found = "concurrent products differ in their last bits from the same products in turn"
        advice = "Install another build of NumPy if the same seed has to give the same bits."
        return Finding("products", "warning", found, advice, facts)
    if default > TOLERANCE:
        found = f"concurrent products are wrong (by {default:.2g}) with several BLAS threads each"
        advice = "Keep the default of 1 BLAS thread a worker, with which they are right."
        return Finding("products", "warning", found, advice, facts)
    found = f"concurrent products of {len(pairs)} threads are right"
    return Finding("products", "ok", found, facts=facts)


def _speed() -> Finding:
    threads = min(usable_cores(), MAX_THREADS)
    pairs = factors(threads)
    alone = together = all_cores = 0.0
    deadline = time.monotonic() + TRIALS * 3 * SECONDS
    for _ in range(TRIALS):  # side by side, so that a noisy moment hits them alike
        with blas_limit(1):
            alone = max(alone, rate(pairs[:1]))
            together = max(together, rate(pairs))
        with blas_limit(threads):
            all_cores = max(all_cores, rate(pairs[:1]))
        if time.monotonic() > deadline:
            break
    ratio = together / alone
    facts: dict[str, Any] = {"threads": threads, "scaling": ratio}
    facts |= {"gflops_one_core": alone, "gflops_all_cores": all_cores}
    found = f"{alone:.0f} GFLOP/s on one core"
    if threads == 1:
        return Finding("speed", "ok", found, facts=facts)
    found += (
        f", {all_cores:.0f} with {threads} BLAS threads; {threads} threads at once do"
        f" {ratio:.1f} times the work of one"
    )
    if ratio >= max(1.3, FAIR_SHARE * threads):
        return Finding("speed", "ok", found, facts=facts)
    advice = (
        "Run this again when nothing else uses the cores; if it stays, more workers than"
        f" --workers {max(1, round(ratio))} will add little."
    )
    return Finding("speed", "warning", found, advice, facts)


def _precision() -> Finding:
    gain, name = bfloat16_gain(), bfloat16_instructions()
    facts = {"instructions": name, "gain": gain}
    if name is None:
        found = f"no products of bfloat16: {_lack_of_bfloat16()}"
        return Finding("precision", "ok", found, "Keep --precision float32.", facts)
    found = f"products of bfloat16 ({name}) are {gain:.1f} times as fast as float32's on one core"
    advice = "--precision bfloat16 or auto takes them." if gain >= PAYING_GAIN else ""
    return Finding("precision", "ok", found, advice, facts)


def _lack_of_bfloat16() -> str:
    if not native.available():
        return "the compiled kernels are missing"
    if order := os.environ.get(native.ORDER_VARIABLE):
        return f"{native.ORDER_VARIABLE} is {order}, for which this CPU has no instructions"
    return "this CPU has neither AMX nor AVX512-BF16"


def _gpu() -> Finding:
    try:
        cupy = import_cupy()
        devices = _described_devices(cupy) if cupy.cuda.is_available() else []
    except Exception as error:  # a half-installed CUDA fails in many ways
        if isinstance(error, ModuleNotFoundError) and error.name == "cupy":
            return _without_cupy(driver_version())
        found = f"CuPy is installed, but does not work: {type(error).__name__}: {error}"
        advice = "Keep only the CuPy of syncpretrain[cuda12] or of syncpretrain[cuda13]."
        return Finding("gpu", "problem", found, advice, {"cupy": None, "devices": []})
    facts = {"cupy": cupy.__version__, "devices": devices}
    if devices:
        found = f"CuPy {cupy.__version__}: {', '.join(devices)}"
        if (lacks := missing()) is not None:
            advice = "Until that is mended, training takes the CPU."
            return Finding("gpu", "problem", f"{found}, but {lacks}", advice, facts)
        facts["gflops"] = [device_peak(backend_for(f"cupy:{i}")) / 1e9 for i in range(len(devices))]
        speeds = ", ".join(f"{speed:.0f}" for speed in facts["gflops"])
        found += f"; a product there is right ({speeds} GFLOP/s), and --backend auto takes it"
        facts["unreadable"] = unreadable_pairs(cupy)
        advice = (
            "Give each layer one GPU, without --replicas: some cannot read each other's memory."
        )
        return Finding("gpu", "ok", found, advice if facts["unreadable"] else "", facts)
    found = f"CuPy {cupy.__version__} is installed, but finds no GPU"
    advice = "Install NVIDIA's driver and see that nvidia-smi lists the GPU, or train on the CPU."
    return Finding("gpu", "warning", found, advice, facts)


def _described_devices(cupy: Any) -> list[str]:
    """Return name, memory and compute capability of each GPU that CuPy finds."""
    runtime = cupy.cuda.runtime
    found = [runtime.getDeviceProperties(i) for i in range(runtime.getDeviceCount())]
    return [
        f"{x['name'].decode()} ({x['totalGlobalMem'] / 2**30:.0f} GiB, compute capability"
        f" {x['major']}.{x['minor']})"
        for x in found
    ]


def driver_version() -> int | None:
    """Return the newest CUDA that the driver knows, such as 12040 for 12.4; None without one."""
    number = ctypes.c_int()
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        failed = driver.cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return None if failed or not number.value else number.value


def _without_cupy(driver: int | None) -> Finding:
    facts: dict[str, Any] = {"cupy": None, "devices": [], "driver_cuda": driver}
    if driver is None:
        advice = "With an NVIDIA GPU, install syncpretrain[cuda12] or syncpretrain[cuda13]."
        return Finding("gpu", "ok", "no NVIDIA driver, and CuPy is not installed", advice, facts)
    extra = "cuda13" if driver >= 13000 else "cuda12"
    found = f"a driver for CUDA {driver // 1000}.{driver % 1000 // 10}, but CuPy is not installed"
    return Finding("gpu", "warning", found, f"Install syncpretrain[{extra}].", facts)


# By topic; float32 before the checks behind it, which leave threads of BLAS that spin.
CHECKS: dict[str, Callable[[], Finding]] = {
    check.__name__.removeprefix("_"): check
    for check in (
        *(_versions, _platform, _cores, _blas, _kernels, _float32),
        *(_products, _speed, _precision, _gpu),
    )
}


def factors(threads: int) -> list[Factors]:
    """Return the factors of a product for each thread."""
    draw, f4 = np.random.default_rng(0).standard_normal, np.float32
    return [(draw((BATCH, VISIBLE), f4), draw((VISIBLE, HIDDEN), f4)) for _ in range(threads)]


def deviation(pairs: Sequence[Factors]) -> float:
    """Multiply the pairs in turn, then at once; return the worst relative error, 0 if equal."""
    expected = [a @ b for a, b in pairs]
    deadline = time.monotonic() + SECONDS

    def worst(index: int) -> float:
        right, error = expected[index], 0.0
        out, peak = np.empty_like(right), float(np.abs(right).max())
        for repeat in range(REPEATS):
            _multiply(*pairs[index], out)
            if not np.array_equal(out, right):
                gap = np.nan_to_num(np.abs(out - right), nan=peak, posinf=peak).max()
                error = max(error, float(gap) / peak)  # finite, to go into JSON
            if repeat and time.monotonic() > deadline:
                break
        return error

    return max(at_once(len(pairs), [partial(worst, index) for index in range(len(pairs))]))


def rate(pairs: Sequence[Factors]) -> float:
    """Return the GFLOP/s of one thread a pair, over about SECONDS."""
    outs = [np.empty((BATCH, HIDDEN), np.float32) for _ in pairs]
    one = min(_trial(pairs[:1], outs, 1) for _ in range(3))
    repeats = max(2, min(200, int(SECONDS / one)))
    seconds = _trial(pairs, outs, repeats)
    return 2e-9 * BATCH * VISIBLE * HIDDEN * repeats * len(pairs) / seconds


def _trial(pairs: Sequence[Factors], outs: Sequence[Array], repeats: int) -> float:
    """Return the seconds of ``repeats`` products of each pair, a thread a pair."""

    def work(index: int) -> None:
        for _ in range(repeats):
            _multiply(*pairs[index], outs[index])

    start = time.perf_counter()
    at_once(len(pairs), [partial(work, index) for index in range(len(pairs))])
    return time.perf_counter() - start


def _multiply(a: Array, b: Array, out: Array) -> None:
    np.matmul(a, b, out=out)  # (B, V) @ (V, H) -> (B, H); releases the GIL
