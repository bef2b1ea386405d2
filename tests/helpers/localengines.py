"""An engine without MPI: the ranks are threads of one process.

Guarantees: as every engine. Messages are copied, as between processes, so that a test sees an array
that changes too early. An addition to a window is one moment, under the lock of that window.

Assumption: all ranks open and close their windows in the same order; each such meeting fails after
a while if one does not come.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from syncpretrain.cluster.engine import Buffer, Engine, Window, WindowValues

MEETING_SECONDS = 20.0  # for all ranks to open or close a window

Letter = tuple[int, list[Buffer]]


class LocalWindow(Window):
    """A window of vectors in this process, of so many elements of each rank."""

    def __init__(self, lengths: Sequence[int], kind: str) -> None:
        self._vectors: list[WindowValues] = [np.empty(length, kind) for length in lengths]
        self._lock = threading.Lock()
        self._meeting = threading.Barrier(len(lengths))

    def meet(self) -> None:
        """Wait until every rank has come here, as MPI's ranks do."""
        self._meeting.wait(MEETING_SECONDS)

    def get(self, rank: int, at: int, out: WindowValues) -> None:
        with self._lock:
            np.copyto(out, self._own(rank, at, out))

    def put(self, rank: int, at: int, values: WindowValues) -> None:
        with self._lock:
            np.copyto(self._own(rank, at, values), values)

    def add(self, rank: int, at: int, values: WindowValues) -> None:
        with self._lock:
            own = self._own(rank, at, values)
            np.add(own, values, out=own)

    def fetch_and_add(self, rank: int, at: int, value: int) -> int:
        with self._lock:
            found = int(self._vectors[rank][at])
            self._vectors[rank][at] += value
        return found

    def close(self) -> None:
        """Wait for the others; there is nothing to give back."""
        self.meet()

    def _own(self, rank: int, at: int, values: WindowValues) -> WindowValues:
        return self._vectors[rank][at : at + values.size]


@dataclass
class LocalJob:
    """What all engines of a job have: who they are, the statuses of aborts, the windows so far."""

    engines: list[LocalEngine] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    windows: list[LocalWindow] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)  # guards the windows


class LocalEngine(Engine):
    """One rank among threads."""

    wakes_for_messages = True

    def __init__(self, rank: int, size: int, job: LocalJob) -> None:
        super().__init__()
        self.rank, self.size = rank, size
        self.aborted, self._job, self._opened = job.aborted, job, 0
        self._box: deque[Letter] = deque()

    def start(self, to: int, parts: Sequence[Buffer]) -> Callable[[], bool]:
        """Put a copy into the other's box, and wake it."""
        # A deque is appended to and popped from without a lock; in the box before the wake-up, so
        # that the other finds it.
        other = self._job.engines[to]
        other._box.append((self.rank, [bytearray(part) for part in parts]))
        other.wake()
        return lambda: True

    def take_arrived(self) -> list[Letter]:
        found = list[Letter]()
        while self._box:
            found.append(self._box.popleft())
        return found

    def open_window(self, lengths: Sequence[int], kind: str) -> Window:
        # The first rank to come makes the n-th window, the others find it. Only that is locked: a
        # rank that waited for the others under the lock would keep them out.
        self._opened += 1
        with self._job.lock:
            if len(self._job.windows) < self._opened:
                self._job.windows.append(LocalWindow(lengths, kind))
            window = self._job.windows[self._opened - 1]
        window.meet()
        return window

    def abort(self, status: int) -> None:
        """Record it: threads cannot be ended."""
        self.aborted.append(status)

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""


def local_engines(size: int) -> list[LocalEngine]:
    """Return the engines of a job, one a rank."""
    job = LocalJob()
    job.engines += [LocalEngine(rank, size, job) for rank in range(size)]
    return job.engines
