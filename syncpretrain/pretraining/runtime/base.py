"""The runtime interface, as the driver uses it: the schedule decides, a runtime executes."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from syncpretrain.pretraining.runtime.messages import Message
from syncpretrain.schedule.epochs import Train

__all__ = ["STDERR", "Runtime"]

STDERR = 2  # the descriptor, whatever sys.stderr has become


class Runtime(Protocol):
    """Executes epochs on one worker a layer; a context manager that leaves no worker behind."""

    def __enter__(self) -> Runtime:
        """Start the workers."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop, wake and join the workers."""
        ...

    def submit(self, command: Train) -> None:
        """Hand an epoch to its layer's worker; returns at once."""
        ...

    def set_workers(self, layer: int, workers: int) -> None:
        """Set the number of workers of a layer from its next step on."""
        ...

    def fraction(self, layer: int) -> float:
        """Return how far the running epoch of a layer is, in [0, 1]."""
        ...

    def stop(self) -> None:
        """Ask every worker to leave after its minibatch; each will send its message."""
        ...

    def dump_stacks(self) -> None:
        """Write on stderr where every worker stands, which a stall asks for."""
        ...

    def wait(self, timeout: float) -> Message | None:
        """Return the next message of any worker, or None if none came in ``timeout`` seconds."""
        ...
