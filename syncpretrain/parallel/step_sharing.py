"""Steps with shards that any free thread takes.

Unlike a :class:`~syncpretrain.parallel.worker_pool.WorkerPool`, which deals the shards out when a
step begins, threads come and go in the middle of a step: each takes the next shard of the running
phase that no thread has taken. Which thread runs a shard changes no bit of the result.

Shards are numbered through the phases of a step, here two phases of three shards; a shard is taken
once it is open, and the last one done of a phase opens the next phase::

    number      0  1  2 | 3  4  5
    taken = 2   x  x    |             two are taken: the next to take is 2
    open  = 3   ------->|             3 waits until 0, 1 and 2 are done

Guarantees:

* The owner of the steps never waits for a helper to come, and finishes a step alone if none does.
* A helper that is called away leaves as soon as the running step has no shard left to take.
* A failure in any thread is raised by the owner's :meth:`StepSharing.run`.

Assumption: one thread, the owner, calls :meth:`StepSharing.run`; any thread may help or call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from syncpretrain.errors import StalledError
from syncpretrain.kernels.program import SHARED_COUNTERS, Phase, Phases, Program
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts
from syncpretrain.parallel.waiting import LATE, store_counter, wait_for_counters

# Counters behind the counters of a compiled step, a cache line apart: a thread that waits for news
# does not slow one that takes shards. Nothing sets the first: a wait for news is never broken.
ABORTED, NEWS = SHARED_COUNTERS + 7, SHARED_COUNTERS + 15


class StepSharing:
    """The steps of one owner, and the threads that help it.

    Parameters
    ----------
    times : Timeouts

    Attributes
    ----------
    calls : int
        Number of times that helpers have been called away.
    """

    def __init__(self, times: Timeouts = TIMEOUTS) -> None:
        self._times = times
        self._counters = np.zeros(NEWS + 1, dtype=np.int64)
        self._lock = threading.Lock()  # of what follows; never held while working or waiting
        self._step: Callable[..., None] | None = None  # given whether the caller is the owner
        self._news = 0  # how often there was a new step or a call
        self.calls = 0
        self._base = 0  # shards of compiled steps so far

    def run(self, phases: Phases, shards: int) -> None:
        """Run all shards of one phase after another, together with the helpers that come.

        Raises
        ------
        BaseException
            Whatever a phase raised first.
        StalledError
            If a helper takes longer for a shard than ``times.stall``.
        """
        step: Callable[..., None]
        if isinstance(phases, Program) and phases.is_compiled:
            step = partial(self._share, phases, self._base)
            self._base += phases.shards * phases.length
        else:
            each = phases.phases if isinstance(phases, Program) else phases
            step = _InterpretedStep(each, shards, self._times).work
        with self._lock:
            self._step = step
            self._announce()
        # It stays the newest step when it is done. A helper that comes late finds all shards taken.
        step(is_owner=True)

    def help(self, calls: int) -> bool:
        """Take shards until called away; return False if there was no step for a while.

        ``calls`` is :attr:`calls` as it was when this thread had nothing else to do.
        """
        with np.errstate(all="ignore"):  # as in the owner: what overflows is found there
            while True:
                # The number of the news is read together with the step. Whatever comes after that
                # has a larger number, for which the wait below does not sleep.
                with self._lock:
                    step, news, is_called = self._step, self._news, self.calls != calls
                if is_called:
                    return True
                if step is not None:
                    step(is_owner=False)
                spin, linger = self._times.spin, self._times.linger
                found = wait_for_counters(self._counters, NEWS, 1, news + 1, ABORTED, spin, linger)
                if found == LATE:
                    return False

    def call(self) -> None:
        """Call the helpers away: there is other work for them."""
        with self._lock:
            self.calls += 1
            self._announce()

    def _announce(self) -> None:
        # Under the lock, so that the numbers are stored in their order.
        self._news += 1
        store_counter(self._counters, NEWS, self._news)

    def _share(self, program: Program, base: int, *, is_owner: bool) -> None:
        """Run shards of a compiled step: the owner until all are done, a helper until taken."""
        counters, limits = self._counters, self._times.of_step
        found = program.share(counters, base=base, broken=ABORTED, is_owner=is_owner, **limits)
        if is_owner and found == LATE:
            raise _stalled(self._times)


class _InterpretedStep:
    def __init__(self, phases: Sequence[Phase], shards: int, times: Timeouts) -> None:
        self._phases, self._shards, self._times = phases, shards, times
        self._taken, self._done, self._open = 0, 0, shards
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    def work(self, *, is_owner: bool) -> None:
        total = self._shards * len(self._phases)
        while (at := self._take(total, is_owner)) is not None:
            failure = None
            try:
                self._phases[at // self._shards](at % self._shards)
            except BaseException as error:  # the owner raises it
                failure = error
            with self._changed:
                self._failure = self._failure or failure
                self._done += 1
                # Only shards of open phases are taken, so as many done as a whole number of phases
                # has shards means that these phases are done.
                if self._done % self._shards == 0:
                    self._open += self._shards
                self._changed.notify_all()

    def _take(self, total: int, is_owner: bool) -> int | None:
        """Return the next shard; None when all are taken, or, for the owner, done."""
        with self._changed:
            while True:
                # After a failure no more shards are taken. The owner still waits for the shards
                # that run: they write to arrays that its caller owns once it returns.
                is_over = self._failure is not None or self._taken == total
                if is_over and (self._done == self._taken or not is_owner):
                    break
                if not is_over and self._taken < self._open:
                    self._taken += 1
                    return self._taken - 1
                # Every shard that ends notifies, so this is late only if none ended in the time.
                # Helpers leave by the failure: else one that waits for that shard would never go.
                if not self._changed.wait(self._times.stall) and is_owner:
                    self._failure = _stalled(self._times)
                    self._changed.notify_all()
                    raise self._failure
            if is_owner and self._failure is not None:
                raise self._failure
            return None


def _stalled(times: Timeouts) -> StalledError:
    return StalledError(f"a thread took more than {times.stall:g} s for a shard of a step")
