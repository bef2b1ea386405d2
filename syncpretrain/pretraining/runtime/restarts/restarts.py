"""Restarts that a run has left, shared by everything that starts a part of it again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["Restarts"]


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
