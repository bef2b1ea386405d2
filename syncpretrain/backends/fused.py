"""The arrays and numbers of steps that a device makes as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


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
