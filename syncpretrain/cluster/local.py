"""An engine without MPI: the ranks are threads of one process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from syncpretrain.cluster.engine import Engine
from syncpretrain.cluster.packing import Buffer

__all__ = ["LocalEngine", "local_engines"]

Letter = tuple[int, list[Buffer]]


class LocalEngine(Engine):
    """One rank among threads.

    Parameters
    ----------
    rank : int
    boxes : sequence of deque
        What has come for each rank; all engines of a job have the same.
    aborted : list of int
        The statuses with which the job was aborted, by any rank.
    others : list of LocalEngine
        All engines of the job, by rank, once it has begun.
    """

    rings = True

    def __init__(
        self,
        rank: int,
        boxes: Sequence[deque[Letter]],
        aborted: list[int],
        others: list[LocalEngine],
    ) -> None:
        super().__init__()
        self.rank, self.size = rank, len(boxes)
        self._boxes, self.aborted, self._others = boxes, aborted, others

    def start(self, to: int, parts: Sequence[Buffer]) -> Callable[[], bool]:
        """Put a copy into the other's box, and wake it."""
        self._boxes[to].append((self.rank, [bytearray(part) for part in parts]))
        self._others[to].wake()
        return lambda: True

    def arrived(self) -> list[Letter]:
        """Take all that has come."""
        own, found = self._boxes[self.rank], list[Letter]()
        while own:
            found.append(own.popleft())
        return found

    def abort(self, status: int) -> None:
        """Record it: threads cannot be ended."""
        self.aborted.append(status)

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""


def local_engines(size: int) -> list[LocalEngine]:
    """Return the engines of a job, one a rank."""
    boxes: list[deque[Letter]] = [deque() for _ in range(size)]
    aborted: list[int] = []
    engines: list[LocalEngine] = []
    engines += [LocalEngine(rank, boxes, aborted, engines) for rank in range(size)]
    return engines
