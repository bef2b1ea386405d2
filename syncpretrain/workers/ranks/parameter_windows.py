"""Parameters in windows: replicas fetch them and add their changes without a server's help.

Rank 0 or the ranks of the servers only have the memory. Three whole numbers on rank 0 are the
clock: a change draws the next number, is added, and counts as added when it is whole in every
slice. Its staleness is the number of changes that drew before it and were not added when its
replica fetched, so that one that is on its way counts.

* No change is lost, and no element torn; who fetches while a change is being added gets a part of
  it, as the rest comes with the next fetch.
* A change that is too stale is not added. Changes that meet there may count one that is about to be
  refused: they are never added too stale, and may be made anew without need.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from syncpretrain.cluster.windows import Windows
from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas.server import Push
from syncpretrain.settings.fields import AsyncFields

__all__ = ["CLOCK_RANK", "CLOCK_SIZE", "ParameterWindows", "WindowPlaces", "WindowSlice"]

DRAWN_CHANGES, REFUSED_CHANGES, ADDED_CHANGES = range(3)  # of the clock
CLOCK_SIZE = 3
CLOCK_RANK = 0  # whose windows hold the parameters too, where they are not cut into slices


@dataclass(frozen=True, slots=True)
class WindowSlice:
    """A slice of the parameters in a window: its rank, and where in that rank's vector it begins.

    It is ``own`` of the parameters, from the first to the one behind the last.
    """

    rank: int
    at: int
    own: tuple[int, int]


@dataclass(frozen=True, slots=True)
class WindowPlaces:
    """The windows of a run: their names, where each slice of the parameters is, and the rules."""

    parameters: str
    clock: str
    slices: tuple[WindowSlice, ...]
    rules: AsyncFields


class ParameterWindows:
    """The parameters of a run, from any rank.

    Parameters
    ----------
    windows : Windows
    places : WindowPlaces
    """

    def __init__(self, windows: Windows, places: WindowPlaces) -> None:
        self._windows, self._places = windows, places

    def fetch(self, out: Array) -> int:
        """Copy the parameters to ``out``; return the number of changes that are all in them."""
        added = self._count(ADDED_CHANGES, 0)
        self.read(out)
        return added

    def push(self, change: Array, then: int) -> Push:
        """Add a share of a change of parameters fetched at ``then``; use it up."""
        rules, refused = self._places.rules, 0
        if rules.max_staleness is not None:
            # Before the other number: rather too stale than too fresh.
            refused = self._count(REFUSED_CHANGES, 0)
            staleness = self._count(DRAWN_CHANGES, 0) - refused - then
            if not rules.takes(staleness):
                return Push(staleness, is_taken=False)
        staleness = self._count(DRAWN_CHANGES, 1) - refused - then
        if not rules.takes(staleness):
            self._count(REFUSED_CHANGES, 1)
            return Push(staleness, is_taken=False)
        share = rules.share(staleness)
        if share != 1:
            with np.errstate(over="ignore", invalid="ignore"):  # who trains looks at the result
                change *= np.float32(share)
        name = self._places.parameters
        for part in self._places.slices:
            self._windows.add(name, part.rank, part.at, change[slice(*part.own)])
        self._count(ADDED_CHANGES, 1)
        return Push(staleness, is_taken=True)

    def begin(self, parameters: Array) -> None:
        """Set the parameters, and the clock to 0, before any replica has an order."""
        name = self._places.parameters
        for part in self._places.slices:
            self._windows.put(name, part.rank, part.at, parameters[slice(*part.own)])
        self._windows.put(self._places.clock, CLOCK_RANK, 0, np.zeros(CLOCK_SIZE, np.int64))

    def read(self, out: Array) -> None:
        """Copy the parameters to ``out``."""
        name = self._places.parameters
        for part in self._places.slices:
            self._windows.get(name, part.rank, part.at, out[slice(*part.own)])

    def _count(self, which: int, more: int) -> int:
        return self._windows.fetch_and_add(self._places.clock, CLOCK_RANK, which, more)
