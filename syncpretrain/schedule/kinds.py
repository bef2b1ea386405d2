"""Kinds of schedule, by the names that the settings use; the versions that epochs read; paces.

A run of 4 layers in lockstep; a row is a layer, a cell an epoch on the version in brackets:

    time ->   1     2     3     4     5     6
    layer 1   1(0)  2(0)  3(0)  4(0)
    layer 2         1(1)  2(2)  3(3)  4(4)
    layer 3               1(1)  2(2)  3(3)  4(4)

A layer's versions are numbered by the epochs behind them; version 0 is the data itself. The
functions here index layers from 0; texts for users count them from 1, as above.

A *rule* returns the row of a layer above another: the version that each of its epochs reads, where
it is known beforehand. A *pace* decides which upstream version a layer's next epoch reads: a pure
function of its past. It is asked about one layer at a time. It is given ``reads``, the upstream
version of every epoch that this layer has begun, and ``published``, the newest version of the layer
below. What depends on more layers is the schedule's to find out.

Everything that depends on a kind asks its record: the settings' checks, the driver, the planner,
``compare`` and the command line.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

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

    Without ``drain`` no layer may stop early, which the settings refuse: refreshes that have begun
    by then may be too late by the shorter count, and timing would decide whether they have.

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
    kept = [k for k in range(len(row.reads)) if k < plan.epochs or row.reads[k] not in plan.skipped]
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


class Fixed:
    """Every read is known beforehand, as in the replay of a recorded run.

    Attributes
    ----------
    max_unread : int, optional
        How many versions of a layer may wait unread before it waits for its reader.

    Raises
    ------
    SettingsError
        If an epoch reads an older version than the one before it, or one that never comes.
    """

    def __init__(self, plan: Sequence[Sequence[int]], *, max_unread: int | None = 2) -> None:
        _check_reads(plan)
        self._plan = list(plan)
        self.max_unread = max_unread

    def next_read(self, layer: int, reads: Sequence[int], published: int) -> int | None:
        """Return the version the next epoch reads (published or not yet), None to sleep."""
        plan, begun = self._planned(layer), len(reads)
        return plan[begun] if begun < len(plan) else None

    def unread(self, layer: int, reads: Sequence[int], published: int) -> list[int]:
        """Return the published versions of the layer below that the plan still names."""
        plan, unread = self._planned(layer), list[int]()
        newest_read = reads[-1] if reads else 0
        at = bisect_right(plan, newest_read, len(reads))  # a plan never goes back to an older one
        while at < len(plan) and plan[at] <= published:
            unread.append(plan[at])
            at = bisect_right(plan, plan[at], at)
        return unread

    def first_of_round(self, layer: int) -> int:
        """Return the lowest layer of the round; it begins when all layers below have ended."""
        return 0

    def is_satisfied(self, layer: int, begun: int, done: int) -> bool:
        """Return whether every planned epoch has begun; if so of each layer, no epoch starts."""
        return begun == len(self._planned(layer))

    def shorten(self, layer: int, epochs: int) -> None:
        """Do nothing: a recorded run has been shortened already."""

    def skip(self, layer: int, version: int) -> None:
        """Do nothing: what a recorded run skipped is not among its reads."""

    def _planned(self, layer: int) -> Sequence[int]:
        return self._plan[layer]


class Planned(Fixed):
    """The reads follow from the layers' plans: lockstep, greedy and rounds.

    Parameters
    ----------
    plans : sequence of LayerPlan
    rule : Rule
        The reads of a layer above another. A plan and the same plan with more epochs must begin
        with the same reads.
    group_size : int, optional
        Layers of a group; each waits until all layers of the groups below have ended. This changes
        no read, only what trains at the same time. Default all layers.
    """

    def __init__(
        self, plans: Sequence[LayerPlan], rule: Rule, *, group_size: int | None = None
    ) -> None:
        self._plans, self._rule = list(plans), rule
        self._rows = planned_rows(plans, rule)
        self._fresh = len(plans)  # rows; the rows above are of plans that were longer
        self._group_size = group_size or len(plans)
        super().__init__([row.reads for row in self._rows])

    def first_of_round(self, layer: int) -> int:
        """Return the lowest layer of the group."""
        return layer - layer % self._group_size

    def unread(self, layer: int, reads: Sequence[int], published: int) -> list[int]:
        """Return the published versions that the plan names, and the newest if it may prove last.

        The first layer of a group waits for the last version of the group below. That is an earlier
        one than planned if layers in there stop early, or skip versions.
        """
        unread = super().unread(layer, reads, published)
        waits = layer and not layer % self._group_size and not reads and published
        return unread or ([published] if waits else [])

    def shorten(self, layer: int, epochs: int) -> None:
        """Plan anew from the layer up, with ``epochs`` for it; each row when it is needed."""
        if epochs < self._plans[layer].epochs:
            self._replan(layer, replace(self._plans[layer], epochs=epochs))

    def skip(self, layer: int, version: int) -> None:
        """Plan anew from the layer up, without this version for it."""
        self._replan(layer, skipping(self._plans[layer], version))

    def _replan(self, layer: int, plan: LayerPlan) -> None:
        self._plans[layer] = plan
        self._fresh = min(self._fresh, layer)

    def _planned(self, layer: int) -> Sequence[int]:
        while self._fresh <= layer:
            i, below = self._fresh, self._rows[self._fresh - 1] if self._fresh else None
            self._rows[i] = self._rule(i, self._plans[i], below)
            self._plan[i] = self._rows[i].reads
            self._fresh += 1
        return self._plan[layer]


class Free:
    """An awake layer takes the newest upstream version there is (Santara et al. 2016).

    A newer version replaces one that was not read, so no layer waits for its reader.
    """

    max_unread = None

    def __init__(self, plans: Sequence[LayerPlan], *, drain: bool = True) -> None:
        self._plans = list(plans)
        self._drain = drain

    def next_read(self, layer: int, reads: Sequence[int], published: int) -> int | None:
        """Return the newest version, unless the layer has nothing to train or is not yet born."""
        plan, begun = self._plans[layer], len(reads)
        if layer == 0:
            return 0 if begun < plan.epochs else None
        if published == 0:
            return None
        if begun < plan.epochs:
            return published
        if plan.refresh_epochs and (begun - plan.epochs) % plan.refresh_epochs:
            return published  # in the middle of a refresh
        wakes = plan.refresh_epochs and published > reads[-1] and published not in plan.skipped
        return published if wakes else None

    def unread(self, layer: int, reads: Sequence[int], published: int) -> list[int]:
        """Return the newest version, if the layer has not begun it; older ones are lost."""
        plan = self._plans[layer]
        will_read = len(reads) < plan.epochs or plan.refresh_epochs > 0
        is_new = published > (reads[-1] if reads else 0) and published not in plan.skipped
        return [published] if will_read and is_new else []

    def first_of_round(self, layer: int) -> int:
        """Return 0: all layers are of one round."""
        return 0

    def is_satisfied(self, layer: int, begun: int, done: int) -> bool:
        """Return whether all stipulated epochs are done, unless the run drains."""
        return not self._drain and done >= self._plans[layer].epochs

    def shorten(self, layer: int, epochs: int) -> None:
        """Lower the layer's stipulated epochs."""
        if epochs < self._plans[layer].epochs:
            self._plans[layer] = replace(self._plans[layer], epochs=epochs)

    def skip(self, layer: int, version: int) -> None:
        """Let the layer sleep until there is a newer version."""
        self._plans[layer] = skipping(self._plans[layer], version)


Pace = Fixed | Free


def skipping(plan: LayerPlan, version: int) -> LayerPlan:
    """Return the plan of a layer that this version does not wake."""
    return replace(plan, skipped=plan.skipped | {version})


def _check_reads(plan: Sequence[Sequence[int]]) -> None:
    oldest, newest = 0, 0
    for layer, reads in enumerate(plan, start=1):
        if list(reads) != sorted(reads) or not all(oldest <= v <= newest for v in reads):
            raise SettingsError(
                f"replay: layer {layer} reads the versions {', '.join(map(str, reads[:8]))}...,"
                f" expected rising ones of {oldest} to {newest}"
            )
        oldest, newest = 1, len(reads)


# Schedules without versions, and so without a pace.
ASYNC = "async"  # replicas and a parameter server
UNTRAINED = "none"  # random weights, which only fine-tuning trains


# Santara et al. 2016 have as many layers in a group as there are devices; here the result may not
# depend on the machine, and 2 are the fewest that train in parallel.
GROUP_SIZE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """Settings of a schedule: whether refreshes follow the end of layer 1, and the group size."""

    drain: bool = True
    group_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleKind:
    """One kind of schedule.

    Attributes
    ----------
    lockstep : callable
        Returns the pace in which the upstream version of every epoch is known beforehand, given
        the layers' plans and the :class:`ScheduleOptions`.
    free : callable, optional
        Returns the pace in which a layer takes the newest version, if the kind has one.
    one_at_a_time : bool
        Whether a single layer trains at any time, so that BLAS may use several threads.
    has_groups : bool
        Whether ``group_size`` applies.
    has_refreshes : bool
        Whether a newer version below may wake a layer that has trained its own epochs.
    can_stream : bool
        Whether layers may train on each other's minibatches instead of whole versions.
    candidate, shared_candidate : str or None
        Names in the planner's tables, with one worker a layer and with several; None where the
        planner does not try it.
    """

    lockstep: Callable[[Sequence[LayerPlan], ScheduleOptions], Pace]
    free: Callable[[Sequence[LayerPlan], ScheduleOptions], Pace] | None = None
    one_at_a_time: bool = False
    has_groups: bool = False
    has_refreshes: bool = True
    can_stream: bool = False
    candidate: str | None = None
    shared_candidate: str | None = None


def _greedy(plans: Sequence[LayerPlan], options: ScheduleOptions) -> Pace:
    return Planned(plans, greedy_row)


def _rounds(plans: Sequence[LayerPlan], options: ScheduleOptions) -> Pace:
    size = options.group_size or GROUP_SIZE
    rule = partial(rounds_row, group_size=size, drain=options.drain)
    return Planned(plans, rule, group_size=size)


SCHEDULES = {
    "greedy": ScheduleKind(
        lockstep=_greedy,
        one_at_a_time=True,
        has_refreshes=False,
        candidate="greedy",
        shared_candidate="greedy",
    ),
    "synchronized": ScheduleKind(
        lockstep=lambda plans, own: Planned(plans, partial(lockstep_row, drain=own.drain)),
        free=lambda plans, own: Free(plans, drain=own.drain),
        can_stream=True,
        candidate="pipeline",
        shared_candidate="hybrid",
    ),
    "rounds": ScheduleKind(lockstep=_rounds, has_groups=True),
}


def schedule_kind(name: str) -> ScheduleKind:
    """Return the record of a schedule; of ``none`` and ``async``, which have no pace, of greedy."""
    other = ScheduleKind(lockstep=_greedy, has_refreshes=False, can_stream=name == ASYNC)
    return SCHEDULES.get(name, other)
