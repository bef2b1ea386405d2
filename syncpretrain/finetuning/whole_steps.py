"""Steps of fine-tuning that a device makes as a whole: dense layers, and the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from syncpretrain.backends.base import Backend
from syncpretrain.backends.fused_tuning import FusedTuning, Rule, TunedArrays
from syncpretrain.finetuning.trainable import Trainable
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.backprop import Pair
from syncpretrain.kernels.precision import Precision

__all__ = ["WholeSteps", "whole_step"]


class _Dense(Protocol):
    """The arrays of a dense network."""

    backend: Backend
    parameters: Array
    chain: list[Pair]
    activations: list[Array]
    deltas: list[Array]
    masks: list[Array | None]
    units: list[str]
    loss: str
    precision: Precision
    weights: Array | None


def whole_step(network: _Dense, moments: tuple[Array, ...], rule: Rule) -> FusedTuning | None:
    """Return the step of a network and its optimizer as a whole; None where there is none.

    There is none with dropout or with weights of examples. ``moments`` are the optimizer's arrays.
    """
    if network.weights is not None or any(mask is not None for mask in network.masks):
        return None
    arrays = TunedArrays(
        network.parameters,
        moments,
        network.chain,
        network.activations,
        network.deltas,
        network.units,
        network.loss,
        network.precision.name,
    )
    return network.backend.fused_tuning(arrays, rule)


class WholeSteps:
    """The whole steps of the network that an optimizer trains, if its device has them.

    Parameters
    ----------
    rule : Rule
        The optimizer.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._found: list[FusedTuning | None] = []  # one, once the network was asked

    def step_for(
        self, network: Trainable, state: Mapping[str, Array], x: Array, target: Array
    ) -> FusedTuning | None:
        """Return the fused step if it supports these arrays, else None; state: the optimizer's."""
        if not self._found:
            moments = tuple(array for array in state.values() if array.size)
            self._found = [network.whole(moments, self._rule)]
        (step,) = self._found
        return step if step is not None and step.takes(x, target) else None
