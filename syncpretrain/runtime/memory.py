"""How much memory a run needs, and how much there is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from syncpretrain.errors import SettingsError
from syncpretrain.kernels.optimizers import BLOCK

__all__ = [
    "available_bytes",
    "check_available",
    "check_memory",
    "finetuning_bytes",
    "pretraining_bytes",
]

FLOAT = 4
VERSIONS = 3  # a layer's activations at a time, at most
PROCESS_BYTES = 60_000_000  # an interpreter with NumPy
TUNED_COPIES = 5  # parameters, the last good, the best, the result; a part's while it is made
COPIES = 8  # parameters, gradient, velocity and up to 5 published snapshots, the newest included


def pretraining_bytes(layers: Sequence[int], *, examples: int, batch_size: int) -> int:
    """Return an upper bound of the bytes that pretraining allocates beside the data."""
    widths = list(layers)
    activations = VERSIONS * examples * sum(widths[1:-1])
    parameters = COPIES * sum(v * h + v + h for v, h in pairwise(widths))
    minibatches = batch_size * sum(3 * v + 4 * h for v, h in pairwise(widths))
    return FLOAT * (activations + parameters + minibatches)


def finetuning_bytes(
    layers: Sequence[int],
    *,
    outputs: int | None,
    rows: int,
    labelled: int,
    batch_size: int,
    vectors: int,
    gradients: int,
    shards: int,
    dropout: bool,
    copies: int,
) -> int:
    """Return an upper bound of the bytes that fine-tuning allocates beside data and checkpoints.

    Parameters
    ----------
    layers : sequence of int
        Units of the input and of each layer of the stack.
    outputs : int or None
        Of the head; None unrolls the stack for reconstruction.
    rows, labelled : int
        Examples that are copied, and those with a target.
    batch_size : int
    vectors, gradients : int
        Of the network's size, that the optimizer and the workers hold.
    shards : int
        Of a minibatch, each with scratch for its updates.
    dropout : bool
    copies : int
        Of the stack's parameters that are held beside.
    """
    above = list(layers[-2::-1]) if outputs is None else [outputs]
    chain = [*layers, *above]
    network = sum(v * h + h for v, h in pairwise(chain))
    stack = sum(v * h + v + h for v, h in pairwise(layers))
    parameters = (TUNED_COPIES + vectors + gradients) * network + copies * stack
    parameters += 2 * shards * min(BLOCK, network)
    buffers = 2 * sum(chain[1:]) + (2 * sum(chain[:-1]) if dropout else 0)
    minibatches = batch_size * (chain[0] + chain[-1] + buffers * (2 if gradients > 1 else 1))
    data = rows * layers[0] + 2 * labelled * (outputs or 0)
    return FLOAT * (parameters + minibatches + data)


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
    check_available(needed, ",".join(map(str, layers)), examples)


def check_available(needed: int, what: str, examples: int) -> None:
    """Refuse layers on so many examples that need more bytes than there are.

    Raises
    ------
    SettingsError
        Naming what they need and what there is.
    """
    available = available_bytes()
    if needed > available:
        raise SettingsError(
            f"layers: {what} on {examples} examples need about"
            f" {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB are free; take fewer units,"
            " or fewer examples"
        )
