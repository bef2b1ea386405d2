"""The engine interface: messages and windows between ranks, and the bytes of a message.

An engine moves messages from rank to rank and reaches into memory of other ranks. A message is an
envelope and its large arrays, which are sent from where they are.

Guarantees that every engine gives: the messages of one rank to another arrive in the order in which
they were sent, each once and whole; and :meth:`Engine.wake` is never lost, even before the sleep.

Assumption: one thread of a rank calls its engine, except for :meth:`Engine.wake`.
"""

from __future__ import annotations

import io
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BOOT_ID",
    "Buffer",
    "Engine",
    "Envelope",
    "Window",
    "WindowValues",
    "pack",
    "sizes_in",
    "unpack",
]


# A name of this boot of this machine: with it, ranks find out which of them share one.
BOOT_ID = "/proc/sys/kernel/random/boot_id"
Buffer = bytes | bytearray | memoryview
WindowValues = NDArray[np.float32] | NDArray[np.int64]


class Engine(ABC):
    """Moves messages, each a few pieces of bytes, from rank to rank, in the order of each pair.

    Only one thread of a rank calls it, but for :meth:`wake`, and no call waits, but for
    :meth:`wait` and what concerns windows. Collective operations are made of these messages
    (:class:`syncpretrain.cluster.group.Group`), in an order that no engine chooses.

    Attributes
    ----------
    rank, size : int
        Number of this process, from 0, and number of the job's ranks.
    """

    rank: int
    size: int

    def __init__(self) -> None:
        self._woken = threading.Event()

    @property
    def rings(self) -> bool:
        """True if :meth:`wait` ends as soon as a message has come or can be moved on."""
        return False

    def wait(self, seconds: float) -> bool:
        """Sleep for some seconds, or until woken; return whether it was."""
        # Only this thread clears it, and it looks for work before it waits again. So a wake-up
        # between the two lines is not lost: its reason is found in that look.
        found = self._woken.wait(seconds)
        self._woken.clear()
        return found

    def wake(self) -> None:
        """End :meth:`wait`, now or when it is called next; any thread may."""
        self._woken.set()

    @abstractmethod
    def start(self, to: int, parts: Sequence[Buffer]) -> Callable[[], bool]:
        """Begin to send a message; return a function that says whether its bytes may change."""

    @abstractmethod
    def arrived(self) -> list[tuple[int, list[Buffer]]]:
        """Return the messages that are complete, each with the rank that sent it."""

    def lacks_windows(self) -> str | None:
        """Return the library or place without reliable windows; None if they can be opened here."""
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


class Window(ABC):
    """One vector on each rank, which all ranks read and change while its owner does other things.

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


# Smaller arrays are copied into the envelope: a copy in the cache is cheaper than a message more.
APART_BYTES = 1 << 14
PROTOCOL = 5  # of pickle, the first that takes arrays apart


class Envelope(NamedTuple):
    """The first part of a message, which tells its arrays before they have come.

    ``sent`` is ``time.monotonic()`` of the sender; ``sizes`` are the bytes of each large array.
    """

    port: tuple[Any, ...]
    sent: float
    sizes: tuple[int, ...]
    body: bytes


def pack(port: tuple[Any, ...], sent: float, thing: Any) -> list[Buffer]:
    """Return the envelope of a message and its large arrays, which must not change until sent."""
    apart: list[Buffer] = []

    def stays(buffer: Any) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not in one piece
            return True
        if raw.nbytes < APART_BYTES:
            return True
        apart.append(raw)
        return False

    body = io.BytesIO()
    ForkingPickler(body, PROTOCOL, True, stays).dump(thing)
    sizes = tuple(memoryview(own).nbytes for own in apart)
    envelope = Envelope(port, sent, sizes, body.getvalue())
    return [bytes(ForkingPickler.dumps(tuple(envelope), PROTOCOL)), *apart]


def sizes_in(envelope: Buffer) -> tuple[int, ...]:
    """Return the bytes of each array that belongs to an envelope."""
    return Envelope(*ForkingPickler.loads(envelope)).sizes


def unpack(parts: Sequence[Buffer]) -> tuple[Envelope, Any]:
    """Return the envelope and the message of received bytes, in which its arrays stay."""
    envelope = Envelope(*ForkingPickler.loads(parts[0]))
    return envelope, ForkingPickler.loads(envelope.body, buffers=parts[1:])
