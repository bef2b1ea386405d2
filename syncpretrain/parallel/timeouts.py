"""Time limits of the threads and processes that train together.

Context managers that start threads or processes, and end them within a deadline.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from syncpretrain.errors import StalledError

__all__ = ["TIMEOUTS", "Closing", "Timeouts"]


ClosingT = TypeVar("ClosingT", bound="Closing")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the parts of a run wait for each other, in seconds.

    Parameters
    ----------
    stall : float
        Without a minibatch anywhere, before the run fails; and for the other workers in one phase
        of a step, before the step fails.
    tick : float
        Between two looks of the driver at the progress and at a request to stop.
    drain : float
        For the running epochs after a request to stop, which is seen after one minibatch.
    failed_drain : float
        The same after a failure, which is reported at once: no checkpoint is written then.
    iterable : float
        For an iterable to give the next array after a request to stop or a failure.
    join : float
        For the end of threads and processes.
    sleep : float
        Of a layer's thread, before it looks whether its caller still lives.
    spin : float
        Of a pool's worker, without a nap. The parts of a phase are about equal: a nap would cost
        more than it saves.
    stagger : float
        Of one worker after another: what the interpreter does before a product.
    linger : float
        For the next step, before a worker sleeps.
    look : float
        Of one uninterrupted wait, after which signals are taken; a longer one means that the
        process was suspended, and counts only this much.
    """

    stall: float = 600.0
    tick: float = 0.1
    drain: float = 10.0
    failed_drain: float = 0.3
    iterable: float = 1.0
    join: float = 10.0
    sleep: float = 60.0
    spin: float = 2e-3
    stagger: float = 10e-6
    linger: float = 0.02
    look: float = 1.0


TIMEOUTS = Timeouts()


class Closing(ABC):
    """What starts threads or processes when it is entered, and ends all of them when it is left.

    Parameters
    ----------
    times : Timeouts
        Of which ``join`` bounds the end.
    """

    def __init__(self, times: Timeouts) -> None:
        self._times = times

    def __enter__(self: ClosingT) -> ClosingT:
        try:
            self._open()
        except BaseException:  # such as "can't start new thread": leave none of the others behind
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        alive = self._close()
        if alive and error is None:
            raise StalledError(f"{', '.join(alive)} did not end within {self._times.join:g} s")

    @abstractmethod
    def _open(self) -> None:
        """Start them."""

    @abstractmethod
    def _close(self) -> Sequence[str]:
        """End them; return the names of those that did not end in time."""
