"""A minibatch in a network that is fine-tuned: the arrays that the phases of a step share."""

from __future__ import annotations

from dataclasses import dataclass

from syncpretrain.finetuning.trainable import Move
from syncpretrain.kernels.arrays import Array

__all__ = ["Minibatch"]


@dataclass(slots=True)
class Minibatch:
    """What the phases of a step share."""

    x: Array
    target: Array
    activations: list[Array]
    deltas: list[Array]
    masks: list[Array | None]
    inputs: list[Array | None]  # with units left out
    move: Move | None
    share: float

    def read(self, layer: int) -> Array:
        """Return what a layer reads."""
        dropped = self.inputs[layer]
        if dropped is not None:
            return dropped
        return self.activations[layer - 1] if layer else self.x
