"""The interface of steps of fine-tuning that a device makes as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

__all__ = ["FusedTuning", "Rule", "TunedArrays"]


class Rule(NamedTuple):
    """An optimizer: ``adam``, or ``sgd`` with momentum, Nesterov's if asked."""

    name: str
    momentum: float = 0.0
    nesterov: bool = False


class TunedArrays(NamedTuple):
    """The arrays of a network of dense layers, and of its optimizer, all on one device.

    Attributes
    ----------
    parameters : array of shape (n,)
        The weight of each layer with its bias behind it, and gaps between layers that align these.
    moments : tuple of arrays of that shape
        Both moments of Adam; the velocity of gradient descent with momentum; else none.
    chain : sequence of (weight, bias)
        Views of the parameters.
    activations, deltas : sequence of arrays of shape (B, units)
        Room for minibatches of up to B examples, a pair a layer.
    units : sequence of str
    loss : str
        ``squared`` or ``cross-entropy``.
    precision : str
        Precision of the products; see :mod:`syncpretrain.kernels.precision`.
    """

    parameters: Any
    moments: tuple[Any, ...]
    chain: Sequence[tuple[Any, Any]]
    activations: Sequence[Any]
    deltas: Sequence[Any]
    units: Sequence[str]
    loss: str
    precision: str


class FusedTuning(Protocol):
    """A step of fine-tuning that a device makes as a whole."""

    def takes(self, x: Any, target: Any) -> bool:
        """Return whether it computes with such rows: float32 of the device, as wide as needed."""
        ...

    def __call__(self, x: Any, target: Any, numbers: Sequence[float]) -> Any:
        """Train on a minibatch.

        Parameters
        ----------
        x, target : arrays of shape (n, inputs) and (n, outputs)
        numbers : sequence of float
            Numbers that the optimizer computes with; see
            :meth:`syncpretrain.finetuning.optimizers.Optimizer.numbers`.

        Returns
        -------
        error : device array of shape (), float64
            The squared error before the step, or how many classes are wrong; NaN where the output
            is not finite. Not synchronized.
        """
        ...
