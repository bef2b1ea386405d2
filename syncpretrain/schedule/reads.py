"""Upstream version that each epoch of each layer trains on, where it is known beforehand.

A run of 4 layers in lockstep; a row is a layer, a cell an epoch on the version in brackets:

    time ->   1     2     3     4     5     6
    layer 1   1(0)  2(0)  3(0)  4(0)
    layer 2         1(1)  2(2)  3(3)  4(4)
    layer 3               1(1)  2(2)  3(3)  4(4)

A layer's versions are numbered by the epochs behind them; version 0 is the data itself. The
functions here index layers from 0; texts for users count them from 1, as above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from syncpretrain.errors import SettingsError

Reads = tuple[tuple[int, ...], ...]
MAX_EPOCHS = 1_000_000  # of a layer, refreshes included


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """The plan of one layer.

    The layer trains ``epochs``: these are stipulated. Then ``refresh_epochs`` more follow each
    newer version of the layer below. With a ``least_drift`` they follow only a version with a drift
    above it, from the version last trained on; ``skipped`` are the versions with less drift.
    """

    epochs: int
    refresh_epochs: int = 0
    least_drift: float | None = None
    skipped: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Row:
    """The epochs of one layer: the version that each reads, and the number of stipulated ones.

    A row has ``ticks`` if it has to be known what begins before layer 1 is done. They are read from
    a clock on which every epoch takes one tick: ``ticks`` has the end of each epoch, and
    ``last_tick`` is the end of the last epoch of the first layer in the round.
    """

    reads: tuple[int, ...]
    epochs: int
    ticks: tuple[int, ...] = ()
    last_tick: int = 0


Rule = Callable[[int, LayerPlan, Row | None], Row]  # given layer, plan, and row of the layer below


def planned_rows(plans: Sequence[LayerPlan], rule: Rule) -> list[Row]:
    """Return the rows of all layers, from the lowest up."""
    rows: list[Row] = []
    for layer, plan in enumerate(plans):
        rows.append(rule(layer, plan, rows[-1] if rows else None))
    return rows


def lockstep_row(layer: int, plan: LayerPlan, below: Row | None, *, drain: bool = True) -> Row:
    """Return the row of a layer in lockstep: epoch k reads version min(k, N).

    N is the number of stipulated epochs of the layer below. After its own stipulated epochs the
    layer trains ``refresh_epochs`` on every newer version there will be, in order. Without
    ``drain`` it trains only the versions that begin before layer 1 is done, which may cut a
    refresh in the middle. Skipped versions take their time in this count: else a skip would make
    room for a later version, which may be released by then.

    Raises
    ------
    SettingsError
        If the layer had more than ``MAX_EPOCHS``: refreshes make versions, which are read by
        refreshes of the next layer.
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
    """Return the row of a layer in greedy training: it reads the last version of the one below."""
    return _row_on_one_version(plan, len(below.reads) if below else 0)


def rounds_row(
    layer: int, plan: LayerPlan, below: Row | None, *, group_size: int, drain: bool = True
) -> Row:
    """Return the row of a layer in rounds: ``group_size`` layers in lockstep, then the next ones.

    The first layer of a round reads the last version of the finished layer below in every epoch,
    as layer 1 reads the data. Newer versions come only from layers of the same round, so the first
    layer of a round is never refreshed; without ``drain``, a round's refreshes must begin before
    its first layer is done. Groups of 1 read like greedy, one group of all like lockstep.

    Raises
    ------
    SettingsError
        As in :func:`lockstep_row`.
    """
    if below is None or layer % group_size:
        return lockstep_row(layer, plan, below, drain=drain)
    return _row_on_one_version(plan, len(below.reads))


def _row_on_one_version(plan: LayerPlan, version: int) -> Row:
    epochs = plan.epochs
    # The clock begins anew in each round: its first layer waits for no epoch of another layer.
    return Row((version,) * epochs, epochs, tuple(range(1, epochs + 1)), epochs)


def _without_skipped(row: Row, plan: LayerPlan) -> Row:
    """Return a row without the refreshes on versions that the plan skips."""
    if not plan.skipped:
        return row
    numbers = range(len(row.reads))
    kept = [k for k in numbers if k < plan.epochs or row.reads[k] not in plan.skipped]
    ticks = tuple(row.ticks[k] for k in kept) if row.ticks else ()
    return replace(row, reads=tuple(row.reads[k] for k in kept), ticks=ticks)


def _ticks(reads: Sequence[int], published_at: Sequence[int]) -> list[int]:
    """Return the tick at the end of each epoch, given the tick of each version from 1 on.

    An epoch begins when its version is published and the epoch before it has ended.
    """
    ticks: list[int] = []
    for version in reads:
        ticks.append(max(ticks[-1] if ticks else 0, published_at[version - 1]) + 1)
    return ticks
