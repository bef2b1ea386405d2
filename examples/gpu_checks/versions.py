"""What is measured with: the machine, its packages and tools, and the trials of whole steps."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from gpu_checks.bench import Bench, Table
from syncpretrain.backends.cuda_fused import has_tensor_cores, why_not_fused
from syncpretrain.kernels import native
from syncpretrain.kernels.precision import PRECISIONS

__all__ = ["versions"]

PACKAGES = ("syncpretrain", "numpy", "msgspec", "torch", "nvidia-cublas", "nvidia-cuda-nvrtc")
TOOLS = ("nvcc", "compute-sanitizer", "ncu")
ASKED = "clocks.sm,clocks.max.sm,temperature.gpu,power.draw,memory.used"  # of nvidia-smi
PATIENCE = 15.0  # seconds for nvidia-smi
TRIALS: dict[str, Callable[..., Any]] = {
    "steps": why_not_fused,
    "steps of fine-tuning": partial(why_not_fused, tunes=True),
}


def versions(bench: Bench) -> Table:
    """Return what this is measured with, and what the trials of whole steps say."""
    assert bench.backend, "there is a GPU"
    return ("What", ""), _rows(bench)


def _rows(bench: Bench) -> Iterator[Sequence[str]]:
    for what, say in _of_device(bench).items():
        yield what, *bench.cells(what, lambda: [say()])  # noqa: B023
    yield "host", f"{platform.machine()}, {os.cpu_count()} cores"
    yield "Python", platform.python_version()
    yield from ((package, _version(package)) for package in PACKAGES)
    yield from ((tool, shutil.which(tool) or "not found") for tool in TOOLS)
    for name, why_not in TRIALS.items():
        for precision in PRECISIONS:
            what = f"whole {name}, {precision}"
            yield what, *bench.cells(what, partial(_trial, bench, what, why_not, precision))
    yield "date", str(date.today())


def _of_device(bench: Bench) -> dict[str, Callable[[], str]]:
    """Return what is to be said of the device, in functions each of which may fail."""
    cupy, device = bench.backend.xp, bench.backend.xp.cuda.Device(bench.device)
    runtime = cupy.cuda.runtime
    capability = f"compute capability {device.compute_capability}"
    return {
        "GPU": lambda: f"{runtime.getDeviceProperties(device.id)['name'].decode()}, {capability}",
        "its memory": lambda: f"{device.mem_info[1] / 2**30:.1f} GiB",
        "GPUs": lambda: str(runtime.getDeviceCount()),
        "nvidia-smi": _smi,
        "CUDA": lambda: f"{runtime.runtimeGetVersion()}, the driver's {runtime.driverGetVersion()}",
        "cuBLAS by ctypes": lambda: "yes" if bench.backend.recorder()._blas.is_there else "NO",
        "CuPy": lambda: cupy.__version__,
        "compiled kernels": lambda: "yes" if native.available() else "NO",
    }


def _smi() -> str:
    """Return the clocks, temperature, power and memory in use of each GPU."""
    if shutil.which("nvidia-smi") is None:
        return "not found"
    command = ["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    return "; ".join((done.stdout or done.stderr).splitlines())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _trial(bench: Bench, what: str, why_not: Callable[..., Any], precision: str) -> list[str]:
    """Return whether whole steps pass their trial; what they are off by is measured later."""
    if not has_tensor_cores(bench.backend.xp, bench.device):
        return ["not before compute capability 8.0"]
    reason = why_not(bench.backend.xp, bench.device, precision)
    bench.verdict(f"the trial of {what}", reason is None)
    return [reason or "yes"]
