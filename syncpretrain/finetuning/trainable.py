"""The network of any shape that an optimizer trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from syncpretrain.backends.base import Backend
from syncpretrain.backends.fused_tuning import FusedTuning, Rule
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.backprop import Pair
from syncpretrain.kernels.operations import Operation
from syncpretrain.kernels.program import PhaseRunner, Program

__all__ = ["Follow", "Move", "Trainable"]

Move = Callable[[int, slice, bool], None]  # given a shard, a part, and whether it is of weights
Follow = Callable[[slice, bool], list[Operation]]  # moves a part of the vector, of weights or not


class Trainable(Protocol):
    """Parameters and their gradients in flat vectors, and the steps that fill these.

    For the methods see :class:`syncpretrain.finetuning.network.Network`. ``weights``, of the shape
    of a minibatch's targets, weight its loss; None for no weights. Errors are not weighted.
    """

    backend: Backend
    shards: int
    parameters: Array
    gradients: Array
    chain: list[Pair]
    chain_gradients: list[Pair]
    weights: Array | None

    def gradient(self, x: Array, target: Array, *, epoch: int = 0, step: int = 0) -> float:
        """Fill the gradients; return the error summed over the examples."""
        ...

    def step(
        self,
        x: Array,
        target: Array,
        *,
        epoch: int,
        step: int,
        move: Move | None = None,
        run: PhaseRunner = ...,
    ) -> float:
        """Fill the gradients shard by shard, and let them be followed."""
        ...

    def program(self, x: Array, target: Array, follow: Follow) -> Program | None:
        """Return the step on the minibatch that lies in these arrays, if there is one."""
        ...

    def whole(self, moments: tuple[Array, ...], rule: Rule) -> FusedTuning | None:
        """Return the step together with its optimizer's, fused on the device, if there is one."""
        ...

    def stepwise(self, program: Program, *, epoch: int, step: int, run: PhaseRunner = ...) -> float:
        """Work a step of :meth:`program`."""
        ...

    def loss_of(self, x: Array, target: Array, *, epoch: int = 0, step: int = 0) -> float:
        """Return the loss that :meth:`gradient` differentiates."""
        ...

    def error(self, X: Array, target: Array) -> float:
        """Return the mean error of rows."""
        ...
