"""Parameter server: the parameters that replicas fetch, and the changes that they push.

One thread owns a server, so that no update is torn or lost, however a replica ends: a change is
applied once, after its replica has said that it is complete, or not at all. A server has a flat
vector, or one shard of it; several servers of a slice each make a sharded one. Whoever carries
fetches and pushes to it, memory that threads or processes share or messages, needs these two
methods alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas.rules import AsyncRules, DelayCompensation

__all__ = ["LATE_CHANGE", "SERVER_STATE", "ParameterServer", "Push", "Server"]

MEAN_SQUARE = "mean_square"
SERVER_STATE = "server."  # before the names of its state, among those of replicas
LATE_CHANGE = "waiting"  # before the number of a change that is not applied yet


class Push(NamedTuple):
    """What became of a push: its staleness, and whether its change was taken."""

    staleness: int
    is_taken: bool


class Server(Protocol):
    """The interface of a parameter server."""

    def fetch(self, out: Array) -> int:
        """Copy the parameters to ``out``; return the clock, the number of changes taken so far."""
        ...

    def push(self, change: Array, then: int, fetched: Array) -> Push:
        """Take a change of the parameters ``fetched`` at the clock ``then``; use it up."""
        ...


class ParameterServer:
    """Parameters in this process; see :class:`Server`.

    Parameters
    ----------
    parameters : ndarray of shape (n,), float32
        Changed in place.
    rules : AsyncRules

    Attributes
    ----------
    clock : int
        Changes taken so far.
    refused : int
        Changes that were too stale.
    """

    def __init__(self, parameters: Array, rules: AsyncRules) -> None:
        self.parameters, self._rules = parameters, rules
        self.clock = self.refused = 0
        self._compensation: DelayCompensation | None = None
        if rules.compensation:
            self._compensation = DelayCompensation(rules.compensation, len(parameters))

    def fetch(self, out: Array) -> int:
        """Copy the parameters to ``out``; return the clock."""
        np.copyto(out, self.parameters)
        return self.clock

    def push(self, change: Array, then: int, fetched: Array) -> Push:
        """Add a change, scaled and compensated by the rules; it is used up."""
        staleness = self.clock - then
        if not self._rules.takes(staleness):
            self.refused += 1
            return Push(staleness, is_taken=False)
        self.add(change, staleness, fetched)
        return Push(staleness, is_taken=True)

    def add(self, change: Array, staleness: int, fetched: Array) -> None:
        """Add a change, scaled and compensated by the rules, however stale it is."""
        with np.errstate(over="ignore", invalid="ignore"):  # who trains looks at the result
            if self._compensation is not None:
                self._compensation.apply(change, self.parameters, fetched)
            share = self._rules.share(staleness)
            if share != 1:
                change *= np.float32(share)
            self.parameters += change
        self.clock += 1

    def state(self) -> dict[str, Array]:
        """Return by name what the next push depends on beside the parameters; live arrays."""
        compensation = self._compensation
        return {} if compensation is None else {MEAN_SQUARE: compensation.mean_square}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go back to what :meth:`state` held, which is a part of the state of replicas."""
        if self._compensation is not None:
            np.copyto(self._compensation.mean_square, state[SERVER_STATE + MEAN_SQUARE])

    def add_late(self, state: Mapping[str, Array]) -> None:
        """Add the changes that wait in the state of replicas that took turns."""
        number = 0
        while (task := state.get(f"{LATE_CHANGE}{number}.task")) is not None:
            change = state[f"{LATE_CHANGE}{number}.change"].copy()
            fetched = state.get(f"{LATE_CHANGE}{number}.fetched", self.parameters)
            self.add(change, int(task[-1]) + number, fetched)
            number += 1
