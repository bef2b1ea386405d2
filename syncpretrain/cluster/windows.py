"""Windows of a job: vectors on some ranks, which all ranks read and change by themselves.

Rank 0 opens and closes them. The communication thread of each rank makes the calls, in pieces, so
that messages are not kept waiting; the thread that asks for a call waits until it is done.

Guarantees:

* A window is open on every rank before its first message from rank 0 behind the opening arrives.
* No wake-up is lost: a request is in the queue before the communication thread is woken, and is
  marked as done under the condition that its thread waits on.
* Calls of one thread are made in their order; between the pieces of a call, messages move on.

Assumption: nobody uses a window any more when rank 0 closes it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from syncpretrain.cluster.engine import Engine, Window, WindowValues
from syncpretrain.parallel.timeouts import Deadline, Timeouts

WINDOWS_PORT = (0, "windows")  # calls of Windows.opened and Windows.closed, to every rank
PIECE = 1 << 18  # elements of one call, which takes a millisecond or so
TURN_SECONDS = 1e-3  # of calls before the thread looks for messages: as long as one piece


class _Asked:
    """The calls that a thread waits for, and their last value when they are done."""

    def __init__(self, calls: Iterator[Any]) -> None:
        self.calls, self.value, self.is_done = calls, None, False


@dataclass(eq=False)
class Windows:
    """The windows of a job, as one rank has them.

    Parameters
    ----------
    engine : Engine
    send : callable
        Given a rank, a port and a message to it.
    wake : callable
        Wakes the communication thread.
    check : callable
        Raises WorkerError if that thread has failed.
    times : Timeouts
        ``stall`` bounds the wait for a call.

    Attributes
    ----------
    owned : set of str
        Windows with elements on this rank, which other ranks reach into.
    asked : deque
        Calls that wait for :meth:`turn`.

    Raises
    ------
    WorkerError, StalledError
        By every method for other threads than the communication thread.
    """

    engine: Engine
    send: Callable[[int, tuple[Any, ...], Any], None]
    wake: Callable[[], None]
    check: Callable[[], None]
    times: Timeouts

    def __post_init__(self) -> None:
        self._windows: dict[str, Window] = {}
        self.owned: set[str] = set()
        # Any thread appends, only the communication thread takes: a deque needs no lock for that.
        self.asked: deque[_Asked] = deque()
        self._changed = threading.Condition()  # guards the windows, and which calls are done

    def opened(self, name: str, lengths: Sequence[int], kind: str) -> None:
        """Open a window with all others, in the communication thread; see :meth:`open`."""
        # Outside the lock: opening waits for all other ranks.
        window = self.engine.open_window(lengths, kind)
        if lengths[self.engine.rank]:
            self.owned.add(name)
        with self._changed:
            self._windows[name] = window
            self._changed.notify_all()

    def closed(self, name: str) -> None:
        """Close a window with all others, in the communication thread."""
        self.owned.discard(name)
        self._windows[name].close()
        with self._changed:
            del self._windows[name]
            self._changed.notify_all()

    def turn(self) -> bool:
        """Make calls for about a millisecond, in the communication thread; return whether any."""
        if not self.asked:
            return False
        end = time.monotonic() + TURN_SECONDS
        while self.asked and time.monotonic() < end:
            # Left at the front until all its pieces are done: another request would overtake it.
            asked = self.asked[0]
            try:
                asked.value = next(asked.calls)
            except StopIteration:
                self.asked.popleft()
                with self._changed:
                    asked.is_done = True
                    self._changed.notify_all()
        return True

    def open(self, name: str, lengths: Sequence[int], kind: str) -> None:
        """Have every rank open a window with elements that are not set; return when this one has.

        Messages sent from now on arrive at ranks where it is open.

        Parameters
        ----------
        name : str
        lengths : sequence of int
            Elements of each rank.
        kind : str
            ``float32`` or ``int64``.
        """
        self._send_all(partial(Windows.opened, name=name, lengths=tuple(lengths), kind=kind))
        self._wait(lambda: name in self._windows, f"window {name} was not opened")

    def close(self, name: str) -> None:
        """Have every rank close a window, which none uses any more; return when this one has."""
        self._send_all(partial(Windows.closed, name=name))
        self._wait(lambda: name not in self._windows, f"window {name} was not closed")

    def get(self, name: str, rank: int, at: int, out: WindowValues) -> None:
        """Copy elements of a rank's vector from ``at`` on to ``out``."""
        self._ask_in_pieces(self._windows[name].get, rank, at, out)

    def put(self, name: str, rank: int, at: int, values: WindowValues) -> None:
        """Set elements of a rank's vector from ``at`` on, which no other rank uses meanwhile."""
        self._ask_in_pieces(self._windows[name].put, rank, at, values)

    def add(self, name: str, rank: int, at: int, values: WindowValues) -> None:
        """Add to elements of a rank's vector from ``at`` on."""
        self._ask_in_pieces(self._windows[name].add, rank, at, values)

    def fetch_and_add(self, name: str, rank: int, at: int, value: int) -> int:
        """Add to an element of whole numbers; return what it was before."""
        return int(self._ask(self._windows[name].fetch_and_add(rank, at, value) for _ in range(1)))

    def _ask_in_pieces(
        self, call: Callable[..., Any], rank: int, at: int, values: WindowValues
    ) -> None:
        pieces = range(0, values.size, PIECE)
        self._ask(call(rank, at + i, values[i : i + PIECE]) for i in pieces)

    def _ask(self, calls: Iterator[Any]) -> Any:
        """Have the communication thread make calls; return what the last one returned."""
        # Appended before the wake-up: a thread that is about to sleep looks at the queue under the
        # lock that the wake-up takes, so it either sees the request or is woken.
        asked = _Asked(calls)
        self.asked.append(asked)
        self.wake()
        self._wait(lambda: asked.is_done, "a call of a window did not end")
        return asked.value

    def _wait(self, is_so: Callable[[], bool], otherwise: str) -> None:
        deadline = Deadline(self.times.stall)
        with self._changed:
            # The tick is for a communication thread that fails, which notifies nobody here.
            while not self._changed.wait_for(is_so, self.times.tick):
                self.check()
                deadline.check(f"{otherwise} within")

    def _send_all(self, call: Callable[[Windows], None]) -> None:
        own = self.engine.rank  # last, since it waits for the others at once
        for rank in sorted(range(self.engine.size), key=lambda rank: rank == own):
            self.send(rank, WINDOWS_PORT, call)
