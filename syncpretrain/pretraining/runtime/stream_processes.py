"""Streamed layers in a process each, which the threads of the pool give their blocks.

Guarantees:

* A process that dies is a failure of its layer: of the block that it was given, or found by
  :meth:`ProcessStream.check`.
* The data and the rings are in memory without a name; layers and states are sent when asked for.
* Leaving the context ends every process, within a deadline. A process whose parent dies ends too.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable, Sequence

from syncpretrain.parallel.closing import Closing
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts
from syncpretrain.pretraining.runtime.base import STDERR
from syncpretrain.pretraining.runtime.layer_process import LayerProcess, dump_stacks, end_all
from syncpretrain.pretraining.runtime.rings import RingSize
from syncpretrain.pretraining.runtime.shared_activations import SharedNumbers, SharedSplits
from syncpretrain.pretraining.runtime.split import Split
from syncpretrain.pretraining.runtime.stream_base import BaseStreamedLayer
from syncpretrain.pretraining.runtime.stream_messages import StreamJob
from syncpretrain.pretraining.runtime.stream_remote import RemoteLayer, Stopping

__all__ = ["ProcessStream"]

STREAM_CHILD = "syncpretrain.pretraining.runtime.stream_child"


class ProcessStream(Closing):
    """Streamed layers in a process each.

    Parameters
    ----------
    layer_factories : sequence of callable
        From the lowest layer up, each a ``StreamedLayerFactory`` that can be sent to a process.
    layers : sequence of RemoteLayer
        The same layers, as they are used here.
    data : Split
        What layer 1 reads; the processes share a copy.
    sizes : sequence of RingSize
        Of what lies between two layers, from the lowest up.
    replicas : sequence of int
        The most threads that each process may have for a step.
    times : Timeouts
    """

    def __init__(
        self,
        layer_factories: Sequence[Callable[..., BaseStreamedLayer]],
        layers: Sequence[RemoteLayer],
        data: Split,
        sizes: Sequence[RingSize],
        replicas: Sequence[int],
        times: Timeouts = TIMEOUTS,
    ) -> None:
        self._layer_factories, self._remote_layers = layer_factories, layers
        super().__init__(times)
        self._data, self._sizes, self._replicas = data, sizes, replicas
        self._memory: list[SharedSplits] = []
        self._numbers: SharedNumbers | None = None
        self._processes: list[LayerProcess] = []

    @property
    def layers(self) -> Sequence[BaseStreamedLayer]:
        """The layers, from the lowest up."""
        return self._remote_layers

    def _open(self) -> None:
        self._start(self._share())

    def check(self) -> None:
        """Look for a process that died while it had nothing to do."""
        for layer in self._remote_layers:
            layer.check()

    def settle(self) -> bool:
        """Return whether every process answers; one that does not in time is killed."""
        return all(layer.refresh() for layer in self._remote_layers)

    def abandon(self) -> None:
        """Write on stderr where every thread of every process stands, and end the processes."""
        dump_stacks(self._processes)
        faulthandler.dump_traceback(STDERR)
        for process in self._processes:
            process.kill()

    def _share(self) -> SharedNumbers:
        """Copy the data to shared memory, and allocate the rings and the numbers there."""
        self._memory.append(SharedSplits.of(self._data))
        for size in self._sizes:
            self._memory.append(SharedSplits.create(size.all_rows, size.width, 1))
        self._numbers = SharedNumbers.create(2 * len(self._remote_layers) + 1)
        return self._numbers

    def _start(self, numbers: SharedNumbers) -> None:
        """Start the processes, then send their jobs: they start at the same time."""
        shared, depth = numbers.map(), len(self._remote_layers)
        stopping = Stopping(shared[:1], self._times)
        memory = list(zip(self._memory, [*self._memory[1:], None], strict=True))
        for i, (layer, (below, above)) in enumerate(zip(self._remote_layers, memory, strict=True)):
            shared[i + 1] = layer.position
            layer.progress = shared[i + 1 : i + 2]
            descriptors = [x.descriptor for x in (numbers, below, above) if x is not None]
            process = LayerProcess(layer.number, STREAM_CHILD, descriptors, 1, self._times)
            self._processes.append(process)
            layer.connect(process, stopping, shared[depth + i + 1 : depth + i + 2])
        jobs = zip(self._processes, self._layer_factories, memory, self._replicas, strict=True)
        for i, (process, factory, (below, above), replicas) in enumerate(jobs):
            given = (factory, below, above, numbers, replicas, self._times, os.getpid())
            process.send(StreamJob(i + 1, *given))

    def _close(self) -> list[str]:
        """End every process, release the memory; return those that did not end in time."""
        for process in self._processes:
            process.kill()
        for layer in self._remote_layers:
            layer.disconnect()
        alive = end_all(self._processes, self._times.join)
        for memory in self._memory:
            memory.close()
        self._memory.clear()
        if self._numbers is not None:
            self._numbers.close()
            self._numbers = None
        return alive
