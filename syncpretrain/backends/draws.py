"""Random numbers that depend on their address alone, never on the order of drawing.

Every draw is a function of (seed, layer, epoch, step, purpose): these are the key and the counter
of Philox (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). So no order or place
of execution can change what is drawn. The lowest counter word is left to the generator: 2**64
blocks an address.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

__all__ = ["Purpose", "generator"]


class Purpose(IntEnum):
    """What a draw is for; part of its address, so that two uses never share numbers."""

    WEIGHTS = 0
    ORDER = 1
    HIDDEN = 2
    VISIBLE = 3
    SPLIT = 4
    PROBE = 5
    ANNEALING = 6
    SAMPLE = 7
    DROPOUT = 8
    CORRUPTION = 9


def generator(
    seed: int, purpose: Purpose, *, layer: int = 0, epoch: int = 0, step: int = 0
) -> np.random.Generator:
    """Return the generator at an address; ``layer`` 0 stands for the whole stack."""
    key = np.array([seed, layer << 8 | purpose], dtype=np.uint64)
    counter = np.array([0, step, epoch, 0], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
