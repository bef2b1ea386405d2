"""The processes runtime: one process a layer, asleep until the driver hands it an epoch.

Guarantees:

* A sleeping process waits for its socket and uses no CPU.
* A process that dies is a failure like any other, reported within a tick of the driver. It
  holds no lock: there is none.
* The data and the activations are in memory that all see; only snapshots of layers are sent.
* Leaving the context ends every process, within a deadline. A process whose parent dies ends too.

The processes are started afresh, not forked: a fork of a process whose BLAS has threads may hang.
They do not run the caller's script again, so that it needs no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import connection, spawn
from multiprocessing.connection import Connection
from types import TracebackType

import numpy as np

from syncpretrain.errors import StalledError, WorkerError
from syncpretrain.parallel.blas import blas_environment
from syncpretrain.parallel.descriptors import above_standard, standard_stream
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts
from syncpretrain.pretraining.runtime.base import STDERR
from syncpretrain.pretraining.runtime.messages import Failed, Message
from syncpretrain.pretraining.runtime.process_messages import DUMP_SIGNAL, Job, Order, Report
from syncpretrain.pretraining.runtime.shared_activations import SharedNumbers, SharedSplits
from syncpretrain.pretraining.runtime.split import Split
from syncpretrain.pretraining.runtime.versions import MAX_BUFFERS, Versions
from syncpretrain.pretraining.runtime.worker import WorkerFactory
from syncpretrain.pretraining.schedule.machine import Train

__all__ = ["ProcessesRuntime"]

DUMP_SECONDS = 0.3
TRANSFER_SECONDS = 30  # without a byte, in the middle of a message
START = (
    "import sys; sys.path[:] = sys.argv[3:];"
    " from syncpretrain.pretraining.runtime.child import main; main(int(sys.argv[2]))"
)


class RemoteTraceback(Exception):  # noqa: N818 - as concurrent.futures has it
    """The traceback of an error in another process; the cause of that error here."""

    def __init__(self, text: str) -> None:
        super().__init__(f"\n{text}")


class ProcessesRuntime:
    """One process a layer.

    Parameters
    ----------
    worker_factories : sequence of callable
        From the lowest layer up, each of which can be sent to another process, and there returns
        the layer's worker, given its inputs.
    versions : Versions
        Whose arrays are those of this runtime from now on, as long as it runs.
    blas_threads : int
        Of each process.
    times : Timeouts
        Of which ``join`` is used: a killed process ends at once, unless the system is stuck.
    """

    def __init__(
        self,
        worker_factories: Sequence[WorkerFactory],
        versions: Versions,
        blas_threads: int,
        times: Timeouts = TIMEOUTS,
    ) -> None:
        self._times = times
        self._worker_factories = worker_factories
        self._versions = versions
        self._blas_threads = blas_threads
        self._progress = np.zeros(2 * len(worker_factories) + 1)  # as described in Job
        self._splits: list[SharedSplits] = []
        self._numbers: SharedNumbers | None = None
        self._connections: dict[int, Connection] = {}  # by layer, of those that live
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._commands: dict[int, Train] = {}  # the newest of each layer
        self._busy: set[int] = set()

    def __enter__(self) -> ProcessesRuntime:
        try:
            self._share()
            for layer in range(1, len(self._worker_factories) + 1):
                self._start(layer)
            for layer, worker_factory in enumerate(self._worker_factories, start=1):
                self._send(layer, self._job(layer, worker_factory))
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        alive = self._close()
        if alive and error is None:
            raise StalledError(
                f"process {', '.join(map(str, alive))} did not end within {self._times.join:g} s"
            )

    def submit(self, command: Train) -> None:
        """Send the layer's process an epoch."""
        layer = command.layer
        source = self._versions.source(layer - 1, command.reads, command.below_reads)
        self._progress[layer] = 0.0  # until it wakes
        self._commands[layer] = command
        self._busy.add(layer)
        self._send(layer, Order(command, source))

    def set_workers(self, layer: int, workers: int) -> None:
        """Set the number of workers of a layer from its next step on."""
        self._progress[len(self._worker_factories) + layer] = workers

    def fraction(self, layer: int) -> float:
        """Return how far the running epoch of a layer is, in [0, 1]."""
        return float(self._progress[layer])

    def stop(self) -> None:
        """Ask every worker to leave after its minibatch."""
        self._progress[0] = 1.0

    def dump_stacks(self) -> None:
        """Write on stderr where every thread of every process stands."""
        for process in self._processes.values():
            process.send_signal(DUMP_SIGNAL)
        time.sleep(DUMP_SECONDS)  # they write to the same place, and are killed next
        faulthandler.dump_traceback(STDERR)

    def wait(self, timeout: float) -> Message | None:
        """Return the next message of any process, or how one died, or None."""
        layers = {channel: layer for layer, channel in self._connections.items()}
        ready = connection.wait(list(layers), timeout)
        for channel in ready:
            if isinstance(channel, Connection):
                return self._receive(layers[channel])
        # A fork of this process may hold the other end of a socket open after its owner's death.
        for layer, channel in self._connections.items():
            if self._processes[layer].poll() is not None:
                return self._receive(layer) if channel.poll() else self._died(layer)
        return None

    def _share(self) -> None:
        """Copy the data to shared memory, and allocate the activations there."""
        versions = self._versions
        data = SharedSplits.of(versions.data)
        self._splits.append(data)
        for units in versions.hidden[:-1]:  # no layer reads those of the top layer
            self._splits.append(SharedSplits.create(data.rows, units, MAX_BUFFERS))
        self._numbers = SharedNumbers.create(2 * len(self._worker_factories) + 1)
        self._progress = self._numbers.map()
        self._progress[len(self._worker_factories) + 1 :] = 1
        versions.allocate = self._split

    def _split(self, layer: int, number: int) -> Split:
        return self._splits[layer].map(write=True)[number]

    def _job(self, layer: int, worker_factory: WorkerFactory) -> Job:
        assert self._numbers is not None
        splits = {i: self._splits[i] for i in self._readable(layer)}
        return Job(layer, worker_factory, splits, self._numbers, self._blas_threads, os.getpid())

    def _readable(self, layer: int) -> range:
        """Return the layers whose activations a layer reads, or computes others from."""
        return range(max(0, layer - 2), layer)

    def _start(self, layer: int) -> None:
        assert self._numbers is not None
        ours, theirs = (
            socket.socket(fileno=above_standard(end.detach())) for end in socket.socketpair()
        )
        with theirs:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", TRANSFER_SECONDS, 0))
            self._connections[layer] = Connection(ours.detach())
            splits = (self._splits[i].descriptor for i in self._readable(layer))
            path = [entry for entry in sys.path if isinstance(entry, str)]
            name, descriptor = f"syncpretrain-layer-{layer}", str(theirs.fileno())
            # Neither may end a process that cannot ignore them yet.
            found = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
            try:
                self._processes[layer] = subprocess.Popen(
                    [spawn.get_executable(), "-c", START, name, descriptor, *path],
                    stdin=subprocess.DEVNULL,
                    stdout=standard_stream(1),
                    stderr=standard_stream(2),
                    env={**os.environ, **blas_environment(self._blas_threads)},
                    pass_fds=(theirs.fileno(), self._numbers.descriptor, *splits),
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, found)

    def _send(self, layer: int, thing: Job | Order) -> None:
        """Send something to a process; if it has died, or is stuck, wait() reports it."""
        channel = self._connections.get(layer)
        if channel is None:
            return
        with contextlib.suppress(OSError):  # it has died
            try:
                channel.send(thing)
            except BlockingIOError:  # it reads nothing any more
                self._processes[layer].kill()

    def _receive(self, layer: int) -> Message:
        try:
            report: Report = self._connections[layer].recv()
        except BlockingIOError:  # stuck in the middle of a message
            self._processes[layer].kill()
            return self._died(layer)
        except (EOFError, OSError):
            return self._died(layer)
        message = report.message
        if isinstance(message, Failed):
            if message.command.layer == 0:  # it could not even begin
                command = self._commands.get(layer, Train(layer, 1, 0, 0))
                message = replace(message, command=command)
            if report.trace:
                message.error.__cause__ = RemoteTraceback(report.trace)
        self._busy.discard(layer)
        if report.computed:
            self._versions.record_computed(layer - 1, message.command.reads)
        return message

    def _died(self, layer: int) -> Failed:
        """Return the failure of a process that closed its socket."""
        self._connections.pop(layer).close()
        process = self._processes[layer]
        try:
            status = process.wait(self._times.join)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        command = self._commands.get(layer, Train(layer, 0, 0, 0))
        if layer in self._busy:
            moment = f"in epoch {command.epoch}"
        elif command.epoch:
            moment = f"after epoch {command.epoch}"
        else:
            moment = "before its first epoch"
        self._busy.discard(layer)
        text = f"layer {layer} failed {moment}: its process {process.pid} {_ending(status)}"
        return Failed(command, WorkerError(text))

    def _close(self) -> list[int]:
        """End every process, release the shared memory; return those that did not end in time."""
        for channel in self._connections.values():
            channel.close()
        self._connections.clear()
        for process in self._processes.values():
            process.kill()  # whatever it does: it has nothing to clean up
        deadline = time.monotonic() + self._times.join
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        alive = [p.pid for p in self._processes.values() if p.returncode is None]
        self._versions.allocate = None
        self._progress = self._progress.copy()
        for splits in self._splits:
            splits.close()
        self._splits.clear()
        if self._numbers is not None:
            self._numbers.close()
            self._numbers = None
        return alive


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-status}"
