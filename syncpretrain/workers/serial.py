"""The serial runtime: the caller's thread trains one epoch after another.

Tests compare every other runtime with this one.
"""

from __future__ import annotations

import faulthandler
from collections import deque
from collections.abc import Callable, Sequence

from syncpretrain.schedule.schedule import Train
from syncpretrain.workers.epochs import Message
from syncpretrain.workers.link import STDERR
from syncpretrain.workers.worker import LayerWorker


class SerialRuntime:
    """Trains epochs in the order in which they were submitted, while the driver waits.

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
        self._workers[command.layer - 1].fraction = 0.0  # shown until the epoch begins
        self._commands.append(command)

    def set_workers(self, layer: int, workers: int) -> None:
        """Do nothing: the caller's thread is the only worker."""

    def fraction(self, layer: int) -> float:
        """Return the finished share of a layer's running epoch, in [0, 1]."""
        return self._workers[layer - 1].fraction

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
