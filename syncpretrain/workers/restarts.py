"""Restarts that a run has left, and the replacement of layers' processes that died.

A process that died is replaced as long as the run has restarts left. The exception is a layer that
has come no further in several processes in a row: the cause is then in the layer, not in the
machine, and the run fails.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from syncpretrain.workers.kept_state import LOST, KeptStates

__all__ = ["Replacement", "Restarts"]


class Restarts:
    """Number of restarts that are left, and what is to be reported of them.

    Parameters
    ----------
    most : int
    report : callable, optional
        Given each message, by the thread that calls :meth:`report_all`.

    Attributes
    ----------
    most : int
    """

    def __init__(self, most: int = 0, report: Callable[[str], None] | None = None) -> None:
        self.most = most
        self._report = report
        self._lock = threading.Lock()  # guards the number
        self._used = 0
        self._messages: deque[str] = deque()

    def take(self) -> str | None:
        """Use a restart; return which one it is, such as "restart 1 of 3", or None if none is left.

        Any thread may call it.
        """
        with self._lock:
            if self._used == self.most:
                return None
            self._used += 1
            return f"restart {self._used} of {self.most}"

    def record(self, message: str) -> None:
        """Keep a message for :meth:`report_all`; any thread may call it."""
        self._messages.append(message)

    def report_all(self) -> None:
        """Report the messages that were recorded."""
        while self._messages:
            message = self._messages.popleft()
            if self._report is not None:
                self._report(message)


MOST_IN_VAIN = 3  # processes of a layer in a row that keep no new state


class Replacement:
    """Decides whether a process that died is replaced, and holds the states of the layers.

    Parameters
    ----------
    restarts : Restarts
        Without any, no state is kept and no process is replaced.
    """

    def __init__(self, restarts: Restarts) -> None:
        self._restarts = restarts
        self._kept: list[KeptStates] = []
        self._lock = threading.Lock()  # guards the next line; the states are their writers' own
        self._in_vain: dict[int, tuple[int, int]] = {}  # by layer: its newest state, and processes

    def open(self, layers: int) -> None:
        """Allocate the memory for the states of some layers.

        Raises
        ------
        OSError
            If there is not enough.
        """
        for _ in range(layers if self._restarts.most else 0):
            self._kept.append(KeptStates.create())

    def kept(self, layer: int) -> KeptStates | None:
        """Return where the states of a layer, counted from 1, are kept, if they are."""
        return self._kept[layer - 1] if self._kept else None

    def descriptors(self, layer: int) -> tuple[int, ...]:
        """Return what the process of a layer has to be given for it."""
        kept = self.kept(layer)
        return () if kept is None else kept.descriptors

    def takes(self, layer: int, death: BaseException) -> bool:
        """Use a restart for a layer after its process died; return False if there is none to use.

        Any thread may call it.
        """
        with self._lock:
            kept = self.kept(layer)
            if kept is None or (number := kept.number) == LOST:
                return False
            # In vain is a process that kept no state beyond the one that it began with.
            before, in_vain = self._in_vain.get(layer, (number, 0))
            in_vain = in_vain + 1 if before == number else 1
            self._in_vain[layer] = number, in_vain
            which = self._restarts.take() if in_vain <= MOST_IN_VAIN else None
            if which is None:
                return False
        self._restarts.record(
            f"warning: {death}; a new process goes on from its last state ({which})"
        )
        return True

    def report_all(self) -> None:
        """Report the replacements; called by the thread of the run's caller."""
        self._restarts.report_all()

    def close(self) -> None:
        """Release the memory."""
        for kept in self._kept:
            kept.close()
        self._kept.clear()
