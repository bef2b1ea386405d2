"""Upstream version that each epoch of each layer trains on, where it is known beforehand.

A run of 4 layers in lockstep; a row is a layer, a cell an epoch on the version in brackets:

    time ->   1     2     3     4     5     6
    layer 1   1(0)  2(0)  3(0)  4(0)
    layer 2         1(1)  2(2)  3(3)  4(4)
    layer 3               1(1)  2(2)  3(3)  4(4)

A layer's versions are numbered by the epochs behind them; version 0 is the data itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from syncpretrain.errors import SettingsError

__all__ = [
    "MAX_EPOCHS",
    "LayerPlan",
    "Reads",
    "Row",
    "Rule",
    "greedy_row",
    "lockstep_row",
    "planned_rows",
    "rounds_row",
]

Reads = tuple[tuple[int, ...], ...]
MAX_EPOCHS = 1_000_000  # of a layer, refreshes included


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """The plan of one layer.

    ``epochs`` is N_l. Once they are done, ``refresh_epochs`` more follow each newer upstream
    version. With a ``drift`` they follow only a version that differs by more than that from the
    version last trained on; ``skipped`` are the versions that did not.
    """

    epochs: int
    refresh_epochs: int = 0
    drift: float | None = None
    skipped: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Row:
    """The epochs of one layer: which version each reads, and how many are stipulated.

    The rest counts where the run ends with layer 1: on a clock on which every epoch takes one tick,
    when each epoch ends, and when the last one of the round's first layer does.
    """

    reads: tuple[int, ...]
    epochs: int
    ticks: tuple[int, ...] = ()
    last_tick: int = 0


Rule = Callable[[int, LayerPlan, Row | None], Row]  # of a layer's index, its plan, the row below


def planned_rows(plans: Sequence[LayerPlan], rule: Rule) -> list[Row]:
    """Return the rows of all layers, from the lowest up."""
    rows: list[Row] = []
    for layer, plan in enumerate(plans):
        rows.append(rule(layer, plan, rows[-1] if rows else None))
    return rows


def lockstep_row(layer: int, plan: LayerPlan, below: Row | None, *, drain: bool = True) -> Row:
    """Return what a layer reads in lockstep: epoch k version min(k, N of the layer below).

    After its stipulated epochs it trains ``refresh_epochs`` on every newer version there will be,
    in order. Without ``drain``, only the refreshes that would begin before layer 1 is done if none
    were skipped. So a version that is published without a reader never gets one.

    Raises
    ------
    SettingsError
        If refreshes on refreshes add up beyond measure.
    """
    if below is None:
        return _row_on_one_version(plan, 0)
    first = [min(k, below.epochs) for k in range(1, plan.epochs + 1)]
    newer = range(first[-1] + 1, len(below.reads) + 1)
    total = plan.epochs + len(newer) * plan.refresh_epochs
    if total > MAX_EPOCHS:
        raise SettingsError(
            f"refresh_epochs: got {plan.refresh_epochs} for layer {layer + 1}, which makes"
            f" {total:,} epochs, as many for each version of the layer below; take fewer"
        )
    reads = (*first, *(version for version in newer for _ in range(plan.refresh_epochs)))
    if drain:
        return _without_skipped(Row(reads, plan.epochs), plan)
    ticks = _ticks(reads, below.ticks)
    kept = max(plan.epochs, sum(tick <= below.last_tick for tick in ticks))
    row = Row(reads[:kept], plan.epochs, tuple(ticks[:kept]), below.last_tick)
    return _without_skipped(row, plan)


def greedy_row(layer: int, plan: LayerPlan, below: Row | None) -> Row:
    """Return what a layer reads in greedy training: in every epoch the finished layer below."""
    return _row_on_one_version(plan, len(below.reads) if below else 0)


def rounds_row(
    layer: int, plan: LayerPlan, below: Row | None, *, group_size: int, drain: bool = True
) -> Row:
    """Return what a layer reads in rounds: ``group_size`` layers in lockstep, then the next ones.

    The first layer of a round reads the last version of the finished layer below in every epoch,
    as layer 1 reads the data. Newer versions come only from layers of the same round, so the first
    layer of a round is never refreshed; without ``drain``, a round's refreshes must begin before
    its first layer is done. Groups of 1 read like greedy, one group of all like lockstep.

    Raises
    ------
    SettingsError
        If refreshes on refreshes add up beyond measure.
    """
    if below is None or layer % group_size:
        return lockstep_row(layer, plan, below, drain=drain)
    return _row_on_one_version(plan, len(below.reads))


def _row_on_one_version(plan: LayerPlan, version: int) -> Row:
    epochs = plan.epochs
    return Row((version,) * epochs, epochs, tuple(range(1, epochs + 1)), epochs)


def _without_skipped(row: Row, plan: LayerPlan) -> Row:
    if not plan.skipped:
        return row
    numbers = range(len(row.reads))
    kept = [k for k in numbers if k < plan.epochs or row.reads[k] not in plan.skipped]
    ticks = tuple(row.ticks[k] for k in kept) if row.ticks else ()
    return replace(row, reads=tuple(row.reads[k] for k in kept), ticks=ticks)


def _ticks(reads: Sequence[int], published: Sequence[int]) -> list[int]:
    """Return when each epoch ends that waits for its version and for the epoch before it."""
    ticks: list[int] = []
    for version in reads:
        ticks.append(max(ticks[-1] if ticks else 0, published[version - 1]) + 1)
    return ticks
