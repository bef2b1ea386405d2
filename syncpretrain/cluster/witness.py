"""The witnesses: one process on each host of the job, which reports a rank that dies.

Launchers such as Hydra of MPICH kill every other rank with SIGKILL as soon as one dies. A witness
is in a session of its own, so that it lives on and can say which rank was first. The witness of
rank 0 prints what all see, and ends with rank 0; the others report to it over the network.

Guarantee: a rank that says goodbye is never reported. Where the system has no descriptors of
processes there is no witness, and the launcher's words have to do.

Assumption: a rank connects to its witness before it can fail in a way that is worth a report.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import time
from contextlib import ExitStack
from multiprocessing import spawn
from pathlib import Path
from typing import NamedTuple

from syncpretrain.cluster import watch
from syncpretrain.cluster.watch import ABORTS
from syncpretrain.parallel.descriptors import closed_first, standard_stream

__all__ = ["Door", "Witness", "be_seen", "new_address", "notify_witness"]

START_SECONDS = 5.0  # for the witness to start
LAST_LOOK_SECONDS = 1.0  # for its last look before the job is aborted
# Open as long as this process lives: a witness learns of its end when the system closes them.
_seen: list[socket.socket] = []


def be_seen(address: str) -> None:
    """Connect to the witness, so that it learns of this process's end before the launcher does."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        own = socket.socket(socket.AF_UNIX)
        try:
            own.connect(address)
        except OSError:  # it has not started yet
            own.close()
            time.sleep(0.01)
        else:
            # Linux closes high numbers first: this socket before the pipes to the launcher.
            _seen.append(socket.socket(fileno=closed_first(own.detach())))
            return


def notify_witness(word: bytes) -> None:
    """Tell the witness that this process is about to end, or to end the job: it is not reported.

    Before it ends the job, wait until the witness has looked for the last time.
    """
    for own in _seen:
        with contextlib.suppress(OSError):  # the witness has ended, or is stopped
            own.send(word)
            # The abort kills the ranks, and a rank that died before is its cause: that is reported
            # only if the witness looks before the others are killed as well.
            if word == ABORTS:
                own.settimeout(LAST_LOOK_SECONDS)
                own.recv(1)


def new_address() -> str:
    """Return the name of a socket, which is no file, for the processes of a host."""
    return f"\0syncpretrain-{secrets.token_hex(8)}"


class Door(NamedTuple):
    """Host and port of the first witness, and the secret word that lets other witnesses in."""

    host: str
    port: int
    word: str


class Witness:
    """The witness of the ranks on one host; none where the system has no pidfd.

    Parameters
    ----------
    address : str
        Address of the socket to which each rank connects.
    several : bool
        True if there are other hosts; their witnesses report to this one.
    first : Door, optional
        The door of the witness that this one reports to.

    Attributes
    ----------
    address : str or None
        None without a witness.
    door : Door or None
        The door for the witnesses of other hosts.
    """

    def __init__(self, address: str, *, several: bool = False, first: Door | None = None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.address: str | None = None
        self.door: Door | None = None
        if not _has_pidfd():
            return
        self.address = address
        # Isolated and without site: it starts in a moment, and no package of the user can break it.
        command = [spawn.get_executable(), "-I", "-S", str(Path(watch.__file__)), address[1:]]
        with ExitStack() as stack:
            passed = []
            if several:
                own = stack.enter_context(socket.create_server(("", 0)))
                self.door = Door(socket.gethostname(), own.getsockname()[1], secrets.token_hex(16))
                passed.append(own.fileno())
                command += ["--door", str(own.fileno()), "--word", self.door.word]
            if first is not None:
                command += ["--first", first.host, str(first.port), "--word", first.word]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=standard_stream(2),
                # Launchers signal the process group of a rank; the witness is not in it.
                start_new_session=True,
                pass_fds=passed,
            )

    def watch(self, pid: int, name: str) -> None:
        """Watch a process, or give it another name."""
        self._write(f"{pid}\t{name}\n")

    def close(self) -> None:
        """Let the witness leave: from now on ranks may end."""
        self._write("over\n")
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()
            self._process = None

    def _write(self, line: str) -> None:
        if self._process is None or self._process.stdin is None:
            return
        with contextlib.suppress(OSError):  # it has reported and ended
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


def _has_pidfd() -> bool:
    """Return whether the system reports the end of a process that is no child."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):  # another system, or an old or emulated kernel
        return False
    return True
