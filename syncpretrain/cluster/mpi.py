"""The engine on MPI, through mpi4py: two-sided messages on a communicator of our own.

Large arrays are sent from where they are, in pieces that any MPI library can count. Windows are in
``cluster/mpi_window.py``. One thread makes all calls after the start. MPI is asked for
``MPI_THREAD_MULTIPLE`` nevertheless, since a script may use MPI itself; without,
``MPI_THREAD_SERIALIZED`` will do for scripts that do not.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from syncpretrain.cluster.bells import MARK_BYTES, Bells, machine_mark
from syncpretrain.cluster.engine import Engine, Window
from syncpretrain.cluster.mpi_window import MPIWindow
from syncpretrain.cluster.packing import Buffer, sizes_in
from syncpretrain.errors import SettingsError

__all__ = ["MPIEngine", "import_mpi"]

ENVELOPE_TAG, PIECE_TAG = 1, 2
LOOKS = 8  # at less than 1 us each; the first ones only move on what is about to arrive
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
            # Not a plain Dup: it would burn a core until the last rank has come.
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
        if self._can_send():
            self._send(to, parts, requests)
            if self._mpi.Request.Testall(requests):
                return lambda: True
        else:
            self._waiting.append((to, parts, requests))
        return lambda: self._can_send() and self._has_gone(to, requests)

    def arrived(self) -> list[tuple[int, list[Buffer]]]:
        """Return the messages that are complete."""
        if not self._can_send():
            return []
        status = self._mpi.Status()
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
                    self._ring(source)  # which looks after what it sends until it has gone
            else:
                late.add(source)  # what it sent next must wait for its turn
                kept.append(item)
        self._coming = kept
        return found

    def lacks_windows(self) -> str | None:
        """Return Intel MPI's name where ranks share no memory: its one-sided calls crash there."""
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
    def rings(self) -> bool:
        """Whether all ranks ring as they send, and no message is half here."""
        return self._all_ring and not self._coming

    def wait(self, seconds: float) -> bool:
        """Sleep for some seconds, or until woken; return whether it was."""
        if self._bells is None or self._woken.is_set():
            return super().wait(seconds)
        return self._bells.wait(seconds)

    def wake(self) -> None:
        """End :meth:`wait`; any thread may."""
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
                job = self._marks[0, MARK_BYTES:].tobytes()
                self._bells = Bells(job, self.rank, near)
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


def _pieces(part: Buffer) -> list[memoryview]:
    whole = memoryview(part).cast("B")
    return [whole[i : i + LARGEST_PIECE] for i in range(0, len(whole), LARGEST_PIECE)]


def import_mpi() -> Any:
    """Return ``mpi4py.MPI``, whose import starts MPI.

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
