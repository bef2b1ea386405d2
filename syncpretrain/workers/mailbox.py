"""A queue between threads; a wait can be broken with a reason.

One condition guards one list. Every wait is a predicate loop with a deadline; a broken mailbox
wakes all who wait, now and later.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Generic, TypeVar

__all__ = ["Broken", "Mailbox"]

T = TypeVar("T")


class Broken(Exception):  # noqa: N818 - not an error: it ends a wait on purpose
    """The wait was ended from outside; the message is the reason."""


class Mailbox(Generic[T]):
    """First in, first out, between any number of threads."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._items: deque[T] = deque()
        self._reason: str | None = None

    def put(self, item: T) -> None:
        """Add an item and wake one waiting thread; a broken mailbox drops it."""
        with self._condition:
            if self._reason is not None:
                return
            self._items.append(item)
            # One item, one thread. If another thread takes the item first, the woken one finds the
            # list empty and waits again: nothing is lost, since the item was taken.
            self._condition.notify()

    def break_(self, reason: str) -> None:
        """End every wait, now and later; items not taken yet are dropped."""
        with self._condition:
            self._reason = reason
            self._items.clear()
            self._condition.notify_all()

    def take(self, timeout: float) -> T | None:
        """Return the oldest item, or None if none came within ``timeout`` seconds.

        Raises
        ------
        Broken
            If the mailbox is or becomes broken.
        """
        # A deadline, not a timeout: the loop may be woken in vain any number of times.
        deadline = time.monotonic() + timeout
        with self._condition:
            while not self._items:
                if self._reason is not None:
                    raise Broken(self._reason)
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._condition.wait(left)
            return self._items.popleft()
