"""Versions of every layer: immutable snapshots of parameters, and their activations.

Guarantees, as long as every ``release`` follows from the schedule:

* A published version never changes. Its activations are computed once, by its first reader, from
  the activations of the version below on which it was trained.
* A layer's activations live in at most :data:`MAX_BUFFERS` arrays, allocated at first need and used
  again. A new version gets an array only after the release of the version that had it.
* Only the worker of layer l+1 computes activations of layer l, and one lock guards the tables,
  never a computation.
* On devices, the activations of layer l live on the device of their reader, layer l+1. The reader
  copies its sources there: the snapshot, and the activations below in one copy, or chunk by chunk
  if the device lacks the room.

A reader in this process calls :meth:`Versions.activations`. One in another process is sent the
:class:`ActivationSource` instead, and reports back to :meth:`Versions.record_computed`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from syncpretrain.backends.base import Backend
from syncpretrain.errors import ScheduleError
from syncpretrain.kernels.program import PhaseRunner, in_turn
from syncpretrain.models.layer import Layer
from syncpretrain.workers.activations import ActivationSource, Arrays, Split, chunk_rows, transform

MAX_BUFFERS = 3  # of a layer


@dataclass(slots=True)
class _Version:
    snapshot: Layer
    buffer: int | None = None
    computed: bool = False


class Versions:
    """The versions of the layers of one run.

    Parameters
    ----------
    data : Split of arrays of shape (n_examples, input units), float32
        Version 0 of "layer 0": constant, mature from the start.
    hidden : tuple of int
        Units of each layer.
    backend : Backend, optional
        The backend that trains the layers.
    beside : int
        Bytes that the run needs on a device apart from the data. Data without room stay on the
        host.

    Attributes
    ----------
    data : Split
        The parameter, on the host.
    inputs : Split
        The data, on the device that trains the first layer.
    allocate : callable, optional
        Takes the number of a layer and of an array; returns the array. None lets this object
        allocate the arrays.
    """

    def __init__(
        self,
        data: Split,
        hidden: tuple[int, ...],
        *,
        backend: Backend | None = None,
        beside: int = 0,
    ) -> None:
        backend = backend or Backend()
        # The backend of each layer's reader, from the data's reader up; no layer reads the top.
        self._readers = [backend.for_layer(layer + 1) for layer in range(len(hidden) + 1)]
        with (stream := self._readers[0].stream()):
            self.inputs = Split(*(self._readers[0].examples(x, beside) for x in data))
            stream.synchronize()
        self._chunk_rows = chunk_rows(backend, (data.train.shape[1], *hidden))
        self.allocate: Arrays | None = None
        self.data = data
        self.hidden = hidden
        # Guards the tables below. Workers ask for sources while the driver publishes and releases;
        # the arrays themselves need no lock, since the schedule never lets two write to one.
        self._lock = threading.Lock()
        self._held: list[dict[int, _Version]] = [{} for _ in range(len(hidden) + 1)]
        self._free: list[list[int]] = [[] for _ in range(len(hidden) + 1)]
        self._allocated = [0] * (len(hidden) + 1)
        self._own: dict[tuple[int, int], Split] = {}  # arrays by layer and number

    def publish(self, layer: int, version: int, snapshot: Layer) -> None:
        """Make a version of a layer readable."""
        with self._lock:
            self._held[layer][version] = _Version(snapshot)

    def activations(
        self,
        layer: int,
        version: int,
        below: int,
        stop: Callable[[], bool],
        run: PhaseRunner = in_turn,
    ) -> Split | None:
        """Return the activations of a version, computed now if they are not computed yet.

        ``below`` is the version of the layer below on which the version was trained; ``run``
        computes the pieces of the work. Return None if ``stop`` turned true before the end.

        Raises
        ------
        ScheduleError
            If the version, or the version below, is not held.
        """
        source = self.source(layer, version, below)
        reader, rows = self._readers[layer], self._chunk_rows
        activations = source.activations(self._array, stop, run, reader, rows)
        if activations is not None:
            self.record_computed(layer, version)
        return activations

    def source(self, layer: int, version: int, below: int) -> ActivationSource:
        """Return the place of a version's activations for its only reader, or the way to them.

        Raises
        ------
        ScheduleError
            If the version, or the version below, is not held.
        """
        if layer == 0:
            return ActivationSource(0)
        held = self._version(layer, version)
        # Read without the lock: only the reader of this version, which calls here, sets the fields.
        if held.computed and held.buffer is not None:
            return ActivationSource(layer, held.buffer)
        buffer_below = self._computed_buffer(layer - 1, below)
        return ActivationSource(layer, self._take_buffer(layer, held), held.snapshot, buffer_below)

    def record_computed(self, layer: int, version: int) -> None:
        """Record that the reader has computed the activations of a version."""
        if layer:
            self._version(layer, version).computed = True

    def close(self) -> None:
        """Free the data and the activations on the devices that trained the layers."""
        self.inputs = self.data
        self._own.clear()
        self._readers[0].free_unused()

    def computed(self) -> list[tuple[int, int]]:
        """Return layer and version of all computed activations."""
        with self._lock:
            return [
                (layer, version)
                for layer, versions in enumerate(self._held)
                for version, held in sorted(versions.items())
                if held.computed
            ]

    def compute(self, layer: int, version: int, snapshots: Sequence[Layer]) -> None:
        """Compute a version's activations again from the data, through one snapshot per layer.

        The chunks are the same as the first time, and so the bits are the same.
        """
        held = self._version(layer, version)
        reader, rows = self._readers[layer], self._chunk_rows
        with (stream := reader.stream()):
            target = self._array(layer, self._take_buffer(layer, held))
            transform(snapshots, self.inputs, target, lambda: False, in_turn, reader, rows)
            stream.synchronize()
        held.computed = True

    def release(self, layer: int, version: int) -> None:
        """Drop a version; a later version may use the array of its activations.

        Raises
        ------
        ScheduleError
            If the version is not held.
        """
        buffer = self._version(layer, version).buffer
        with self._lock:
            del self._held[layer][version]
            if buffer is not None:
                self._free[layer].append(buffer)

    def _computed_buffer(self, layer: int, version: int) -> int:
        """Return the number of the array with a version's computed activations."""
        if layer == 0:
            return 0
        held = self._version(layer, version)
        if not held.computed or held.buffer is None:
            raise ScheduleError(
                f"version {version} of layer {layer} was read before it was computed"
            )
        return held.buffer

    def _version(self, layer: int, version: int) -> _Version:
        with self._lock:
            if version not in self._held[layer]:
                raise ScheduleError(
                    f"version {version} of layer {layer} was asked for, but only"
                    f" {sorted(self._held[layer])} are held"
                )
            return self._held[layer][version]

    def _take_buffer(self, layer: int, held: _Version) -> int:
        with self._lock:
            if held.buffer is None:
                if self._free[layer]:
                    held.buffer = self._free[layer].pop()
                elif self._allocated[layer] == MAX_BUFFERS:
                    raise ScheduleError(f"layer {layer} needs more than {MAX_BUFFERS} buffers")
                else:
                    held.buffer = self._allocated[layer]
                    self._allocated[layer] += 1
            return held.buffer

    def _array(self, layer: int, number: int) -> Split:
        if layer == 0:
            return self.inputs
        if self.allocate is not None:
            return self.allocate(layer, number)
        with self._lock:
            if (layer, number) not in self._own:
                width, empty = self.hidden[layer - 1], self._readers[layer].empty
                self._own[layer, number] = Split(*(empty((len(x), width)) for x in self.data))
            return self._own[layer, number]
