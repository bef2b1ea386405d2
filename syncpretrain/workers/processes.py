"""The processes runtime: one process a layer, asleep until the driver hands it an epoch.

Guarantees:

* A sleeping process waits for its socket and uses no CPU.
* A process that dies is replaced, if the run has restarts left, from the newest state that it
  kept: the bits are those of a process that lived. Else it is a failure like any other, reported
  within a tick of the driver. It holds no lock: there is none.
* The data and the activations are in memory that all see; only snapshots of layers are sent.
* Leaving the context ends every process, within a deadline. So does the death of the parent.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import connection

import numpy as np

from syncpretrain.errors import WorkerError
from syncpretrain.parallel.timeouts import TIMEOUTS, Closing, Timeouts
from syncpretrain.schedule.schedule import Train
from syncpretrain.workers.child import Job, Order, Report
from syncpretrain.workers.interface import STDERR, Failed, Message
from syncpretrain.workers.layer_process import (
    LayerProcess,
    RemoteTraceback,
    dump_stacks,
    end_all,
)
from syncpretrain.workers.restarts import Replacement, Restarts
from syncpretrain.workers.shared_memory import (
    SharedNumbers,
    SharedSparse,
    SharedSplits,
    shared_data,
)
from syncpretrain.workers.split import Split
from syncpretrain.workers.versions import MAX_BUFFERS, Versions
from syncpretrain.workers.worker import WorkerFactory

__all__ = ["ProcessesRuntime"]

CHILD = "syncpretrain.workers.child"


class ProcessesRuntime(Closing):
    """One process a layer.

    Parameters
    ----------
    worker_factories : sequence of callable
        One a layer, from the lowest up. Each can be sent to another process, where it returns the
        layer's worker, given its inputs.
    versions : Versions
        Their arrays are in this runtime's shared memory as long as it runs.
    blas_threads : int
        BLAS threads of each process.
    times : Timeouts
        Only ``join`` is used.
    restarts : Restarts, optional
        For processes that die.
    """

    def __init__(
        self,
        worker_factories: Sequence[WorkerFactory],
        versions: Versions,
        blas_threads: int,
        times: Timeouts = TIMEOUTS,
        restarts: Restarts | None = None,
    ) -> None:
        super().__init__(times)
        self._replacement = Replacement(restarts or Restarts())
        self._is_stopping = False
        self._worker_factories = worker_factories
        self._versions = versions
        self._blas_threads = blas_threads
        self._progress = np.zeros(2 * len(worker_factories) + 1)  # as described in Job
        self._splits: list[SharedSplits | SharedSparse] = []
        self._numbers: SharedNumbers | None = None
        self._processes: dict[int, LayerProcess] = {}
        self._commands: dict[int, Train] = {}  # the newest of each layer
        self._busy: set[int] = set()

    def _open(self) -> None:
        self._share()
        self._replacement.open(len(self._worker_factories))
        layers = range(1, len(self._worker_factories) + 1)
        # Start all before the first job is sent: the interpreters import at the same time.
        for layer in layers:
            self._start(layer)
        for layer in layers:
            self._processes[layer].send(self._job(layer))

    def submit(self, command: Train) -> None:
        """Send the layer's process an epoch."""
        layer = command.layer
        source = self._versions.source(layer - 1, command.reads, command.below_reads)
        self._progress[layer] = 0.0  # the process, which alone writes it later, sleeps until now
        self._commands[layer] = command
        self._busy.add(layer)
        self._processes[layer].send(Order(command, source))

    def set_workers(self, layer: int, workers: int) -> None:
        """Set the number of workers of a layer from its next step on."""
        self._progress[len(self._worker_factories) + layer] = workers

    def fraction(self, layer: int) -> float:
        """Return how far the running epoch of a layer is, in [0, 1]."""
        return float(self._progress[layer])

    def stop(self) -> None:
        """Ask every worker to leave after its minibatch; none is replaced from now on."""
        self._is_stopping = True
        self._progress[0] = 1.0

    def dump_stacks(self) -> None:
        """Write on stderr where every thread of every process stands."""
        dump_stacks(self._processes.values())
        faulthandler.dump_traceback(STDERR)

    def wait(self, timeout: float) -> Message | None:
        """Return the next message of any process, or how one died, or None."""
        layers = {
            process.channel: layer
            for layer, process in self._processes.items()
            if process.channel is not None
        }
        # A process that died closes its socket, which makes it readable: a death wakes this wait.
        for channel in connection.wait(list(layers), timeout):
            if isinstance(channel, connection.Connection):
                return self._receive(layers[channel])
        # A fork of the process may hold its end of the socket open; then only its status tells.
        for layer in layers.values():
            if self._processes[layer].has_ended:
                return self._receive(layer)
        return None

    def _share(self) -> None:
        """Copy the data to shared memory, and allocate the activations there."""
        versions = self._versions
        data = shared_data(versions.data)
        self._splits.append(data)
        for units in versions.hidden[:-1]:  # no layer reads those of the top layer
            self._splits.append(SharedSplits.create(data.rows, units, MAX_BUFFERS))
        self._numbers = SharedNumbers.create(2 * len(self._worker_factories) + 1)
        self._progress = self._numbers.map()
        self._progress[len(self._worker_factories) + 1 :] = 1
        versions.allocate = self._split

    def _split(self, layer: int, number: int) -> Split:
        return self._splits[layer].map(write=True)[number]

    def _job(self, layer: int) -> Job:
        assert self._numbers is not None
        factory, kept = self._worker_factories[layer - 1], self._replacement.kept(layer)
        splits = {i: self._splits[i] for i in self._readable(layer)}
        return Job(layer, factory, splits, self._numbers, self._blas_threads, os.getpid(), kept)

    def _readable(self, layer: int) -> range:
        """Return the layers that a layer reads: its input, and what that is computed from."""
        return range(max(0, layer - 2), layer)

    def _start(self, layer: int) -> None:
        assert self._numbers is not None
        splits = (self._splits[i].descriptor for i in self._readable(layer))
        shared = (self._numbers.descriptor, *splits, *self._replacement.descriptors(layer))
        self._processes[layer] = LayerProcess(layer, CHILD, shared, self._blas_threads, self._times)

    def _receive(self, layer: int) -> Message | None:
        report: Report | None = self._processes[layer].receive()
        if report is None:
            is_busy, failed = layer in self._busy, self._died(layer)
            return None if self._is_replaced(failed, layer, is_busy=is_busy) else failed
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
        command = self._commands.get(layer, Train(layer, 0, 0, 0))
        if layer in self._busy:
            moment = f"in epoch {command.epoch}"
        elif command.epoch:
            moment = f"after epoch {command.epoch}"
        else:
            moment = "before its first epoch"
        self._busy.discard(layer)
        text = f"layer {layer} failed {moment}: {self._processes[layer].ending()}"
        return Failed(command, WorkerError(text))

    def _is_replaced(self, failed: Failed, layer: int, *, is_busy: bool) -> bool:
        """Start a process in place of one that died, if it may be; it gets the epoch again."""
        if self._is_stopping or not self._replacement.takes(layer, failed.error):
            return False
        self._replacement.report_all()
        with contextlib.suppress(OSError):  # there is no room for another process
            self._start(layer)
            self._processes[layer].send(self._job(layer))
            if is_busy:
                self.submit(failed.command)
            return True
        return False

    def _close(self) -> list[str]:
        """End every process, release the shared memory; return those that did not end in time."""
        alive = end_all(self._processes.values(), self._times.join)
        # The mappings go with the memory; the progress is still asked for after the run.
        self._versions.allocate = None
        self._progress = self._progress.copy()
        for splits in self._splits:
            splits.close()
        self._splits.clear()
        self._replacement.close()
        if self._numbers is not None:
            self._numbers.close()
            self._numbers = None
        return alive
