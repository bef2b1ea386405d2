"""Progress of each layer of a run: epochs begun and finished; layers training, ready or ended.

An event costs about the same at any depth, since a layer depends on its neighbours only:

* whether it may begin an epoch, on itself and the layers next to it, and on the end of the round
  below;
* whether it has ended, on itself and the end of the layer below.

:meth:`Layers.record` marks layers that an event may have changed, and no other is examined. One
thing depends on all layers, whether any of them still keeps the run going; it changes once in a
run.
"""

from __future__ import annotations

from heapq import heappop, heappush

from syncpretrain.schedule.pace import Pace

__all__ = ["Layers"]


class Layers:
    """The layers of a run, from index 0, the lowest.

    Parameters
    ----------
    pace : Pace
        Says which version each epoch reads.
    reads : list of list of int
        For each layer, the upstream version of every epoch begun so far.
    done : list of int
        Number of epochs that each layer has finished, which is also its newest version.

    Attributes
    ----------
    training : set of int
    ended : list of bool
        Whether a layer will never train again.
    order_ended : list of int
        The layers that have ended, in that order.
    changed : set of int
        The layers that events have changed since it was last emptied.
    """

    def __init__(self, pace: Pace, reads: list[list[int]], done: list[int]) -> None:
        self._pace = pace
        self._depth = len(reads)
        self.reads, self.done = reads, done
        self.training = {i for i in range(self._depth) if len(reads[i]) > done[i]}
        self.ended = [False] * self._depth
        self.order_ended: list[int] = []
        self.changed: set[int] = set()
        self._unsatisfied: set[int] = set()  # without any, no epoch starts
        self._woken: list[int] = []  # a heap of those that may have become ready
        self._is_woken = [False] * self._depth
        for i in range(self._depth):
            self.record(i)

    def begin(self, i: int, version: int) -> None:
        """Let a layer begin an epoch on a version of the layer below."""
        self.reads[i].append(version)
        self.training.add(i)
        self.record(i)

    def finish(self, i: int) -> None:
        """Let a layer finish its epoch."""
        self.training.remove(i)
        self.done[i] += 1
        self.record(i)

    def record(self, i: int) -> None:
        """Record that a layer's past or what it is yet to read has changed."""
        self.changed.add(i)
        for j in range(max(0, i - 1), min(i + 2, self._depth)):
            self._wake(j)
        if not self._pace.is_satisfied(i, len(self.reads[i]), self.done[i]):
            self._unsatisfied.add(i)
        elif i in self._unsatisfied:
            self._unsatisfied.remove(i)
            if not self._unsatisfied:
                self.changed.update(range(self._depth))

    def record_from(self, i: int) -> None:
        """Record that a layer and those above it may have other epochs to come than before.

        It ends at a layer that has not begun: no layer above has anything to begin on.
        """
        while i < self._depth and self.reads[i]:
            self.record(i)
            i += 1
        if i < self._depth:
            self.record(i)

    def record_ends(self) -> None:
        """Record the layers that have ended, which may end those above them."""
        for lowest in sorted(self.changed):
            i = lowest
            while i < self._depth and not self.ended[i] and self._ends(i):
                self.ended[i] = True
                self.order_ended.append(i)
                self.changed.add(i)
                i += 1
                if i < self._depth:
                    self._wake(i)  # as the first of its round it waited for this

    def next_ready(self) -> tuple[int, int] | None:
        """Return the lowest layer that may begin an epoch, and the version to read."""
        while self._woken:
            i = self._woken[0]
            version = self._readable(i)
            if version is not None:
                return i, version
            self._is_woken[heappop(self._woken)] = False
        return None

    def newer(self, i: int) -> int | None:
        """Return the version of a layer's next epoch if it is there, and newer than its last."""
        version = self._next_read(i)
        if version is None or version > self._published(i) or self.reads[i][-1:] == [version]:
            return None
        return version

    def unread(self, i: int) -> list[int]:
        """Return the published versions of a layer that the one above will still begin."""
        if i + 1 == self._depth or not self._unsatisfied:
            return []
        return self._pace.unread(i + 1, self.reads[i + 1], self.done[i])

    def _wake(self, i: int) -> None:
        if not self._is_woken[i]:
            self._is_woken[i] = True
            heappush(self._woken, i)

    def _published(self, i: int) -> int:
        """Return the newest version that a layer can read; the data is version 0."""
        return self.done[i - 1] if i else 0

    def _next_read(self, i: int) -> int | None:
        """Return the version that a layer's next epoch reads, published or not yet."""
        if not self._unsatisfied:
            return None
        return self._pace.next_read(i, self.reads[i], self._published(i))

    def _readable(self, i: int) -> int | None:
        """Return the version on which a layer may begin an epoch now."""
        version = None if i in self.training else self._next_read(i)
        if version is None or version > self._published(i):
            return None
        first = self._pace.first_of_round(i)
        if first and not self.ended[first - 1]:
            return None
        limit = self._pace.max_unread
        return version if limit is None or len(self.unread(i)) < limit else None

    def _ends(self, i: int) -> bool:
        if i in self.training or self._next_read(i) is not None:
            return False
        return i == 0 or not self._unsatisfied or self.ended[i - 1]
