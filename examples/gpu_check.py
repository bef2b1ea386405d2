"""Check a GPU, and time training on it: one command, whose tables go into the documentation.

    python examples/gpu_check.py                              # some minutes
    python examples/gpu_check.py --parts versions,accuracy,bits
    python examples/gpu_check.py --device 1 --epochs 5

The parts, in their order:

versions
    Python, NumPy, CuPy, CUDA, the driver and the GPU; what is missing, if anything is.
accuracy
    Products of cuBLAS and three steps of each layer against float64; states against NumPy's;
    random numbers.
bits
    The same parameters from layers in turns, in threads, and without recorded blocks.
layer
    Microseconds of a step of each layer alone: in parts and as a whole, launch by launch and as
    recorded blocks, and how long it takes to queue them.
layers
    A step of every layer: one layer after another, all at once, and by a thread each.
epochs
    Runs of 784-1000-500-250-30 on 50,000 rows of random bytes, greedy and synchronized, and its
    fine-tuning: seconds, and the memory of the GPU that is not given back.
pytorch
    The greedy step of PyTorch, eager and in a CUDA graph, if it is installed.

A part that fails prints its traceback and leaves the others alone; the status is 1 then. This has
never run on a GPU: the tests run every part with a stand-in for CuPy, at small sizes.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import Any

from gpu_checks.accuracy import accuracy
from gpu_checks.bench import Bench, Table, rst_table
from gpu_checks.pytorch import greedy_steps
from gpu_checks.runs import epochs, same_bits
from gpu_checks.steps import all_layers, one_layer

from syncpretrain.backends.choice import backend_for, why_no_fused_steps
from syncpretrain.errors import SettingsError

PACKAGES = ("syncpretrain", "numpy", "msgspec", "torch")


def versions(bench: Bench) -> Table:
    """Return what this is measured with."""
    cupy, device = bench.backend.xp, bench.backend.xp.cuda.Device(bench.backend.device)
    runtime = cupy.cuda.runtime
    name = runtime.getDeviceProperties(device.id)["name"].decode()
    rows = [
        ("GPU", f"{name}, compute capability {device.compute_capability}"),
        ("its memory", f"{device.mem_info[1] / 2**30:.1f} GiB"),
        ("host", f"{platform.machine()}, {os.cpu_count()} cores"),
        ("CUDA", f"{runtime.runtimeGetVersion()}, the driver's {runtime.driverGetVersion()}"),
        ("cuBLAS by ctypes", "yes" if bench.backend.recorder()._blas.is_there else "NO"),
        ("CuPy", cupy.__version__),
        ("Python", platform.python_version()),
        *((package, _version(package)) for package in PACKAGES),
        ("whole steps", why_no_fused_steps(bench.backend.name, "float32") or _of_whole(device)),
        ("date", str(date.today())),
    ]
    return ("What", ""), rows


def _of_whole(device: Any) -> str:
    return "yes" if int(device.compute_capability) >= 80 else "not before compute capability 8.0"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


PARTS: dict[str, Callable[[Bench], Table]] = {
    "versions": versions,
    "accuracy": accuracy,
    "bits": same_bits,
    "layer": one_layer,
    "layers": all_layers,
    "epochs": epochs,
    "pytorch": greedy_steps,
}


def run(bench: Bench, parts: Iterable[str]) -> list[str]:
    """Print the table of each part; return the names of those that failed."""
    failed = []
    for name in parts:
        started = perf_counter()
        rows: list[Sequence[str]] = []
        head: Sequence[str] = ()
        try:
            head, found = PARTS[name](bench)
            rows.extend(found)  # as far as they come
        except Exception:
            traceback.print_exc()
            failed.append(name)
        print(f"\n{name} ({perf_counter() - started:.0f} s)\n")
        print(rst_table((head, rows)) if rows else "nothing was measured", flush=True)
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Check and time the parts that are asked for; return the status."""
    parser = argparse.ArgumentParser(description="Check a GPU, and time training on it.")
    parser.add_argument("--parts", default=",".join(PARTS), help="default: all")
    parser.add_argument("--device", type=int, default=0, help="the number of the GPU")
    parser.add_argument("--layers", default="784,1000,500,250,30")
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--blocks", type=int, default=20, help="of 50 steps, timed together")
    parser.add_argument("--repeats", type=int, default=5, help="of each time; the median counts")
    parser.add_argument("--epochs", type=int, default=3, help="of each run")
    given = parser.parse_args(arguments)
    parts = given.parts.split(",")
    if unknown := set(parts) - PARTS.keys():
        parser.error(f"--parts: got {min(unknown)!r}, expected some of {', '.join(PARTS)}")
    try:
        backend = backend_for(f"cupy:{given.device}")
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    layers = tuple(map(int, given.layers.split(",")))
    sizes = (given.batch_size, given.rows, given.blocks, given.repeats, given.epochs)
    failed = run(Bench(backend, layers, *sizes), parts)
    print(f"\n{'failed: ' + ', '.join(failed) if failed else 'all is well'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
