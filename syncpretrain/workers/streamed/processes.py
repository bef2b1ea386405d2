"""Streamed layers in a process each, which the threads of the pool give their blocks.

Guarantees:

* A process that dies is replaced, if the run has restarts left, from the newest state that it
  kept: the bits are those of a process that lived. Else it is a failure of its layer: of the block
  that it was given, or found by :meth:`ProcessStream.check`.
* The data and the rings are in memory without a name; layers and states are sent when asked for.
* Leaving the context ends every process, within a deadline. So does the death of the parent.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from syncpretrain.errors import WorkerError
from syncpretrain.parallel.timeouts import TIMEOUTS, Closing, Timeouts
from syncpretrain.workers.interface import STDERR
from syncpretrain.workers.layer_process import LayerProcess, dump_stacks, end_all
from syncpretrain.workers.restarts import Replacement, Restarts
from syncpretrain.workers.shared_memory import SharedNumbers, SharedSplits
from syncpretrain.workers.split import Split
from syncpretrain.workers.streamed.base import BaseStreamedLayer
from syncpretrain.workers.streamed.child import StreamJob
from syncpretrain.workers.streamed.inputs import RingSize
from syncpretrain.workers.streamed.remote import RemoteLayer, Stopping

__all__ = ["ProcessStream"]

STREAM_CHILD = "syncpretrain.workers.streamed.child"


class ProcessStream(Closing):
    """Streamed layers in a process each.

    Parameters
    ----------
    layer_factories : sequence of callable
        From the lowest layer up, each a ``StreamedLayerFactory`` that can be sent to a process.
    layers : sequence of RemoteLayer
        The same layers, as they are used here.
    data : Split
        Input of layer 1; the processes share a copy.
    sizes : sequence of RingSize
        Sizes of the rings between two layers, from the lowest up.
    replicas : sequence of int
        The most threads that each process may have for a step.
    times : Timeouts
    restarts : Restarts, optional
        For processes that die.
    reread : sequence of int
        Minibatches below each layer that are not overwritten when it has read them.
    """

    def __init__(
        self,
        layer_factories: Sequence[Callable[..., BaseStreamedLayer]],
        layers: Sequence[RemoteLayer],
        data: Split,
        sizes: Sequence[RingSize],
        replicas: Sequence[int],
        times: Timeouts = TIMEOUTS,
        restarts: Restarts | None = None,
        reread: Sequence[int] = (),
    ) -> None:
        self._layer_factories, self._remote_layers = layer_factories, layers
        super().__init__(times)
        self._data, self._sizes, self._replicas = data, sizes, replicas
        self._replacement, self._reread = Replacement(restarts or Restarts()), reread
        self._memory: list[SharedSplits] = []
        self._numbers: SharedNumbers | None = None
        self._stopping = Stopping(np.zeros(1), times)
        self._lock = threading.Lock()  # guards what follows: threads of the pool start others
        self._processes: dict[int, LayerProcess] = {}
        self._is_ending = False

    @property
    def layers(self) -> Sequence[BaseStreamedLayer]:
        """The layers, from the lowest up."""
        return self._remote_layers

    def _open(self) -> None:
        numbers = self._share().map()
        self._replacement.open(len(self._remote_layers))
        self._stopping, self._is_ending = Stopping(numbers[:1], self._times), False
        with self._lock:
            for layer in self._remote_layers:
                self._start(layer)
            for layer in self._remote_layers:
                self._send_job(layer)

    def check(self) -> None:
        """Look for a process that died while it had nothing to do."""
        for layer in self._remote_layers:
            layer.check()
        self._replacement.report_all()

    def settle(self) -> bool:
        """Return whether every process answers; one that does not in time is killed."""
        return all(layer.refresh() for layer in self._remote_layers)

    def abandon(self) -> None:
        """Write on stderr where every thread of every process stands, and end the processes."""
        dump_stacks(self._processes.values())
        faulthandler.dump_traceback(STDERR)
        self._kill()

    def _share(self) -> SharedNumbers:
        """Copy the data to shared memory, and allocate the rings and the numbers there."""
        self._memory.append(SharedSplits.of(self._data))
        for size in self._sizes:
            self._memory.append(SharedSplits.create(size.all_rows, size.width, 1))
        self._numbers = SharedNumbers.create(2 * len(self._remote_layers) + 1)
        return self._numbers

    def _memory_of(self, layer: RemoteLayer) -> tuple[SharedSplits, SharedSplits | None]:
        """Return what a layer reads, and what it hands up through."""
        i = layer.number - 1
        return self._memory[i], self._memory[i + 1] if i + 1 < len(self._memory) else None

    def _start(self, layer: RemoteLayer) -> None:
        """Start the process of a layer, which waits for its job: others start at the same time."""
        assert self._numbers is not None
        shared, number = self._numbers.map(), layer.number
        lent = len(self._remote_layers) + number
        layer.progress = shared[number : number + 1]
        memory = [self._numbers, *self._memory_of(layer)]
        descriptors = [x.descriptor for x in memory if x is not None]
        descriptors += self._replacement.descriptors(number)
        process = LayerProcess(number, STREAM_CHILD, descriptors, 1, self._times)
        self._processes[number] = process
        replaces = partial(self._is_replaced, layer)
        layer.connect(process, self._stopping, shared[lent : lent + 1], replaces)

    def _send_job(self, layer: RemoteLayer) -> None:
        assert self._numbers is not None
        i, (below, above) = layer.number - 1, self._memory_of(layer)
        job = StreamJob(
            layer.number,
            self._layer_factories[i],
            below,
            above,
            self._numbers,
            self._replicas[i],
            self._times,
            os.getpid(),
            self._replacement.kept(layer.number),
            self._reread[i] if self._reread else 0,
        )
        self._processes[layer.number].send(job)

    def _is_replaced(self, layer: RemoteLayer, death: WorkerError) -> bool:
        """Start another process in place of one that died, if it may be."""
        with self._lock:
            if self._is_ending or not self._replacement.takes(layer.number, death):
                return False
            with contextlib.suppress(OSError):  # there is no room for another process
                self._start(layer)
                self._send_job(layer)
                return True
            return False

    def _kill(self) -> None:
        with self._lock:
            self._is_ending = True
            for process in self._processes.values():
                process.kill()

    def _close(self) -> list[str]:
        """End every process, release the memory; return those that did not end in time."""
        self._kill()
        for layer in self._remote_layers:
            layer.disconnect()
        alive = end_all(self._processes.values(), self._times.join)
        for memory in self._memory:
            memory.close()
        self._memory.clear()
        self._replacement.close()
        if self._numbers is not None:
            self._numbers.close()
            self._numbers = None
        self._stopping = Stopping(np.zeros(1), self._times)  # lets go of the memory
        self._replacement.report_all()
        return alive
