"""Threads that are replicas, each at the other end of a pipe."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from syncpretrain.parallel.replicas.pool import Failed
from syncpretrain.parallel.replicas.steps import LocalSteps, answer

__all__ = ["ReplicaThread"]

SOMETHING = b"."


class ReplicaThread:
    """A thread that does what it is asked until its channel is closed.

    What is sent goes by reference; the pipe only says that there is something, so that many
    replicas can be waited for together.

    Parameters
    ----------
    name : str
    build : callable
        Returns the replica at work; called in the thread.
    """

    def __init__(self, name: str, build: Callable[[], LocalSteps]) -> None:
        ours, self._theirs = multiprocessing.Pipe()
        self.channel: Connection | None = ours
        self._build = build
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether the thread is over."""
        return not self._thread.is_alive()

    def send(self, thing: Any) -> None:
        """Send the thread an order."""
        self._orders.put(thing)

    def receive(self) -> Any:
        """Return its next answer; None if there is none, and never will be."""
        if self.channel is None or (self.has_ended and not self.channel.poll()):
            return None
        try:
            self.channel.recv_bytes()
        except (EOFError, OSError):
            return None
        return self._answers.get()

    def ending(self) -> str:
        """Return how it ended."""
        self.close()
        return "its thread ended"

    def close(self) -> None:
        """Ask the thread to end, which it does after its task."""
        self._orders.put(None)
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def join(self, seconds: float) -> bool:
        """Wait for the end of the thread; return whether it came."""
        self._thread.join(seconds)
        return self.has_ended

    def _run(self) -> None:
        with self._theirs:
            try:
                steps = self._build()
                while (order := self._orders.get()) is not None:
                    self._answer(answer(steps, order))
            except BaseException as error:  # the server's thread raises it
                self._answer(Failed(error))

    def _answer(self, thing: Any) -> None:
        self._answers.put(thing)
        try:
            self._theirs.send_bytes(SOMETHING)
        except OSError:  # the pool is closed, and nothing waits for it any more
            self._answers.get()
