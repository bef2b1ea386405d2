"""A consistent cut through a pretraining run: all that the rest of it depends on."""

from __future__ import annotations

from dataclasses import dataclass

from syncpretrain.models.layer import Layer
from syncpretrain.pretraining.runtime.messages import LayerState
from syncpretrain.pretraining.schedule.machine import Past

__all__ = ["Cut"]


@dataclass(frozen=True, slots=True)
class Cut:
    """The schedule's past, the versions it may still read, and every layer's state.

    ``snapshots`` are those held and those that their activations were made through, by layer and
    version; ``made`` are the held ones that have activations, which are made again from them. The
    state of a layer that has not trained yet is None. What a layer did in an epoch that it had not
    finished is in its state only if it was stopped; else that epoch begins again.
    """

    past: Past
    snapshots: dict[tuple[int, int], Layer]
    made: list[tuple[int, int]]
    states: tuple[LayerState | None, ...]

    def ancestry(self, layer: int, version: int) -> list[Layer]:
        """Return the snapshots, from layer 1 up, through which a version's activations go."""
        chain = []
        while layer >= 1:
            chain.append(self.snapshots[layer, version])
            version = self.past.reads[layer - 1][version - 1]
            layer -= 1
        return chain[::-1]
