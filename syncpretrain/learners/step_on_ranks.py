"""Base of the steps that the ranks of a group make together.

Every rank has all parameters and the same minibatches, and moves a slice of each parameter, that of
its shards, with velocities that it keeps alone. After a step the slices are exchanged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from syncpretrain.cluster.group import AgreedStop
from syncpretrain.kernels.arrays import Array, slices_of
from syncpretrain.learners.base import Learner

__all__ = ["StepOnRanks"]


class SpreadState(NamedTuple):
    """Message for a checkpoint: velocities of a rank's slices, and the state of its shards."""

    velocities: list[Array]
    shards: list[dict[str, Array]]


class _Stateful(Protocol):
    """The part of a step that is used here."""

    def state(self) -> dict[str, Array]: ...

    def restart(self) -> None: ...


class StepOnRanks(ABC):
    """A step of one rank of a group, which all call every method at the same time.

    Parameters
    ----------
    learner : Learner
    whole : Step
        The step of all shards, of which this rank works its own.
    slices : sequence of sequence of slice
        Of each parameter, seen as flat: that of each shard.
    stop : AgreedStop
        Of a group of at most as many ranks as there are shards; agreed on in every step.
    """

    def __init__(
        self,
        learner: Learner,
        whole: _Stateful,
        slices: Sequence[Sequence[slice]],
        stop: AgreedStop,
    ) -> None:
        self.learner, self.group, self.stop = learner, stop.group, stop
        self._whole, self._slices = whole, slices
        self.shards = len(slices[0])
        self.ranks = [range(own.start, own.stop) for own in slices_of(self.shards, self.group.size)]
        self.own = self.ranks[self.group.number]
        sizes = [own.stop - own.start for own in self.slices_of_rank(self.own)]
        self._moved = [np.empty(size, dtype=np.float32) for size in sizes]
        self._is_spread = False  # the state; before the first step each rank has all of it

    def slices_of_rank(self, shards: range) -> list[slice]:
        """Return the slice of each parameter that the shards of a rank have together."""
        return [
            slice(each[shards.start].start, each[shards.stop - 1].stop) for each in self._slices
        ]

    def own_slice(self, shard: int, i: int) -> slice:
        """Return the slice of the i-th parameter that a shard has."""
        return self._slices[i][shard]

    def share_parameters(self) -> None:
        """Send every rank the slices that this one has moved, and take theirs."""
        self._is_spread = True
        flat = [parameter.reshape(-1) for parameter in self.learner.parameters]
        # A copy, as the parameters may be taken back before all ranks have them.
        for moved, x, own in zip(self._moved, flat, self.slices_of_rank(self.own), strict=True):
            np.copyto(moved, x[own])
        for shards, found in zip(self.ranks, self.group.all_gather(self._moved), strict=True):
            if shards != self.own:
                for x, own, new in zip(flat, self.slices_of_rank(shards), found, strict=True):
                    np.copyto(x[own], new)

    @abstractmethod
    def shard_state(self, shard: int) -> dict[str, Array]:
        """Return what the next gradient of a shard depends on; live arrays."""

    def state(self) -> dict[str, Array]:
        """Return the state of all shards on the first rank; elsewhere that of others is old."""
        if self._is_spread:
            self._collect()
        return self._whole.state()

    def restart(self) -> None:
        """Set :meth:`state` to what it was before the first step, on every rank."""
        self._whole.restart()
        self._is_spread = False

    def _collect(self) -> None:
        velocities = [v.reshape(-1) for v in self.learner.velocities().values()]
        own = SpreadState(
            [
                velocity[piece].copy()
                for velocity, piece in zip(velocities, self.slices_of_rank(self.own), strict=True)
            ],
            [
                {name: array.copy() for name, array in self.shard_state(shard).items()}
                for shard in self.own
            ],
        )
        found: list[SpreadState] | None = self.group.gather(own)
        if found is None:
            return
        for shards, state in zip(self.ranks, found, strict=True):
            pieces = self.slices_of_rank(shards)
            for velocity, piece, new in zip(velocities, pieces, state.velocities, strict=True):
                np.copyto(velocity[piece], new)
            for shard, arrays in zip(shards, state.shards, strict=True):
                for name, array in self.shard_state(shard).items():
                    np.copyto(array, arrays[name])
