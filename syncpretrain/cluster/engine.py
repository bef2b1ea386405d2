"""The engine interface: messages and windows between ranks, and the bytes of a message.

An engine moves messages from rank to rank and reaches into memory of other ranks. A message is an
envelope and its large arrays, which an engine may send without a copy.

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

# The file that names this boot of this machine: ranks that read the same name share a machine.
BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
Buffer = bytes | bytearray | memoryview
WindowValues = NDArray[np.float32] | NDArray[np.int64]


class Engine(ABC):
    """Interface that moves messages, each a few pieces of bytes, from rank to rank.

    Only one thread of a rank may call an engine, except for :meth:`wake`, which any thread may
    call. No call waits for another rank, except for :meth:`open_window` and the calls of a window.
    Collective operations are built of messages (:class:`syncpretrain.cluster.group.Group`): so the
    order in which they add up is the same with every engine.

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
    def wakes_for_messages(self) -> bool:
        """True if :meth:`wait` also ends as soon as :meth:`take_arrived` has work to do."""
        return False

    def wait(self, seconds: float) -> bool:
        """Sleep for some seconds, or until woken; return whether the thread was woken."""
        # Only this thread clears the event, and it looks for work before it waits again. So a
        # wake-up between wait() and clear() is not lost: that look finds its reason.
        found = self._woken.wait(seconds)
        self._woken.clear()
        return found

    def wake(self) -> None:
        """End :meth:`wait`, now or when it is called next; any thread may."""
        self._woken.set()

    @abstractmethod
    def start(self, to: int, parts: Sequence[Buffer]) -> Callable[[], bool]:
        """Begin to send a message; return a function that moves it on.

        The caller must call that function now and then until it returns True: only then has the
        message left, and may the bytes of ``parts`` change.
        """

    @abstractmethod
    def take_arrived(self) -> list[tuple[int, list[Buffer]]]:
        """Return the messages that are complete, each once, with the rank that sent it."""

    def windows_unreliable_on(self) -> str | None:
        """Return the library or place without reliable windows; None if windows are reliable."""
        return None

    @abstractmethod
    def open_window(self, lengths: Sequence[int], kind: str) -> Window:
        """Open a window, with ``lengths[rank]`` elements on each rank; wait until all ranks do so.

        ``kind`` is ``float32`` or ``int64``. Every rank must open the same windows in the same
        order. An element has no defined value before it is set.
        """

    @abstractmethod
    def abort(self, status: int) -> None:
        """End every rank of the job at once, without a message to any of them."""

    @abstractmethod
    def close(self) -> None:
        """Leave the other ranks. All messages that this rank began to send must have left."""


class Window(ABC):
    """One vector on each rank, which all ranks read and change while its owner does other things.

    Guarantees: an addition to an element is never lost or torn, whatever other ranks do; a call
    returns when its work is done in the owner's memory. A call for several elements is not atomic:
    other ranks may see some of them before and some after it.

    Duties of the caller: only the thread that calls the engine may call its windows, and an element
    that :meth:`add` changes must not be changed by :meth:`fetch_and_add`.
    """

    @abstractmethod
    def get(self, rank: int, at: int, out: WindowValues) -> None:
        """Fill ``out`` with the elements of a rank's vector from number ``at`` on."""

    @abstractmethod
    def put(self, rank: int, at: int, values: WindowValues) -> None:
        """Set the elements of a rank's vector from number ``at`` on.

        No other rank may use these elements meanwhile.
        """

    @abstractmethod
    def add(self, rank: int, at: int, values: WindowValues) -> None:
        """Add to the elements of a rank's vector from number ``at`` on."""

    @abstractmethod
    def fetch_and_add(self, rank: int, at: int, value: int) -> int:
        """Add to an element of int64 atomically; return its value from before."""

    @abstractmethod
    def close(self) -> None:
        """Free the memory. Every rank must call this, and must not use the window afterwards."""


# Smaller arrays are copied into the envelope: a copy in the cache is cheaper than a message more.
APART_BYTES = 1 << 14
PROTOCOL = 5  # of pickle, the first that takes arrays apart


class Envelope(NamedTuple):
    """The first part of a message, which tells the sizes of the arrays that follow it.

    ``sent`` is the sender's ``time.monotonic()``; ``sizes`` are the bytes of each large array;
    ``body`` is the pickled message without them.
    """

    port: tuple[Any, ...]
    sent: float
    sizes: tuple[int, ...]
    body: bytes


def pack(port: tuple[Any, ...], sent: float, thing: Any) -> list[Buffer]:
    """Return the envelope of a message and its large arrays, for :meth:`Engine.start`.

    The arrays are not copied: they must not change until the message has left.
    """
    apart: list[Buffer] = []

    def is_in_band(buffer: Any) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not in one piece
            return True
        if raw.nbytes < APART_BYTES:
            return True
        apart.append(raw)
        return False

    body = io.BytesIO()
    fix_imports = True  # the pickler takes no keywords
    ForkingPickler(body, PROTOCOL, fix_imports, is_in_band).dump(thing)
    envelope = Envelope(port, sent, tuple(memoryview(own).nbytes for own in apart), body.getvalue())
    return [bytes(ForkingPickler.dumps(tuple(envelope), PROTOCOL)), *apart]


def sizes_in(envelope: Buffer) -> tuple[int, ...]:
    """Return the bytes of each array that belongs to an envelope."""
    return Envelope(*ForkingPickler.loads(envelope)).sizes


def unpack(parts: Sequence[Buffer]) -> tuple[Envelope, Any]:
    """Return the envelope and the message of received bytes; its arrays are views of ``parts``."""
    envelope = Envelope(*ForkingPickler.loads(parts[0]))
    return envelope, ForkingPickler.loads(envelope.body, buffers=parts[1:])
