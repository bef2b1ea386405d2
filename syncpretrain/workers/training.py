"""The skeleton of every training, pretraining or fine-tuning: observers, and an early end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from syncpretrain.errors import RunInterrupted, WorkerError
from syncpretrain.events import Event, Notice, Observer
from syncpretrain.learners.epoch import Stopped
from syncpretrain.models.stack import Stack
from syncpretrain.observers.history import ErrorHistory
from syncpretrain.parallel.signals import StopRequest
from syncpretrain.workers.state import Saver


class Training:
    """Base of a training: observers, the errors of all epochs, and the early end.

    Parameters
    ----------
    observers : iterable of callable
    history : ErrorHistory, optional
        Errors of an earlier training, to which this training appends.
    save : callable, optional
        Called after each epoch, and at a stop with ``final=True``: given a function that returns
        the state of the training, and how many epochs are done.
    """

    _is_settled = True  # False where a worker may be in the middle of a minibatch

    def __init__(
        self,
        observers: Iterable[Observer],
        history: ErrorHistory | None = None,
        *,
        save: Saver | None = None,
    ) -> None:
        self.observers = tuple(observers)
        self.history = history or ErrorHistory()
        self.save = save

    def emit(self, event: Event) -> None:
        """Record an event, and pass it to the observers."""
        self.history(event)
        for observer in self.observers:
            observer(event)

    def notify(self, message: str) -> None:
        """Send the observers a message for the user."""
        self.emit(Notice(time.monotonic(), message))

    def stack(self) -> Stack:
        """Return the stack of all layers as they are now."""
        raise NotImplementedError

    def state(self) -> Any:
        """Return the state from which the training can be resumed."""
        raise NotImplementedError

    @property
    def done(self) -> Any:
        """Number of finished epochs, of each layer or of fine-tuning."""
        raise NotImplementedError

    def _save(self, *, final: bool = False) -> None:
        if self.save is not None:
            self.save(self.state, done=self.done, final=final)

    @contextmanager
    def ending(self, request: StopRequest) -> Iterator[None]:
        """Save the state at a stop, and add the newest stack to an error that ends the training."""
        try:
            yield
        except WorkerError as error:
            error.stack = error.stack or self._salvaged()
            raise
        except Stopped:
            if self._is_settled:
                self._save(final=True)
            signum = request.signum or 2
            raise RunInterrupted(self._how_far(), stack=self.stack(), signum=signum) from None

    def _salvaged(self) -> Stack | None:
        """Return the newest stack, or None if it is on a device that has failed."""
        try:
            return self.stack()
        except RuntimeError:
            return None

    def _how_far(self) -> str:
        """Return a text with the progress of a stopped training."""
        raise NotImplementedError
