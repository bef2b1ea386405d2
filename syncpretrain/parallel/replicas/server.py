"""Parameter server: the parameters that replicas fetch, and the changes that they push.

Replicas fetch parameters from a server, train on them for some steps, and push the change that they
made. The *staleness* of a push is the number of pushes of others that the server took since the
fetch. :class:`AsyncFields` says which share of a stale change is added.

Guarantees:

* One thread owns a server, so that no update is torn or lost, however a replica ends: a change is
  applied once, after its replica has said that it is complete, or not at all.
* The vector may be cut into slices; threads of the server work them at the same time. The owner
  waits for all of them, so each slice has one writer at any moment, and there is no lock that
  a replica that is killed could leave locked.

Assumption: a replica leaves its change alone between its message and the server's next order.

Slices may also lie on other ranks (``workers/ranks/replicas.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

import numpy as np

from syncpretrain.errors import StalledError
from syncpretrain.kernels.arrays import LONG_BLOCK, Array, slices_of
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts
from syncpretrain.settings.fields import AsyncFields

MEMORY = 0.95  # of the mean square of changes (Zheng et al. 2017, DC-ASGD-a)
TINY = np.float32(1e-30)  # keeps 0 / 0 out where nothing has changed yet
# Names in a checkpoint: they stay, or runs that were interrupted could not go on.
MEAN_SQUARE = "mean_square"
SERVER_STATE = "server."  # prefix of the server's names; replicas have prefixes of their own
LATE_CHANGE = "waiting"  # prefix of the number of a change that is not applied yet


class Push(NamedTuple):
    """The result of a push: its staleness, and whether its change was taken."""

    staleness: int
    is_taken: bool


class ParameterServer:
    """Parameters in this process, which replicas fetch, and to which they push changes.

    Servers on ranks have the same methods (``workers/ranks/replicas.py``); a vector is there the
    number of a replica.

    Parameters
    ----------
    parameters : ndarray of shape (n,), float32
        Changed in place.
    rules : AsyncFields
    servers : int
        Number of slices. Each has a thread of its own from :meth:`start` to :meth:`end`.

    Attributes
    ----------
    clock : int
        Changes taken so far.
    refused : int
        Changes that were too stale.
    slices : list of slice
    mean_square : ndarray of shape (n,) or (0,), float32
        The mean squares of the changes so far, if they are compensated.
    """

    def __init__(self, parameters: Array, rules: AsyncFields, servers: int = 1) -> None:
        self.parameters, self.rules = parameters, rules
        self.clock = self.refused = 0
        self.slices = slices_of(len(parameters), servers)
        size = len(parameters) if rules.delay_compensation else 0
        self.mean_square = np.zeros(size, dtype=np.float32)
        self._parts = [
            (own, ServerSlice(parameters[own], self.mean_square[own], rules)) for own in self.slices
        ]
        self._threads: SliceThreads | None = None

    def start(self) -> None:
        """Start the threads of the slices, if there are several, before any replica."""
        if len(self.slices) > 1:
            self._threads = SliceThreads(len(self.slices))

    def settle(self) -> None:
        """Wait until all changes are added: a push returns when its change is."""

    def end(self) -> None:
        """End the threads of the slices; called whatever happened."""
        if self._threads is not None:
            self._threads.close()
            self._threads = None

    def fetch(self, out: Array) -> int:
        """Copy the parameters to ``out``; return the clock, the number of changes taken so far."""
        self._each(lambda own, part: np.copyto(out[own], part.parameters))
        return self.clock

    def push(self, change: Array, then: int, fetched: Array) -> Push:
        """Add a change, scaled and compensated by the rules; use it up."""
        push = self.decide(then)
        if push.is_taken:
            self._add(change, push.staleness, fetched)
        return push

    def decide(self, then: int) -> Push:
        """Return whether a change of the parameters at the clock ``then`` is taken, and count."""
        # A replica counts its own pushes into ``then``, so that only pushes of others are left.
        staleness = self.clock - then
        return self.counted(Push(staleness, self.rules.takes(staleness)))

    def counted(self, push: Push) -> Push:
        """Return a push, counted as taken or as refused."""
        self.clock += push.is_taken
        self.refused += not push.is_taken
        return push

    def state(self) -> dict[str, Array]:
        """Return the next push's inputs except the parameters, by name; live arrays."""
        return {MEAN_SQUARE: self.mean_square} if self.rules.delay_compensation else {}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go back to what :meth:`state` held, which is a part of the state of replicas."""
        if self.rules.delay_compensation:
            np.copyto(self.mean_square, state[SERVER_STATE + MEAN_SQUARE])

    def add_late(self, state: Mapping[str, Array]) -> None:
        """Add the changes that wait in the state of replicas that took turns, however stale."""
        number = 0
        while (task := state.get(f"{LATE_CHANGE}{number}.task")) is not None:
            # Saved as staleness at the checkpoint; each change added before it makes it one staler.
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


class ServerSlice:
    """A slice of the parameters, changed in place by its owner.

    Changes are compensated for their delay if the rules say so (Zheng et al. 2017). With a gradient
    g at the parameters w', the one at w is about g + lambda g*g*(w - w'), in which g*g stands for
    the diagonal of the Hessian. With the adaptive lambda = lambda_0 / sqrt(mean of g*g) and a
    change d = -rate g the rate drops out, and d becomes
    d - lambda_0 d*d / sqrt(mean of d*d) (w - w').

    Parameters
    ----------
    parameters, mean_square : ndarray of shape (n,), float32
        The second holds the decaying mean of the squared changes, 0 at first, and is empty without
        a compensation.
    rules : AsyncFields
        ``delay_compensation`` is lambda_0.
    """

    def __init__(self, parameters: Array, mean_square: Array, rules: AsyncFields) -> None:
        self.parameters, self.mean_square = parameters, mean_square
        self._strength = np.float32(rules.delay_compensation)
        self._scratch = np.empty(min(len(mean_square), LONG_BLOCK), dtype=np.float32)

    def add(self, change: Array, share: float, fetched: Array) -> None:
        """Add a share of a change of the parameters ``fetched``, compensated; use it up."""
        # A replica that diverged pushes infinities; whoever trains finds them in its error.
        with np.errstate(over="ignore", invalid="ignore"):
            if self._strength:
                self.compensate(change, fetched)
            if share != 1:
                change *= np.float32(share)
            self.parameters += change

    def compensate(self, change: Array, fetched: Array) -> None:
        """Correct in place a change made from ``fetched``, to be added to the parameters."""
        # In blocks, so that all passes but the first find their numbers in the cache.
        for start in range(0, len(change), LONG_BLOCK):
            block = slice(start, start + LONG_BLOCK)
            d, mean = change[block], self.mean_square[block]
            square = np.multiply(d, d, out=self._scratch[: len(d)])
            mean *= np.float32(MEMORY)
            mean += np.float32(1 - MEMORY) * square
            square *= self._strength
            square /= np.sqrt(mean) + TINY
            square *= self.parameters[block] - fetched[block]
            d -= square


SliceWork = Callable[[int], None]  # given the number of a slice


class SliceThreads:
    """Threads that work the slices of a vector at the same time; the caller works the first.

    Their copies and sums of long arrays release the interpreter's lock, so that they share the
    bandwidth of several cores.

    Parameters
    ----------
    slices : int
    times : Timeouts
        ``stall`` bounds a piece of work, ``join`` the end.
    """

    def __init__(self, slices: int, times: Timeouts = TIMEOUTS) -> None:
        self._slices, self._times = slices, times
        self._pool = ThreadPoolExecutor(slices - 1, thread_name_prefix="syncpretrain-slice")
        self._running: list[Future[None]] = []

    def run(self, work: SliceWork) -> None:
        """Work every slice; return when all are done.

        Raises
        ------
        StalledError
            If a slice is not done in time.
        """
        self._running = [self._pool.submit(work, number) for number in range(1, self._slices)]
        try:
            work(0)
        finally:  # after an error too, no slice is at work any more
            if wait(self._running, self._times.stall).not_done:
                raise StalledError(
                    f"a slice of the parameter server was not done in {self._times.stall:g} s"
                )
        for future in self._running:
            future.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False)
        if wait(self._running, self._times.join).not_done:
            raise StalledError("a slice of the parameter server did not end its work")
        self._pool.shutdown()
