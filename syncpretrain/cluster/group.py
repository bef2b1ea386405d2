"""Collective operations of a group of ranks, made of messages between two ranks each.

Guarantees:

* Every rank of a group makes the same calls, in the same order. What one rank sends ahead of the
  others waits for them; two groups never get each other's messages.
* Nothing is added here: the caller gets one message a rank, in the order of the ranks, and adds
  them up in an order of its own. ``MPI_Allreduce`` is free to choose an order by the number of
  ranks and the length, so that the last bits would depend on both.
* A wait ends with the message, with the failure of another rank, with the run, or at a deadline.

Assumption: an array in a message stays as it is until a later operation has shown that all ranks
have it. The operations need nothing of an engine beyond messages, so that every engine has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from syncpretrain.cluster.transport import Port, Transport
from syncpretrain.errors import WorkerError
from syncpretrain.parallel.timeouts import TIMEOUTS, Deadline, Timeouts


class GroupError(WorkerError):
    """Another rank of the group has failed, and says how; or the run has ended."""


@dataclass(frozen=True, slots=True)
class _RankFailed:
    """Message of a rank that has failed, in place of the expected one."""


@dataclass(eq=False)
class Group:
    """A group of ranks, as one of them sees it.

    Parameters
    ----------
    transport : Transport
    ranks : sequence of int
        The ranks of the group, in the same order on each of them.
    port : Port
        The port for their messages, which nothing else uses.
    times : Timeouts
        ``stall`` bounds the wait for a message of another rank.
    is_over : callable
        Returns True if the run has ended, so that no message may come any more.

    Attributes
    ----------
    number, size : int
        Place of this rank in the group, from 0, and number of ranks.

    Raises
    ------
    GroupError, StalledError
        By every operation that waits.
    """

    transport: Transport
    ranks: Sequence[int]
    port: Port
    times: Timeouts = TIMEOUTS
    is_over: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.number, self.size = self.ranks.index(self.transport.rank), len(self.ranks)
        self._others = [i for i in range(self.size) if i != self.number]

    def exchange(self, things: Sequence[Any]) -> list[Any]:
        """Send one message to each rank; return the message of each to this one, its own included.

        Arrays in it must not change before a later operation has shown that all have them.
        """
        # All are sent before any is waited for: otherwise two ranks would each wait for the other.
        found = list(things)
        for i in self._others:
            self._send(i, things[i])
        for i in self._others:
            found[i] = self._take(i)
        return found

    def all_gather(self, thing: Any) -> list[Any]:
        """Send the same message to every rank; return the messages of all ranks."""
        return self.exchange([thing] * self.size)

    def gather(self, thing: Any) -> list[Any] | None:
        """Send a message to the first rank; return the messages of all there, None elsewhere."""
        if self.number:
            self._send(0, thing)
            return None
        return [thing, *(self._take(i) for i in self._others)]

    def fail(self) -> None:
        """Have every other rank raise GroupError where it waits for this one."""
        for i in self._others:
            self._send(i, _RankFailed())

    def _send(self, i: int, thing: Any) -> None:
        self.transport.send(self.ranks[i], (*self.port, self.ranks[self.number]), thing)

    def _take(self, i: int) -> Any:
        # A port for each sender: a fast rank's next message cannot pass for a slow rank's first.
        port = (*self.port, self.ranks[i])
        name = self.transport.peers.name(self.ranks[i])
        deadline = Deadline(self.times.stall)
        # The wait ends with the message; a tick only bounds how late the end of the run is seen.
        while (found := self.transport.take(port, self.times.tick)) is None:
            if self.is_over():
                raise GroupError(f"the run ended while {name} was waited for")
            deadline.check(f"nothing came from {name} within")
        if isinstance(found[1], _RankFailed):
            raise GroupError(f"{name} has failed")
        return found[1]


class AgreedStop:
    """A request to stop that all ranks of a group see between the same two operations.

    A rank that stopped by its own word would leave the others waiting in the next operation.

    Parameters
    ----------
    group : Group
    asked : callable
        Returns True if this rank was asked to stop.

    Attributes
    ----------
    group, asked
    """

    def __init__(self, group: Group, asked: Callable[[], bool]) -> None:
        self.group, self.asked = group, asked
        self._value = False

    def __call__(self) -> bool:
        """Return whether any rank was asked to stop when they last agreed."""
        return self._value

    def agree(self) -> bool:
        """Ask all ranks; return whether to stop."""
        self.record(self.group.all_gather(self.asked()))
        return self._value

    def record(self, asked: Iterable[bool]) -> None:
        """Record the answers of all ranks, which came with something else."""
        # Once true it stays so: all ranks agreed on it, and none may take it back alone.
        self._value = self._value or any(asked)
