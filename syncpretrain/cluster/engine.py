"""The engine interface: what moves messages between ranks, and reaches into memory of theirs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from syncpretrain.cluster.packing import Buffer

__all__ = ["Engine", "Window", "WindowValues"]

WindowValues = NDArray[np.float32] | NDArray[np.int64]


class Window(ABC):
    """Vectors, one a rank, that every rank reads and changes while their owners do other things.

    An addition to an element is never lost or torn, whatever other ranks do. A call returns when
    it is done where the vector is; calls of several elements are not one moment to other ranks.
    Only the thread of the engine calls it, and no element is both added to and fetched with an
    addition.
    """

    @abstractmethod
    def get(self, rank: int, at: int, out: WindowValues) -> None:
        """Copy elements of a rank's vector from ``at`` on to ``out``."""

    @abstractmethod
    def put(self, rank: int, at: int, values: WindowValues) -> None:
        """Set elements of a rank's vector from ``at`` on, which no other rank uses meanwhile."""

    @abstractmethod
    def add(self, rank: int, at: int, values: WindowValues) -> None:
        """Add to elements of a rank's vector from ``at`` on."""

    @abstractmethod
    def fetch_and_add(self, rank: int, at: int, value: int) -> int:
        """Add to an element of whole numbers; return what it was before, all at one moment."""

    @abstractmethod
    def close(self) -> None:
        """Give it back. Every rank does so; none uses it any more."""


class Engine(ABC):
    """Moves messages, each a few pieces of bytes, from rank to rank, in the order of each pair.

    Only one thread of a rank calls it, but for :meth:`wake`, and no call waits, but for
    :meth:`wait` and what concerns windows. Collective operations are made of these messages
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

    def lacks_windows(self) -> str | None:
        """Return where it has no windows that can be relied on, None if they can be opened here."""
        return None

    @abstractmethod
    def open_window(self, lengths: Sequence[int], kind: str) -> Window:
        """Open a window of vectors of float32 or int64, as long as ``lengths`` says, by rank.

        Every rank opens the same windows in the same order, and waits for all others. The elements
        are not set.
        """

    @abstractmethod
    def abort(self, status: int) -> None:
        """End every rank of the job at once, without a word to any of them."""

    @abstractmethod
    def close(self) -> None:
        """Take leave of the other ranks, with nothing under way."""
