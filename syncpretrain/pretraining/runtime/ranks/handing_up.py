"""Activations that the rank of a layer sends to that of the layer above.

The reader of a version gets the parameters of all layers below, or the version's activations,
whichever are fewer numbers. The rank of a layer computes these from the input that it trained the
version on: the same products in the same chunks, so that they are the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from syncpretrain.errors import ScheduleError
from syncpretrain.models.layer import Layer
from syncpretrain.pretraining.runtime.activations import transform
from syncpretrain.pretraining.runtime.split import Split

__all__ = ["KeptVersions", "layers_sent_activations"]


def layers_sent_activations(
    rows: int, hidden: Sequence[int], parameters: Sequence[int]
) -> frozenset[int]:
    """Return the layers, numbered from 1, whose input is sent as activations.

    Parameters
    ----------
    rows : int
        To train on and to validate with.
    hidden : sequence of int
        Hidden units of each layer.
    parameters : sequence of int
        Numbers of each layer's parameters.
    """
    below = zip(hidden[:-1], accumulate(parameters), strict=False)
    return frozenset(
        layer for layer, (width, numbers) in enumerate(below, start=2) if rows * width < numbers
    )


class KeptVersions:
    """The input of a layer on its rank, and versions of the layer that may be handed up.

    One thread trains the layer, another one hands up and drops.

    Parameters
    ----------
    data : Split
    keeps : bool
        Whether versions are handed up; if not, the newest input alone is here.

    Attributes
    ----------
    newest : Split or None
        The input that came last.
    """

    def __init__(self, data: Split, *, keeps: bool) -> None:
        self.newest: Split | None = None
        self._data, self._keeps = data, keeps
        self._lock = threading.Lock()  # guards the tables, never a computation
        self._inputs = {0: data}  # of layer 1; others never read version 0
        self._snapshots: dict[int, tuple[Layer, int]] = {}  # with the version it was trained on

    def room(self, width: int) -> Split:
        """Return arrays for an input; the values in them are no longer needed."""
        if self.newest is not None and not self._keeps:
            return self.newest
        return Split(*(np.empty((len(rows), width), dtype=np.float32) for rows in self._data))

    def take_input(self, version: int, activations: Split) -> None:
        """Take the input that the next epochs train on."""
        self.newest = activations
        if self._keeps:
            with self._lock:
                self._inputs[version] = activations

    def publish(self, version: int, snapshot: Layer, reads: int) -> None:
        """Keep a version that was trained on a version of the layer below."""
        if self._keeps:
            with self._lock:
                self._snapshots[version] = snapshot, reads

    def activations(self, version: int, stop: Callable[[], bool]) -> Split | None:
        """Return the activations of a version, or None if ``stop`` turned true.

        Raises
        ------
        ScheduleError
            If the version, or what it was trained on, is not here.
        """
        with self._lock:
            snapshot, reads = self._snapshots.get(version, (None, 0))
            below = self._inputs.get(reads)
        if snapshot is None or below is None:
            raise ScheduleError(f"version {version} was to be handed up, but is not held")
        width = snapshot.shape.hidden
        found = Split(*(np.empty((len(rows), width), dtype=np.float32) for rows in self._data))
        return found if transform([snapshot], below, found, stop) else None

    def drop(self, version: int) -> None:
        """Drop a version of this layer."""
        with self._lock:
            self._snapshots.pop(version, None)

    def drop_input(self, version: int) -> None:
        """Drop a version of the layer below."""
        with self._lock:
            self._inputs.pop(version, None)
