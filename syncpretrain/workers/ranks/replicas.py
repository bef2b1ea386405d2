"""Replicas of asynchronous training on the ranks of a job: as rank 0 uses them, and as they work.

By default rank 0 is the server: an order that fetches carries the parameters, an answer the change.
A replica gets a task an order.

With several servers these have ranks too, and replicas exchange slices of parameters and changes
with them. Rank 0 keeps the clock and decides: whether a change is taken, with which share, and what
a replica fetches. Every server gets the same decisions in the same order, so that a change is in
all slices or in none, and the result has the bits of one server.

With windows, replicas fetch parameters and add their changes without a server's help. Rank 0 or the
ranks of the servers only have the memory. Three whole numbers on rank 0 are the clock: a change
draws the next number, is added, and counts as added when it is whole in every slice. Its staleness
is the number of changes that drew before it and were not added when its replica fetched, so that
one that is on its way counts.

* No change is lost, and no element torn; who fetches while a change is being added gets a part of
  it, as the rest comes with the next fetch.
* A change that is too stale is not added. Changes that meet there may count one that is about to be
  refused: they are never added too stale, and may be made anew without need.

A rank that is lost ends the run, as MPI ends the job; the run resumes from its checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from syncpretrain.cluster.job import member
from syncpretrain.cluster.windows import Windows
from syncpretrain.errors import StalledError, WorkerError
from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas.server import ParameterServer, Push, Server, ServerSlice
from syncpretrain.parallel.replicas.steps import (
    Load,
    LocalSteps,
    ReplicaFactory,
    Save,
    Work,
    Worked,
    answer,
)
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.settings.fields import AsyncFields
from syncpretrain.workers.link import Obey, Raised, described, place_of
from syncpretrain.workers.ranks.messages import Assignment, port
from syncpretrain.workers.ranks.placement import spread
from syncpretrain.workers.ranks.run import RankLink, RunRanks
from syncpretrain.workers.ranks.worker import RankContext

__all__ = [
    "CLOCK_SIZE",
    "ParameterWindows",
    "RankReplicas",
    "WindowPlaces",
    "WindowSlice",
]


@dataclass(frozen=True, slots=True)
class ServerRank:
    """A server of a slice of the parameters, as replicas see it: its number and its rank."""

    number: int
    rank: int
    own: tuple[int, int]  # where the slice begins and ends


class RankServers:
    """A :class:`~syncpretrain.parallel.replicas.server.Server` of replicas by their numbers.

    Parameters
    ----------
    own : ParameterServer
        Its parameters here are as of the last :meth:`settle`.
    replicas : int
        Numbered from 1; servers have the numbers after theirs.
    times : Timeouts
        Only ``stall`` and ``tick`` are used.
    """

    def __init__(self, own: ParameterServer, replicas: int, times: Timeouts) -> None:
        self._own, self._times = own, times
        self._replicas = range(1, replicas + 1)
        self._slices = dict(enumerate(own.slices, start=replicas + 1))
        self._ranks: RunRanks | None = None
        self._failure: BaseException | None = None

    def begin(self, ranks: RunRanks) -> tuple[tuple[ServerRank, ...], list[ServerAssignment]]:
        """Return the servers as replicas have to know them, and what their ranks are sent."""
        self._ranks = ranks
        # A server must know where each replica is, for it sends slices there by itself.
        where = {number: ranks.groups[number][0] for number in self._replicas}
        known = tuple(
            ServerRank(number, ranks.groups[number][0], (own.start, own.stop))
            for number, own in self._slices.items()
        )
        return known, [ServerAssignment(number, self._own.rules, where) for number in self._slices]

    def fail(self, error: BaseException) -> None:
        """Keep the error of a server, in the thread of the transport; :meth:`settle` raises it."""
        self._failure = error

    def start(self) -> None:
        """Send every server its slice."""
        mean_square = self._own.mean_square
        for number, own in self._slices.items():
            self._send(number, SetSlice(self._own.parameters[own].copy(), mean_square[own].copy()))

    def end(self) -> None:
        """Leave the ranks, which end with the replicas."""
        self._ranks = None

    def fetch(self, out: int) -> int:
        """Have every server send its slice to a replica; return the clock."""
        self._send_all(SendSlice(out))
        return self._own.clock

    def push(self, change: int, then: int, fetched: int) -> Push:
        """Have every server add its slice of a replica's change, or drop it."""
        push = self._own.decide(then)
        # Also for a change that is dropped: its slices are on their way to the servers, and must be
        # taken out of their ports.
        share = self._own.rules.share(push.staleness) if push.is_taken else None
        self._send_all(TakeChange(change, share))
        return push

    def settle(self) -> None:
        """Wait for all changes, and bring the parameters here.

        Raises
        ------
        WorkerError
            If a server has failed, or its rank is lost.
        StalledError
            If a server does not answer.
        """
        # Orders of one sender keep their order: a report comes after all changes before it.
        self._send_all(ReportSlice())
        missing = set(self._slices)
        deadline = time.monotonic() + self._times.stall
        assert self._ranks is not None
        while missing:
            found = self._ranks.take("reports", self._times.tick)
            # The failure of a server comes before its report, which lacks a change then.
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
            if time.monotonic() > deadline:
                raise StalledError(
                    f"{len(missing)} parameter servers sent no parameters for"
                    f" {self._times.stall:g} s"
                )

    def state(self) -> dict[str, Array]:
        """Return what the next push depends on, as of the last :meth:`settle`."""
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

    def _send_all(self, order: Any) -> None:
        for number in self._slices:
            self._send(number, order)

    def _send(self, number: int, order: Any) -> None:
        assert self._ranks is not None
        self._ranks.send(number, "orders", order)


DRAWN_CHANGES, REFUSED_CHANGES, ADDED_CHANGES = range(3)  # of the clock
CLOCK_SIZE = 3
CLOCK_RANK = 0  # whose windows hold the parameters too, where they are not cut into slices


@dataclass(frozen=True, slots=True)
class WindowSlice:
    """A slice of the parameters in a window: its rank, and where in that rank's vector it begins.

    It is ``own`` of the parameters, from the first to the one behind the last.
    """

    rank: int
    at: int
    own: tuple[int, int]


@dataclass(frozen=True, slots=True)
class WindowPlaces:
    """The windows of a run: their names, where each slice of the parameters is, and the rules."""

    parameters: str
    clock: str
    slices: tuple[WindowSlice, ...]
    rules: AsyncFields


class ParameterWindows:
    """The parameters of a run, from any rank.

    Parameters
    ----------
    windows : Windows
    places : WindowPlaces
    """

    def __init__(self, windows: Windows, places: WindowPlaces) -> None:
        self._windows, self._places = windows, places

    def fetch(self, out: Array) -> int:
        """Copy the parameters to ``out``; return the number of changes that are all in them."""
        added = self._count(ADDED_CHANGES, 0)
        self.read(out)
        return added

    def push(self, change: Array, then: int) -> Push:
        """Add a share of a change of parameters fetched at ``then``; use it up."""
        rules, refused = self._places.rules, 0
        if rules.max_staleness is not None:
            # Before the other number: rather too stale than too fresh.
            refused = self._count(REFUSED_CHANGES, 0)
            staleness = self._count(DRAWN_CHANGES, 0) - refused - then
            if not rules.takes(staleness):
                return Push(staleness, is_taken=False)
        staleness = self._count(DRAWN_CHANGES, 1) - refused - then
        if not rules.takes(staleness):
            self._count(REFUSED_CHANGES, 1)
            return Push(staleness, is_taken=False)
        share = rules.share(staleness)
        if share != 1:
            with np.errstate(over="ignore", invalid="ignore"):  # who trains looks at the result
                change *= np.float32(share)
        name = self._places.parameters
        for part in self._places.slices:
            self._windows.add(name, part.rank, part.at, change[slice(*part.own)])
        self._count(ADDED_CHANGES, 1)
        return Push(staleness, is_taken=True)

    def begin(self, parameters: Array) -> None:
        """Set the parameters, and the clock to 0, before any replica has an order."""
        name = self._places.parameters
        for part in self._places.slices:
            self._windows.put(name, part.rank, part.at, parameters[slice(*part.own)])
        self._windows.put(self._places.clock, CLOCK_RANK, 0, np.zeros(CLOCK_SIZE, np.int64))

    def read(self, out: Array) -> None:
        """Copy the parameters to ``out``."""
        name = self._places.parameters
        for part in self._places.slices:
            self._windows.get(name, part.rank, part.at, out[slice(*part.own)])

    def _count(self, which: int, more: int) -> int:
        return self._windows.fetch_and_add(self._places.clock, CLOCK_RANK, which, more)


OnPush = Callable[[int, Push], None]  # given a replica, and what became of its push


class WindowServer:
    """A :class:`~syncpretrain.parallel.replicas.server.Server` without requests to answer.

    Replicas fetch and push by themselves, and answer with what became of their pushes.

    Parameters
    ----------
    own : ParameterServer
        Its parameters here are as of the last :meth:`settle`.
    replicas : int
        Numbered from 1; slices have the numbers after theirs, if there are several.
    """

    def __init__(self, own: ParameterServer, replicas: int) -> None:
        self._own, self._replicas = own, replicas
        self._ranks: RunRanks | None = None
        self._places: WindowPlaces | None = None
        self._parameters: ParameterWindows | None = None
        self._pushes: dict[int, Push] = {}

    def begin(self, ranks: RunRanks) -> tuple[WindowPlaces, list[ServerAssignment]]:
        """Open the windows; return what replicas have to know of them, and no places of servers."""
        self._ranks, windows = ranks, ranks.transport.windows
        lengths, parts = [0] * ranks.transport.size, list[WindowSlice]()
        for number, own in enumerate(self._own.slices, start=self._replicas + 1):
            rank = ranks.groups[number][0] if len(self._own.slices) > 1 else CLOCK_RANK
            parts.append(WindowSlice(rank, lengths[rank], (own.start, own.stop)))
            lengths[rank] += own.stop - own.start
        names = f"parameters of run {ranks.run}", f"clock of run {ranks.run}"
        self._places = WindowPlaces(*names, tuple(parts), self._own.rules)
        windows.open(self._places.parameters, lengths, "float32")
        clock = [CLOCK_SIZE if rank == CLOCK_RANK else 0 for rank in range(len(lengths))]
        windows.open(self._places.clock, clock, "int64")
        self._parameters = ParameterWindows(windows, self._places)
        return self._places, []

    def record(self, number: int, push: Push) -> None:
        """Keep what became of a replica's push, in the thread of the transport."""
        self._pushes[number] = push

    def start(self) -> None:
        """Set the parameters."""
        if self._parameters is not None:
            self._parameters.begin(self._own.parameters)

    def end(self) -> None:
        """Close the windows, unless a rank does not answer: the job is aborted then."""
        parameters, self._parameters = self._parameters, None
        if parameters is None or self._ranks is None or self._ranks.is_given_up:
            return
        assert self._places is not None
        for name in (self._places.parameters, self._places.clock):
            self._ranks.transport.windows.close(name)

    def fetch(self, out: int) -> int:
        """Do nothing: the replica fetches, and knows the clock."""
        return 0

    def push(self, change: int, then: int, fetched: int) -> Push:
        """Return what became of the change that the replica has pushed."""
        push = self._pushes.pop(change)
        if push.is_taken:
            self._own.clock += 1
        else:
            self._own.refused += 1
        return push

    def settle(self) -> None:
        """Bring the parameters here: no replica is at work."""
        assert self._parameters is not None
        self._parameters.read(self._own.parameters)

    def state(self) -> dict[str, Array]:
        """Return nothing: all that the next push depends on is the parameters."""
        return {}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Do nothing: there is no state."""

    def add_late(self, state: Mapping[str, Array]) -> None:
        """Add the changes that wait in a state."""
        self._own.add_late(state)
        self.start()


@dataclass(frozen=True, slots=True)
class SetSlice:
    """Message to a server: its parameters, and what the compensation remembers of them."""

    parameters: Array
    mean_square: Array


@dataclass(frozen=True, slots=True)
class SendSlice:
    """Message to a server: send a replica the parameters as they are now."""

    replica: int


@dataclass(frozen=True, slots=True)
class TakeChange:
    """Message to a server: add a share of a replica's next change, or drop it if None."""

    replica: int
    share: float | None


@dataclass(frozen=True, slots=True)
class ReportSlice:
    """Message to a server: send rank 0 what it has."""


@dataclass(frozen=True, slots=True)
class SliceOf:
    """A slice of a vector, from or to a server; ``mean_square`` is with a report alone."""

    server: int
    values: Array
    mean_square: Array | None = None


@dataclass(frozen=True, slots=True)
class ReplicaOrder:
    """Message to a replica: an order, with the parameters if it fetches them."""

    order: Work | Save | Load
    fetched: Array | None


@dataclass(frozen=True, slots=True)
class Changed:
    """Answer of a replica that trained.

    The ``change`` is here, unless servers have it, or a ``push`` to windows.
    """

    worked: Worked
    change: Array | None
    push: Push | None


class ReplicaLink(RankLink):
    """A replica on a rank.

    Parameters
    ----------
    number, ranks
        See :class:`RankLink`.
    size : int
        Length of the vectors that it exchanges with rank 0, 0 where that has no parameters.
    on_push : callable, optional
        Called with its number and what became of its push to windows.
    """

    def __init__(
        self, number: int, ranks: RunRanks, size: int, on_push: OnPush | None = None
    ) -> None:
        super().__init__(number, ranks)
        self.fetched, self.change = (np.empty(size, np.float32) for _ in range(2))
        self._on_push = on_push

    def send(self, order: Any) -> None:
        """Send an order, with the parameters if it fetches them."""
        fetches = bool(self.fetched.size) and isinstance(order, Work) and order.fetches
        super().send(ReplicaOrder(order, self.fetched if fetches else None))

    def receive(self) -> Any:
        """Return the next answer, and fill the change.

        Raises
        ------
        WorkerError
            If its rank was lost: the job is at its end.
        """
        found = super().receive()
        if found is None:
            raise WorkerError(f"replica {self.number} failed: {self.ending()}")
        if not isinstance(found, Changed):
            return found
        if found.change is not None:
            np.copyto(self.change, found.change)
        if found.push is not None and self._on_push is not None:
            self._on_push(self.number, found.push)
        return found.worked


class ServerLink(RankLink):
    """A server on a rank; its failure is the failure of all replicas."""

    def __init__(self, number: int, ranks: RunRanks, fail: Callable[[WorkerError], None]) -> None:
        super().__init__(number, ranks)
        self._fail = fail

    def take(self, source: int, answer: Raised) -> None:
        """Pass on the failure of the server, which answers nothing else."""
        cause = self.placed(source, answer).error
        error = WorkerError(f"a parameter server failed{place_of(cause)}: {described(cause)}")
        error.__cause__ = cause
        self._fail(error)
        for link in self.ranks.links.values():
            link.put(Raised(error))


class RankReplicas:
    """Replicas and servers on ranks; a rank has several if there are fewer ranks.

    Parameters
    ----------
    server, factory, data, replicas, times, exchange
        See :func:`syncpretrain.workers.replicas.replicas_in`.
    """

    def __init__(
        self,
        server: ParameterServer,
        factory: ReplicaFactory,
        data: tuple[Array, ...],
        replicas: int,
        times: Timeouts,
        exchange: str,
    ) -> None:
        self._parameters, self._size = server, len(server.parameters)
        self._factory, self._data = factory, data
        self._replicas, self._times = replicas, times
        self._ranks: RunRanks | None = None
        self._servers: RankServers | WindowServer | None = None
        if exchange == "windows":
            self._servers = WindowServer(server, replicas)
        elif len(server.slices) > 1:
            self._servers = RankServers(server, replicas, times)

    @property
    def server(self) -> Server[Any]:
        """The server: here, or on ranks."""
        return self._parameters if self._servers is None else self._servers

    def start(self) -> list[tuple[RankLink, Any, Any]]:
        """Start them; return the link of each, and its vectors or twice its number."""
        servers, numbers = self._servers, range(1, self._replicas + 1)
        slices = len(self._parameters.slices)
        count = self._replicas + (slices if slices > 1 else 0)
        own, called = member(), "replica {} failed: "
        groups = spread(count, own.transport.size)
        ranks = RunRanks(own, groups, self._times, called=called, link=self._link)
        self._ranks = ranks
        known, others = ((), list[ServerAssignment]()) if servers is None else servers.begin(ranks)
        given = self._factory, self._data, self._size, known
        ranks.start([*(ReplicaAssignment(number, *given) for number in numbers), *others])
        links = [ranks.links[number] for number in numbers]
        if servers is not None:  # which know replicas by their numbers
            return [(link, link.number, link.number) for link in links]
        return [(x, x.fetched, x.change) for x in links if isinstance(x, ReplicaLink)]

    def end(self) -> list[str]:
        """End them; return the names of those that did not end in time."""
        ranks, self._ranks = self._ranks, None
        return [] if ranks is None else ranks.end()

    def _link(self, number: int, ranks: RunRanks) -> RankLink:
        servers = self._servers
        if isinstance(servers, RankServers) and number > self._replicas:
            return ServerLink(number, ranks, servers.fail)
        on_push = servers.record if isinstance(servers, WindowServer) else None
        return ReplicaLink(number, ranks, self._size if servers is None else 0, on_push)


@dataclass(frozen=True, slots=True)
class ReplicaAssignment(Assignment):
    """A replica of an asynchronous run: its number, what builds it, and what it trains on.

    It gets parameters and answers with changes of them. ``size`` is the number of its parameters.
    The ``servers`` have them, or windows; else rank 0.
    """

    factory: ReplicaFactory
    data: tuple[Array, ...]
    size: int
    servers: tuple[ServerRank, ...] | WindowPlaces = ()

    @property
    def reads_data(self) -> bool:
        """Whether the rank is sent the data of the run, which are here."""
        return False

    @contextmanager
    def open(self, context: RankContext) -> Iterator[Obey]:
        """Return the context of the worker; see :class:`syncpretrain.workers.link.Job`."""
        fetched, change = (np.empty(self.size, np.float32) for _ in range(2))
        steps = LocalSteps(self.factory(self.data), fetched, change)
        exchange: _WithServers | _InWindows | None = None
        if isinstance(self.servers, WindowPlaces):
            windows = ParameterWindows(context.transport.windows, self.servers)
            exchange = _InWindows(windows)
        elif self.servers:
            exchange = _WithServers(context, self.servers)
        yield partial(_trained, steps, exchange)


def _trained(
    steps: LocalSteps, exchange: _WithServers | _InWindows | None, order: ReplicaOrder
) -> Any:
    """Return the answer of a replica to an order, None if the run ends first."""
    if order.fetched is not None:
        np.copyto(steps.fetched, order.fetched)
    fetches = isinstance(order.order, Work) and order.order.fetches
    if fetches and exchange is not None and not exchange.fetch(steps.fetched):
        return None
    found = answer(steps, order.order)
    if not isinstance(found, Worked):
        return found
    # It stays as it is until the next order, which comes when rank 0 has it.
    if exchange is None:
        return Changed(found, steps.change, None)
    return Changed(found, None, exchange.push(steps.change))


class _WithServers:
    """Exchange of slices with servers on ranks."""

    def __init__(self, context: RankContext, servers: Sequence[ServerRank]) -> None:
        self._context, self._servers = context, servers

    def fetch(self, out: Array) -> bool:
        """Take the slices of the parameters; return False if the run ends first."""
        parts = {server.number: slice(*server.own) for server in self._servers}
        for _ in parts:
            found = self._context.take("slices", self._context.number)
            if found is None:
                return False
            out[parts[found.server]] = found.values
        return True

    def push(self, change: Array) -> None:
        """Send each server its slice of a copy: the next change may be there before it is sent."""
        whole, context = change.copy(), self._context
        for server in self._servers:
            part = SliceOf(server.number, whole[slice(*server.own)])
            to = port(context.run, f"change {server.number}", context.number)
            context.transport.send(server.rank, to, part)


class _InWindows:
    """Exchange through windows."""

    def __init__(self, parameters: ParameterWindows) -> None:
        self._parameters, self._known = parameters, 0

    def fetch(self, out: Array) -> bool:
        """Fetch the parameters, and the clock."""
        self._known = self._parameters.fetch(out)
        return True

    def push(self, change: Array) -> Push:
        """Add a share of the change, which is used up."""
        push = self._parameters.push(change, self._known)
        self._known += push.is_taken  # of its own push it knows
        return push


@dataclass(frozen=True, slots=True)
class ServerAssignment(Assignment):
    """A server of a slice of the parameters: its number, and the rank of each replica.

    Replicas fetch the slice, and send their changes of it. A replica's change is on its way before
    rank 0 knows of it, so waiting for one that rank 0 has decided about ends. Nothing is answered
    but an error.
    """

    rules: AsyncFields
    replicas: Mapping[int, int]

    @property
    def reads_data(self) -> bool:
        """Whether the rank is sent the data of the run."""
        return False

    @contextmanager
    def open(self, context: RankContext) -> Iterator[Obey]:
        """Return the context of the worker; see :class:`syncpretrain.workers.link.Job`."""
        yield _Server(context, self).obey


class _Server:
    def __init__(self, context: RankContext, assignment: ServerAssignment) -> None:
        self._context, self._assignment = context, assignment
        self._slice: ServerSlice | None = None
        self._sent: dict[int, Array] = {}  # to each replica last, for the compensation

    def obey(self, order: SetSlice | SendSlice | TakeChange | ReportSlice) -> None:
        context, assignment = self._context, self._assignment
        if isinstance(order, SetSlice):
            own = (np.array(order.parameters), np.array(order.mean_square))
            self._slice = ServerSlice(*own, assignment.rules)
            return
        part, number = self._slice, context.number
        assert part is not None
        if isinstance(order, SendSlice):
            values = self._sent[order.replica] = part.parameters.copy()
            to = port(context.run, "slices", order.replica)
            context.transport.send(assignment.replicas[order.replica], to, SliceOf(number, values))
        elif isinstance(order, TakeChange):
            found = context.take(f"change {number}", order.replica)
            if found is not None and order.share is not None:
                part.add(np.array(found.values), order.share, self._sent[order.replica])
        else:
            own = (part.parameters.copy(), part.mean_square.copy())
            context.send("reports", SliceOf(number, *own))
