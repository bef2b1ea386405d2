"""Work of a layer on one device, and how it shrinks when a group of devices shares it."""

from __future__ import annotations

from dataclasses import dataclass

from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.planning.scaling.network import Network

__all__ = ["SPLITS", "GroupWork", "LayerWork"]

SPLITS = ("examples", "units")
PRODUCTS = 5  # of a step of CD-1, one of which computes the hidden means


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """Work of one layer on one device, in seconds, and its sizes.

    Attributes
    ----------
    step : float
        A training step on a minibatch.
    fixed : float
        The part of ``step`` that does not shrink with the minibatch: the update of the parameters.
    forward : float
        The hidden means of a minibatch.
    end : float
        What ends an epoch: the copy that is published, and the validation error.
    crowding : float
        By which share of itself a step grows for each other device at work; 0 unless the devices
        are the cores of one machine.
    visible, hidden : int
        Units.
    parameters : int
        Weights and biases.
    """

    step: float
    fixed: float = 0.0
    forward: float = 0.0
    end: float = 0.0
    crowding: float = 0.0
    visible: int
    hidden: int
    parameters: int


@dataclass(frozen=True, slots=True)
class GroupWork:
    """Work of one layer whose minibatches a group of devices shares.

    ``step`` and ``forward`` are the seconds of a minibatch, ``step_network`` and
    ``forward_network`` what of these is the network's, ``bytes_moved`` what a step sends.
    """

    devices: int
    step: float
    forward: float
    step_network: float
    forward_network: float
    bytes_moved: float

    @classmethod
    def of(
        cls, work: LayerWork, devices: int, *, batch_size: int, split: str, network: Network
    ) -> GroupWork:
        """Return the work of a group.

        By examples the largest share counts, and the gradients are summed. By units each device
        computes its units of all examples, and gets the means and states of all others: the
        hidden ones twice, the visible ones once (CD-1).
        """
        crowd = 1 + work.crowding * (devices - 1)
        if split == "units":
            up = float(FLOAT_BYTES * batch_size * work.hidden)
            down = float(FLOAT_BYTES * batch_size * work.visible)
            waits = 2 * network.gather(up, devices) + network.gather(down, devices)
            forward_waits = network.gather(up, devices)
            moved = (2 * up + down) * (devices - 1)
            step, forward = work.step / devices, work.forward / devices
        else:
            share = -(-batch_size // devices) / batch_size
            gradient = float(FLOAT_BYTES * work.parameters)
            waits, forward_waits = network.reduce(gradient, devices), 0.0
            moved = network.reduced_bytes(gradient, devices)
            step = work.fixed + (work.step - work.fixed) * share
            forward = work.forward * share
        return cls(
            devices,
            crowd * step + waits,
            crowd * forward + forward_waits,
            waits,
            forward_waits,
            moved,
        )

    @classmethod
    def most(cls, work: LayerWork, *, batch_size: int, split: str) -> int:
        """Return the number of devices that a layer can use."""
        return min(work.visible, work.hidden) if split == "units" else batch_size

    @property
    def computing(self) -> float:
        """The share of a step in which the devices compute."""
        return 1 - self.step_network / self.step if self.step else 1.0
