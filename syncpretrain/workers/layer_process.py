"""The process of one layer, as its parent sees it: a socket to it, and how it ended.

The process is started afresh, not forked: after a fork, BLAS may wait for threads that only the
parent has. It does not run the caller's script again, so that a script needs no
``if __name__ == "__main__"``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Collection, Iterable
from multiprocessing import spawn
from multiprocessing.connection import Connection
from typing import Any

from syncpretrain.parallel.blas import blas_environment
from syncpretrain.parallel.descriptors import above_standard, standard_stream
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.workers.child_start import DUMP_SIGNAL

__all__ = ["LayerProcess", "RemoteTraceback", "dump_stacks", "end_all"]

DUMP_SECONDS = 0.3
TRANSFER_SECONDS = 30  # without a byte, in the middle of a message
START = (
    "import sys; sys.path[:] = sys.argv[4:]; from importlib import import_module;"
    " import_module(sys.argv[3]).main(int(sys.argv[2]))"
)


class RemoteTraceback(Exception):  # noqa: N818 - as concurrent.futures has it
    """The traceback of an error in another process; the cause of that error here."""

    def __init__(self, text: str) -> None:
        super().__init__(f"\n{text}")


class LayerProcess:
    """A running process, started here.

    Parameters
    ----------
    layer : int
    module : str
        Name of a module. The process calls its ``main`` with the descriptor of its socket.
    descriptors : iterable of int
        Others that it has under the same numbers.
    blas_threads : int
    times : Timeouts
        Only ``join`` is used: a killed process ends at once, unless the system is stuck.

    Attributes
    ----------
    channel : Connection or None
        To the process; None once it is known to have ended.
    """

    def __init__(
        self,
        layer: int,
        module: str,
        descriptors: Iterable[int],
        blas_threads: int,
        times: Timeouts,
    ) -> None:
        self._times = times
        ours, theirs = (
            socket.socket(fileno=above_standard(end.detach())) for end in socket.socketpair()
        )
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            # The kernel's limits, not Python's: with a timeout of Python's the socket would not
            # block, and a message could be cut in the middle.
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", TRANSFER_SECONDS, 0))
            path = [entry for entry in sys.path if isinstance(entry, str)]
            name, descriptor = f"syncpretrain-layer-{layer}", str(theirs.fileno())
            # Neither may end a process that cannot ignore them yet.
            found = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
            try:
                self._process = subprocess.Popen(
                    [spawn.get_executable(), "-c", START, name, descriptor, module, *path],
                    stdin=subprocess.DEVNULL,
                    stdout=standard_stream(1),
                    stderr=standard_stream(2),
                    env={**os.environ, **blas_environment(blas_threads)},
                    pass_fds=(theirs.fileno(), *descriptors),
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, found)
            undo.pop_all()
        self.channel: Connection | None = Connection(ours.detach())

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended; others may still have its end of the socket."""
        return self._process.poll() is not None

    def send(self, thing: Any) -> None:
        """Send something; if the process has died, or is stuck, :meth:`receive` returns None."""
        if self.channel is None:
            return
        with contextlib.suppress(OSError):  # it has died
            try:
                self.channel.send(thing)
            except BlockingIOError:  # it reads nothing any more
                self._process.kill()

    def poll(self, seconds: float) -> bool:
        """Wait for something to receive or the end of the process; return whether it came."""
        return self.channel is None or self.channel.poll(seconds) or self.has_ended

    def receive(self) -> Any:
        """Return the next thing that the process sent; None if there is none, and never will be."""
        # A fork of this process may hold the other end of the socket open after its owner's death.
        if self.channel is None or (self.has_ended and not self.channel.poll()):
            return None
        try:
            return self.channel.recv()
        except BlockingIOError:  # stuck in the middle of a message
            self._process.kill()
            return None
        except (EOFError, OSError):
            return None

    def ending(self) -> str:
        """Return how the process ended, which it has; the channel is closed."""
        self.close()
        try:
            status = self._process.wait(self._times.join)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        return f"its process {self._process.pid} {_described(status)}"

    def dump_stacks(self) -> None:
        """Ask for the stacks of all threads of the process on stderr."""
        self._process.send_signal(DUMP_SIGNAL)

    def close(self) -> None:
        """Close the channel."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def kill(self) -> None:
        """End the process, whatever it does: it has nothing to clean up."""
        self._process.kill()

    def wait(self, seconds: float) -> int | None:
        """Wait for the end of the process; return its number if it still lives."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, seconds))
        return self._process.pid if self._process.returncode is None else None


def dump_stacks(processes: Iterable[LayerProcess]) -> None:
    """Write on stderr where every thread of some processes stands."""
    for process in processes:
        process.dump_stacks()
    time.sleep(DUMP_SECONDS)  # they write to the same place, and are killed next


def end_all(processes: Collection[LayerProcess], seconds: float) -> list[str]:
    """End some processes; return the names of those that did not within a time."""
    for process in processes:
        process.close()
    for process in processes:
        process.kill()
    deadline = time.monotonic() + seconds
    alive = [process.wait(deadline - time.monotonic()) for process in processes]
    return [f"process {pid}" for pid in alive if pid is not None]


def _described(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-status}"
