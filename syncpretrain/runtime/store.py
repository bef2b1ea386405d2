"""The versions of every layer: immutable snapshots of parameters, and the activations they make.

Guarantees, as long as every ``forget`` follows from the schedule:

* A published version never changes. Its activations are made once, by its first reader, from the
  activations of the version below that it was trained on.
* A layer's activations live in at most ``max_buffers`` arrays, allocated at first need and used
  again. An array is given to a new version only after its old one was forgotten.
* Only the worker of layer l+1 makes activations of layer l, and one lock guards the tables, never
  a computation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import ScheduleError
from syncpretrain.layer import Layer

__all__ = ["Split", "Versions", "transform"]

Array = NDArray[np.float32]
ROWS_AT_ONCE = 1000  # some ms of work: a stop is not kept waiting


class Split(NamedTuple):
    """Training and validation rows of one layer's input, which are transformed alike."""

    train: Array
    validation: Array


@dataclass(slots=True)
class _Version:
    snapshot: Layer
    activations: Split | None = None


class Versions:
    """The versions of the layers of one run.

    Parameters
    ----------
    data : Split of arrays of shape (n_examples, input units), float32
        Version 0 of "layer 0": constant, mature from the start.
    hidden : tuple of int
        Units of each layer.
    """

    def __init__(self, data: Split, hidden: tuple[int, ...], *, max_buffers: int = 3) -> None:
        self._data = data
        self._hidden = hidden
        self._max_buffers = max_buffers
        self._lock = threading.Lock()
        self._held: list[dict[int, _Version]] = [{} for _ in range(len(hidden) + 1)]
        self._spare: list[list[Split]] = [[] for _ in range(len(hidden) + 1)]
        self._allocated = [0] * (len(hidden) + 1)

    def publish(self, layer: int, version: int, snapshot: Layer) -> None:
        """Make a version of a layer readable."""
        with self._lock:
            self._held[layer][version] = _Version(snapshot)

    def activations(
        self, layer: int, version: int, below: int, stop: Callable[[], bool]
    ) -> Split | None:
        """Return the activations of a version, making them if they are not made yet.

        ``below`` is the version of the layer below that it was trained on. Returns None if
        ``stop`` turned true before they were ready.

        Raises
        ------
        ScheduleError
            If the version, or what it is made from, is not held.
        """
        if layer == 0:
            return self._data
        held = self._version(layer, version)
        if held.activations is None:
            source = self._made(layer - 1, below)
            target = self._take_buffer(layer)
            if not transform([held.snapshot], source, target, stop):
                return None
            with self._lock:
                held.activations = target
        return held.activations

    def made(self) -> list[tuple[int, int]]:
        """Return layer and version of all activations there are."""
        with self._lock:
            return [
                (layer, version)
                for layer, versions in enumerate(self._held)
                for version, held in sorted(versions.items())
                if held.activations is not None
            ]

    def make(self, layer: int, version: int, snapshots: Sequence[Layer]) -> None:
        """Make a version's activations from the data again, through one snapshot a layer.

        Chunk by chunk as the first time, so that they are the same bits.
        """
        target = self._take_buffer(layer)
        transform(snapshots, self._data, target, lambda: False)
        with self._lock:
            self._held[layer][version].activations = target

    def forget(self, layer: int, version: int) -> None:
        """Drop a version and take its activations' array back.

        Raises
        ------
        ScheduleError
            If it is not held.
        """
        activations = self._version(layer, version).activations
        with self._lock:
            del self._held[layer][version]
            if activations is not None:
                self._spare[layer].append(activations)

    def _made(self, layer: int, version: int) -> Split:
        if layer == 0:
            return self._data
        activations = self._version(layer, version).activations
        if activations is None:
            raise ScheduleError(f"version {version} of layer {layer} was read before it was made")
        return activations

    def _version(self, layer: int, version: int) -> _Version:
        with self._lock:
            if version not in self._held[layer]:
                raise ScheduleError(
                    f"version {version} of layer {layer} was asked for, but only"
                    f" {sorted(self._held[layer])} are held"
                )
            return self._held[layer][version]

    def _take_buffer(self, layer: int) -> Split:
        with self._lock:
            if self._spare[layer]:
                return self._spare[layer].pop()
            if self._allocated[layer] == self._max_buffers:
                raise ScheduleError(f"layer {layer} needs more than {self._max_buffers} buffers")
            self._allocated[layer] += 1
        width = self._hidden[layer - 1]
        return Split(*(np.empty((len(rows), width), dtype=np.float32) for rows in self._data))


def transform(
    snapshots: Sequence[Layer], source: Split, target: Split, stop: Callable[[], bool]
) -> bool:
    """Fill ``target`` with what layers make of ``source``; return False if ``stop`` turned true."""
    for rows_in, rows_out in _chunks(source, target):
        if stop():
            return False
        for snapshot in snapshots[:-1]:
            rows_in = snapshot.up(rows_in)
        snapshots[-1].up(rows_in, out=rows_out)
    return True


def _chunks(source: Split, target: Split) -> Iterator[tuple[Array, Array]]:
    for rows_in, rows_out in zip(source, target, strict=True):
        for start in range(0, len(rows_in), ROWS_AT_ONCE):
            yield rows_in[start : start + ROWS_AT_ONCE], rows_out[start : start + ROWS_AT_ONCE]
