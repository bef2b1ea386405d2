"""What the benchmarks against other libraries share: turns, processes, tables, the machine.

A measurement has a process of its own. In one process the thread pools of two libraries disturb
one another (idle OpenMP threads spin for a while, OpenBLAS keeps its own beside them), and a limit
on one is seen by the other. The processes take turns, so that a machine whose speed drifts slows
all alike, and ratios are taken turn by turn.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TypedDict

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from syncpretrain.parallel.blas import blas_environment, usable_cores

__all__ = [
    "Outcome",
    "bare_products",
    "busy",
    "in_a_process",
    "in_turns",
    "machine",
    "ratios",
    "rst_table",
    "spread",
]

FLOOR_STEPS = 200  # are timed, in each layer


class Outcome(TypedDict):
    """What one measurement came to: wall time, and an error where something was trained."""

    seconds: float
    error: float | None


def in_a_process(script: Path, arguments: Sequence[str]) -> Outcome:
    """Run a script that ends with a line of JSON; return that line's outcome.

    The environment's limits on BLAS threads are taken away: each library sets its own.
    """
    limits = blas_environment(1).keys()
    environment = {name: value for name, value in os.environ.items() if name not in limits}
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    outcome: Outcome = json.loads(done.stdout.splitlines()[-1])
    return outcome


def in_turns(
    names: Iterable[str], pairs: int, measured: Callable[[str], Outcome]
) -> dict[str, list[Outcome]]:
    """Measure each name, then each again, so many times; tell every time at once on stderr."""
    outcomes: dict[str, list[Outcome]] = {name: [] for name in names}
    for _ in range(pairs):
        for name, so_far in outcomes.items():
            so_far.append(measured(name))
            print(f"{name:<42} {so_far[-1]['seconds']:8.2f} s", file=sys.stderr, flush=True)
    return outcomes


def bare_products(layers: Sequence[int], *, batch: int, steps: int) -> float:
    """Return the seconds of the products of CD-1 in so many steps of each layer, with one core.

    All arrays are allocated before. The two products of the gradient are one of stacked phases,
    which is no slower.
    """
    seconds = 0.0
    draws = np.random.default_rng(0)
    with threadpool_limits(limits=1, user_api="blas"):
        for V, H in pairwise(layers):
            weight, v, h = (
                draws.standard_normal(shape, dtype=np.float32)
                for shape in ((V, H), (2 * batch, V), (2 * batch, H))
            )
            weight *= np.float32(0.01)
            gradient = np.empty_like(weight)
            timed = min(steps, FLOOR_STEPS)
            for step in range(-3, timed):
                if step == 0:
                    started = perf_counter()
                np.matmul(v[:batch], weight, out=h[:batch])
                np.matmul(h[:batch], weight.T, out=v[batch:])
                np.matmul(v[batch:], weight, out=h[batch:])
                np.matmul(v.T, h, out=gradient)
            seconds += (perf_counter() - started) * steps / timed
    return seconds


def busy() -> float:
    """Return how many programs ran at a time in the last minute, where the system tells.

    Threads of OpenMP spin at their barriers: where another program takes a core away, a loop with
    threads of its own was seen to take 25 times as long. Then no ratio says anything.
    """
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def ratios(above: Iterable[Outcome], below: Iterable[Outcome]) -> list[float]:
    """Return how many times the time below each time above is, turn by turn."""
    return [a["seconds"] / b["seconds"] for a, b in zip(above, below, strict=True)]


def spread(values: Sequence[float]) -> str:
    """Return the median, and in brackets the least and the largest."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def rst_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a simple table of reStructuredText; an empty head of a column is escaped."""
    lines = [[counter or "\\" for counter in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = "  ".join("=" * width for width in widths)
    text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join([rule, text[0], rule, *text[1:], rule])


def machine(packages: Sequence[str]) -> str:
    """Return the kind of machine, NumPy's BLAS and the CPU it has kernels for, versions, date."""
    found = [x for x in threadpool_info() if _is_blas(x)]
    blas = {f"{x['internal_api']} {x['version']} for {x.get('architecture')}" for x in found}
    return ", ".join(
        [
            f"{usable_cores()} cores",
            f"{platform.machine()} ({_processor()})",
            f"NumPy {version('numpy')} with {' and '.join(sorted(blas)) or 'an unknown BLAS'}",
            *(f"{name} {_version(name)}" for name in packages),
            f"Python {platform.python_version()}",
            str(date.today()),
        ]
    )


def _is_blas(info: dict[str, object]) -> bool:
    return info["user_api"] == "blas"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    """Return the model of the CPU, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"
