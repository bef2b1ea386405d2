"""Workers in threads of this process, and the runtimes of whole epochs: on them, and serial.

Guarantees:

* A sleeping thread waits on a queue and uses no CPU.
* The first failure reaches the driver as an answer; the other workers are asked to stop, and leave
  after the running minibatch.
* :meth:`Threads.end` breaks every wait and joins every thread, within a deadline.

NumPy's products release the GIL, so the workers train at the same time.
"""

from __future__ import annotations

import faulthandler
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts, join_all, started_thread
from syncpretrain.schedule.schedule import Train
from syncpretrain.workers.epochs import LinkedEpochs, Message
from syncpretrain.workers.link import STDERR, Context, Inbox, Job, Obey, Place, serve
from syncpretrain.workers.worker import LayerWorker


class ThreadLink(Inbox):
    """Link to a worker in a thread of this process, which it starts.

    Parameters
    ----------
    name : str
    job : Job
    context : Context
        After every ``times.sleep`` seconds of sleep the thread checks that its caller lives.
    """

    offset = 0.0

    def __init__(self, name: str, job: Job, context: Context) -> None:
        super().__init__()
        self._orders, self._is_killed = queue.SimpleQueue[Any](), False
        self._caller = threading.current_thread()  # a worker's thread ends soon after its caller
        self._sleep = context.times.sleep
        self.thread = started_thread(name, serve, partial(job.open, context), self._next, self.put)

    @property
    def has_ended(self) -> bool:
        """True if the thread has ended."""
        return not self.thread.is_alive()

    def send(self, order: Any) -> None:
        """Send an order."""
        self._orders.put(order)

    def poll(self, seconds: float) -> bool:
        """Wait for an answer or the thread's end; return True if one of the two came."""
        return super().poll(seconds) or self.has_ended

    def ending(self) -> str:
        """Return how the thread ended."""
        # A link without a channel is waited for no more.
        self.close()
        return "its thread ended"

    def kill(self) -> None:
        """Ask the thread to end after the running order."""
        self._is_killed = True
        self._orders.put(None)

    def _next(self) -> Any:
        # The wait has an end, though an order ends it at once: a caller that died sends nothing.
        while not self._is_killed and self._caller.is_alive():
            with suppress(queue.Empty):
                return self._orders.get(timeout=self._sleep)
        return None


class Threads(Place):
    """Threads of this process as a place; see :class:`syncpretrain.workers.link.Place`.

    Parameters
    ----------
    name : str
        Name of the threads; a thread appends the number of its worker.
    times : Timeouts
        Only ``join`` and ``sleep`` are used.
    """

    def __init__(self, name: str, times: Timeouts) -> None:
        self._name, self._times = name, times
        self.links: list[ThreadLink] = []
        self._stopping = threading.Event()
        self.progress, self.workers = np.zeros(1), np.ones(1)

    def start(self, jobs: Sequence[Job]) -> list[ThreadLink]:
        """Start a thread for each job."""
        self.progress, self.workers = np.zeros(len(jobs) + 1), np.ones(len(jobs) + 1)
        for i, job in enumerate(jobs, start=1):
            numbers = self.progress[i : i + 1], self.workers[i : i + 1]
            context = Context(i, *numbers, self._stopping.is_set, self._times)
            self.links.append(ThreadLink(f"{self._name}-{i}", job, context))
        return self.links

    def stop(self) -> None:
        """Ask every worker to leave after its minibatch."""
        self._stopping.set()

    def kill(self) -> None:
        """Ask every thread to end after its minibatch."""
        self.stop()
        for link in self.links:
            link.kill()

    def end(self) -> list[str]:
        """Wake and join every thread; return the names of the threads that did not end in time."""
        self.kill()
        alive = join_all([link.thread for link in self.links], self._times.join)
        for link in self.links:
            link.close()
        self.links = []
        return alive


@dataclass(frozen=True, slots=True)
class _Present:
    """Job of a thread: a worker that is built already, and the caller's stop function."""

    worker: LayerWorker
    stop: Callable[[], bool]

    @contextmanager
    def open(self, context: Context) -> Iterator[Obey]:
        self.worker.progress, self.worker.worker_count = context.progress, context.workers
        yield partial(self.worker.execute, stop=lambda: context.stop() or self.stop())


class ThreadsRuntime(LinkedEpochs):
    """One thread per layer.

    Parameters
    ----------
    workers : sequence of LayerWorker
        From the lowest layer up.
    stop : callable
        Called by every thread once per minibatch; True asks the thread to leave.
    times : Timeouts
        Only ``join`` and ``sleep`` are used.
    """

    def __init__(
        self, workers: Sequence[LayerWorker], stop: Callable[[], bool], times: Timeouts = TIMEOUTS
    ) -> None:
        self.threads = Threads("syncpretrain-layer", times)
        super().__init__(self.threads, times)
        self._workers, self._stop = workers, stop

    def _jobs(self) -> list[_Present]:
        return [_Present(worker, self._stop) for worker in self._workers]

    def _close(self) -> list[str]:
        return [*super()._close(), *(name for worker in self._workers for name in worker.close())]


class SerialRuntime:
    """Trains epochs in the caller's thread, in the order of their submission, as the driver waits.

    Tests compare every other runtime with this one.

    Parameters
    ----------
    workers : sequence of LayerWorker
        From the lowest layer up.
    stop : callable
        Called once per minibatch; True asks the worker to leave.
    """

    def __init__(self, workers: Sequence[LayerWorker], stop: Callable[[], bool]) -> None:
        self._workers = workers
        self._stop = stop
        self._stopping = False
        self._commands: deque[Train] = deque()
        self._raised: BaseException | None = None  # error of ``stop``, a function of the caller

    def __enter__(self) -> SerialRuntime:
        return self

    def __exit__(self, *error: object) -> None:
        self._commands.clear()

    def submit(self, command: Train) -> None:
        """Queue an epoch."""
        self._workers[command.layer - 1].progress[0] = 0.0  # shown until the epoch begins
        self._commands.append(command)

    def set_workers(self, layer: int, workers: int) -> None:
        """Do nothing: the caller's thread is the only worker."""

    def fraction(self, layer: int) -> float:
        """Return the finished share of a layer's running epoch, in [0, 1]."""
        return float(self._workers[layer - 1].progress[0])

    def stop(self) -> None:
        """Ask every worker to leave after its minibatch."""
        self._stopping = True

    def dump_stacks(self) -> None:
        """Write the stacks of all threads on stderr."""
        faulthandler.dump_traceback(STDERR)

    def wait(self, timeout: float) -> Message | None:
        """Train the epoch of the oldest command and return its message; ignore ``timeout``."""
        if not self._commands:
            return None
        command = self._commands.popleft()
        message = self._workers[command.layer - 1].execute(command, self._should_stop)
        if self._raised is not None:
            raise self._raised
        return message

    def _should_stop(self) -> bool:
        try:
            return self._stopping or self._stop()
        # An interrupt of the caller, in the caller's own thread. The worker catches it as a failure
        # of the layer, so the error is stored here and raised after the worker's return.
        except BaseException as error:
            self._raised = error
            raise
