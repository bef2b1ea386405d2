"""The phases and shards of a step, which may be executed in parallel.

A step is a sequence of phases. A phase is a function of a shard's number; all its shards may run
at once, and the next phase begins when all are done. What is computed depends on the number of
shards, never on how many workers there are for them or on their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from syncpretrain.kernels.program import Program

__all__ = ["LONG_BLOCK", "Phase", "PhaseRunner", "Phases", "in_turn", "slices_of"]

Phase = Callable[[int], None]
Phases = Sequence[Phase] | Program  # a program knows its own phases
PhaseRunner = Callable[[Phases, int], None]  # runs the phases of a number of shards
LONG_BLOCK = 2**18  # numbers; smaller ones pass the interpreter's lock around too often


def in_turn(phases: Phases, shards: int) -> None:
    """Run all shards of all phases, one after another."""
    if isinstance(phases, Program):
        if phases.is_compiled:
            phases.work()
            return
        phases = phases.phases
    for phase in phases:
        for shard in range(shards):
            phase(shard)


def slices_of(size: int, shards: int) -> list[slice]:
    """Return slices of about equal length that make up ``range(size)``; some may be empty."""
    ends = [size * i // shards for i in range(shards + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]
