"""The conversation of a driver with a worker elsewhere: an order goes out, an answer comes back.

A driver gives a :class:`Place` one :class:`Job` a worker, and gets one :class:`Link` a worker. At
the other end of the link, :func:`serve` builds the worker and has it obey one order after another.

Guarantees:

* A worker answers its orders in their order, or its link says how it ended.
* An error is an answer too, :class:`Raised`, and does not end a worker that was built. It arrives
  with its traceback as its cause.

Assumption: orders and answers are not None, which stands for the end.
"""

from __future__ import annotations

import multiprocessing
import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import DivergedError, IterableError, StalledError, WorkerError
from syncpretrain.learners.epoch import Stopped
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.workers.restarts import KeptStates

__all__ = [
    "STDERR",
    "Context",
    "Inbox",
    "Job",
    "Link",
    "Obey",
    "Place",
    "Raised",
    "RemoteTraceback",
    "SentError",
    "death_of",
    "described",
    "failure_of",
    "place_of",
    "ready",
    "serve",
]

STDERR = 2  # the descriptor, whatever sys.stderr has become

Obey = Callable[[Any], Any]  # does what an order says; returns the answer, None if there is none


@dataclass(frozen=True, slots=True)
class Context:
    """What a place gives to a worker.

    ``progress`` and ``workers`` have one number each: the worker writes how far it is, and reads
    before every step how many threads are to work it. ``stop`` says whether to leave. ``kept`` is
    where its states are kept for a worker that replaces it, None where none would.
    """

    number: int
    progress: NDArray[np.float64]
    workers: NDArray[np.float64]
    stop: Callable[[], bool]
    times: Timeouts
    kept: KeptStates | None = None


class Job(Protocol):
    """What a worker is built from, in its place."""

    def open(self, context: Any) -> AbstractContextManager[Obey]:
        """Return the context of a new worker, which is how it obeys an order."""
        ...


class Link(Protocol):
    """A worker as its driver sees it; it has one order at a time."""

    @property
    def offset(self) -> float:
        """Seconds to add to times of the worker's clock."""
        ...

    @property
    def channel(self) -> Connection | None:
        """What is ready once an answer has come; None once its end is known."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether the worker has ended, though an answer may still be on its way."""
        ...

    def send(self, order: Any) -> None:
        """Send an order; if the worker has ended, :meth:`receive` returns None."""
        ...

    def poll(self, seconds: float) -> bool:
        """Wait for an answer or the end; return whether one of them came."""
        ...

    def receive(self) -> Any:
        """Return the next answer; None if there is none, and never will be."""
        ...

    def ending(self) -> str:
        """Return how the worker ended, which it has."""
        ...

    def kill(self) -> None:
        """End the worker, whatever it does."""
        ...


class Place(Protocol):
    """Where the workers of a run are; they have numbers from 1."""

    progress: NDArray[np.float64]  # of each worker, by its number
    workers: NDArray[np.float64]  # threads that each may have for a step

    def start(self, jobs: Sequence[Any]) -> Sequence[Link]:
        """Start a worker for each job."""
        ...

    def replace(self, number: int, death: WorkerError) -> Link | None:
        """Start a worker in place of one that died, if that may be."""
        ...

    def set_workers(self, number: int, workers: int) -> None:
        """Set the number of threads that a worker may have, from its next step on."""
        ...

    def stop(self) -> None:
        """Ask every worker to leave after its minibatch."""
        ...

    def dump_stacks(self) -> None:
        """Write on stderr where every thread of every worker stands."""
        ...

    def kill(self) -> None:
        """End at once all that can be ended; none is replaced from now on."""
        ...

    def end(self) -> list[str]:
        """End the workers; return the names of those that did not end in time."""
        ...


class Inbox:
    """Answers that other threads of this process put in; they go by reference.

    Whoever waits for one inbox waits on a condition. For one that waits for many inboxes there is a
    channel, with a byte for every answer.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards all that follows
        self._answers = deque[Any]()
        self._is_closed = False
        self._pipe: tuple[Connection, Connection] | None = None

    @property
    def channel(self) -> Connection | None:
        """What can be read while there are answers; None once the inbox is closed."""
        with self._changed:
            # Made when it is asked for: a byte to and fro costs more than the condition.
            if self._pipe is None and not self._is_closed:
                self._pipe = multiprocessing.Pipe(duplex=False)
                for _ in self._answers:
                    self._pipe[1].send_bytes(b".")
            return None if self._pipe is None else self._pipe[0]

    def put(self, answer: Any) -> None:
        """Put an answer in; do nothing once the inbox is closed."""
        with self._changed:
            if not self._is_closed:
                self._answers.append(answer)
                if self._pipe is not None:
                    self._pipe[1].send_bytes(b".")
                self._changed.notify()

    def poll(self, seconds: float) -> bool:
        """Wait for an answer; return whether there is one."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._answers), seconds)

    def take(self) -> Any:
        """Return the oldest answer, None if there is none."""
        with self._changed:
            if not self._answers:
                return None
            if self._pipe is not None:
                self._pipe[0].recv_bytes()
            return self._answers.popleft()

    def close(self) -> None:
        """Drop what is in it, and what comes."""
        with self._changed:
            self._is_closed = True
            self._answers.clear()
            if self._pipe is not None:
                for end in self._pipe:
                    end.close()
                self._pipe = None


def ready(links: Collection[Link], timeout: float) -> list[Link]:
    """Wait until links have an answer, or have ended; return these, none after ``timeout``."""
    open_links = [link for link in links if link.channel is not None]
    found = connection.wait([link.channel for link in open_links if link.channel], timeout)
    # A fork of a process may hold its end of the channel open, and a rank that is lost closes
    # nothing: only the state of the worker tells then.
    return [link for link in open_links if link.channel in found or link.has_ended]


def serve(
    build: Callable[[], AbstractContextManager[Obey]],
    take: Callable[[], Any],
    send: Callable[[Any], None],
) -> None:
    """Build a worker and have it obey orders until ``take`` returns None.

    A worker that cannot be built answers with the error, before any order.
    """
    # BaseException, also KeyboardInterrupt: nothing may leave a worker but through its answer, or
    # the driver would wait for that answer until its deadline.
    try:
        with build() as obey:
            while (order := take()) is not None:
                try:
                    answer = obey(order)
                except BaseException as error:
                    answer = Raised(error)
                if answer is not None:
                    send(answer)
    except BaseException as error:
        send(Raised(error))


class RemoteTraceback(Exception):  # noqa: N818 - as concurrent.futures has it
    """The traceback of an error elsewhere; the cause of that error here.

    Attributes
    ----------
    place : str
        What a message calls the rank where it was raised, if it was a rank.
    """

    def __init__(self, text: str, place: str = "") -> None:
        super().__init__(f"\n{text}")
        self.place = place


class SentError:
    """An error on its way: it arrives as the error, with its traceback as its cause."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        error, trace = self._error, "".join(traceback.format_exception(self._error))
        if isinstance(error, Stopped):
            trace = ""
        # Many errors can be pickled and not made again: their constructor wants other arguments.
        try:
            ForkingPickler.loads(ForkingPickler.dumps(error))
        except BaseException:  # whatever its own methods raise
            error = WorkerError(f"{type(error).__name__}: {error!r}")
        return _arrived, (error, trace)


def _arrived(error: BaseException, trace: str) -> BaseException:
    if trace:
        error.__cause__ = RemoteTraceback(trace)
    return error


@dataclass(frozen=True, slots=True)
class Raised:
    """Answer of a worker that raised an error."""

    error: BaseException

    def __reduce__(self) -> tuple[Any, ...]:
        return Raised, (SentError(self.error),)


def failure_of(layer: int, epoch: int, error: BaseException) -> BaseException:
    """Return the error that the caller of a run is to see; its cause is the layer's error.

    The exception is an iterable of examples: the cause is then the error that it raised.
    """
    cause = error.__cause__
    if isinstance(error, (Stopped, KeyboardInterrupt)):
        return error
    if type(error) is WorkerError and not isinstance(cause, RemoteTraceback):
        return error  # a worker that ended: it says all itself
    where = place_of(error)
    if isinstance(error, DivergedError):
        failure: WorkerError = DivergedError(f"{error} ({where.strip()})" if where else str(error))
    else:
        kind = StalledError if isinstance(error, StalledError) else WorkerError
        failure = kind(_sentence(layer, f"in epoch {epoch}{where}", described(error)))
    failure.__cause__ = cause if isinstance(error, IterableError) else error
    return failure


def place_of(error: BaseException) -> str:
    """Return on which rank an error was raised, such as " on rank 1", "" if not on a rank."""
    cause = error.__cause__
    return f" on {cause.place}" if isinstance(cause, RemoteTraceback) and cause.place else ""


def described(error: BaseException) -> str:
    """Return the kind and the text of an error."""
    # A plain one stands for an error that could not be sent, and has its kind in its text.
    return str(error) if type(error) is WorkerError else f"{type(error).__name__}: {error}"


def death_of(layer: int, how: str, *, running: int, done: int) -> WorkerError:
    """Return the error of a layer with a worker that ended.

    ``running`` is the epoch that it was in, 0 for none, and ``done`` the last one that it finished.
    """
    moment = f"after epoch {done}" if done else "before its first epoch"
    return WorkerError(_sentence(layer, f"in epoch {running}" if running else moment, how))


def _sentence(layer: int, moment: str, what: str) -> str:
    return f"layer {layer} failed {moment}: {what}"
