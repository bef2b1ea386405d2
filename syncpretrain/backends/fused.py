"""The interface of steps of contrastive divergence that a device makes as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

__all__ = ["FusedArrays", "FusedStep", "Pace"]


class FusedArrays(NamedTuple):
    """The arrays of an RBM in training, all on one device.

    Attributes
    ----------
    parameters, velocities : tuple of arrays
        Weights of shape (V, H), visible biases and hidden biases; and how each moves.
    v, h : arrays of shape (2B, V) and (2B, H)
        Room for both phases of minibatches of up to B examples; the hidden means of the data are
        in the first rows of h after a step.
    states : array of shape (B, H)
        Room for hidden states.
    visible_units, hidden_units : str
    precision : str
        Precision of the products; see :mod:`syncpretrain.kernels.precision`.
    """

    parameters: tuple[Any, ...]
    velocities: tuple[Any, ...]
    v: Any
    h: Any
    states: Any
    visible_units: str
    hidden_units: str
    precision: str = "float32"


class Pace(NamedTuple):
    """How parameters move: see ``momentum_step`` among the equations."""

    momentum: float
    learning_rate: float
    weight_decay: float
    l1: float


class FusedStep(Protocol):
    """A step of contrastive divergence that a device makes as a whole."""

    def takes(self, X: Any, rows: Any) -> bool:
        """Return whether it gathers such rows itself: arrays of the device, X of float32."""
        ...

    def __call__(self, X: Any, rows: Any, draws: Sequence[Sequence[int]], pace: Pace) -> Any:
        """Train by CD-k on some rows of X.

        Parameters
        ----------
        X : array of shape (examples, V)
        rows : array of int64, or None
            The numbers of the rows; None for all rows.
        draws : sequence of k sequences of int
            The key and the counter of the numbers that hidden states are drawn with.
        pace : Pace

        Returns
        -------
        error : device array of shape (), float64
            The squared error of the last reconstruction, not synchronized.

        Raises
        ------
        ValueError
            If these are more rows than there is room for.
        """
        ...
