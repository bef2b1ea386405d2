"""The engine interface: what moves messages between ranks."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from syncpretrain.cluster.packing import Buffer

__all__ = ["Engine"]


class Engine(ABC):
    """Moves messages, each a few pieces of bytes, from rank to rank, in the order of each pair.

    Only one thread of a rank calls it, but for :meth:`wake`, and no call waits, but for
    :meth:`wait`. Collective operations are made of these messages
    (:class:`syncpretrain.cluster.group.Group`), in an order that no engine chooses.

    Attributes
    ----------
    rank, size : int
        Of this process, from 0, and of the job.
    """

    rank: int
    size: int

    def __init__(self) -> None:
        self._woken = threading.Event()

    @property
    def rings(self) -> bool:
        """Whether :meth:`wait` ends as soon as a message has come or can be moved on."""
        return False

    def wait(self, seconds: float) -> bool:
        """Sleep for some seconds, or until woken; return whether it was."""
        found = self._woken.wait(seconds)
        self._woken.clear()
        return found

    def wake(self) -> None:
        """End :meth:`wait`, now or when it is called next; any thread may."""
        self._woken.set()

    @abstractmethod
    def start(self, to: int, parts: Sequence[Buffer]) -> Callable[[], bool]:
        """Begin to send a message; what is returned says whether its bytes may change again."""

    @abstractmethod
    def arrived(self) -> list[tuple[int, list[Buffer]]]:
        """Return the messages that are complete, each with the rank that sent it."""

    @abstractmethod
    def abort(self, status: int) -> None:
        """End every rank of the job at once, without a word to any of them."""

    @abstractmethod
    def close(self) -> None:
        """Take leave of the other ranks, with nothing under way."""
