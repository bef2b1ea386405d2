"""A barrier in shared memory that can be broken with a reason.

Guarantees:

* There is no lock: each counter has one writer, so a rank that is killed at any moment holds
  nothing that others need. Only the counter "broken" has several writers; whichever writes last,
  the reason that it points to is complete.
* A rank arrives by incrementing its own counter, and continues when all counters have reached that
  count. It may be one barrier ahead of a slower rank, never two.
* A waiting rank checks the missing ones every 50 ms. A rank that has left, or that lost its
  process, will never arrive: the waiting rank breaks the barrier, and all ranks raise.
* A process is known by its number and its start: its number may be given to another process after
  its end.

Assumption: a process that holds a rank in its ``with`` block runs or ends. Only the deadline
detects a process that is suspended.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import AveragingError
from syncpretrain.parallel.blas import usable_cores
from syncpretrain.parallel.waiting import READY, store_counter, wait_for_counters

# As long as a nap costs by being late: a rank that spins this long loses at most twice the best.
SPIN_SECONDS = 200e-6
# A look costs a system call for each missing rank; a death is reported this much late.
LOOK_SECONDS = 0.05
WORKER_ROWS = 5  # arrived, process, its start, thread, left: counters of each worker, row by row
BROKEN_COUNTER = 0  # 0, or 1 + the row of the reason
FIRST_CELL = 8  # where the workers' counters begin: in another cache line


@dataclass(eq=False)
class Barrier:
    """A barrier as one worker sees it.

    Parameters
    ----------
    counters : array of shape (counters_for(workers),), int64
        Shared, 0 at first.
    error_texts : array of shape (workers + 1, n), uint8
        Shared, 0 at first.
    rank, workers : int
    timeout : float
        Seconds that a wait may last.
    """

    counters: NDArray[np.int64]
    error_texts: NDArray[np.uint8]
    rank: int
    workers: int
    timeout: float

    def __post_init__(self) -> None:
        self._arrived, self._process, self._start, self._thread, self._left = (
            FIRST_CELL + row * self.workers for row in range(WORKER_ROWS)
        )
        crowded = self.workers > usable_cores()  # then who spins keeps another from arriving
        self._spin = 0.0 if crowded else SPIN_SECONDS

    def claim(self) -> None:
        """Bind this rank to this process, so that the other ranks detect its end.

        Raises
        ------
        AveragingError
            If another process has this rank.
        """
        pid = int(self.counters[self._process + self.rank])
        if pid not in (0, os.getpid()):
            raise AveragingError(
                f"rank {self.rank} was given to process {pid} and to process {os.getpid()}; "
                "give each rank to one"
            )
        # The process last: whoever sees its number also sees its start.
        store_counter(self.counters, self._start + self.rank, started(os.getpid()))
        store_counter(self.counters, self._process + self.rank, os.getpid())

    def join(self) -> None:
        """Take part, from this thread.

        Raises
        ------
        AveragingError
            If this rank has taken part already, or the barrier is broken.
        """
        if self.counters[self._thread + self.rank]:
            raise AveragingError(
                f"{self._name(self.rank)} has entered its with block before; "
                "make a new averager to begin again"
            )
        self.claim()
        store_counter(self.counters, self._thread + self.rank, threading.get_native_id())
        self.check()

    def wait(self) -> None:
        """Wait until all ranks are here.

        Raises
        ------
        AveragingError
            If the barrier is broken, or if a worker has left, died, or does not come in time: then
            this breaks it.
        """
        if self.counters[self._left + self.rank]:
            raise AveragingError(f"{self._name(self.rank)} has left; stay in its with block")
        self.check()  # before arriving: what this worker has broken it does not complete
        own = self._arrived + self.rank
        # The others wait for this count at least, so no counter is ever reset, and a fast rank
        # that is in the next barrier already does not disturb the slow one in this.
        target = int(self.counters[own]) + 1
        deadline, left = time.monotonic() + self.timeout, self.timeout
        among = (self._arrived, self.workers, target, BROKEN_COUNTER)
        waits = *among, self._spin, min(LOOK_SECONDS, left)
        found = wait_for_counters(self.counters, *waits, arrives=own)
        while found != READY:
            self.check()
            self._look(target)
            left = deadline - time.monotonic()
            if left <= 0:
                self._give_up(target)
                return
            found = wait_for_counters(self.counters, *among, 0.0, min(LOOK_SECONDS, left))

    def abort(self, reason: str) -> None:
        """Break the barrier for all workers, unless it is broken."""
        abort(self.counters, self.error_texts, self.rank, reason)

    def fail(self, error: BaseException) -> None:
        """Break the barrier because of an exception of this worker."""
        self.abort(f"{self._name(self.rank)} failed: {described(error)}")

    def check(self) -> None:
        """Raise AveragingError with the reason if the barrier is broken."""
        writer = int(self.counters[BROKEN_COUNTER]) - 1
        if writer >= 0:
            text = self.error_texts[writer].tobytes().rstrip(b"\0")
            raise AveragingError(text.decode("utf-8", "replace"))

    def leave(self) -> None:
        """Take part no longer. Who waits for this worker raises; who does not, is not disturbed."""
        store_counter(self.counters, self._left + self.rank, 1)

    def _give_up(self, target: int) -> None:
        missing = ", ".join(self._name(rank) for rank in self._missing(target))
        if missing:  # or the last one came this moment
            self.abort(f"{self._name(self.rank)} waited {self.timeout:g} s for {missing}")
            self.check()

    def _look(self, target: int) -> None:
        """Break the barrier and raise if a worker that has not arrived never will."""
        for rank in self._missing(target):
            why = self._gone(rank)
            # It may have arrived and then ended, after its counter was read: so read it again.
            if why and self.counters[self._arrived + rank] < target:
                self.abort(f"{self._name(rank)} {why}")
                self.check()

    def _gone(self, rank: int) -> str | None:
        if self.counters[self._left + rank]:
            return "has left"
        pid = int(self.counters[self._process + rank])
        return ended(pid, int(self.counters[self._start + rank])) if pid else None

    def _missing(self, target: int) -> list[int]:
        arrived = self.counters[self._arrived : self._arrived + self.workers]
        return [int(rank) for rank in np.flatnonzero(arrived < target)]

    def _name(self, rank: int) -> str:
        pid, thread = (int(self.counters[row + rank]) for row in (self._process, self._thread))
        if not pid:
            return f"rank {rank} (never started)"
        if thread in (0, pid):
            return f"rank {rank} (process {pid})"
        return f"rank {rank} (process {pid}, thread {thread})"


def counters_for(workers: int) -> int:
    """Return the number of counters that a barrier of ``workers`` ranks needs."""
    return FIRST_CELL + WORKER_ROWS * workers


def abort(
    counters: NDArray[np.int64], error_texts: NDArray[np.uint8], writer: int, reason: str
) -> None:
    """Break the barrier for all ranks, unless it is broken; no rank waits in it again.

    ``writer`` is the row of ``error_texts`` that only the caller writes: a rank, or the last
    row for the creator of the averager.
    """
    # Two writers may both find it unbroken. Each fills a row of its own before it stores its
    # number, so whichever number stays, its row is complete, and no row is written twice.
    if counters[BROKEN_COUNTER]:
        return
    text = reason.encode("utf-8", "replace")[: error_texts.shape[1]]
    error_texts[writer, : len(text)] = np.frombuffer(text, np.uint8)
    store_counter(counters, BROKEN_COUNTER, writer + 1)


def described(error: BaseException) -> str:
    """Return an exception's type and text."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


STATE, STARTED, STATUS = 0, 19, 49  # fields of /proc/PID/stat behind the name; proc(5)


def ended(pid: int, start: int) -> str | None:
    """Return how a process of this machine ended, or None while it lives; a zombie has ended.

    ``start`` is what :func:`started` returned in that process, 0 if that is not known.
    """
    if pid == os.getpid():
        return None
    fields = _fields(pid)
    if fields is None:
        return None if _exists(pid) else "died"
    if start and int(fields[STARTED]) != start:
        return "died"  # and its number is another's now
    return f"died{_how(fields)}" if fields[STATE] in "ZX" else None


def started(pid: int) -> int:
    """Return when a process was started, in the kernel's ticks; 0 if that cannot be known."""
    fields = _fields(pid)
    return int(fields[STARTED]) if fields else 0


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError) as error:
        return isinstance(error, PermissionError)
    return True


def _fields(pid: int) -> list[str] | None:
    """Return what the kernel reports of a process; None if it is gone or cannot be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _how(fields: list[str]) -> str:
    """Describe how a zombie ended; an empty text if the system does not tell."""
    # A zombie is a process that has ended, with an exit status that no parent has collected.
    if fields[STATE] != "Z" or len(fields) <= STATUS:
        return ""
    status = int(fields[STATUS])  # 0 also if we may not know
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        names = {int(known): known.name for known in signal.Signals}
        return f": killed by {names.get(number, f'signal {number}')}"
    return f": exit status {os.WEXITSTATUS(status)}" if status else ""
