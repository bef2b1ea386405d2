"""Program of the witness: it waits for the end of processes, and reports the first one.

Standard input has a line for each process, its identifier, a tab and what to call it, of which the
last one counts; and a last line without a tab when all is over. Each process connects to a socket
as well: that closes before the launcher knows of a death, which then kills all other ranks. What it
sends there says that it is about to end of itself, or to end the job. This is a file to be
executed, with the name of the socket, and needs nothing but Python.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
from pathlib import Path

__all__ = ["ABORTS", "LEAVES", "main"]

LEAVES, ABORTS = b"l", b"a"
PEER = struct.Struct("3i")  # process, user and group of the other end of a socket
ENDING_MS = 200  # until the system knows how a process ended that has closed its socket
PENDING = 4096  # connections


class Witness:
    """The processes that are watched, whose names come from the descriptor of a pipe."""

    def __init__(self, address: str, pipe: int) -> None:
        self._pipe = pipe
        self._names: dict[int, str] = {}
        self._pids: dict[int, int] = {}  # by descriptor
        self._ends: dict[int, int] = {}  # descriptor of a process by its identifier
        self._sockets: dict[int, socket.socket] = {}  # by descriptor
        self._gone: set[int] = set()  # processes that were about to end
        self._missed: list[int] = []  # that had ended before they were named
        self._rest = b""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{address}")
        self._listener.listen(PENDING)
        self._looks = select.epoll()  # which reports in the order of the events
        self._looks.register(pipe, select.EPOLLIN)
        self._looks.register(self._listener, select.EPOLLIN)

    def wait(self) -> str | None:
        """Return how processes ended, in the order of their ends; None if all is over before.

        A look at many descriptors is not one moment: a process may speak and end while one looks,
        behind where the look is. So an end counts when the next look finds it without a word.
        """
        suspects: list[int] = []
        is_over = False
        while True:
            found = [own for own, _ in self._looks.poll(0 if suspects else None)]
            if self._listener.fileno() in found:  # whose word may explain an end
                self._accept()
                continue
            if any(self._hear(own) == ABORTS for own in found if own in self._sockets):
                is_over = True  # but who has ended before is why
            if self._pipe in found and not self._read():
                is_over = True
            seen = self._missed + [self._pids[own] for own in found if own in self._pids]
            ended = [pid for pid in dict.fromkeys(seen) if pid not in self._gone]
            both = [pid for pid in suspects if pid in ended]
            if both:
                return ", and ".join(self._ending(pid) for pid in both)
            if is_over and not ended:
                return None
            suspects = ended

    def _accept(self) -> None:
        other, _ = self._listener.accept()
        peer = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
        pid, user, _ = PEER.unpack(peer)
        if user == os.getuid():
            self._sockets[other.fileno()] = other
            self._pids[other.fileno()] = pid
            self._looks.register(other, select.EPOLLIN)

    def _hear(self, descriptor: int) -> bytes:
        """Return the word of a process, nothing if its socket is closed."""
        try:
            word = self._sockets[descriptor].recv(1)
        except OSError:  # reset
            word = b""
        pid = self._pids[descriptor]
        if word in (LEAVES, ABORTS):
            self._gone.add(pid)
        if word == LEAVES:
            for own in [own for own, other in self._pids.items() if other == pid]:
                self._looks.unregister(own)
                del self._pids[own]
            self._sockets.pop(descriptor).close()
        return word

    def _read(self) -> bool:
        """Read the names; return False when all is over."""
        text = os.read(self._pipe, 1 << 16)
        *lines, self._rest = (self._rest + text).split(b"\n")
        if any(b"\t" not in line for line in lines):
            return False
        if not text:  # rank 0 has ended without a word, of which the system knows in a moment
            self._looks.unregister(self._pipe)
        for line in lines:
            number, _, name = line.decode().partition("\t")
            pid = int(number)
            self._names[pid] = name
            if pid not in self._ends and pid not in self._gone:
                try:
                    self._ends[pid] = descriptor = os.pidfd_open(pid)
                except ProcessLookupError:
                    self._missed.append(pid)
                    continue
                self._pids[descriptor] = pid
                self._looks.register(descriptor, select.EPOLLIN)
        return True

    def _ending(self, pid: int) -> str:
        name = self._names.get(pid, f"process {pid}")
        if pid in self._ends:
            look = select.poll()
            look.register(self._ends[pid], select.POLLIN)
            look.poll(ENDING_MS)
        return f"{name} {_ending(pid)}"


def main(address: str) -> None:
    """Wait; write on standard error which process has ended, if that is before all is over."""
    found = Witness(address, 0).wait()
    if found is not None:
        sys.stderr.write(f"Error: {found}\n")
        sys.stderr.flush()


def _ending(pid: int) -> str:
    """Return how a process ended, if the system still knows."""
    try:
        state, *_, status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        state, status = "", "0"
    code = os.waitstatus_to_exitcode(int(status)) if state == "Z" else 0
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with status {code}" if code else "was killed or has crashed"


if __name__ == "__main__":
    main(sys.argv[1])
