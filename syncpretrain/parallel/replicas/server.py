"""Parameter server: the parameters that replicas fetch, and the changes that they push.

One thread owns a server, so that no update is torn or lost, however a replica ends: a change is
applied once, after its replica has said that it is complete, or not at all. The vector may be cut
into slices, which threads of the server work at the same time, each its own: that is the lock of a
slice, and no replica that is killed can leave it locked. Slices may also lie on other ranks
(``workers/ranks/replicas.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas.rules import AsyncRules, DelayCompensation
from syncpretrain.parallel.replicas.slice_threads import SliceThreads

__all__ = [
    "LATE_CHANGE",
    "MEAN_SQUARE",
    "SERVER_STATE",
    "ParameterServer",
    "Push",
    "Server",
    "ServerSlice",
    "slices_of",
]

MEAN_SQUARE = "mean_square"
SERVER_STATE = "server."  # before the names of its state, among those of replicas
LATE_CHANGE = "waiting"  # before the number of a change that is not applied yet
VectorT = TypeVar("VectorT", contravariant=True)


class Push(NamedTuple):
    """What became of a push: its staleness, and whether its change was taken."""

    staleness: int
    is_taken: bool


class Server(Protocol[VectorT]):
    """The interface of a parameter server; vectors are arrays, or those of a replica elsewhere."""

    def fetch(self, out: VectorT) -> int:
        """Copy the parameters to ``out``; return the clock, the number of changes taken so far."""
        ...

    def push(self, change: VectorT, then: int, fetched: VectorT) -> Push:
        """Take a change of the parameters ``fetched`` at the clock ``then``; use it up."""
        ...

    def start(self) -> None:
        """Start what works for it, before any replica."""
        ...

    def settle(self) -> None:
        """Wait for all changes that it took, and bring its parameters here."""
        ...

    def end(self) -> None:
        """End what was started; called whatever happened."""
        ...

    def state(self) -> dict[str, Array]:
        """Return by name what the next push depends on beside the parameters; live arrays."""
        ...

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go back to what :meth:`state` held, which is a part of the state of replicas."""
        ...

    def add_late(self, state: Mapping[str, Array]) -> None:
        """Add the changes that wait in the state of replicas that took turns."""
        ...


def slices_of(size: int, count: int) -> list[slice]:
    """Return ``count`` slices of about the same length, one after the other."""
    ends = [size * i // count for i in range(count + 1)]
    return [slice(ends[i], ends[i + 1]) for i in range(count)]


class ServerSlice:
    """A slice of the parameters, changed in place by its owner.

    Parameters
    ----------
    parameters, mean_square : ndarray of shape (n,), float32
        The second is what the compensation remembers.
    rules : AsyncRules
    """

    def __init__(self, parameters: Array, mean_square: Array, rules: AsyncRules) -> None:
        self.parameters, self.mean_square = parameters, mean_square
        self._compensation: DelayCompensation | None = None
        if rules.compensation:
            self._compensation = DelayCompensation(rules.compensation, mean_square)

    def add(self, change: Array, share: float, fetched: Array) -> None:
        """Add a share of a change of the parameters ``fetched``, compensated; use it up."""
        with np.errstate(over="ignore", invalid="ignore"):  # who trains looks at the result
            if self._compensation is not None:
                self._compensation.apply(change, self.parameters, fetched)
            if share != 1:
                change *= np.float32(share)
            self.parameters += change


class ParameterServer:
    """Parameters in this process; see :class:`Server`.

    Parameters
    ----------
    parameters : ndarray of shape (n,), float32
        Changed in place.
    rules : AsyncRules
    servers : int
        Number of slices, each of a thread of its own from :meth:`start` to :meth:`end`.

    Attributes
    ----------
    clock : int
        Changes taken so far.
    refused : int
        Changes that were too stale.
    slices : list of slice
    mean_square : ndarray of shape (n,) or (0,), float32
        What the compensation remembers.
    """

    def __init__(self, parameters: Array, rules: AsyncRules, servers: int = 1) -> None:
        self.parameters, self.rules = parameters, rules
        self.clock = self.refused = 0
        self.slices = slices_of(len(parameters), servers)
        size = len(parameters) if rules.compensation else 0
        self.mean_square = np.zeros(size, dtype=np.float32)
        self._parts = [
            (own, ServerSlice(parameters[own], self.mean_square[own], rules)) for own in self.slices
        ]
        self._threads: SliceThreads | None = None

    def start(self) -> None:
        """Start the threads of the slices, if there are several."""
        if len(self.slices) > 1:
            self._threads = SliceThreads(len(self.slices))

    def settle(self) -> None:
        """Do nothing: a push returns when its change is added."""

    def end(self) -> None:
        """End the threads of the slices."""
        if self._threads is not None:
            self._threads.close()
            self._threads = None

    def fetch(self, out: Array) -> int:
        """Copy the parameters to ``out``; return the clock."""
        self._each(lambda own, part: np.copyto(out[own], part.parameters))
        return self.clock

    def push(self, change: Array, then: int, fetched: Array) -> Push:
        """Add a change, scaled and compensated by the rules; it is used up."""
        push = self.decide(then)
        if push.is_taken:
            self._add(change, push.staleness, fetched)
        return push

    def decide(self, then: int) -> Push:
        """Return whether a change of the parameters at the clock ``then`` is taken, and count."""
        staleness = self.clock - then
        if self.rules.takes(staleness):
            self.clock += 1
            return Push(staleness, is_taken=True)
        self.refused += 1
        return Push(staleness, is_taken=False)

    def state(self) -> dict[str, Array]:
        """Return by name what the next push depends on beside the parameters; live arrays."""
        return {MEAN_SQUARE: self.mean_square} if self.rules.compensation else {}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go back to what :meth:`state` held, which is a part of the state of replicas."""
        if self.rules.compensation:
            np.copyto(self.mean_square, state[SERVER_STATE + MEAN_SQUARE])

    def add_late(self, state: Mapping[str, Array]) -> None:
        """Add the changes that wait in the state of replicas that took turns, however stale."""
        number = 0
        while (task := state.get(f"{LATE_CHANGE}{number}.task")) is not None:
            change = state[f"{LATE_CHANGE}{number}.change"].copy()
            fetched = state.get(f"{LATE_CHANGE}{number}.fetched", self.parameters)
            self._add(change, int(task[-1]) + number, fetched)
            self.clock += 1
            number += 1

    def _add(self, change: Array, staleness: int, fetched: Array) -> None:
        share = self.rules.share(staleness)
        self._each(lambda own, part: part.add(change[own], share, fetched[own]))

    def _each(self, work: Callable[[slice, ServerSlice], None]) -> None:
        """Work all slices, each in its thread if there are any; return when all are done."""
        if self._threads is None:
            for own, part in self._parts:
                work(own, part)
        else:
            self._threads.run(lambda i: work(*self._parts[i]))
