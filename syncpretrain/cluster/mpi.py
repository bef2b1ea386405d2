"""The engine on MPI, through mpi4py: two-sided messages on a communicator of our own, and windows.

Large arrays are sent from where they are, in pieces that any MPI library can count. One thread
makes all calls after the start. MPI is asked for ``MPI_THREAD_MULTIPLE`` nevertheless, since a
script may use MPI itself; without, ``MPI_THREAD_SERIALIZED`` will do for scripts that do not.

Guarantees: as every engine. Messages of a rank are delivered in their order although their pieces
arrive in any, and nothing that MPI does waits for another rank, except for windows.

MPI has nothing that a thread could sleep on until a message comes. A sender on the same machine
therefore also rings a *bell*: it sends a datagram to a socket of the receiver, which has no file.
From other machines, and where the system has no such sockets, a thread has to look for messages now
and then.

Assumption: a bell may be too early, too late or lost. It only ends a sleep, and every sleep ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from syncpretrain.cluster.engine import BOOT_ID_FILE, Buffer, Engine, Window, WindowValues, sizes_in
from syncpretrain.errors import SettingsError

ENVELOPE_TAG, PIECE_TAG = 1, 2
LOOKS = 8  # at less than 1 us each; the first ones only move messages on that are about to arrive
LARGEST_PIECE = 1 << 30  # MPI before version 4 counts in 32 bits
INTEL_FABRICS = "I_MPI_FABRICS"  # the variable by which shared memory may be turned off
INSTALL_MPI = "pip install 'syncpretrain[mpi]' mpich"
_Coming = tuple[int, list[Buffer], list[Any]]  # sender, bytes, and the requests that fill them


class MPIEngine(Engine):
    """One rank of an MPI job.

    Raises
    ------
    SettingsError
        If mpi4py or an MPI library is missing, or it cannot be called from a thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._mpi = import_mpi()
        world = self._mpi.COMM_WORLD
        self.rank, self.size = world.Get_rank(), world.Get_size()
        self._is_ready = self.size == 1
        self._comm: Any = world
        self._ready: Any = None
        if self.size > 1:
            # A communicator of our own, so that a script's messages never match ours. Not a plain
            # Dup: it would burn a core until the last rank has come.
            self._comm, self._ready = world.Idup()
        self._own_mark = machine_mark() + secrets.token_bytes(MARK_BYTES)
        self._marks = np.zeros((self.size, 2 * MARK_BYTES), dtype=np.uint8)  # of all ranks
        self._has_marks = False  # or they are on their way
        self._bells: Bells | None = None
        self._all_ring = self._are_all_near = False
        self._waiting: list[tuple[int, Sequence[Buffer], list[Any]]] = []  # for the communicator
        self._coming: deque[_Coming] = deque()

    def start(self, to: int, parts: Sequence[Buffer]) -> Callable[[], bool]:
        """Begin to send a message."""
        requests: list[Any] = []
        # Until all ranks have come there is no communicator, and messages wait here. The function
        # that is returned begins them, in their order, when it is called next.
        if self._can_send():
            self._send(to, parts, requests)
            if self._mpi.Request.Testall(requests):
                return lambda: True
        else:
            self._waiting.append((to, parts, requests))
        return lambda: self._can_send() and self._has_gone(to, requests)

    def take_arrived(self) -> list[tuple[int, list[Buffer]]]:
        """Return the messages that are complete."""
        if not self._can_send():
            return []
        status = self._mpi.Status()
        # MPI moves messages on in calls only: one that has almost arrived needs some of them.
        looks = LOOKS
        while looks:
            looks -= 1
            if self._comm.Iprobe(self._mpi.ANY_SOURCE, ENVELOPE_TAG, status):
                self._receive(status.Get_source(), status.Get_count(self._mpi.BYTE))
                looks = LOOKS
        found, kept, late = [], deque[_Coming](), set()
        for item in self._coming:
            source, parts, requests = item
            if source not in late and self._mpi.Request.Testall(requests):
                found.append((source, parts))
                if requests:
                    self._ring(source)  # the sender then looks whether its pieces have gone
            else:
                late.add(source)  # its next messages must wait for their turn
                kept.append(item)
        self._coming = kept
        return found

    def windows_unreliable_on(self) -> str | None:
        """Return Intel MPI's name if ranks share no memory: its one-sided calls crash there."""
        shares = self._are_all_near and "shm" in os.environ.get(INTEL_FABRICS, "shm")
        if not self.library.startswith("Intel") or shares:
            return None
        return f"{self.library} where ranks share no memory"

    def open_window(self, lengths: Sequence[int], kind: str) -> Window:
        """Open a window, with all other ranks."""
        return MPIWindow(self._mpi, self._comm, lengths, kind)

    @property
    def library(self) -> str:
        """Name and version of the MPI library."""
        text: str = self._mpi.Get_library_version()
        return " ".join(text.split("\n")[0].rstrip("\0").split(",")[0].split())

    def abort(self, status: int) -> None:
        """End the job, as the launcher does it."""
        self._mpi.COMM_WORLD.Abort(status)

    @property
    def wakes_for_messages(self) -> bool:
        """True if all ranks ring as they send, and no message is half here."""
        return self._all_ring and not self._coming

    def wait(self, seconds: float) -> bool:
        """Sleep for some seconds, or until woken; return whether it was."""
        # The event first: a thread may have set it just before the bells were hung.
        if self._bells is None or self._woken.is_set():
            return super().wait(seconds)
        return self._bells.wait(seconds)

    def wake(self) -> None:
        """End :meth:`wait`; any thread may."""
        # Both, if the bells are hung between the two looks: one of them the sleeper hears. The
        # communication thread hangs them, never while it sleeps.
        if self._bells is None:
            super().wake()
        self._ring(self.rank)

    def close(self) -> None:
        """Take the bells away; mpi4py calls ``MPI_Finalize`` when the process ends."""
        if self._bells is not None:
            self._bells.close()

    def _can_send(self) -> bool:
        if self._is_ready or not self._ready.Test():
            return self._is_ready
        # The second of two collective calls that do not wait: first the communicator, then on it
        # the marks by which ranks find out who shares their machine. Each look asks for the result.
        if not self._has_marks:
            self._has_marks = True
            own = np.frombuffer(self._own_mark, dtype=np.uint8)
            self._ready = self._comm.Iallgather(own, self._marks)
            return False
        self._is_ready = True
        self._hang_bells()
        for message in self._waiting:
            self._send(*message)
        self._waiting.clear()
        return True

    def _hang_bells(self) -> None:
        """Listen for the bells of the ranks on this machine, if it has any."""
        machines = [row[:MARK_BYTES].tobytes() for row in self._marks]
        own = machines[self.rank]
        near = {rank for rank, machine in enumerate(machines) if machine == own}
        self._are_all_near = any(own) and len(near) == self.size
        if any(own) and len(near) > 1:
            with contextlib.suppress(OSError):  # else it looks for messages now and then
                self._bells = Bells(self._marks[0, MARK_BYTES:].tobytes(), self.rank, near)
                self._all_ring = self._are_all_near

    def _send(self, to: int, parts: Sequence[Buffer], requests: list[Any]) -> None:
        byte = self._mpi.BYTE
        requests.append(self._comm.Isend([parts[0], byte], to, ENVELOPE_TAG))
        for part in parts[1:]:
            for piece in _pieces(part):
                requests.append(self._comm.Isend([piece, byte], to, PIECE_TAG))
        self._ring(to)

    def _has_gone(self, to: int, requests: list[Any]) -> bool:
        """Return whether a message that waited in this rank has left it."""
        has_gone = bool(self._mpi.Request.Testall(requests))
        if has_gone and len(requests) == 1:  # else it looks for the rest by itself
            self._ring(to)  # the last bell may have been too early
        return has_gone

    def _ring(self, rank: int) -> None:
        if self._bells is not None:
            self._bells.ring(rank)

    def _receive(self, source: int, count: int) -> None:
        byte = self._mpi.BYTE
        # The envelope is there, so this does not wait. The pieces come in the order of their sends,
        # after it, and only one thread posts receives: so each fills its own array.
        envelope = bytearray(count)
        self._comm.Recv([envelope, byte], source, ENVELOPE_TAG)
        parts: list[Buffer] = [envelope]
        requests = []
        for size in sizes_in(envelope):
            part = np.empty(size, dtype=np.uint8).data  # unlike a bytearray not zeroed first
            parts.append(part)
            for piece in _pieces(part):
                requests.append(self._comm.Irecv([piece, byte], source, PIECE_TAG))
        self._coming.append((source, parts, requests))


def import_mpi() -> Any:
    """Return ``mpi4py.MPI``; its import starts MPI.

    Raises
    ------
    SettingsError
    """
    try:
        from mpi4py import MPI  # which asks for MPI_THREAD_MULTIPLE
    except ImportError as error:
        raise SettingsError(
            f"runtime: got mpi, which needs mpi4py and an MPI library ({error}); {INSTALL_MPI}"
        ) from None
    except RuntimeError as error:  # mpi4py without a library
        reason = str(error).strip().splitlines()[0]
        raise SettingsError(
            f"runtime: got mpi, but no MPI library can be loaded ({reason}); {INSTALL_MPI}"
        ) from None
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise SettingsError(
            "runtime: got mpi, but MPI was started for one thread only; leave out the setting of"
            " mpi4py.rc.thread_level, or set it to 'multiple'"
        )
    return MPI


def _pieces(part: Buffer) -> list[memoryview]:
    whole = memoryview(part).cast("B")
    return [whole[i : i + LARGEST_PIECE] for i in range(0, len(whole), LARGEST_PIECE)]


MARK_BYTES = 16
NETWORK = "/proc/self/ns/net"
SHORTEST_POLL = 1e-3  # the system counts the time of a wait for a socket in milliseconds


class Bells:
    """The bell of this rank, and the bells of the other ranks on its machine.

    Parameters
    ----------
    job : bytes
        A name that no other job has.
    rank : int
        Number of this process.
    near : container of int
        The ranks with bells that can be rung.

    Raises
    ------
    OSError
        If the system has no such sockets.
    """

    def __init__(self, job: bytes, rank: int, near: Container[int]) -> None:
        self._prefix, self._near = f"\0syncpretrain-{job.hex()}-", near
        self._own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._own.setblocking(False)
        self._own.bind(f"{self._prefix}{rank}")
        self._looks = select.poll()
        self._looks.register(self._own, select.POLLIN)

    def ring(self, rank: int) -> None:
        """Ring the bell of a rank, if it hears it; any thread may."""
        if rank in self._near:
            # Refused by a rank that is not there yet, or has left; a full one rings already. Either
            # way nothing is lost but time: every sleep ends.
            with contextlib.suppress(OSError):
                self._own.sendto(b".", f"{self._prefix}{rank}")

    def wait(self, seconds: float) -> bool:
        """Sleep until this rank's bell rings, or some seconds; return whether it rang."""
        if seconds < SHORTEST_POLL:
            time.sleep(seconds)
        elif not self._looks.poll(int(seconds * 1000)):
            return False
        # All of them at once: a sleeper that took one by one would wake for bells of the past.
        rang = False
        with contextlib.suppress(BlockingIOError):
            while self._own.recv(1):
                rang = True
        return rang

    def close(self) -> None:
        """Take the bell away."""
        self._own.close()


def machine_mark() -> bytes:
    """Return a mark that is equal on ranks that hear each other's bells; zeros if none can."""
    # Sockets without a file belong to a network namespace, of which a machine may have several.
    if sys.platform != "linux":
        return bytes(MARK_BYTES)
    try:
        parts = Path(BOOT_ID_FILE).read_text().strip(), str(Path(NETWORK).readlink())
    except OSError:
        return bytes(MARK_BYTES)
    return hashlib.blake2b(" ".join(parts).encode(), digest_size=MARK_BYTES).digest()


class MPIWindow(Window):
    """A window of a communicator: memory that ranks read and change by one-sided calls.

    Only the one-sided calls are used that every library gets right: ``MPI_Win_allocate``, one
    passive epoch for as long as a window is open, ``MPI_Put``, ``MPI_Get``, ``MPI_Accumulate`` with
    ``MPI_SUM``, and ``MPI_Fetch_and_op`` in windows of its own. ``MPI_Get_accumulate`` aborts Open
    MPI 5.0, fences and ``MPI_Win_create`` hang between machines with some versions of libfabric,
    and sums in one window by both ``MPI_Accumulate`` and ``MPI_Fetch_and_op`` are wrong in Open
    MPI.

    Every call ends with ``MPI_Win_flush``. On one machine that needs nothing of the other rank;
    between machines it may wait for the next call of MPI there, since MPICH moves nothing on by
    itself.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.
    comm : Intracomm
    lengths : sequence of int
        Elements of each rank.
    kind : str
        ``float32`` or ``int64``.
    """

    def __init__(self, mpi: Any, comm: Any, lengths: Sequence[int], kind: str) -> None:
        self._mpi = mpi
        self._type = {"float32": mpi.FLOAT, "int64": mpi.INT64_T}[kind]
        width = np.dtype(kind).itemsize
        self._win = mpi.Win.Allocate(lengths[comm.Get_rank()] * width, width, comm=comm)
        self._win.Lock_all(mpi.MODE_NOCHECK)  # no rank is ever locked exclusively

    def get(self, rank: int, at: int, out: WindowValues) -> None:
        """Copy elements of a rank's vector from ``at`` on to ``out``."""
        self._win.Get([out, self._type], rank, self._place(at, out))
        self._win.Flush(rank)

    def put(self, rank: int, at: int, values: WindowValues) -> None:
        """Set elements of a rank's vector from ``at`` on."""
        self._win.Put([values, self._type], rank, self._place(at, values))
        self._win.Flush(rank)

    def add(self, rank: int, at: int, values: WindowValues) -> None:
        """Add to elements of a rank's vector from ``at`` on."""
        self._win.Accumulate([values, self._type], rank, self._place(at, values), self._mpi.SUM)
        self._win.Flush(rank)

    def fetch_and_add(self, rank: int, at: int, value: int) -> int:
        """Add to an element of whole numbers; return what it was before."""
        own, found = np.array([value], np.int64), np.empty(1, np.int64)
        self._win.Fetch_and_op([own, self._type], [found, self._type], rank, at, self._mpi.SUM)
        self._win.Flush(rank)
        return int(found[0])

    def close(self) -> None:
        """Give it back, when every rank does."""
        self._win.Unlock_all()
        self._win.Free()

    def _place(self, at: int, values: WindowValues) -> tuple[int, int, Any]:
        return at, values.size, self._type
