"""Bells between the ranks of one machine: they end the sleep of a thread that waits for messages.

MPI has nothing that a thread could sleep on until a message comes. A sender on the same machine
therefore sends a datagram to a socket of the receiver as well, which has no file; on other
machines, and where the system has no such sockets, a thread has to look for messages now and then.
"""

from __future__ import annotations

import contextlib
import hashlib
import select
import socket
import sys
import time
from collections.abc import Container
from pathlib import Path

from syncpretrain.cluster.peers import BOOT

__all__ = ["MARK_BYTES", "Bells", "machine_mark"]

MARK_BYTES = 16
NETWORK = "/proc/self/ns/net"
SHORTEST_POLL = 1e-3  # the system counts the time of a wait for a socket in milliseconds


def machine_mark() -> bytes:
    """Return what ranks that hear each other's bells have in common; zeros if there are none."""
    if sys.platform != "linux":
        return bytes(MARK_BYTES)
    try:
        parts = Path(BOOT).read_text().strip(), str(Path(NETWORK).readlink())
    except OSError:
        return bytes(MARK_BYTES)
    return hashlib.blake2b(" ".join(parts).encode(), digest_size=MARK_BYTES).digest()


class Bells:
    """The bell of this rank, and those of the other ranks on its machine.

    Parameters
    ----------
    job : bytes
        Something that no other job has.
    rank : int
        Of this process.
    near : container of int
        The ranks that can be rung for.

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
            # Refused where it is not there yet, or has left; one that rings already is full.
            with contextlib.suppress(OSError):
                self._own.sendto(b".", f"{self._prefix}{rank}")

    def wait(self, seconds: float) -> bool:
        """Sleep until this rank's bell rings, or some seconds; return whether it rang."""
        if seconds < SHORTEST_POLL:
            time.sleep(seconds)
        elif not self._looks.poll(int(seconds * 1000)):
            return False
        rang = False
        with contextlib.suppress(BlockingIOError):
            while self._own.recv(1):
                rang = True
        return rang

    def close(self) -> None:
        """Take the bell away."""
        self._own.close()
