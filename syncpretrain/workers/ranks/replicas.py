"""Replicas of asynchronous training on the ranks of a job, and rank 0's part in the training.

By default rank 0 is the server: an order that fetches carries the parameters, an answer carries the
change. An order is a task for a replica.

With several servers, these are on ranks too, and replicas exchange slices of parameters and changes
with the servers. Rank 0 keeps the clock and makes the decisions: whether a change is taken, with
which share, and when a replica fetches. Every server gets the same decisions in the same order, so
that a change is in all slices or in none, and the result has the bits of one server.

With windows, replicas fetch parameters and add changes without a server. Rank 0, or the ranks of
the slices, only have the memory. The clock is three whole numbers on rank 0: a change draws the
next number, is added, and counts as added once it is whole in every slice. The staleness of a
change is the number of changes that drew a number before it and were not added when its replica
fetched; a change on its way counts.

* No change is lost, and no element torn. A replica that fetches while a change is being added gets
  a part of the change; the rest comes with the next fetch.
* A change that is too stale is not added. Changes that are pushed at the same time may count one
  that is about to be refused: no change is added too stale, but some are made anew without need.

A lost rank ends the run, as MPI ends the job; the run resumes from its checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from syncpretrain.cluster.job import member
from syncpretrain.cluster.windows import Windows
from syncpretrain.errors import WorkerError
from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas import steps
from syncpretrain.parallel.replicas.server import ParameterServer, Push, ServerSlice
from syncpretrain.parallel.timeouts import Deadline, Timeouts
from syncpretrain.settings.fields import AsyncFields
from syncpretrain.workers.link import Obey, Raised, described, place_of
from syncpretrain.workers.ranks.placement import spread
from syncpretrain.workers.ranks.run import RankLink, RunRanks
from syncpretrain.workers.ranks.worker import Assignment, RankContext, port


@dataclass(frozen=True, slots=True)
class ServerRank:
    """Number and rank of a server, and its slice of the parameters."""

    number: int
    rank: int
    own: slice


class RemoteServer(ABC):
    """A :class:`~syncpretrain.parallel.replicas.server.ParameterServer` with slices on ranks.

    Numbers of replicas stand for their vectors.

    Parameters
    ----------
    own : ParameterServer
        Holds the parameters of the last :meth:`settle`.
    replicas : int
        Number of replicas. Replicas are numbered from 1, slices from ``replicas + 1``.
    times : Timeouts
        Only ``stall`` and ``tick`` are used.
    """

    def __init__(self, own: ParameterServer, replicas: int, times: Timeouts) -> None:
        self._own, self._times = own, times
        self._replicas = range(1, replicas + 1)
        self._slices = dict(enumerate(own.slices, start=replicas + 1))
        self._ranks: RunRanks | None = None

    @abstractmethod
    def start(self) -> None:
        """Bring the parameters to the ranks."""

    def state(self) -> dict[str, Array]:
        """Return the server's state at the last :meth:`settle`."""
        return self._own.state()

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go back to a state."""
        self._own.load_state(state)
        self._resend()

    def add_late(self, state: Mapping[str, Array]) -> None:
        """Add the changes that wait in a state."""
        self._own.add_late(state)
        self._resend()

    def _resend(self) -> None:
        if self._ranks is not None:
            self.start()


class RankServers(RemoteServer):
    """Servers on ranks, one slice on each."""

    _failure: BaseException | None = None

    def begin(self, ranks: RunRanks) -> tuple[tuple[ServerRank, ...], list[ServerAssignment]]:
        """Return the servers for the replicas' jobs, and the jobs of the servers."""
        self._ranks = ranks
        # A server needs the rank of each replica, since it sends slices there by itself.
        where = {number: ranks.groups[number][0] for number in self._replicas}
        known = tuple(
            ServerRank(number, ranks.groups[number][0], own) for number, own in self._slices.items()
        )
        return known, [ServerAssignment(number, self._own.rules, where) for number in self._slices]

    def fail(self, error: BaseException) -> None:
        """Store the error of a server, for :meth:`settle`; the transport's thread calls this."""
        self._failure = error

    def start(self) -> None:
        """Send every server its slice."""
        mean_square = self._own.mean_square
        for number, own in self._slices.items():
            values, squares = self._own.parameters[own].copy(), mean_square[own].copy()
            self._send(number, partial(SliceServer.set, values=values, mean_square=squares))

    def end(self) -> None:
        """Forget the ranks; they end with the replicas."""
        self._ranks = None

    def fetch(self, out: int) -> int:
        """Tell every server to send its slice to a replica; return the clock."""
        self._send_all(partial(SliceServer.send, replica=out))
        return self._own.clock

    def push(self, change: int, then: int, fetched: int) -> Push:
        """Tell every server to add its slice of a replica's change, or to drop the slice."""
        push = self._own.decide(then)
        # The servers are told of a dropped change too: its slices are on their way, and must be
        # taken out of the ports.
        share = self._own.rules.share(push.staleness) if push.is_taken else None
        self._send_all(partial(SliceServer.take, replica=change, share=share))
        return push

    def settle(self) -> None:
        """Wait for all changes, and copy the parameters to this process.

        Raises
        ------
        WorkerError
            If a server has failed, or its rank is lost.
        StalledError
            If a server does not answer.
        """
        # Orders of one sender keep their order: a report comes after all changes before it.
        self._send_all(SliceServer.report)
        missing = set(self._slices)
        deadline = Deadline(self._times.stall)
        assert self._ranks is not None
        while missing:
            found = self._ranks.take("reports", self._times.tick)
            # The failure of a server comes before its report, which then lacks a change.
            if self._failure is not None:
                raise self._failure
            if found is not None:
                _, now = found
                own = self._slices[now.server]
                np.copyto(self._own.parameters[own], now.values)
                np.copyto(self._own.mean_square[own], now.mean_square)
                missing.discard(now.server)
                continue
            for number in missing:
                how = self._ranks.lost(number)
                if how is not None:
                    raise WorkerError(f"parameter server {number - len(self._replicas)}: {how}")
            deadline.check(f"{len(missing)} parameter servers sent no parameters for")

    def _send_all(self, order: ServerOrder) -> None:
        for number in self._slices:
            self._send(number, order)

    def _send(self, number: int, order: ServerOrder) -> None:
        assert self._ranks is not None
        self._ranks.send(number, "orders", order)


DRAWN_CHANGES, REFUSED_CHANGES, ADDED_CHANGES = range(3)  # places of the clock's numbers
CLOCK_SIZE = 3
CLOCK_RANK = 0  # holds the clock, and the parameters too if they are not cut into slices


@dataclass(frozen=True, slots=True)
class WindowSlice:
    """A slice of the parameters in a window.

    ``at`` is the begin of the slice in the vector of the ``rank``; ``own`` is the slice of the
    parameters.
    """

    rank: int
    at: int
    own: slice


@dataclass(frozen=True, slots=True)
class WindowPlaces:
    """Names of a run's windows, the places of the slices, and the rules of the training."""

    parameters: str
    clock: str
    slices: tuple[WindowSlice, ...]
    rules: AsyncFields


class ParameterWindows:
    """Access to the parameters of a run, from any rank.

    Parameters
    ----------
    windows : Windows
    places : WindowPlaces
    """

    def __init__(self, windows: Windows, places: WindowPlaces) -> None:
        self._windows, self._places = windows, places

    def fetch(self, out: Array) -> int:
        """Copy the parameters to ``out``; return the number of changes that are whole in them."""
        # Read before the parameters: a change that is added meanwhile counts as missing in them.
        added = self._count(ADDED_CHANGES, 0)
        self.read(out)
        return added

    def push(self, change: Array, then: int) -> Push:
        """Add a share of a change to the parameters; overwrite ``change``.

        ``then`` is the clock at which the replica fetched the parameters.
        """
        rules, refused = self._places.rules, 0
        if rules.max_staleness is not None:
            # Read before the drawn number: the staleness may be found too high, never too low.
            refused = self._count(REFUSED_CHANGES, 0)
            staleness = self._count(DRAWN_CHANGES, 0) - refused - then
            if not rules.takes(staleness):
                return Push(staleness, is_taken=False)
        # Drawn before it is added: replicas that push meanwhile count it in their staleness.
        staleness = self._count(DRAWN_CHANGES, 1) - refused - then
        if not rules.takes(staleness):
            self._count(REFUSED_CHANGES, 1)
            return Push(staleness, is_taken=False)
        share = rules.share(staleness)
        if share != 1:
            with np.errstate(over="ignore", invalid="ignore"):  # the training checks the result
                change *= np.float32(share)
        self._of_each_slice(self._windows.add, change)
        self._count(ADDED_CHANGES, 1)
        return Push(staleness, is_taken=True)

    def begin(self, parameters: Array) -> None:
        """Set the parameters, and the clock to 0, before any replica has an order."""
        self._of_each_slice(self._windows.put, parameters)
        self._windows.put(self._places.clock, CLOCK_RANK, 0, np.zeros(CLOCK_SIZE, np.int64))

    def read(self, out: Array) -> None:
        """Copy the parameters to ``out``."""
        self._of_each_slice(self._windows.get, out)

    def close(self) -> None:
        """Close the windows, on all ranks."""
        for name in (self._places.parameters, self._places.clock):
            self._windows.close(name)

    def _of_each_slice(self, access: Callable[[str, int, int, Array], None], whole: Array) -> None:
        for part in self._places.slices:
            access(self._places.parameters, part.rank, part.at, whole[part.own])

    def _count(self, which: int, more: int) -> int:
        return self._windows.fetch_and_add(self._places.clock, CLOCK_RANK, which, more)


class WindowServer(RemoteServer):
    """Parameters in windows of the ranks.

    Replicas fetch and push by themselves; the answer of a replica has the outcome of its push.
    """

    def begin(self, ranks: RunRanks) -> tuple[WindowPlaces, list[ServerAssignment]]:
        """Open the windows; return their places for the replicas' jobs, and no jobs of servers."""
        windows = ranks.transport.windows
        lengths, parts = [0] * ranks.transport.size, list[WindowSlice]()
        # Slices on one rank lie one after another in that rank's vector.
        for number, own in self._slices.items():
            rank = ranks.groups[number][0] if len(self._slices) > 1 else CLOCK_RANK
            parts.append(WindowSlice(rank, lengths[rank], own))
            lengths[rank] += own.stop - own.start
        names = f"parameters of run {ranks.run}", f"clock of run {ranks.run}"
        places = WindowPlaces(*names, tuple(parts), self._own.rules)
        windows.open(places.parameters, lengths, "float32")
        clock = [CLOCK_SIZE if rank == CLOCK_RANK else 0 for rank in range(len(lengths))]
        windows.open(places.clock, clock, "int64")
        self._ranks, self._parameters = ranks, ParameterWindows(windows, places)
        return places, []

    def start(self) -> None:
        """Set the parameters."""
        self._parameters.begin(self._own.parameters)

    def end(self) -> None:
        """Close the windows, unless a rank does not answer and the job will be aborted."""
        ranks, self._ranks = self._ranks, None
        if ranks is not None and not ranks.own.broken:
            self._parameters.close()

    def fetch(self, out: int) -> int:
        """Return 0: the replica itself fetches, and knows the clock."""
        return 0

    def push(self, change: int, then: int, fetched: int) -> Push:
        """Return the outcome of the change that the replica has pushed."""
        assert self._ranks is not None
        link = self._ranks.links[change]
        assert isinstance(link, ReplicaLink) and link.push is not None
        push, link.push = link.push, None
        return self._own.counted(push)

    def settle(self) -> None:
        """Copy the parameters to this process; no replica is at work."""
        self._parameters.read(self._own.parameters)


@dataclass(frozen=True, slots=True)
class SliceOf:
    """Slice of a vector, from or to a server; only a report has ``mean_square``."""

    server: int
    values: Array
    mean_square: Array | None = None


@dataclass(frozen=True, slots=True)
class ReplicaOrder:
    """Message to a replica: an order, with the parameters if the order fetches them."""

    order: steps.Work | steps.Save | steps.Load
    fetched: Array | None


@dataclass(frozen=True, slots=True)
class Changed:
    """Answer of a replica that trained.

    ``change`` is None with servers or windows; ``push`` is the outcome of a push to windows.
    """

    errors: tuple[float, ...]
    change: Array | None
    push: Push | None


class ReplicaLink(RankLink):
    """Link to a replica on a rank.

    Parameters
    ----------
    number, ranks
        See :class:`RankLink`.
    size : int
        Length of the vectors that the replica exchanges with rank 0; 0 with servers or windows.

    Attributes
    ----------
    push : Push or None
        The outcome of the replica's last push to windows.
    """

    def __init__(self, number: int, ranks: RunRanks, size: int) -> None:
        super().__init__(number, ranks)
        self.fetched, self.change = (np.empty(size, np.float32) for _ in range(2))
        self.push: Push | None = None

    def send(self, order: Any) -> None:
        """Send an order, with the parameters if the order fetches them."""
        fetches = bool(self.fetched.size) and isinstance(order, steps.Work) and order.fetches
        super().send(ReplicaOrder(order, self.fetched if fetches else None))

    def receive(self) -> Any:
        """Return the next answer, and copy its change to :attr:`change`.

        Raises
        ------
        WorkerError
            If the replica's rank was lost: MPI ends the job.
        """
        found = super().receive()
        if found is None:
            raise WorkerError(f"replica {self.number} failed: {self.ending()}")
        if not isinstance(found, Changed):
            return found
        if found.change is not None:
            np.copyto(self.change, found.change)
        self.push = found.push
        return found.errors


class ServerLink(RankLink):
    """Link to a server on a rank; the failure of a server is the failure of all replicas."""

    def __init__(self, number: int, ranks: RunRanks, fail: Callable[[WorkerError], None]) -> None:
        super().__init__(number, ranks)
        self._fail = fail

    def take(self, source: int, answer: Raised) -> None:
        """Pass on the failure of the server; a server answers nothing else."""
        cause = self.placed(source, answer).error
        error = WorkerError(f"a parameter server failed{place_of(cause)}: {described(cause)}")
        error.__cause__ = cause
        self._fail(error)
        for link in self.ranks.links.values():
            link.put(Raised(error))


@dataclass(eq=False)
class RankReplicas:
    """Replicas and servers on ranks; with fewer ranks than these, a rank holds several.

    Parameters
    ----------
    own, factory, data, replicas, times, exchange
        See :func:`syncpretrain.workers.replicas.replicas_in`; ``own`` is its ``server``.
    """

    own: ParameterServer
    factory: steps.ReplicaFactory
    data: tuple[Array, ...]
    replicas: int
    times: Timeouts
    exchange: str

    def __post_init__(self) -> None:
        self._ranks: RunRanks | None = None
        self._servers: RankServers | WindowServer | None = None
        given = self.own, self.replicas, self.times
        if self.exchange == "windows":
            self._servers = WindowServer(*given)
        elif len(self.own.slices) > 1:
            self._servers = RankServers(*given)
        self.server: ParameterServer | RankServers | WindowServer = self._servers or self.own

    def start(self) -> list[tuple[RankLink, Any, Any]]:
        """Start all; return the link and the vectors of each replica, or twice its number."""
        servers, numbers = self._servers, range(1, self.replicas + 1)
        slices = len(self.own.slices)
        count = self.replicas + (slices if slices > 1 else 0)
        own, called = member(), "replica {} failed: "
        groups = spread(count, own.transport.size)
        ranks = RunRanks(own, groups, self.times, called=called, link=self._link)
        self._ranks = ranks
        known, others = ((), list[ServerAssignment]()) if servers is None else servers.begin(ranks)
        given = self.factory, self.data, len(self.own.parameters), known
        ranks.start([*(ReplicaAssignment(number, *given) for number in numbers), *others])
        links = [ranks.links[number] for number in numbers]
        if servers is not None:  # servers take the number of a replica in place of a vector
            return [(link, link.number, link.number) for link in links]
        return [(x, x.fetched, x.change) for x in links if isinstance(x, ReplicaLink)]

    def end(self) -> list[str]:
        """End all; return the names of the replicas and servers that did not end in time."""
        ranks, self._ranks = self._ranks, None
        return [] if ranks is None else ranks.end()

    def _link(self, number: int, ranks: RunRanks) -> RankLink:
        servers = self._servers
        if isinstance(servers, RankServers) and number > self.replicas:
            return ServerLink(number, ranks, servers.fail)
        return ReplicaLink(number, ranks, len(self.own.parameters) if servers is None else 0)


@dataclass(frozen=True, slots=True)
class ReplicaAssignment(Assignment):
    """Job of a replica of an asynchronous run: its number, factory and data.

    The replica gets parameters and answers with a change. ``size`` is the number of parameters,
    which it exchanges with ``servers`` or by windows, or through rank 0 if ``servers`` is empty.
    """

    factory: steps.ReplicaFactory
    data: tuple[Array, ...]
    size: int
    servers: tuple[ServerRank, ...] | WindowPlaces = ()

    @contextmanager
    def open(self, context: RankContext) -> Iterator[Obey]:
        """Return the context of the worker; see :class:`syncpretrain.workers.link.Job`."""
        fetched, change = (np.empty(self.size, np.float32) for _ in range(2))
        local = steps.LocalSteps(self.factory(self.data), fetched, change)
        exchange: Exchange | None = None
        if isinstance(self.servers, WindowPlaces):
            exchange = ParameterWindows(context.transport.windows, self.servers)
        elif self.servers:
            exchange = _WithServers(context, self.servers)
        known = 0  # the clock of its parameters

        def obey(order: ReplicaOrder) -> Any:
            """Return the answer to an order, or None if the run ends first."""
            nonlocal known
            if order.fetched is not None:
                np.copyto(fetched, order.fetched)
            if exchange is not None and isinstance(order.order, steps.Work) and order.order.fetches:
                clock = exchange.fetch(fetched)
                if clock is None:
                    return None
                known = clock
            found = steps.answer(local, order.order)
            if isinstance(found, dict):
                return found
            # The change is not overwritten before the next order, which comes once rank 0 has it.
            if exchange is None:
                return Changed(found, change, None)
            push = exchange.push(change, known)
            known += push is not None and push.is_taken  # its own push is no staleness
            return Changed(found, None, push)

        yield obey


class _WithServers:
    """Exchange of a replica with servers on ranks."""

    def __init__(self, context: RankContext, servers: Sequence[ServerRank]) -> None:
        self._context, self._servers = context, servers

    def fetch(self, out: Array) -> int | None:
        """Copy the slices of the parameters to ``out``; return 0, None if the run ends first.

        Rank 0 has the clock.
        """
        parts = {server.number: server.own for server in self._servers}
        for _ in parts:
            found = self._context.take("slices", self._context.number)
            if found is None:
                return None
            out[parts[found.server]] = found.values
        return 0

    def push(self, change: Array, then: int) -> Push | None:
        """Send each server its slice of the change; rank 0 says what becomes of it."""
        # A copy: the next change may overwrite the array before it is sent.
        whole, context = change.copy(), self._context
        for server in self._servers:
            to = port(context.run, f"change {server.number}", context.number)
            context.transport.send(server.rank, to, SliceOf(server.number, whole[server.own]))
        return None


Exchange = _WithServers | ParameterWindows


@dataclass(frozen=True, slots=True)
class ServerAssignment(Assignment):
    """Job of a server of a slice of the parameters: its number, and the rank of each replica.

    Replicas get the slice from the server, and send it their changes. A replica sends its change
    before its answer to rank 0, so the server's wait for a change that rank 0 has decided about
    ends. A server answers only with an error.
    """

    rules: AsyncFields
    replicas: Mapping[int, int]

    @contextmanager
    def open(self, context: RankContext) -> Iterator[Obey]:
        """Return the context of the worker; see :class:`syncpretrain.workers.link.Job`."""
        server = SliceServer(context, self)
        yield lambda order: order(server)


class SliceServer:
    """A server of a slice of the parameters; an order calls one of its methods."""

    def __init__(self, context: RankContext, assignment: ServerAssignment) -> None:
        self._context, self._assignment = context, assignment
        self._sent: dict[int, Array] = {}  # last slice sent to each replica, for the compensation

    def set(self, values: Array, mean_square: Array) -> None:
        """Set the parameters, and the mean squares for the compensation."""
        own = np.array(values), np.array(mean_square)
        self._slice = ServerSlice(*own, self._assignment.rules)

    def send(self, replica: int) -> None:
        """Send a replica the current parameters."""
        context, values = self._context, self._slice.parameters.copy()
        self._sent[replica] = values
        rank, to = self._assignment.replicas[replica], port(context.run, "slices", replica)
        context.transport.send(rank, to, SliceOf(context.number, values))

    def take(self, replica: int, share: float | None) -> None:
        """Add a share of a replica's next change; None drops the change."""
        found = self._context.take(f"change {self._context.number}", replica)
        if found is not None and share is not None:
            self._slice.add(np.array(found.values), share, self._sent[replica])

    def report(self) -> None:
        """Send rank 0 the slice."""
        own = self._slice.parameters.copy(), self._slice.mean_square.copy()
        self._context.send("reports", SliceOf(self._context.number, *own))


ServerOrder = Callable[[SliceServer], None]
