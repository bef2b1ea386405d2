"""The transport of one rank: messages to ports of other ranks, by one communication thread.

Guarantees:

* Only that thread calls the engine. A sender never waits; a receiver waits on a condition.
* Messages of one rank to another arrive in the order in which they were sent, at all ports.
* A message to send wakes the thread at once, and so does one that comes from the same machine. From
  other machines a rank looks for messages every 2 ms at the latest, and every 10 ms once there were
  none for half a second, at 1 % of a core.
* A message to a port without a listener waits there, unless its run is over.
* Every wait ends with a deadline, or with the reason why the job cannot go on.
* A rank is lost if its process on this machine has ended, if it has left, or if its signs of life
  fail to come: with rank 0 every rank exchanges one a second. They also say what a message calls a
  rank, and how far its clock is from the clock here.

There are two locks: ``_arrived`` guards the boxes of received messages and the handlers,
``_changed`` the outbox and whether the thread sleeps. A thread that holds ``_arrived`` may take
``_changed``, for a handler may send; none takes them the other way round, and nothing is waited for
under ``_changed``.

Assumption: a handler is short, for no message moves while it runs. A port is a tuple that begins
with the number of a run; run 0 is the job itself.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from syncpretrain.cluster.engine import BOOT_ID_FILE, Buffer, Engine, pack, unpack
from syncpretrain.cluster.windows import WINDOWS_PORT, Windows
from syncpretrain.errors import WorkerError
from syncpretrain.parallel.barrier import ended
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts

SILENT_SECONDS = 30.0  # without one: a rank's threads may all be in one long call
NAMESPACE = "/proc/self/ns/pid"


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life: where the process of a rank is.

    Processes of the same ``machine`` share clock and process identifiers. ``leaves`` is its last.
    """

    host: str
    machine: str
    pid: int
    leaves: bool = False


class Peers:
    """The other ranks of a job by their signs of life: where each is, and whether it still lives.

    Parameters
    ----------
    beat : Beat
        The sign of life of this rank.
    now : float
        As in ``time.monotonic``.
    first_seconds : float
        For the first sign of life of a rank.

    Attributes
    ----------
    beats : dict of int to Beat
        The newest sign of life of each rank.
    """

    def __init__(self, beat: Beat, now: float, first_seconds: float) -> None:
        self._own, self._started, self._first_seconds = beat, now, first_seconds
        self.silent_seconds = SILENT_SECONDS
        self.beats: dict[int, Beat] = {}
        self._heard: dict[int, float] = {}
        self._offsets: dict[int, float] = {}

    def hear(self, rank: int, sent: float, now: float) -> None:
        """Record that a rank has sent something at a time by its own clock."""
        # The least difference is of the message that was on its way for the shortest time: the best
        # guess of how far the two clocks are apart.
        self._heard[rank] = now
        self._offsets[rank] = min(self._offsets.get(rank, math.inf), now - sent)

    def wait_anew(self, now: float) -> None:
        """Count the silence of all ranks from now on: this one has not listened before."""
        self._heard = dict.fromkeys(self._heard, now)

    def record(self, rank: int, beat: Beat) -> None:
        """Record a sign of life; there is none after the last."""
        known = self.beats.get(rank)
        if known is None or not known.leaves:
            self.beats[rank] = beat

    def offset(self, rank: int) -> float:
        """Return the seconds to add to times of another rank's clock, a few ms too many."""
        beat = self.beats.get(rank)
        if beat is None or beat.machine == self._own.machine:
            return 0.0
        return self._offsets[rank]

    def first_on_machines(self) -> dict[int, int]:
        """Return the lowest rank on the machine of each rank that was heard."""
        first: dict[str, int] = {}
        for rank in sorted(self.beats):
            first.setdefault(self.beats[rank].machine, rank)
        return {rank: first[beat.machine] for rank, beat in self.beats.items()}

    def have_left(self, ranks: Iterable[int]) -> bool:
        """Return whether all of some ranks have sent their last sign of life."""
        return all(rank in self.beats and self.beats[rank].leaves for rank in ranks)

    def name(self, rank: int) -> str:
        """Return what a message calls a rank."""
        beat = self.beats.get(rank)
        return f"rank {rank}" + (f" on {beat.host}" if beat is not None else "")

    def lost(self, rank: int, now: float) -> str | None:
        """Return how a rank was lost, None if it was not."""
        beat = self.beats.get(rank)
        if beat is None:
            waited = now - self._started > self._first_seconds
            return f"did not come within {self._first_seconds:g} s" if waited else None
        process = f"(process {beat.pid})"
        if beat.leaves:
            return f"{process} has left"
        if beat.machine == self._own.machine and ended(beat.pid, start=0):
            return f"{process} was killed or has crashed"
        if now - self._heard[rank] > self.silent_seconds:
            return f"{process} has not been heard of for {self.silent_seconds:g} s"
        return None


def own_beat() -> Beat:
    """Return a sign of life of this process."""
    host = socket.gethostname()
    parts = [host]
    if Path(BOOT_ID_FILE).is_file():
        parts += [Path(BOOT_ID_FILE).read_text().strip(), str(Path(NAMESPACE).readlink())]
    return Beat(host, " ".join(parts), os.getpid())


def last_beat(beat: Beat) -> Beat:
    """Return the sign of life with which a rank leaves."""
    return replace(beat, leaves=True)


Port = tuple[Any, ...]
Handler = Callable[[int, Any], None]
BEATS: Port = (0, "beat")
# In this time the launcher ends this rank, and the witness names the rank that died.
LOST_SECONDS = 0.3
# A pause between two looks by which the whole job was stopped, as by a batch system: then the other
# ranks were silent too, and are not lost.
STOPPED_SECONDS = 5.0


class Transport:
    """One rank of a job.

    Parameters
    ----------
    engine : Engine
    times : Timeouts
        ``stall`` is the time for the first sign of life of a rank, ``join`` for the end.

    Attributes
    ----------
    is_eager : bool
        True if the thread looks more often for messages of other machines, at some per cent of a
        core.
    windows : Windows
        The windows that are open.
    """

    def __init__(self, engine: Engine, times: Timeouts = TIMEOUTS) -> None:
        self.rank, self.size = engine.rank, engine.size
        self.is_eager = False
        self._engine, self._times = engine, times
        self._beat = own_beat()
        self.peers = Peers(self._beat, time.monotonic(), times.stall)
        self.peers.record(self.rank, self._beat)
        self._changed = threading.Lock()  # guards the outbox
        self._is_asleep = False
        self._outbox: deque[tuple[int, list[Buffer]]] = deque()
        self._sending: list[tuple[Callable[[], bool], list[Buffer]]] = []
        self._arrived = threading.RLock()  # guards the boxes and handlers
        self._takers: dict[Port, threading.Condition] = {}
        self._boxes: dict[Port, deque[tuple[int, Any]]] = defaultdict(deque)
        self.windows = Windows(engine, self.send, self._wake, self.check, times)
        self._handlers: dict[Port, Handler] = {
            BEATS: self.peers.record,
            WINDOWS_PORT: lambda source, call: call(self.windows),
        }
        self._first_run = 0  # messages for earlier runs are dropped
        self._handled: Port | None = None  # the port of the message that a handler has now
        self._is_handled = threading.Condition(self._arrived)
        self._next_beat = 0.0
        self._looked = time.monotonic()
        self._failure: BaseException | None = None
        self._is_leaving = self._closing = False
        self._say_alive()  # before anything else, so that its receiver knows the sender
        # A daemon only so that a thread stuck in MPI cannot keep the process from ending.
        self._thread = threading.Thread(
            target=self._serve, name=f"syncpretrain-rank-{self.rank}", daemon=True
        )
        self._thread.start()

    def send(self, to: int, port: Port, thing: Any) -> None:
        """Send something to a port of a rank; its large arrays must not change until received."""
        parts = pack(port, time.monotonic(), thing)
        with self._changed:
            self._outbox.append((to, parts))
        self._wake()

    def take(self, port: Port, timeout: float) -> tuple[int, Any] | None:
        """Return the next message to a port and its sender, None after ``timeout`` seconds.

        Raises
        ------
        WorkerError
            If this rank can no longer communicate.
        """
        deadline = time.monotonic() + timeout
        # The box is looked at under the lock that a message is put in under, so no message comes
        # between the look and the wait. The same holds for the end of the thread (see ``_serve``).
        with self._arrived:
            taker = self._takers.setdefault(port, threading.Condition(self._arrived))
            while not self._boxes[port]:
                self.check()
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                taker.wait(left)
            return self._boxes[port].popleft()

    def listen(self, port: Port, handler: Handler) -> None:
        """Have the communication thread call a function with sender and message of a port.

        It is called with the messages that have come already before this returns.
        """
        # Under the lock, or a message that comes now would be handled before the older ones.
        with self._arrived:
            for source, thing in self._boxes.pop(port, ()):
                handler(source, thing)
            self._handlers[port] = handler

    def forget(self, run: int) -> None:
        """Drop the ports of a run and of all runs before, and whatever still comes for them.

        A handler that has a message for one of them ends first: its resources may then be closed.
        """
        with self._arrived:
            self._first_run = max(self._first_run, run + 1)
            # A handler that forgets its own run would wait for itself.
            if threading.current_thread() is not self._thread:
                self._is_handled.wait_for(lambda: not self._handles(run), self._times.join)
            for ports in (self._boxes, self._handlers, self._takers):
                for port in [port for port in ports if 0 < port[0] <= run]:
                    del ports[port]

    def lost(self, rank: int) -> str | None:
        """Return how a rank was lost, or None."""
        # At the time of the last look: messages that came since are not heard yet, and a thread
        # that could not look must not take others for silent.
        return self.peers.lost(rank, self._looked)

    def abort(self, status: int) -> None:
        """End every rank of the job at once; used where no orderly end is left."""
        self._engine.abort(status)

    def close(self, farewell: float = 0.0) -> bool:
        """Send the messages in the outbox, and a last word; return whether that is done in time.

        Wait up to ``farewell`` seconds for the last words of others: MPI may warn of messages that
        are not received.
        """
        watched, self._is_leaving = self._watched(), True
        for rank in watched:
            self.send(rank, BEATS, last_beat(self._beat))
        with self._arrived:
            self._is_handled.wait_for(lambda: self.peers.have_left(watched), farewell)
        self._closing = True
        self._wake()
        self._thread.join(self._times.join)
        return not self._thread.is_alive() and self._failure is None

    def check(self) -> None:
        """Raise WorkerError if this rank can no longer communicate."""
        if self._failure is not None:
            kind = type(self._failure).__name__
            raise WorkerError(
                f"rank {self.rank} can no longer communicate: {kind}: {self._failure}"
            ) from self._failure

    def _serve(self) -> None:
        try:
            self._exchange()
            self._engine.close()
        except BaseException as error:  # the waiting thread raises it
            time.sleep(LOST_SECONDS)  # its cause may be the death of another rank
            self._failure = error
        # The failure is set before the lock is taken. A taker that looked for one under the lock
        # and found none waits by now, and is notified.
        with self._arrived:
            for taker in self._takers.values():
                taker.notify_all()

    def _exchange(self) -> None:
        # No wake-up is lost. A sender appends its message, then takes the lock and reads the flag;
        # this thread takes the lock, looks at the outbox and sets the flag. If the sender is first,
        # this thread finds the message. If it is second, it finds the flag and wakes the engine,
        # which remembers that for the next wait.
        naps = Naps(time.monotonic())
        while True:
            moved = self._post() | self._deliver() | self.windows.turn()
            now = time.monotonic()
            nap = naps.after(
                now,
                moved=moved,
                rings=self._engine.wakes_for_messages,
                is_eager=self.is_eager or bool(self.windows.owned),
                is_sending=bool(self._sending),
            )
            with self._changed:
                if self._outbox or self.windows.asked:
                    continue
                if self._closing and not self._sending:
                    return
                self._is_asleep = True
            if self._engine.wait(nap):
                naps.wake()
            # Without the lock: this thread alone sets the flag, all others only clear it, so
            # nothing is overwritten. A sender that still reads True wakes once too often; one that
            # reads False has appended before, and the outbox is emptied before the next sleep.
            self._is_asleep = False

    def _wake(self) -> None:
        """Have the communication thread look for work."""
        # Cleared here, so that of many senders one wakes it. Woken outside the lock: that is a
        # system call, and the thread would wait for the lock at once.
        with self._changed:
            is_asleep, self._is_asleep = self._is_asleep, False
        if is_asleep:
            self._engine.wake()

    def _post(self) -> bool:
        """Begin to send the outbox; return whether a message was begun or has left."""
        now, begun = time.monotonic(), 0
        if now - self._looked > STOPPED_SECONDS:
            self.peers.wait_anew(now)
        self._looked = now
        if now >= self._next_beat and not self._is_leaving:
            self._say_alive()
        # Only this thread takes from the outbox, so it may be looked at without the lock.
        while self._outbox:
            with self._changed:
                to, parts = self._outbox.popleft()
            if to == self.rank:
                self._pass_on(to, [bytearray(part) for part in parts])  # as from elsewhere
            else:
                self._sending.append((self._engine.start(to, parts), parts))
            begun += 1
        # The bytes of a message are kept until the engine no longer needs them.
        before = len(self._sending)
        self._sending = [item for item in self._sending if not item[0]()]
        return begun > 0 or len(self._sending) < before

    def _say_alive(self) -> None:
        self._next_beat = time.monotonic() + BEAT_SECONDS
        for rank in self._watched():
            if not self.peers.have_left([rank]):
                self.send(rank, BEATS, self._beat)

    def _watched(self) -> list[int]:
        """Return the ranks that exchange signs of life with this one: all do with rank 0."""
        return [0] if self.rank else list(range(1, self.size))

    def _deliver(self) -> bool:
        """Deliver the messages that have come; return whether there were any."""
        messages = self._engine.take_arrived()
        for source, parts in messages:
            self._pass_on(source, parts)
        return bool(messages)

    def _pass_on(self, source: int, parts: list[Buffer]) -> None:
        envelope, thing = unpack(parts)
        port = envelope.port
        if source != self.rank:
            self.peers.hear(source, envelope.sent, time.monotonic())
        with self._arrived:
            if 0 < port[0] < self._first_run:
                return
            handler = self._handlers.get(port)
            if handler is None:
                self._boxes[port].append((source, thing))
                if port in self._takers:
                    self._takers[port].notify_all()
                return
            self._handled = port
        # Outside the lock, so that receivers need not wait for a handler.
        try:
            handler(source, thing)
        finally:
            with self._arrived:
                self._handled = None
                self._is_handled.notify_all()

    def _handles(self, run: int) -> bool:
        return self._handled is not None and 0 < self._handled[0] <= run


# Seconds. To wake takes some 50 us of a core: the shortest nap is not much longer, and the longest
# ones bound the share of a core that waiting takes.
SHORTEST_NAP, LONGEST_NAP, IDLE_NAP = 0.1e-3, 2e-3, 10e-3
SENDING_NAP = 0.5e-3  # a message on its way rarely needs this rank
RESTING_NAP = 50e-3  # a bell ends it
IDLE_SECONDS = 0.5
EAGER_NAP = 0.25e-3  # others wait for what this rank does with a message


class Naps:
    """The length of the next nap, from what the looks have found.

    Each nap is twice as long as the one before, as long as nothing moves. Where a bell rings as a
    message comes, and none is under way, the first one is long already.

    Parameters
    ----------
    now : float
        As in ``time.monotonic``, as everywhere here.
    """

    def __init__(self, now: float) -> None:
        self._nap, self._moved = SHORTEST_NAP, now

    def wake(self) -> None:
        """Begin with short naps: a bell has rung, and its message may come a moment later."""
        self._nap = SHORTEST_NAP / 2

    def after(
        self, now: float, *, moved: bool, rings: bool, is_eager: bool, is_sending: bool
    ) -> float:
        """Return the seconds of the next nap.

        Parameters
        ----------
        now : float
        moved : bool
            True if the last look found something.
        rings : bool
            True if a bell will ring as soon as there is something to find.
        is_eager : bool
            True if looks without a bell are to be close together.
        is_sending : bool
            True while a message is on its way: it may need this thread to move on.
        """
        # A bell rings for what comes, not for what goes: a message on its way may need a look.
        rings = rings and not is_sending
        if moved:
            self._moved = now
            self._nap = LONGEST_NAP if rings else SHORTEST_NAP
            if is_sending:
                self._nap = SENDING_NAP
            return self._nap
        longest = EAGER_NAP if is_eager else LONGEST_NAP
        if rings:
            longest = RESTING_NAP
        elif now - self._moved > IDLE_SECONDS and not is_sending:
            longest = IDLE_NAP
        self._nap = min(2 * self._nap, longest)
        return self._nap


BEAT_SECONDS = 1.0  # between two signs of life
