"""Kinds of schedule by the names that the settings use, and their paces.

A pace decides which upstream version a layer's next epoch reads: a pure function of its past. It is
asked about one layer at a time, indexed from 0, the lowest. It is given ``reads``, the upstream
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
from syncpretrain.schedule.reads import (
    LayerPlan,
    Rule,
    greedy_row,
    lockstep_row,
    planned_rows,
    rounds_row,
)


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
        The reads of a layer above another, as in
        :mod:`syncpretrain.schedule.reads`. A plan and the same plan with more epochs must
        begin with the same reads.
    group_size : int, optional
        Layers of a group; each waits until all layers of the groups below have ended. This changes
        no read, only what trains at the same time. Default all layers.
    """

    def __init__(
        self,
        plans: Sequence[LayerPlan],
        rule: Rule,
        *,
        max_unread: int | None = 2,
        group_size: int | None = None,
    ) -> None:
        self._plans, self._rule = list(plans), rule
        self._rows = planned_rows(plans, rule)
        self._fresh = len(plans)  # rows; the rows above are of plans that were longer
        self._group_size = group_size or len(plans)
        super().__init__([row.reads for row in self._rows], max_unread=max_unread)

    def first_of_round(self, layer: int) -> int:
        """Return the lowest layer of the group."""
        return layer - layer % self._group_size

    def unread(self, layer: int, reads: Sequence[int], published: int) -> list[int]:
        """Return the published versions that the plan names, and the newest if it may prove last.

        The first layer of a group waits for the last version of the group below, which is an
        earlier one than planned if versions in there are skipped.
        """
        unread = super().unread(layer, reads, published)
        first = layer - self._group_size
        if unread or reads or not published or first < 0 or layer % self._group_size:
            return unread
        below = self._plans[first:layer]
        return [published] if any(plan.least_drift is not None for plan in below) else []

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
