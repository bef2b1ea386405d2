"""Paces decide which upstream version a layer's next epoch reads; pure functions of its past.

A pace is asked about one layer at a time, indexed from 0, the lowest. It is given ``reads``, the
upstream version of every epoch that this layer has begun, and ``published``, the newest version of
the layer below. What depends on more layers is the schedule's to find out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from syncpretrain.errors import SettingsError
from syncpretrain.schedule.reads import LayerPlan, Rule, planned_rows

__all__ = ["Fixed", "Free", "Pace", "Planned"]


class Pace(Protocol):
    """A pace: it says which version each epoch reads, and how far layers may run ahead."""

    @property
    def max_unread(self) -> int | None:
        """How many versions of a layer may wait unread before it waits for its reader."""
        ...

    def next_read(self, layer: int, reads: Sequence[int], published: int) -> int | None:
        """Return the version the next epoch reads (published or not yet), None to sleep."""
        ...

    def unread(self, layer: int, reads: Sequence[int], published: int) -> list[int]:
        """Return the published versions of the layer below that the layer will still begin."""
        ...

    def first_of_round(self, layer: int) -> int:
        """Return the lowest layer of the round; it begins when all layers below have ended."""
        ...

    def is_satisfied(self, layer: int, begun: int, done: int) -> bool:
        """Return whether the run need not go on for this layer; without any, no epoch starts."""
        ...

    def shorten(self, layer: int, epochs: int) -> None:
        """Record that the layer has learned enough: ``epochs`` is all that were stipulated.

        It and the layers above may read otherwise from then on.
        """
        ...

    def skip(self, layer: int, version: int) -> None:
        """Record that a version does not wake the layer, which has trained its stipulated epochs.

        It and the layers above may read otherwise from then on.
        """
        ...


class Fixed:
    """Every read is known beforehand, as in the replay of a recorded run.

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
        """Return the planned version."""
        plan, begun = self._planned(layer), len(reads)
        return plan[begun] if begun < len(plan) else None

    def unread(self, layer: int, reads: Sequence[int], published: int) -> list[int]:
        """Return the published versions that the plan still names."""
        plan, unread = self._planned(layer), list[int]()
        newest_read = reads[-1] if reads else 0
        at = bisect_right(plan, newest_read, len(reads))  # a plan never goes back to an older one
        while at < len(plan) and plan[at] <= published:
            unread.append(plan[at])
            at = bisect_right(plan, plan[at], at)
        return unread

    def first_of_round(self, layer: int) -> int:
        """Return 0: all layers are of one round."""
        return 0

    def is_satisfied(self, layer: int, begun: int, done: int) -> bool:
        """Return whether every planned epoch has begun."""
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
