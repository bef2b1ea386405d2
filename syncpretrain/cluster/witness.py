"""Program of the witness: it waits for the end of processes, and reports the first one.

Standard input has a line for each process: its identifier, a tab and its name; the last line for a
process counts. For process 0 it is the text that ends the report, with the escapes of a Python
string. A last line without a tab says that all is over. Each process connects to a socket
as well: that closes before the launcher knows of a death, which then kills all other ranks. A byte
that a process sends there says that it is about to end of itself, or to end the job.

A job on several hosts has a witness on each. The first one prints: to its listening socket the
others connect, report an end to it, and print nothing themselves, since the launcher kills the
ranks of their hosts because of it. It closes these connections when all is over. A witness that
cannot connect prints for itself.

Guarantees: at most one sentence is printed, and it names the processes that ended first, in the
order of their ends. A process that has announced its end is not named.

Assumption: one thread, and one look at a time; nothing here needs a lock. This is a file to be
executed, with the name of the socket, and needs nothing but Python.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import socket
import struct
import sys
from pathlib import Path

LEAVES, ABORTS = b"l", b"a"
PEER = struct.Struct("3i")  # process, user and group of the other end of a socket
ENDING_MS = 200  # for the system to know how a process ended that has closed its socket
FIRST_SECONDS = 5.0  # to connect to the first witness, which listens before the others are started
HEARD_SECONDS = 1.0  # for the first witness to print a report
JOB_ABORTED = "!"  # in the place of an end
LONGEST_LINE = 1 << 16  # from other hosts: a stranger at the door must not fill the memory
PENDING = 4096  # connections: all ranks of a host may come in one moment


class OtherHosts:
    """Lines from the witnesses of other hosts; each begins with a word that only they know."""

    def __init__(self, door: socket.socket, word: str, looks: select.epoll) -> None:
        self._door, self._word, self._looks = door, word, looks
        self._lines: dict[int, tuple[socket.socket, list[str]]] = {}  # the last is not complete
        looks.register(door, select.EPOLLIN)

    def hear(self, found: list[int]) -> list[str]:
        """Return the lines that have come through some descriptors."""
        if self._door.fileno() in found:
            other, _ = self._door.accept()
            other.setblocking(False)
            self._lines[other.fileno()] = other, [""]
            self._looks.register(other, select.EPOLLIN)
        return [line for own in found if own in self._lines for line in self._read(own)]

    def _read(self, descriptor: int) -> list[str]:
        # Bytes come in any pieces, so the last piece of a line is kept. The first line must be the
        # word: a stranger sends another, or none, and is shut out.
        other, lines = self._lines[descriptor]
        try:
            text = other.recv(4096).decode(errors="replace")
        except BlockingIOError:
            return []
        except OSError:  # reset
            text = ""
        more = (lines[-1] + text).split("\n")
        lines[-1:] = more
        is_wrong = len(lines) > 1 and lines[0] != self._word
        if not text or is_wrong or len(lines[-1]) > LONGEST_LINE:
            self._looks.unregister(descriptor)
            del self._lines[descriptor]
            other.close()
        return [] if is_wrong else [line for line in more[:-1] if line != self._word]


class Witness:
    """The processes that are watched; their names come from the descriptor of a pipe.

    Parameters
    ----------
    address : str
        Address of the socket for processes on this host.
    pipe : int
    first : socket, optional
        Connected to the first witness of the job, if this is another one.

    Attributes
    ----------
    last_words : str
        The text that ends a report.
    """

    def __init__(self, address: str, pipe: int, first: socket.socket | None = None) -> None:
        self._pipe = pipe
        self._first = first
        self._others: OtherHosts | None = None
        self.last_words = ""  # behind a report
        self._names: dict[int, str] = {}
        self._pids: dict[int, int] = {}  # by descriptor
        self._ends: dict[int, int] = {}  # descriptor of a process by its identifier
        self._sockets: dict[int, socket.socket] = {}  # by descriptor
        self._gone: set[int] = set()  # processes that have announced their end
        self._missed: list[int] = []  # processes that had ended before they were named
        self._rest = b""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{address}")
        self._listener.listen(PENDING)
        self._looks = select.epoll()  # which reports in the order of the events
        self._looks.register(pipe, select.EPOLLIN)
        self._looks.register(self._listener, select.EPOLLIN)
        if first is not None:
            self._looks.register(first, select.EPOLLIN)

    def listen(self, door: socket.socket, word: str) -> None:
        """Listen to the witnesses of other hosts too."""
        self._others = OtherHosts(door, word, self._looks)

    def wait(self) -> str | None:
        """Return how processes ended, in the order of their ends; None if all is over before.

        A look at many descriptors is not one moment: a process may speak and end while one looks,
        behind where the look is. So an end counts when the next look finds it without a word.
        """
        suspects: list[int] = []
        is_over = is_aborted = False
        while True:
            # Without suspects sleep; with suspects only look again, for a word of theirs.
            found = [own for own, _ in self._looks.poll(0 if suspects else None)]
            # A connection comes first: a word on it may explain an end.
            if self._listener.fileno() in found:
                self._accept()
                continue
            if self._first is not None and self._first.fileno() in found:
                return None  # all is over, or has been reported
            if any(self._hear(own) == ABORTS for own in found if own in self._sockets):
                is_over = is_aborted = True  # but who has ended before is why
            for line in self._others.hear(found) if self._others is not None else ():
                if line != JOB_ABORTED:
                    return line
                is_over = True
            if self._pipe in found and not self._read():
                is_over = True
            seen = self._missed + [self._pids[own] for own in found if own in self._pids]
            ended = [pid for pid in dict.fromkeys(seen) if pid not in self._gone]
            both = [pid for pid in suspects if pid in ended]
            if both:
                return ", and ".join(self._ending(pid) for pid in both)
            if is_over and not ended:
                if is_aborted:
                    self.report_to_first(JOB_ABORTED)
                return None
            suspects = ended

    def report_to_first(self, line: str) -> bool:
        """Report to the first witness, and wait until it has read; return whether there is one."""
        if self._first is None:
            return False
        with contextlib.suppress(OSError):  # it has reported another end, and is gone
            self._first.sendall(f"{line}\n".encode())
            self._first.settimeout(HEARD_SECONDS)
            self._first.recv(1)
        return True

    def _accept(self) -> None:
        other, _ = self._listener.accept()
        peer = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
        pid, user, _ = PEER.unpack(peer)
        # The system says who is at the other end: a socket without a file has no permissions.
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
        # Rank 0 has ended without a word; the system tells how in a moment. A closed pipe would be
        # found in every look from now on.
        if not text:
            self._looks.unregister(self._pipe)
        for line in lines:
            number, _, name = line.decode().partition("\t")
            pid = int(number)
            if not pid:
                self.last_words = name.encode().decode("unicode_escape")
                continue
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
        # A socket closes a little before the system has the status of its process.
        if pid in self._ends:
            look = select.poll()
            look.register(self._ends[pid], select.POLLIN)
            look.poll(ENDING_MS)
        return f"{name} {_ending(pid)}"


def main() -> None:
    """Wait; write on standard error which process has ended, if that is before all is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--word", default="")
    parser.add_argument("--door", type=int)
    parser.add_argument("--first", nargs=2, metavar=("HOST", "PORT"))
    options = parser.parse_args()
    own = Witness(options.address, 0, _connected(options.first, options.word))
    if options.door is not None:
        own.listen(socket.socket(fileno=options.door), options.word)
    found = own.wait()
    if found is not None and not own.report_to_first(found):
        sys.stderr.write(f"Error: {found}{own.last_words}\n")
        sys.stderr.flush()


def _connected(place: tuple[str, str] | None, word: str) -> socket.socket | None:
    if place is None:
        return None
    try:
        first = socket.create_connection((place[0], int(place[1])), FIRST_SECONDS)
        first.sendall(f"{word}\n".encode())
    except OSError:  # hosts that do not know each other's names, or are not let through
        return None
    first.settimeout(None)
    return first


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
    main()
