"""Replicas of asynchronous training on the ranks of a job: as rank 0 uses them, and as they work.

By default rank 0 is the server: an order that fetches carries the parameters, an answer the change.
A replica gets a task an order.

With several servers these have ranks too, and replicas exchange slices of parameters and changes
with them. Rank 0 keeps the clock and decides: whether a change is taken, with which share, and what
a replica fetches. Every server gets the same decisions in the same order, so that a change is in
all slices or in none, and the result has the bits of one server.

With windows, replicas reach into the memory where the parameters are, without a server.

A rank that is lost ends the run, as MPI ends the job; the run resumes from its checkpoint.
"""

from __future__ import annotations

import multiprocessing
import queue
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from syncpretrain.cluster.job import member
from syncpretrain.cluster.transport import Transport
from syncpretrain.errors import StalledError, WorkerError
from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas.pool import Failed, Started, StartedReplicas
from syncpretrain.parallel.replicas.server import ParameterServer, Push, Server, ServerSlice
from syncpretrain.parallel.replicas.steps import LocalSteps, Work, Worked, answer
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.workers.child_start import sendable
from syncpretrain.workers.layer_process import RemoteTraceback
from syncpretrain.workers.ranks.messages import (
    ReplicaAnswer,
    ReplicaAssignment,
    ReplicaOrder,
    ReportSlice,
    SendSlice,
    ServerAssignment,
    ServerRank,
    SetSlice,
    SliceOf,
    TakeChange,
    port,
)
from syncpretrain.workers.ranks.parameter_windows import (
    CLOCK_RANK,
    CLOCK_SIZE,
    ParameterWindows,
    WindowPlaces,
    WindowSlice,
)
from syncpretrain.workers.ranks.run import RunRanks
from syncpretrain.workers.ranks.worker import RankWorker

__all__ = [
    "RankReplicas",
    "RankServers",
    "ReplicaWorker",
    "ServerWorker",
    "WindowReplicas",
    "WindowServer",
]


class Ranks(Protocol):
    """The interface of the ranks of a run; see ``workers/ranks/run.py``."""

    groups: dict[int, tuple[int, ...]]

    def send(self, layer: int, name: str, thing: Any) -> None:
        """Send something to a port of a replica or server."""
        ...

    def take(self, name: str, timeout: float) -> tuple[int, Any] | None:
        """Return the next thing that came to a port of this rank, and its sender; or None."""
        ...

    def lost(self, layer: int) -> str | None:
        """Return how the rank of a replica or server was lost, None if it was not."""
        ...


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
        self._ranks: Ranks | None = None
        self._failure: BaseException | None = None

    def begin(self, ranks: Ranks) -> tuple[tuple[ServerRank, ...], list[ServerAssignment]]:
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
            if found is not None:
                _, now = found
                own = self._slices[now.server]
                np.copyto(self._own.parameters[own], now.values)
                np.copyto(self._own.mean_square[own], now.mean_square)
                missing.discard(now.server)
                continue
            if self._failure is not None:
                raise self._failure
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


class WindowRanks(Protocol):
    """The interface of the ranks of a run; see ``workers/ranks/run.py``."""

    groups: dict[int, tuple[int, ...]]
    transport: Transport
    run: int

    @property
    def is_given_up(self) -> bool:
        """Whether a rank does not answer."""
        ...


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
        self._ranks: WindowRanks | None = None
        self._places: WindowPlaces | None = None
        self._parameters: ParameterWindows | None = None
        self._pushes: dict[int, Push] = {}

    def begin(self, ranks: WindowRanks) -> tuple[WindowPlaces, list[ServerAssignment]]:
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


class _RankChannel:
    """A replica on a rank, as the loop of the server sees it.

    Messages arrive in the thread of the transport; the pipe only says that there is one, so that
    many replicas can be waited for together.
    """

    def __init__(self, number: int, size: int, ranks: RunRanks) -> None:
        self.fetched, self.change = (np.empty(size, np.float32) for _ in range(2))
        self._is_server = bool(size)  # whether rank 0 has the parameters
        self._number, self._ranks = number, ranks
        ours, self._theirs = multiprocessing.Pipe()
        self.channel: Connection | None = ours
        self._answers: queue.SimpleQueue[ReplicaAnswer] = queue.SimpleQueue()

    @property
    def has_ended(self) -> bool:
        """Whether its rank was lost."""
        return self._ranks.lost(self._number) is not None

    def send(self, order: Any) -> None:
        """Send an order, with the parameters if it fetches them."""
        fetches = self._is_server and isinstance(order, Work) and order.fetches
        fetched = self.fetched if fetches else None
        self._ranks.send(self._number, "orders", ReplicaOrder(order, fetched))

    def record(self, answer: ReplicaAnswer) -> None:
        """Keep an answer, in the thread of the transport."""
        self._answers.put(answer)
        self._theirs.send_bytes(b".")

    def receive(self) -> Any:
        """Return the next answer, and fill the change.

        Raises
        ------
        WorkerError
            If its rank was lost: the job is at its end.
        """
        assert self.channel is not None
        if not self.channel.poll():
            raise WorkerError(f"replica {self._number} failed: {self.ending()}")
        self.channel.recv_bytes()
        found = self._answers.get()
        if found.change is not None:
            np.copyto(self.change, found.change)
        return found.answer

    def ending(self) -> str:
        """Return how its rank was lost."""
        return str(self._ranks.lost(self._number))

    def close(self) -> None:
        """Close the pipe; nothing comes any more."""
        if self.channel is not None:
            self.channel.close()
            self._theirs.close()
            self.channel = None


class RankReplicas(StartedReplicas):
    """Replicas and servers on ranks; a rank has several if there are fewer ranks."""

    def __init__(self, server: ParameterServer, *arguments: Any) -> None:
        super().__init__(server, *arguments)
        self._ranks: RunRanks | None = None
        self._channels: list[_RankChannel] = []
        self._servers: RankServers | WindowServer | None = None
        if len(server.slices) > 1:
            self._servers = RankServers(server, self._replicas, self._times)

    @property
    def server(self) -> Server[Any]:
        """The server: here, or on ranks."""
        return self._parameters if self._servers is None else self._servers

    def start(self) -> Started:
        """Start them; return channel of each, and its vectors or twice its number."""
        numbers, servers = range(1, self._replicas + 1), self._servers
        slices = len(self._parameters.slices)
        count = self._replicas + (slices if slices > 1 else 0)
        ranks = self._ranks = RunRanks(member(), (1,) * (count + 1), self._times)
        size = self._size if servers is None else 0
        channels = self._channels = [_RankChannel(n, size, ranks) for n in numbers]
        ranks.listen("answers", lambda source, found: self._record(found))
        known, others = ((), list[ServerAssignment]()) if servers is None else servers.begin(ranks)
        places = [
            ReplicaAssignment(n, self._factory, self._data, self._size, known) for n in numbers
        ]
        ranks.begin([*places, *others], lambda layers: None, 1, called="replica {} failed: ")
        if servers is not None:  # which know replicas by their numbers
            return [(channel, n, n) for n, channel in zip(numbers, channels, strict=True)]
        return [(channel, channel.fetched, channel.change) for channel in channels]

    def end(self) -> None:
        """End them."""
        alive = [] if self._ranks is None else self._ranks.end()
        for channel in self._channels:
            channel.close()
        self._channels, self._ranks = [], None
        if alive:
            raise StalledError(f"{', '.join(alive)} did not end")

    def _record(self, found: ReplicaAnswer) -> None:
        """Keep an answer of a replica; the failure of a server is that of all."""
        is_server = found.number > self._replicas
        if isinstance(found.answer, Failed):
            found = replace(found, answer=self._placed(found.answer, found.number, is_server))
        if not is_server:
            self._channels[found.number - 1].record(found)
            return
        if isinstance(self._servers, RankServers) and isinstance(found.answer, Failed):
            self._servers.fail(found.answer.error)
        for channel in self._channels:
            channel.record(found)

    def _placed(self, failed: Failed, number: int, is_server: bool) -> Failed:
        """Return a failure with the name of its rank, and the traceback that came with it."""
        assert self._ranks is not None
        error, rank = failed.error, self._ranks.groups[number][0]
        place = self._ranks.transport.peers.name(rank)
        if is_server:
            kind = type(error).__name__
            error = WorkerError(f"a parameter server failed on {place}: {kind}: {error}")
        error.__cause__ = RemoteTraceback(failed.trace) if failed.trace else None
        return replace(failed, error=error, place="" if is_server else place)


class WindowReplicas(RankReplicas):
    """Replicas on ranks that exchange parameters through windows."""

    def __init__(self, server: ParameterServer, *arguments: Any) -> None:
        super().__init__(server, *arguments)
        self._servers = self._windows = WindowServer(server, self._replicas)

    def _record(self, found: ReplicaAnswer) -> None:
        """Keep an answer, and what became of a push."""
        if found.push is not None:
            self._windows.record(found.number, found.push)
        super()._record(found)


class ReplicaWorker(RankWorker[ReplicaAssignment]):
    """A replica, which gets parameters and answers with changes of them.

    It exchanges them with rank 0, in its orders and answers; or slices of them with the servers; or
    through windows.
    """

    def work(self) -> None:
        """Obey orders until there are no more; report every failure."""
        try:
            self._obey()
        except BaseException as error:
            failed = Failed(*sendable(error, 0, 0))
            self.send("answers", ReplicaAnswer(self.number, failed))

    def _obey(self) -> None:
        assignment = self._assignment
        fetched, change = (np.empty(assignment.size, np.float32) for _ in range(2))
        steps = LocalSteps(assignment.factory(assignment.data), fetched, change)
        exchange = self._exchange()
        while (order := self.next_order()) is not None:
            if order.fetched is not None:
                np.copyto(fetched, order.fetched)
            fetches = isinstance(order.order, Work) and order.order.fetches
            if fetches and exchange is not None and not exchange.fetch(fetched):
                return
            found, push = answer(steps, order.order), None
            made = change if isinstance(found, Worked) else None
            if made is not None and exchange is not None:
                push = exchange.push(made)
                made = None
            # It stays as it is until the next order, which comes when rank 0 has it.
            self.send("answers", ReplicaAnswer(self.number, found, made, push))

    def _exchange(self) -> _WithServers | _InWindows | None:
        """Return how parameters and changes go to and fro, unless by orders and answers."""
        servers = self._assignment.servers
        if isinstance(servers, WindowPlaces):
            return _InWindows(ParameterWindows(self._transport.windows, servers))
        return _WithServers(self, servers) if servers else None

    def send_change(self, server: ServerRank, part: SliceOf) -> None:
        """Send a server its slice of a change."""
        to = port(self._job.run, f"change {server.number}", self.number)
        self._transport.send(server.rank, to, part)


class _WithServers:
    """Exchange of slices with servers on ranks."""

    def __init__(self, held: ReplicaWorker, servers: Sequence[ServerRank]) -> None:
        self._held, self._servers = held, servers

    def fetch(self, out: Array) -> bool:
        """Take the slices of the parameters; return False if the run ends first."""
        parts = {server.number: slice(*server.own) for server in self._servers}
        for _ in parts:
            found = self._held.take("slices", self._held.number)
            if found is None:
                return False
            out[parts[found.server]] = found.values
        return True

    def push(self, change: Array) -> None:
        """Send each server its slice of a copy: the next change may be there before it is sent."""
        whole = change.copy()
        for server in self._servers:
            part = SliceOf(server.number, whole[slice(*server.own)])
            self._held.send_change(server, part)


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


class ServerWorker(RankWorker[ServerAssignment]):
    """Serves a slice of the parameters: replicas fetch it, and send their changes of it.

    A replica's change is on its way before rank 0 knows of it, so waiting for one that rank 0 has
    decided about ends.
    """

    def work(self) -> None:
        """Obey orders until there are no more; report every failure."""
        self._slice: ServerSlice | None = None
        self._sent: dict[int, Array] = {}  # to each replica last, for the compensation
        try:
            while (order := self.next_order()) is not None:
                self._obey(order)
        except BaseException as error:
            failed = Failed(*sendable(error, 0, 0))
            self.send("answers", ReplicaAnswer(self.number, failed))

    def _obey(self, order: Any) -> None:
        if isinstance(order, SetSlice):
            own = (np.array(order.parameters), np.array(order.mean_square))
            self._slice = ServerSlice(*own, self._assignment.rules)
            return
        part = self._slice
        assert part is not None
        if isinstance(order, SendSlice):
            values = self._sent[order.replica] = part.parameters.copy()
            to = port(self._job.run, "slices", order.replica)
            rank = self._assignment.replicas[order.replica]
            self._transport.send(rank, to, SliceOf(self.number, values))
        elif isinstance(order, TakeChange):
            found = self.take(f"change {self.number}", order.replica)
            if found is not None and order.share is not None:
                part.add(np.array(found.values), order.share, self._sent[order.replica])
        else:
            report = SliceOf(self.number, part.parameters.copy(), part.mean_square.copy())
            self.send("reports", report)
