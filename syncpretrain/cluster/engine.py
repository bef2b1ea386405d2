"""The engine interface: what moves messages between ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from syncpretrain.cluster.packing import Buffer

__all__ = ["Engine"]


class Engine(ABC):
    """Moves messages, each a few pieces of bytes, from rank to rank, in the order of each pair.

    Only one thread of a rank calls it, and no call waits. Collective operations are made of these
    messages (:class:`syncpretrain.cluster.group.Group`), in an order that no engine chooses.

    Attributes
    ----------
    rank, size : int
        Of this process, from 0, and of the job.
    """

    rank: int
    size: int

    @abstractmethod
    def start(self, to: int, parts: Sequence[Buffer]) -> Callable[[], bool]:
        """Begin to send a message; what is returned says whether its bytes may change again."""

    @abstractmethod
    def arrived(self) -> list[tuple[int, list[Buffer]]]:
        """Return the messages that are complete, each with the rank that sent it."""

    @abstractmethod
    def abort(self, status: int) -> None:
        """End every rank of the job at once, without a word to any of them."""

    @abstractmethod
    def close(self) -> None:
        """Take leave of the other ranks, with nothing under way."""
