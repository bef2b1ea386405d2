"""Lifetimes of threads and processes that train together: their time limits, and a bounded end.

Guarantee: a ``with`` block of :class:`Closing` leaves nothing behind that it started, or says what.
It raises that only where no other error is on its way, which would be hidden.

Assumption: whoever waits for an answer ends the wait at one of :class:`Timeouts`, so that the end
of one part reaches the caller.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any, TypeVar

from syncpretrain.errors import StalledError

ClosingT = TypeVar("ClosingT", bound="Closing")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits for the parts of a run that wait for each other, in seconds.

    Parameters
    ----------
    stall : float
        Time without a minibatch anywhere after which the run fails, and time that a worker waits
        for the others in one phase of a step after which the step fails.
    tick : float
        Time between two looks of the driver at the progress and at a request to stop.
    drain : float
        Time for the running epochs to end after a request to stop, which each sees after one
        minibatch.
    failed_drain : float
        The same time after a failure, which is reported at once: no checkpoint is written then.
    iterable : float
        Time for an iterable to give the next array after a request to stop or a failure.
    join : float
        Time for threads and processes to end.
    sleep : float
        Time that a layer's thread sleeps before it looks whether its caller still lives.
    spin : float
        Time that a pool's worker spins before it naps. The parts of a phase are about equal: a nap
        would cost more than it saves.
    stagger : float
        Delay of each worker behind the one before it: the time that the interpreter takes before a
        product.
    linger : float
        Time that a worker waits for the next step before it sleeps.
    look : float
        Longest uninterrupted wait, after which signals are taken. A longer one means that the
        process was suspended, and counts only this much.
    """

    # Long: a false alarm costs the run, a true one that comes late ten minutes of it.
    stall: float = 600.0
    tick: float = 0.1
    drain: float = 10.0
    failed_drain: float = 0.3
    iterable: float = 1.0
    join: float = 10.0
    sleep: float = 60.0
    spin: float = 2e-3
    stagger: float = 10e-6
    linger: float = 0.02
    look: float = 1.0

    @property
    def of_step(self) -> dict[str, Any]:
        """The time limits of a compiled step, by the names of its arguments."""
        return {"spin_seconds": self.spin, "look_seconds": self.look, "timeout_seconds": self.stall}


TIMEOUTS = Timeouts()


class Deadline:
    """The end of a wait for another part of a run, some seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._end = seconds, time.monotonic() + seconds

    def check(self, late: str) -> None:
        """Raise StalledError after the end; its text is ``late`` and the seconds."""
        if time.monotonic() > self._end:
            raise StalledError(f"{late} {self._seconds:g} s")


def started_thread(name: str, target: Callable[..., Any], *args: Any) -> Thread:
    """Return a new thread that calls a function, and does not keep the process from ending."""
    # A daemon only for a thread that is stuck in foreign code: every ordinary way out joins it.
    thread = Thread(target=target, args=args, name=name, daemon=True)
    thread.start()
    return thread


def join_all(threads: Sequence[Thread], seconds: float) -> list[str]:
    """Wait some seconds for the ends of all threads; return the names of those still alive."""
    # One deadline for all: with one each, N stuck threads would cost N times as much.
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]


class Closing(ABC):
    """A context that starts threads or processes when it is entered, and ends all when it is left.

    Parameters
    ----------
    times : Timeouts
        ``join`` bounds the end.
    """

    def __init__(self, times: Timeouts) -> None:
        self._times = times

    def __enter__(self: ClosingT) -> ClosingT:
        try:
            self._open()
        except BaseException:
            # Python calls no __exit__ then; some may have started before "can't start new thread".
            self._close()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # An error inside the block is why some did not end, and tells more than their names.
        alive = self._close()
        if alive and error is None:
            raise StalledError(f"{', '.join(alive)} did not end within {self._times.join:g} s")

    @abstractmethod
    def _open(self) -> None:
        """Start them."""

    @abstractmethod
    def _close(self) -> Sequence[str]:
        """End them; return the names of threads or processes that did not end in time."""
