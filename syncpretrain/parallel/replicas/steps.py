"""The work of a replica between a fetch and a push: some local steps, and the change they made.

Guarantee: a change is the difference of the parameters behind the last step and before the first,
so it is the same whatever optimizer made the steps.

Assumption: a replica's arrays are its own. Only the two vectors are shared with the server, which
leaves them alone from its order to the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import add
from typing import Any, Protocol

import numpy as np

from syncpretrain.kernels.arrays import Array


@dataclass(frozen=True, slots=True)
class Task:
    """Minibatches of an epoch, counted from 0, that a replica trains on before it pushes."""

    epoch: int
    first: int
    count: int


def tasks_of(epoch: int, first: int, steps: int, each: int) -> list[Task]:
    """Return the tasks of an epoch of ``steps`` minibatches from ``first`` on, ``each`` a task."""
    return [Task(epoch, at, min(each, steps - at)) for at in range(first, steps, each)]


class Replica(Protocol):
    """A copy of a layer, a stack or a network, which trains on its own.

    Attributes
    ----------
    parameters : sequence of ndarray
        The arrays in the order of the flat vector.
    """

    @property
    def parameters(self) -> Sequence[Array]:
        """The arrays that it trains."""

    def train(self, epoch: int, step: int) -> Sequence[float]:
        """Train on a minibatch; return its summed errors, one for each layer or output."""

    def state(self) -> dict[str, Array]:
        """Return the next step's inputs except the parameters, by name; live arrays."""

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go back to what :meth:`state` held."""


ReplicaFactory = Callable[[Sequence[Any]], Replica]  # given the data; sent to processes


# Called with a task that was trained, its summed errors, and the staleness of its change.
Each = Callable[[Task, Sequence[float], int], None]


class LocalSteps:
    """A replica at work.

    Parameters
    ----------
    replica : Replica
    fetched, change : ndarray of shape (n,)
        The parameters of the last fetch, and the change that the server is to add. They may lie in
        memory that another process sees, and belong to the server from a push to its next order.
    """

    def __init__(self, replica: Replica, fetched: Array, change: Array) -> None:
        self.replica, self.fetched, self.change = replica, fetched, change
        arrays = [array.reshape(-1) for array in replica.parameters]
        ends = list(accumulate((array.size for array in arrays), initial=0))
        self._parts = list(zip(arrays, [slice(a, b) for a, b in pairwise(ends)], strict=True))
        # Where the steps since the last push began, unless at a fetch. Allocated on first use: with
        # a fetch before each push it is never needed.
        self._own: Array | None = None

    def work(self, task: Task, *, fetches: bool) -> tuple[float, ...]:
        """Train a task, on the fetched parameters or on the replica's own; fill the change."""
        base = self._begin(fetches=fetches)
        total: list[float] = []
        with np.errstate(all="ignore"):  # the caller looks at the errors
            for step in range(task.first, task.first + task.count):
                errors = self.replica.train(task.epoch, step)
                total = list(map(add, total, errors)) if total else list(errors)
            for array, own in self._parts:
                np.subtract(array, base[own], out=self.change[own])
        return tuple(map(float, total))

    def load_parameters(self, flat: Array) -> Array:
        """Set the replica's parameters to a vector; return the vector."""
        # Copied array by array: a replica's arrays need not lie one behind the other.
        for array, own in self._parts:
            np.copyto(array, flat[own])
        return flat

    def save_parameters(self, out: Array) -> Array:
        """Fill a vector with the replica's parameters; return the vector."""
        for array, own in self._parts:
            np.copyto(out[own], array)
        return out

    def _begin(self, *, fetches: bool) -> Array:
        if fetches:
            return self.load_parameters(self.fetched)
        if self._own is None:
            self._own = np.empty_like(self.fetched)
        return self.save_parameters(self._own)


@dataclass(frozen=True, slots=True)
class Work:
    """The order to train a task, on the parameters just fetched or on one's own."""

    task: Task
    fetches: bool


@dataclass(frozen=True, slots=True)
class Save:
    """The order to send one's state."""


@dataclass(frozen=True, slots=True)
class Load:
    """The order to go back to a state."""

    state: Mapping[str, Array]


def answer(steps: LocalSteps, order: Work | Save | Load) -> tuple[float, ...] | dict[str, Array]:
    """Do what an order asks for; return the errors of a task, or the state, {} once loaded."""
    if isinstance(order, Work):
        return steps.work(order.task, fetches=order.fetches)
    if isinstance(order, Load):
        steps.replica.load_state(order.state)
        return {}
    return steps.replica.state()


def part_of(state: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Return the entries that begin with a prefix, without it; none for a replica that had died."""
    return {n.removeprefix(prefix): x for n, x in state.items() if n.startswith(prefix)}
