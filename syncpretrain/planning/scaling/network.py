"""Network model: seconds and bytes of the messages between the devices of a cluster.

Every device has a link of its own to all others, with one bandwidth in each direction and one
latency (the alpha-beta model). A ring moves the least bytes, a tree takes the fewest turns;
``star`` sends everything through the one link of a host, as the GPUs of a machine without links of
their own do. Formulas: Thakur, Rabenseifner and Gropp 2005, "Optimization of collective
communication operations in MPICH".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["ALL_REDUCES", "Network"]

ALL_REDUCES = ("auto", "ring", "tree", "star")


@dataclass(frozen=True, slots=True)
class Network:
    """Links between devices.

    Attributes
    ----------
    bandwidth : float
        Bytes a second of one device's link, in each direction; infinite for a shared memory.
    latency : float
        Seconds of a message without content.
    all_reduce : str
        ``ring``, ``tree``, ``star``, or ``auto`` for the faster of the first two.
    """

    bandwidth: float = math.inf
    latency: float = 0.0
    all_reduce: str = "auto"

    @property
    def is_free(self) -> bool:
        """Whether messages take no time."""
        return math.isinf(self.bandwidth) and self.latency == 0

    def transfer(self, size: float) -> float:
        """Return the seconds of a message of ``size`` bytes."""
        return self.latency + size / self.bandwidth if size else 0.0

    def reduce(self, size: float, devices: int) -> float:
        """Return the seconds in which all devices get the sum of their arrays of ``size`` bytes."""
        if devices == 1:
            return 0.0
        seconds = {
            "ring": 2 * (devices - 1) * self.transfer(size / devices),
            "tree": 2 * _turns(devices) * self.transfer(size),
            "star": 2 * (self.latency + devices * size / self.bandwidth),
        }
        if self.all_reduce == "auto":
            return min(seconds["ring"], seconds["tree"])
        return seconds[self.all_reduce]

    def reduced_bytes(self, size: float, devices: int) -> float:
        """Return the bytes that all links together send for it."""
        if devices == 1:
            return 0.0
        return 2 * size * (devices if self.all_reduce == "star" else devices - 1)

    def gather(self, size: float, devices: int) -> float:
        """Return the seconds in which all devices get all parts of an array of ``size`` bytes."""
        if devices == 1:
            return 0.0
        missing = (devices - 1) / devices * size
        return _turns(devices) * self.latency + missing / self.bandwidth

    def broadcast(self, size: float, devices: int) -> float:
        """Return the seconds in which ``devices`` others get an array of ``size`` bytes."""
        return _turns(devices + 1) * self.transfer(size)


def _turns(devices: int) -> int:
    return math.ceil(math.log2(devices))
