"""The conversation of a driver with a worker elsewhere: an order goes out, an answer comes back.

A driver gives a :class:`Place` one :class:`Job` per worker, and gets one :class:`Link` per worker.
At the other end of the link, :func:`serve` builds the worker, which obeys one order after another.

Guarantees:

* A worker answers orders in the order in which they were sent, or the link says how the worker
  ended.
* An error is an answer too, :class:`Raised`, and does not end a worker that was built. The error
  arrives with the remote traceback as its cause.

Assumption: no order and no answer is None; None stands for the end.
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

STDERR = 2  # the descriptor, whatever sys.stderr has become

Obey = Callable[[Any], Any]  # executes an order; returns the answer, or None without one


@dataclass(frozen=True, slots=True)
class Context:
    """Environment that a place gives to a worker.

    ``progress`` and ``workers`` hold one number each: the worker writes the finished share of the
    order to ``progress``, and reads the number of threads for the next step from ``workers``.
    ``stop`` returns True once the worker is to leave. ``kept`` stores the worker's states for a
    replacement; None in a place that replaces no worker.
    """

    number: int
    progress: NDArray[np.float64]
    workers: NDArray[np.float64]
    stop: Callable[[], bool]
    times: Timeouts
    kept: KeptStates | None = None


class Job(Protocol):
    """Recipe by which a place builds a worker."""

    def open(self, context: Any) -> AbstractContextManager[Obey]:
        """Return a context manager that builds a worker and yields its :data:`Obey`."""


class Link(Protocol):
    """The driver's end of the conversation with a worker, which has one order at a time."""

    @property
    def offset(self) -> float:
        """Seconds to add to a time of the worker's clock, for a time of this process."""

    @property
    def channel(self) -> Connection | None:
        """Connection that is readable once an answer has come; None after the worker's end."""

    @property
    def has_ended(self) -> bool:
        """True if the worker has ended; an answer may still be on the way."""

    def send(self, order: Any) -> None:
        """Send an order; if the worker has ended, :meth:`receive` returns None."""

    def poll(self, seconds: float) -> bool:
        """Wait for an answer or the worker's end; return True if one of the two came."""

    def receive(self) -> Any:
        """Return the next answer, or None if no answer can come any more."""

    def ending(self) -> str:
        """Return how the worker ended; the caller knows that it has."""

    def kill(self) -> None:
        """End the worker as soon as the place can."""


class Place:
    """Threads, processes or ranks that hold the workers of a run, numbered from 1."""

    progress: NDArray[np.float64]  # finished share of the running order, by the worker's number
    workers: NDArray[np.float64]  # threads for a step, by the worker's number

    def start(self, jobs: Sequence[Any]) -> Sequence[Link]:
        """Start a worker for each job."""
        raise NotImplementedError

    def replace(self, number: int, death: WorkerError) -> Link | None:
        """Start a worker in place of a dead one; return None if the place cannot, as by default."""
        return None

    def set_workers(self, number: int, workers: int) -> None:
        """Set the number of threads that a worker may have, from its next step on."""
        self.workers[number] = workers

    def stop(self) -> None:
        """Ask every worker to leave after its minibatch."""
        raise NotImplementedError

    def dump_stacks(self) -> None:
        """Write the stacks of workers in other processes on stderr; the caller writes its own."""

    def kill(self) -> None:
        """End every worker that can be ended at once; replace no worker from now on."""

    def end(self) -> list[str]:
        """End the workers; return the names of the workers that did not end in time."""
        raise NotImplementedError


class Inbox:
    """End of a link that takes answers from other threads of this process, by reference.

    A thread that waits for one inbox waits on a condition. A thread that waits for many inboxes
    waits for their channels, which have a byte for every answer.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards the fields below
        self._answers = deque[Any]()
        self._is_closed = False
        self._pipe: tuple[Connection, Connection] | None = None

    @property
    def channel(self) -> Connection | None:
        """Connection that is readable while there are answers; None after :meth:`close`."""
        with self._changed:
            # The pipe is made on first use: a byte through a pipe costs more than the condition.
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
        """Wait for an answer; return True if there is one."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._answers), seconds)

    def receive(self) -> Any:
        """Return the oldest answer, None if there is none."""
        with self._changed:
            if not self._answers:
                return None
            # A byte leaves with its answer: the channel is readable as long as answers are left.
            if self._pipe is not None:
                self._pipe[0].recv_bytes()
            return self._answers.popleft()

    def close(self) -> None:
        """Drop all answers, also the answers that are put in later."""
        with self._changed:
            self._is_closed = True
            self._answers.clear()
            if self._pipe is not None:
                for end in self._pipe:
                    end.close()
                self._pipe = None


def ready(links: Collection[Link], timeout: float) -> list[Link]:
    """Wait for answers or ends of workers; return their links, none after ``timeout`` seconds."""
    open_links = [link for link in links if link.channel is not None]
    found = connection.wait([link.channel for link in open_links if link.channel], timeout)
    # A fork of a worker's process may hold the channel open, and a lost rank closes nothing: in
    # both cases only the state of the worker tells.
    return [link for link in open_links if link.channel in found or link.has_ended]


def serve(
    build: Callable[[], AbstractContextManager[Obey]],
    take: Callable[[], Any],
    send: Callable[[Any], None],
) -> None:
    """Build a worker and execute orders until ``take`` returns None.

    If the worker cannot be built, the error is sent as an answer before any order.
    """
    # BaseException, also KeyboardInterrupt: every error has to become an answer, or the driver
    # would wait for the answer until its deadline.
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
    """Traceback of an error that was raised elsewhere; the error's ``__cause__`` here.

    Attributes
    ----------
    place : str
        Name of the rank that raised the error, "" if no rank did.
    """

    def __init__(self, text: str, place: str = "") -> None:
        super().__init__(f"\n{text}")
        self.place = place


class SentError:
    """An error to be sent; it is unpickled as the error, with its traceback as the cause."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        error, trace = self._error, "".join(traceback.format_exception(self._error))
        # A stop is asked for, and no failure: a traceback would only distract.
        if isinstance(error, Stopped):
            trace = ""
        # Many errors can be pickled but not unpickled: the constructor takes other arguments.
        try:
            ForkingPickler.loads(ForkingPickler.dumps(error))
        except BaseException:  # methods of the error may raise anything
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
    """Return the error for the caller of a run; its cause is the layer's error.

    If an iterable of examples raised the error, the cause is the error of the iterable.
    """
    cause = error.__cause__
    if isinstance(error, (Stopped, KeyboardInterrupt)):
        return error
    if type(error) is WorkerError and not isinstance(cause, RemoteTraceback):
        return error  # of a worker that ended: the text says all
    where = place_of(error)
    if isinstance(error, DivergedError):
        failure: WorkerError = DivergedError(f"{error} ({where.strip()})" if where else str(error))
    else:
        kind = StalledError if isinstance(error, StalledError) else WorkerError
        failure = kind(_sentence(layer, f"in epoch {epoch}{where}", described(error)))
    failure.__cause__ = cause if isinstance(error, IterableError) else error
    return failure


def place_of(error: BaseException) -> str:
    """Return the rank of an error as text, such as " on rank 1"; "" if no rank raised it."""
    cause = error.__cause__
    return f" on {cause.place}" if isinstance(cause, RemoteTraceback) and cause.place else ""


def described(error: BaseException) -> str:
    """Return the class name and the text of an error."""
    # A plain WorkerError stands for an error that could not be sent; its text names the class.
    return str(error) if type(error) is WorkerError else f"{type(error).__name__}: {error}"


def death_of(layer: int, how: str, *, running: int, done: int) -> WorkerError:
    """Return the error of a layer after the unexpected end of its worker.

    ``running`` is the epoch that the worker was in, 0 for none; ``done`` is the last finished one.
    """
    moment = f"after epoch {done}" if done else "before its first epoch"
    return WorkerError(_sentence(layer, f"in epoch {running}" if running else moment, how))


def _sentence(layer: int, moment: str, what: str) -> str:
    return f"layer {layer} failed {moment}: {what}"
