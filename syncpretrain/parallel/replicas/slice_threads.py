"""Threads of a parameter server, one a slice of its parameters.

What they do, copies and sums of long arrays, leaves the interpreter to others, so that they share
the bandwidth of several cores. The thread that calls works the first slice.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from syncpretrain.errors import StalledError
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts

__all__ = ["SliceThreads"]

SliceWork = Callable[[int], None]  # given the number of a slice


class SliceThreads:
    """Threads that all work their slices at a time.

    Parameters
    ----------
    slices : int
    times : Timeouts
        Of which ``stall`` is used for a piece of work, and ``join`` for the end.
    """

    def __init__(self, slices: int, times: Timeouts = TIMEOUTS) -> None:
        self._times = times
        self._orders: list[queue.SimpleQueue[SliceWork | None]] = []
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        for number in range(1, slices):
            orders: queue.SimpleQueue[SliceWork | None] = queue.SimpleQueue()
            thread = threading.Thread(
                target=self._serve, args=(number, orders), name=f"syncpretrain-slice-{number + 1}"
            )
            self._orders.append(orders)
            self._threads.append(thread)
            thread.start()

    def run(self, work: SliceWork) -> None:
        """Work every slice; return when all are done.

        Raises
        ------
        StalledError
            If a slice is not done in time.
        """
        for orders in self._orders:
            orders.put(work)
        errors = [_attempt(work, 0), *(self._answer() for _ in self._orders)]
        for error in errors:
            if error is not None:
                raise error

    def close(self) -> None:
        """End the threads."""
        for orders in self._orders:
            orders.put(None)
        for thread in self._threads:
            thread.join(self._times.join)
        if any(thread.is_alive() for thread in self._threads):
            raise StalledError("a slice of the parameter server did not end its work")

    def _answer(self) -> BaseException | None:
        try:
            return self._done.get(timeout=self._times.stall)
        except queue.Empty:
            raise StalledError(
                f"a slice of the parameter server was not done in {self._times.stall:g} s"
            ) from None

    def _serve(self, number: int, orders: queue.SimpleQueue[SliceWork | None]) -> None:
        while (work := orders.get()) is not None:
            self._done.put(_attempt(work, number))


def _attempt(work: SliceWork, number: int) -> BaseException | None:
    """Work a slice; return the error, which the caller of all raises."""
    try:
        work(number)
    except BaseException as error:
        return error
    return None
