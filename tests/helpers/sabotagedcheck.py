"""Starts the check of a GPU on the stand-in for CuPy, some of its parts made to fail.

python sabotagedcheck.py layer=crash,layers=hang OPTIONS_OF_GPU_CHECK
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
SLEEPER = "sleeper.txt"  # in the folder of results: the number of a process that a part started
STEPS_AT_ONCE = 3


def crash(bench):
    os.kill(os.getpid(), signal.SIGSEGV)


def fail(bench):
    raise ZeroDivisionError("a defect")


def hang(bench):
    sleeper = subprocess.Popen(["sleep", "1000"])
    (bench.out / SLEEPER).write_text(str(sleeper.pid))
    time.sleep(1000)


FAULTS = {fault.__name__: fault for fault in (crash, fail, hang)}


def sabotaged(fault: str) -> Callable[[Any], tuple[list[str], Iterator[list[str]]]]:
    """Return a part that has one row before it does what it is made to."""

    def rows(bench) -> Iterator[list[str]]:
        yield ["before", fault]
        FAULTS[fault](bench)

    return lambda bench: (["When", "Fault"], rows(bench))


def main(faults: str, *arguments: str) -> int:
    import fakecupy
    import pytest

    from syncpretrain.backends import cupy_backend

    fakecupy.install(pytest.MonkeyPatch())
    cupy_backend.STEPS_AT_ONCE = STEPS_AT_ONCE
    sys.path.insert(0, str(EXAMPLES))
    import gpu_check

    for name, _, fault in (each.partition("=") for each in faults.split(",")):
        gpu_check.PARTS[name] = gpu_check.Part(sabotaged(fault), 1)
    return gpu_check.main(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
