"""Commands of the schedule to a runtime, and the past from which a schedule continues."""

from __future__ import annotations

from dataclasses import dataclass

from syncpretrain.pretraining.schedule.drift import Measured
from syncpretrain.pretraining.schedule.reads import Reads

__all__ = ["Command", "Past", "Release", "Train"]


@dataclass(frozen=True, slots=True)
class Train:
    """Train one epoch of a layer on version ``reads`` of the layer below, then publish it.

    ``below_reads`` is the version of the layer two below that ``reads`` was trained on: its
    activations are what those of ``reads`` are computed from. It is 0 where ``reads`` is the data.
    ``against`` are the older versions of this layer from which the drift of the new one is asked
    for: whichever of them the layer above will have trained on when it is judged.
    """

    layer: int
    epoch: int
    reads: int
    below_reads: int
    against: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """Release a version of a layer; no layer will read it again."""

    layer: int
    version: int


Command = Train | Release


@dataclass(frozen=True, slots=True)
class Past:
    """Decisions and results of a schedule so far: all it needs to continue.

    For each layer the upstream version of every epoch begun, how many of these are finished, which
    versions are held, and the epochs stipulated, fewer than planned if it stopped early. Where
    drift wakes layers, the upstream versions that did not, and the drifts still to be judged.
    """

    reads: Reads
    done: tuple[int, ...]
    held: Reads
    epochs: tuple[int, ...]
    skipped: Reads = ()
    drifts: Measured = ()
