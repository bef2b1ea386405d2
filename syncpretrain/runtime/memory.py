"""How much memory a run needs, and how much there is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from syncpretrain.errors import SettingsError

__all__ = ["available_bytes", "check_memory", "pretraining_bytes"]

FLOAT = 4
VERSIONS = 3  # a layer's activations at a time, at most
PROCESS_BYTES = 60_000_000  # an interpreter with NumPy
COPIES = 8  # parameters, gradient, velocity and up to 5 published snapshots, the newest included


def pretraining_bytes(layers: Sequence[int], *, examples: int, batch_size: int) -> int:
    """Return an upper bound of the bytes that pretraining allocates beside the data."""
    widths = list(layers)
    activations = VERSIONS * examples * sum(widths[1:-1])
    parameters = COPIES * sum(v * h + v + h for v, h in pairwise(widths))
    minibatches = batch_size * sum(3 * v + 4 * h for v, h in pairwise(widths))
    return FLOAT * (activations + parameters + minibatches)


def available_bytes() -> int:
    """Return the memory that can be had: the system's, cut by the control group's limit."""
    free = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        table = dict(row.split(":") for row in Path("/proc/meminfo").read_text().splitlines())
        free.append(int(table["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        pass  # no Linux: the physical memory has to do
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        rows = Path("/sys/fs/cgroup/memory.stat").read_text().splitlines()
        cached = int(dict(row.split() for row in rows)["inactive_file"])
        free.append(limit - used + cached)  # cached files make room where it is needed
    except (OSError, KeyError, ValueError):
        pass  # no control group, or no limit ("max")
    return max(0, min(free))


def check_memory(
    layers: Sequence[int], *, examples: int, batch_size: int, processes: bool = False
) -> None:
    """Refuse a stack that cannot fit; ``processes`` share a copy of the data and need their own.

    Raises
    ------
    SettingsError
        Naming what it needs and what there is.
    """
    needed = pretraining_bytes(layers, examples=examples, batch_size=batch_size)
    if processes:
        needed += FLOAT * examples * layers[0] + PROCESS_BYTES * (len(layers) - 1)
    available = available_bytes()
    if needed > available:
        raise SettingsError(
            f"layers: {','.join(map(str, layers))} on {examples} examples need about"
            f" {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB are free; take fewer units,"
            " or fewer examples"
        )
