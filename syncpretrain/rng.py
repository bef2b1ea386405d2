"""Random numbers that depend on their address alone, never on the order of drawing.

Every draw is a function of (seed, layer, epoch, step, shard, purpose): these are the key and the
counter of Philox (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). So no order
or place of execution can change what is drawn. The lowest counter word counts the generator's
blocks, 2**64 an address, so that several threads can draw parts of one array.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from syncpretrain.errors import SettingsError

BLOCK = 8  # uniform draws of float32 that Philox makes at once


class Purpose(IntEnum):
    """The purpose of a draw; part of its address, so that two uses never share numbers."""

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
    IMPUTATION = 10
    NOISE = 11
    ADVERSARY = 12
    INPUT = 13


class Address(NamedTuple):
    """Address of random numbers: seed, purpose, layer, epoch, step and shard.

    ``layer`` 0 stands for the whole stack. A shard is a part of a step with draws of its own.
    ``block`` is how many blocks of :data:`BLOCK` draws of float32 are left out.
    """

    seed: int
    purpose: Purpose
    layer: int = 0
    epoch: int = 0
    step: int = 0
    shard: int = 0
    block: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """The key of Philox."""
        return self.seed, self.layer << 8 | self.purpose

    @property
    def counter(self) -> tuple[int, int, int, int]:
        """The first value of Philox's counter, from the lowest word up."""
        return self.block, self.step, self.epoch, self.shard

    def generator(self) -> np.random.Generator:
        """Return the generator that begins at this address."""
        key = np.array(self.key, dtype=np.uint64)
        counter = np.array(self.counter, dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


def generator(
    seed: int, purpose: Purpose, *, layer: int = 0, epoch: int = 0, step: int = 0
) -> np.random.Generator:
    """Return the generator at an address.

    Raises
    ------
    SettingsError
        If the seed is no whole number from 0 up to 2**63 - 1.
    """
    if not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**63:
        raise SettingsError(f"seed: got {seed!r}, expected a whole number from 0 up to 2**63 - 1")
    return Address(seed, purpose, layer, epoch, step).generator()
