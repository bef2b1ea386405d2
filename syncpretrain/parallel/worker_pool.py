"""A pool of worker threads that run the shards of a step's phases at the same time.

The calling thread is the worker of rank 0. It calls :meth:`WorkerPool.run`, step after step, and
the others run their shards of every phase. Of a compiled step each takes the next shard that none
has taken: on a busy machine nobody waits there for a worker that has not come yet. Which worker
runs a shard changes no bit of the result, so their number may change between two steps.

Guarantees:

* Threads are started when they are first needed, and joined by :meth:`WorkerPool.close`.
* A worker that has nothing to do spins for a moment, naps, and after that sleeps without using
  any CPU.
* A failure of a worker is raised by :meth:`WorkerPool.run`; the pool cannot be used after it.
* A worker that waits too long for the others fails. Its own work does not count, however long it
  takes, nor does the time for which the process was suspended.
* No wake-up is lost: the newest step and who sleeps change under one lock only (see ``_serve``).

Assumptions: one thread calls :meth:`WorkerPool.run`, and a phase writes only what belongs to its
shard, so that nothing else is locked while workers work.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np

from syncpretrain.errors import StalledError
from syncpretrain.kernels.program import SHARED_COUNTERS, Phases, Program, in_turn
from syncpretrain.parallel import waiting
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts, join_all

# For draws from a generator of the whole process: held for a forward pass, or for one minibatch of
# an iterable, and never while waiting for a worker.
GLOBAL_DRAWS = threading.Lock()
# Counters behind those of a compiled step: a failure; the newest step; phases done, one a worker.
BROKEN, BEGUN, ARRIVED = SHARED_COUNTERS + 7, SHARED_COUNTERS + 15, SHARED_COUNTERS + 16


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    phases: Phases  # a program only if it is compiled
    shards: int
    workers: int
    # Phases are counted through all steps, so that no counter of an arrival is ever reset. A worker
    # that sat out some steps is behind until it arrives next: nobody waits for it before that.
    behind: int  # phases done before this step
    ahead: int  # phases done after it
    # A compiled step has none: its shards are counted, and whoever is free takes the next.
    base: int  # shards of compiled steps before this one
    top: int  # and with it


class WorkerPool:
    """Up to ``most`` workers; the caller of :meth:`run` is one of them.

    Parameters
    ----------
    most : int
    name : str
        The name of its threads, which their number follows.
    times : Timeouts
    """

    def __init__(self, most: int, name: str, times: Timeouts = TIMEOUTS) -> None:
        self._most, self._name, self._times = most, name, times
        self._counters = np.zeros(ARRIVED + most, dtype=np.int64)
        self._lock = threading.Lock()  # of what follows; never held while working or waiting
        self._step = _Step(0, (), 0, 1, 0, 0, 0, 0)
        self._asleep = [True] * most
        # A semaphore remembers a release, so a worker may be woken before it has gone to sleep.
        self._doors = [threading.Semaphore(0) for _ in range(most)]
        self._threads: list[threading.Thread | None] = [None] * most
        self._failure: BaseException | None = None
        self._closed = False

    def run(self, phases: Phases, shards: int, workers: int) -> None:
        """Run all shards of one phase after another, with at most ``workers`` workers.

        Raises
        ------
        BaseException
            Whatever a phase raised first.
        StalledError
            If a worker waits longer for the others than ``times.stall``.
        """
        workers = min(workers, shards, self._most)
        if self._failure is not None:
            raise self._failure
        if workers == 1:
            in_turn(phases, shards)
            return
        if isinstance(phases, Program) and not phases.is_compiled:
            phases = phases.phases
        if isinstance(phases, Program):
            count, total = 0, shards * phases.length
        else:
            count, total = len(phases), 0
        # Read without the lock: only this thread sets a step. And no worker still works on the last
        # one: its last phase ended when all of them had arrived, or all shards were done.
        number, behind, base = self._step.number + 1, self._step.ahead, self._step.top
        step = _Step(number, phases, shards, workers, behind, behind + count, base, base + total)
        with self._lock:
            self._step = step
            needed = [rank for rank in range(1, workers) if self._asleep[rank]]
            for rank in needed:
                self._asleep[rank] = False
        # Sleepers first, as they take longest; who lingers finds the counter without a system call.
        for rank in needed:
            self._wake(rank)
        waiting.store_counter(self._counters, BEGUN, step.number)
        self._work(step, 0)
        if self._failure is not None:
            raise self._failure

    def close(self) -> list[str]:
        """Stop the helper threads; return the names of threads still alive after the deadline."""
        # Closed before anyone is woken: who wakes looks at it before anything else, and leaves.
        with self._lock:
            self._closed = True
        waiting.store_counter(self._counters, BROKEN, 1)
        threads = [thread for thread in self._threads if thread is not None]
        for door in self._doors:
            door.release()
        return join_all(threads, self._times.join)

    def _wake(self, rank: int) -> None:
        if self._threads[rank] is None:
            thread = threading.Thread(
                target=self._serve, args=(rank,), name=f"{self._name}-{rank + 1}", daemon=True
            )
            self._threads[rank] = thread
            thread.start()
        self._doors[rank].release()

    def _serve(self, rank: int) -> None:
        """Take part in every step that has shards for this worker; sleep meanwhile.

        No wake-up is lost, because one critical section both reads the newest step and says
        whether this worker sleeps, and one critical section of :meth:`run` both sets that step and
        reads who sleeps. If this one comes first, :meth:`run` finds the sleeper and opens its door;
        if it comes second, it finds the step and does not sleep. The counter BEGUN only shortens
        the wait: whatever it said, the step is looked at again under the lock.
        """
        seen, rests = 0, True
        waits = self._times.spin, self._times.linger, rank * self._times.stagger
        with np.errstate(all="ignore"):  # as in the epoch: what overflows is found there
            while not self._closed:
                if rests:
                    self._doors[rank].acquire()
                    rests = False
                    continue
                found = waiting.wait_for_counters(
                    self._counters, BEGUN, 1, seen + 1, BROKEN, *waits
                )
                with self._lock:
                    step = self._step
                    # It sleeps after a step for fewer workers, since the next is likely for as few,
                    # and after a linger without a step. After work it lingers again.
                    mine = step.number > seen and rank < step.workers
                    rests = not mine and (found != waiting.READY or step.number > seen)
                    self._asleep[rank] = rests
                    seen = step.number
                if mine:
                    self._work(step, rank)

    def _work(self, step: _Step, rank: int) -> None:
        """Run a worker's shards of every phase, and wait for the others after each."""
        if isinstance(step.phases, Program):
            self._work_program(step, step.phases, rank)
            return
        # A shard stays with its worker as long as their number stays, so that its arrays are
        # likely in the cache of that core.
        first = step.shards * rank // step.workers
        last = step.shards * (rank + 1) // step.workers
        try:
            for done, phase in enumerate(step.phases, start=1):
                for shard in range(first, last):
                    phase(shard)
                if not self._arrive(step, rank, step.behind + done):
                    return
        except BaseException as error:
            # Not raised here: a thread would only print it. The caller of run raises it.
            self._fail(error)

    def _work_program(self, step: _Step, program: Program, rank: int) -> None:
        how, is_owner = {"base": step.base, "broken": BROKEN, **self._times.of_step}, rank == 0
        found = program.share(self._counters, is_owner=is_owner, **how)
        if is_owner and found == waiting.LATE:
            self._fail(self._stalled())

    def _arrive(self, step: _Step, rank: int, phases: int) -> bool:
        """Wait until every worker has done ``phases`` phases; return False on a failure."""
        times, waited = self._times, 0.0
        among = ARRIVED, step.workers, phases, BROKEN, times.spin
        while True:
            begun, longest = time.monotonic(), min(times.look, times.stall - waited)
            waits = *among, longest, rank * times.stagger
            found = waiting.wait_for_counters(self._counters, *waits, arrives=ARRIVED + rank)
            if found != waiting.LATE:
                return found == waiting.READY
            waited += min(time.monotonic() - begun, times.look)  # more: it was suspended
            if waited >= times.stall:
                raise self._stalled()

    def _stalled(self) -> StalledError:
        text = f"a worker of {self._name} waited {self._times.stall:g} s for the others in a step"
        return StalledError(text)

    def _fail(self, error: BaseException) -> None:
        """Let every worker leave the step, which raises the first failure."""
        # Recorded before the barrier is broken: who leaves because of it finds the reason there.
        with self._lock:
            self._failure = self._failure or error
        waiting.store_counter(self._counters, BROKEN, 1)
