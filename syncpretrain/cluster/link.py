"""An emulated network link, for tests and benchmarks on one machine."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["Link"]


@dataclass(slots=True)
class Link:
    """A link into one rank, over which messages come one after the other.

    Parameters
    ----------
    bandwidth : float
        Bytes a second.
    latency : float
        Seconds from the last byte sent to its arrival.
    """

    bandwidth: float = math.inf
    latency: float = 0.0
    _free: float = field(default=-math.inf, init=False)

    def due(self, now: float, size: int) -> float:
        """Return when a message of some bytes has arrived that is sent now."""
        self._free = max(self._free, now) + size / self.bandwidth
        return self._free + self.latency
