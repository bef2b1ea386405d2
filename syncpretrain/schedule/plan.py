"""Which upstream version each epoch of each layer trains on, where that is known beforehand.

A run of 4 layers in lockstep; a row is a layer, a cell an epoch on the version in brackets:

    time ->   1     2     3     4     5     6
    layer 1   1(0)  2(0)  3(0)  4(0)
    layer 2         1(1)  2(2)  3(3)  4(4)
    layer 3               1(1)  2(2)  3(3)  4(4)

A layer's versions are numbered by the epochs behind them; version 0 is the data itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["LayerPlan", "Reads", "greedy_reads", "lockstep_reads"]

Reads = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What is stipulated for one layer.

    ``epochs`` is N_l; ``refresh_epochs`` is how many more follow each newer upstream version once
    they are done; ``cost`` is the work of an epoch relative to the other layers'.
    """

    epochs: int
    refresh_epochs: int = 0
    cost: float = 1.0


def lockstep_reads(plans: Sequence[LayerPlan], *, drain: bool = True) -> Reads:
    """Return the versions read in lockstep: epoch k on version min(k, N of the layer below).

    After its stipulated epochs a layer trains ``refresh_epochs`` on every newer version there
    will be, in order. Without ``drain`` the last version of a layer wakes nobody for a refresh,
    as in the experiment of Santara et al. 2016, section 5.2.
    """
    reads = [(0,) * plans[0].epochs]
    for below, plan in pairwise(plans):
        first = [min(k, below.epochs) for k in range(1, plan.epochs + 1)]
        newest = len(reads[-1]) if drain else len(reads[-1]) - 1
        refreshed = range(first[-1] + 1, newest + 1)
        reads.append((*first, *(v for v in refreshed for _ in range(plan.refresh_epochs))))
    return tuple(reads)


def greedy_reads(plans: Sequence[LayerPlan]) -> Reads:
    """Return the versions read layer by layer: every epoch on the finished layer below."""
    below = (0, *(plan.epochs for plan in plans))
    return tuple((version,) * plan.epochs for version, plan in zip(below, plans, strict=False))
