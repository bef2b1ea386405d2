"""Paces decide which upstream version a layer's next epoch reads; pure functions of the past.

The past is ``reads``: for each layer, the upstream version of every epoch it has started. ``done``
is how many of these epochs each layer has finished, which is also its newest version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from syncpretrain.errors import SettingsError
from syncpretrain.schedule.plan import LayerPlan, Reads

__all__ = ["Fixed", "Free", "Pace", "Planned"]

Past = Sequence[Sequence[int]]


class Pace(Protocol):
    """What the schedule asks of a pace. Layers are indexed from 0, the lowest."""

    def next_read(self, layer: int, reads: Past, done: Sequence[int]) -> int | None:
        """Return the version the next epoch reads (published or not yet), None to sleep."""
        ...

    def remaining(self, layer: int, reads: Past) -> int:
        """Return how many epochs are known to lie ahead of the layer."""
        ...

    def unread(self, layer: int, reads: Past, done: Sequence[int]) -> list[int]:
        """Return the published versions of the layer that the one above will still begin."""
        ...

    def may_start(self, layer: int, reads: Past, done: Sequence[int]) -> bool:
        """Return whether the layer may train on, or must wait for its reader."""
        ...

    def over(self, reads: Past, done: Sequence[int]) -> bool:
        """Return whether no further epoch is to start."""
        ...

    def shorten(self, layer: int, epochs: int) -> None:
        """Take note that the layer has learned enough: ``epochs`` is all that were stipulated."""
        ...


class Fixed:
    """Every read is known beforehand, as in the replay of a recorded run.

    Raises
    ------
    SettingsError
        If an epoch reads an older version than the one before it, or one that never comes.
    """

    def __init__(self, plan: Reads, *, max_unread: int | None = 2) -> None:
        _check_reads(plan)
        self._plan = plan
        self._max_unread = max_unread

    def next_read(self, layer: int, reads: Past, done: Sequence[int]) -> int | None:
        """Return the planned version."""
        begun = len(reads[layer])
        return self._plan[layer][begun] if begun < len(self._plan[layer]) else None

    def remaining(self, layer: int, reads: Past) -> int:
        """Return the planned epochs not begun yet."""
        return len(self._plan[layer]) - len(reads[layer])

    def unread(self, layer: int, reads: Past, done: Sequence[int]) -> list[int]:
        """Return the published versions that the plan of the layer above still names."""
        if layer + 1 == len(self._plan):
            return []
        above, plan = reads[layer + 1], self._plan[layer + 1]
        newest_read = above[-1] if above else 0
        unread: list[int] = []
        for i in range(len(above), len(plan)):  # a plan never goes back to an older version
            if plan[i] > done[layer]:
                break
            if plan[i] > newest_read:
                newest_read = plan[i]
                unread.append(newest_read)
        return unread

    def may_start(self, layer: int, reads: Past, done: Sequence[int]) -> bool:
        """Return whether fewer versions wait unread than the limit."""
        if self._max_unread is None:
            return True
        return len(self.unread(layer, reads, done)) < self._max_unread

    def over(self, reads: Past, done: Sequence[int]) -> bool:
        """Return whether every planned epoch has begun."""
        return all(len(r) == len(p) for r, p in zip(reads, self._plan, strict=True))

    def shorten(self, layer: int, epochs: int) -> None:
        """Do nothing: a recorded run has been shortened already."""


class Planned(Fixed):
    """The reads follow from the layers' plans: lockstep, greedy and rounds.

    Parameters
    ----------
    plans : sequence of LayerPlan
    build : callable
        Makes the reads of plans. Those of a plan with fewer epochs begin like those of the plan.
    group_size : int, optional
        Layers of a group; each waits until all layers of the groups below have ended. This changes
        no read, only what trains at the same time. Default all layers.
    """

    def __init__(
        self,
        plans: Sequence[LayerPlan],
        build: Callable[[Sequence[LayerPlan]], Reads],
        *,
        max_unread: int | None = 2,
        group_size: int | None = None,
    ) -> None:
        super().__init__(build(plans), max_unread=max_unread)
        self._plans, self._build = list(plans), build
        self._group_size = group_size or len(plans)

    def may_start(self, layer: int, reads: Past, done: Sequence[int]) -> bool:
        """Return whether the groups below have ended and few enough versions wait unread."""
        below = range(layer - layer % self._group_size)
        ended = all(done[i] == len(self._plan[i]) for i in below)
        return ended and super().may_start(layer, reads, done)

    def shorten(self, layer: int, epochs: int) -> None:
        """Plan anew, with so many epochs for the layer."""
        if epochs < self._plans[layer].epochs:
            self._plans[layer] = replace(self._plans[layer], epochs=epochs)
            self._plan = self._build(self._plans)


class Free:
    """An awake layer takes the newest upstream version there is (Santara et al. 2016)."""

    def __init__(self, plans: Sequence[LayerPlan], *, drain: bool = True) -> None:
        self._plans = list(plans)
        self._drain = drain

    def next_read(self, layer: int, reads: Past, done: Sequence[int]) -> int | None:
        """Return the newest version, unless the layer has nothing to train or is not yet born."""
        if layer == 0:
            return 0 if len(reads[0]) < self._plans[0].epochs else None
        newest = done[layer - 1]
        if newest == 0 or self.over(reads, done):
            return None
        plan, begun = self._plans[layer], len(reads[layer])
        if begun < plan.epochs:
            return newest
        if plan.refresh_epochs and (begun - plan.epochs) % plan.refresh_epochs:
            return newest  # in the middle of a refresh
        return newest if plan.refresh_epochs and newest > reads[layer][-1] else None

    def remaining(self, layer: int, reads: Past) -> int:
        """Return the stipulated epochs not begun yet, or 1 for a refresh."""
        return max(1, self._plans[layer].epochs - len(reads[layer]))

    def unread(self, layer: int, reads: Past, done: Sequence[int]) -> list[int]:
        """Return the newest version, if the layer above has not begun it; older ones are lost."""
        if layer + 1 == len(self._plans) or not done[layer] or self.over(reads, done):
            return []
        above = reads[layer + 1]
        will_read = len(above) < self._plans[layer + 1].epochs
        will_read = will_read or self._plans[layer + 1].refresh_epochs > 0
        return [done[layer]] if will_read and (not above or above[-1] < done[layer]) else []

    def may_start(self, layer: int, reads: Past, done: Sequence[int]) -> bool:
        """Return True: a newer version replaces one that nobody took."""
        return True

    def over(self, reads: Past, done: Sequence[int]) -> bool:
        """Return whether layer 1 and all stipulated epochs are done, unless the run drains."""
        if self._drain:
            return False
        return all(n >= plan.epochs for n, plan in zip(done, self._plans, strict=True))

    def shorten(self, layer: int, epochs: int) -> None:
        """Lower the layer's stipulated epochs."""
        if epochs < self._plans[layer].epochs:
            self._plans[layer] = replace(self._plans[layer], epochs=epochs)


def _check_reads(plan: Reads) -> None:
    oldest, newest = 0, 0
    for layer, reads in enumerate(plan, start=1):
        if list(reads) != sorted(reads) or not all(oldest <= v <= newest for v in reads):
            raise SettingsError(
                f"replay: layer {layer} reads the versions {', '.join(map(str, reads[:8]))}...,"
                f" expected rising ones of {oldest} to {newest}"
            )
        oldest, newest = 1, len(reads)
