"""The phases and shards of a step, which may be executed in parallel.

A step is a sequence of phases. A phase is a function of a shard's number; all its shards may run
at once, and the next phase begins when all are done. What is computed depends on the number of
shards, never on how many workers there are for them or on their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from syncpretrain.kernels.program import Program

__all__ = ["Phase", "PhaseRunner", "Phases", "in_turn"]

Phase = Callable[[int], None]
Phases = Sequence[Phase] | Program  # a program knows its own phases
PhaseRunner = Callable[[Phases, int], None]  # runs the phases of a number of shards


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
