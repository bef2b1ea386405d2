"""The threads runtime: one named thread a layer, asleep until the driver hands it an epoch.

Guarantees:

* A sleeping thread waits on a condition and uses no CPU.
* The first failure reaches the driver as a message; the others are asked to stop and leave after
  their running minibatch.
* Leaving the context breaks every wait and joins every thread, within a deadline.

NumPy's products release the GIL, so the layers train at the same time.
"""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Callable, Sequence

from syncpretrain.parallel.timeouts import TIMEOUTS, Closing, Timeouts
from syncpretrain.schedule.schedule import Train
from syncpretrain.workers.interface import STDERR, Message
from syncpretrain.workers.mailbox import Broken, Mailbox
from syncpretrain.workers.worker import LayerWorker

__all__ = ["ThreadsRuntime"]


class ThreadsRuntime(Closing):
    """One thread a layer.

    Parameters
    ----------
    workers : sequence of LayerWorker
        From the lowest layer up.
    stop : callable
        Asked by every thread once a minibatch whether to leave.
    times : Timeouts
        Only ``join`` and ``sleep`` are used.
    """

    def __init__(
        self,
        workers: Sequence[LayerWorker],
        stop: Callable[[], bool],
        times: Timeouts = TIMEOUTS,
    ) -> None:
        super().__init__(times)
        self._stop = stop
        self._workers = workers
        self._stopping = threading.Event()
        self._results: Mailbox[Message] = Mailbox()
        self._inboxes: list[Mailbox[Train]] = [Mailbox() for _ in workers]
        self._caller = threading.current_thread()  # a layer's thread ends soon after it
        # Daemons only so that a thread stuck in foreign code cannot keep the process from ending;
        # every ordinary way out joins them below.
        self._threads = [
            threading.Thread(
                target=self._serve,
                args=(worker, inbox),
                name=f"syncpretrain-layer-{i}",
                daemon=True,
            )
            for i, (worker, inbox) in enumerate(zip(workers, self._inboxes, strict=True), start=1)
        ]

    def _open(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, command: Train) -> None:
        """Wake the layer's thread for an epoch."""
        # The driver may read the progress before the thread wakes: the last epoch's would be shown.
        self._workers[command.layer - 1].fraction = 0.0
        self._inboxes[command.layer - 1].put(command)

    def set_workers(self, layer: int, workers: int) -> None:
        """Set the number of workers of a layer from its next step on."""
        self._workers[layer - 1].worker_count[0] = workers

    def fraction(self, layer: int) -> float:
        """Return how far the running epoch of a layer is, in [0, 1]."""
        return self._workers[layer - 1].fraction

    def stop(self) -> None:
        """Ask every worker to leave after its minibatch."""
        self._stopping.set()

    def dump_stacks(self) -> None:
        """Write on stderr where every thread stands."""
        faulthandler.dump_traceback(STDERR)

    def wait(self, timeout: float) -> Message | None:
        """Return the next message of any thread, or None."""
        return self._results.take(timeout)

    def _close(self) -> list[str]:
        """Wake and join every thread; return the names of those that did not end in time."""
        # The flag ends epochs that run, the broken inbox ends waits.
        self._stopping.set()
        for inbox in self._inboxes:
            inbox.break_("the run has ended")
        # One deadline for all: with one each, N stuck threads would cost N times as much.
        deadline = time.monotonic() + self._times.join
        for thread in self._threads:
            if thread.ident is not None:  # it was started
                thread.join(max(0.0, deadline - time.monotonic()))
        helpers = [name for worker in self._workers for name in worker.close()]
        return [thread.name for thread in self._threads if thread.is_alive()] + helpers

    def _serve(self, worker: LayerWorker, inbox: Mailbox[Train]) -> None:
        # The wait has an end, though a command wakes it at once: a caller that died without leaving
        # the context never breaks the inbox.
        while self._caller.is_alive():
            try:
                command = inbox.take(self._times.sleep)
            except Broken:
                return
            if command is not None:
                self._results.put(worker.execute(command, self._should_stop))

    def _should_stop(self) -> bool:
        return self._stopping.is_set() or self._stop()
