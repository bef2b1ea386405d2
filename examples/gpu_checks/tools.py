"""Other programs: the doctor, NVIDIA's sanitizer and profiler, and the tests of the backends.

What a program prints is printed as it comes; a row has what counts of it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Timer

from gpu_checks import processes
from gpu_checks.bench import Bench, Table

__all__ = ["doctor", "profile", "sanitized", "suite"]

FOLDER = Path(__file__).parents[2] / "tests" / "backends"
SELECTION = ["-k", "cupy"]
HOW = ["-q", "--maxfail=40", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
WORKERS = 6  # processes of the tests, which share the GPU
# Layers with and without alignment, and blocks of a tile and a part of one.
SMALL = ["--layers", "70,44,36", "--batch-size", "70", "--rows", "300", "--epochs", "1"]
SMALL += ["--blocks", "1", "--repeats", "1"]
KERNELS = "regex:draw_hidden|reconstruct|find_hidden|move_parameters"
PROFILED = ["--layers", "784,1000", "--rows", "5000", "--blocks", "1", "--repeats", "1"]
INTERRUPTED = 0.85  # of a part's limit, after which its program has to end
WIDTH = "200"  # columns of what is printed
FOUND = 9  # the status of the sanitizer if it finds something
SHOWN = re.compile(r"^ +[a-z_]+ \(|Duration|Registers Per|Achieved Occ|Theoretical Occ")


def doctor(bench: Bench) -> Table:
    """Return what the library says of this machine."""
    return ("Doctor",), _doctor(bench)


def _doctor(bench: Bench) -> Iterator[Sequence[str]]:
    status, lines = told(bench, [sys.executable, "-m", "syncpretrain", "doctor"])
    bench.verdict(f"status {status}", status == 0)
    yield [f"status {status}"]
    yield from ([line] for line in lines if line and not line.startswith(("ok ", "  ")))


def sanitized(bench: Bench, tool: str) -> Table:
    """Return what a tool of compute-sanitizer finds in the part accuracy at a small size."""
    return ("compute-sanitizer", ""), _sanitized(bench, tool)


def _sanitized(bench: Bench, tool: str) -> Iterator[Sequence[str]]:
    program, log = shutil.which("compute-sanitizer"), bench.out / f"{tool}.log"
    if program is None:
        yield tool, "compute-sanitizer is not found: nothing was looked for"
        return
    own = ["--tool", tool, "--print-limit", "20", "--error-exitcode", str(FOUND)]
    part = [*processes.command(), *_small_part(bench, tool, "accuracy"), *SMALL]
    status, _ = told(bench, [program, *own, "--log-file", str(log), *part])
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    bench.verdict(f"{tool}: status {status}", status == 0)
    yield tool, lines[-1].strip("= ") if lines else "it wrote nothing"


def suite(bench: Bench) -> Table:
    """Return which tests of the backends fail on this GPU."""
    return ("Tests", ""), _suite(bench)


def _suite(bench: Bench) -> Iterator[Sequence[str]]:
    if find_spec("pytest") is None or not FOLDER.is_dir():
        yield "not run", "pytest is not installed, or tests/ is not here"
        return
    shared = ["-n", str(WORKERS)] if find_spec("xdist") else []
    command = [sys.executable, "-m", "pytest", str(FOLDER), *SELECTION, *HOW, *shared]
    status, lines = told(bench, command)
    bench.verdict(f"status {status}", status == 0)
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            test, _, why = line.partition(" - ")
            yield test, why
    yield "in all", lines[-1].strip("= ") if lines else "it printed nothing"


def profile(bench: Bench) -> Table:
    """Return what Nsight Compute says of the kernels of whole steps."""
    return ("Nsight Compute",), _profile(bench)


def _profile(bench: Bench) -> Iterator[Sequence[str]]:
    program = shutil.which("ncu")
    if program is None:
        yield ["ncu is not found"]
        return
    own = ["--clock-control", "none", "--set", "basic", "-k", KERNELS, "-s", "8", "-c", "8"]
    part = [*processes.command(), *_small_part(bench, "ncu", "layer"), *PROFILED]
    status, lines = told(bench, [program, *own, *part])
    bench.verdict(f"status {status}", status == 0)
    yield from ([line.strip()] for line in lines if SHOWN.search(line))


def _small_part(bench: Bench, tool: str, part: str) -> list[str]:
    """Return the options for a part whose files do not take the place of the whole part's."""
    folder = str(bench.out / tool)
    return ["--part", part, "--out", folder, "--limit", str(bench.seconds)]


def told(bench: Bench, command: Sequence[str]) -> tuple[int, list[str]]:
    """Run a program and print what it prints; return its status and its lines.

    Shortly before the part's limit it is interrupted, so that it can say what it has found so far.
    """
    lines = []
    with subprocess.Popen(
        command,
        env=os.environ | {"COLUMNS": WIDTH},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        interrupt = Timer(INTERRUPTED * bench.seconds, process.send_signal, [signal.SIGINT])
        interrupt.start()
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line.rstrip())
        finally:  # a timer that runs on keeps this process
            interrupt.cancel()
            interrupt.join()
    return process.returncode, lines
