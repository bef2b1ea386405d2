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

from syncpretrain.errors import SettingsError

__all__ = ["MAX_EPOCHS", "LayerPlan", "Reads", "greedy_reads", "lockstep_reads", "rounds_reads"]

Reads = tuple[tuple[int, ...], ...]
MAX_EPOCHS = 1_000_000  # of a layer, refreshes included


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
    will be, in order. Without ``drain``, only the refreshes that begin before layer 1 is done, on
    a clock on which every epoch takes one tick.

    Raises
    ------
    SettingsError
        If refreshes on refreshes add up beyond measure.
    """
    reads = [(0,) * plans[0].epochs]
    published: Sequence[int] = range(1, plans[0].epochs + 1)  # the tick of each version below
    for layer, (below, plan) in enumerate(pairwise(plans), start=2):
        first = [min(k, below.epochs) for k in range(1, plan.epochs + 1)]
        newer = range(first[-1] + 1, len(reads[-1]) + 1)
        total = plan.epochs + len(newer) * plan.refresh_epochs
        if total > MAX_EPOCHS:
            raise SettingsError(
                f"refresh_epochs: got {plan.refresh_epochs} for layer {layer}, which makes"
                f" {total:,} epochs, as many for each version of the layer below; take fewer"
            )
        planned = first + [version for version in newer for _ in range(plan.refresh_epochs)]
        ticks = _ticks(planned, published)
        in_time = sum(tick <= plans[0].epochs for tick in ticks)
        kept = total if drain else max(plan.epochs, in_time)
        reads.append(tuple(planned[:kept]))
        published = ticks[:kept]
    return tuple(reads)


def _ticks(reads: Sequence[int], published: Sequence[int]) -> list[int]:
    """Return when each epoch ends that waits for its version and for the epoch before it."""
    ticks: list[int] = []
    for version in reads:
        ticks.append(max(ticks[-1] if ticks else 0, published[version - 1]) + 1)
    return ticks


def greedy_reads(plans: Sequence[LayerPlan]) -> Reads:
    """Return the versions read layer by layer: every epoch on the finished layer below."""
    below = (0, *(plan.epochs for plan in plans))
    return tuple((version,) * plan.epochs for version, plan in zip(below, plans, strict=False))


def rounds_reads(plans: Sequence[LayerPlan], *, group_size: int, drain: bool = True) -> Reads:
    """Return the versions read in rounds: ``group_size`` layers in lockstep, then the next ones.

    The first layer of a round reads the last version of the finished layer below in every epoch,
    as layer 1 reads the data. Newer versions come only from layers of the same round, so the first
    layer of a round is never refreshed; without ``drain``, a round's refreshes must begin before
    its first layer is done. Groups of 1 read like greedy, one group of all like lockstep.

    Raises
    ------
    SettingsError
        If refreshes on refreshes add up beyond measure.
    """
    reads: list[tuple[int, ...]] = []
    for start in range(0, len(plans), group_size):
        first, *others = lockstep_reads(plans[start : start + group_size], drain=drain)
        finished = len(reads[-1]) if reads else 0
        reads += [(finished,) * len(first), *others]
    return tuple(reads)
