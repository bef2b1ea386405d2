"""The skeleton of a training: the parts that every kind of training has, done once.

:class:`Training` is the base of pretraining and of fine-tuning, :class:`Driver` that of the drivers
of pretraining: by epochs, streamed, asynchronous, and without any.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import msgspec
from numpy.typing import ArrayLike

from syncpretrain import __version__
from syncpretrain.errors import RunInterrupted, WorkerError
from syncpretrain.events import Event, Notice, Observer, RunFinished, RunStarted
from syncpretrain.learners.epoch import Stopped
from syncpretrain.models.layer import Layer
from syncpretrain.models.stack import Stack
from syncpretrain.observers.errors import ErrorHistory
from syncpretrain.parallel.blas import blas_limit
from syncpretrain.parallel.signals import StopRequest, stop_on_signals
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts
from syncpretrain.pretraining.build_data import build_data
from syncpretrain.schedule.reads import Reads
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.workers.split import Split
from syncpretrain.workers.state import Saver

__all__ = ["Driver", "Training"]


class Training:
    """Base of a training: its observers, the errors of all its epochs, and how it ends early.

    Parameters
    ----------
    observers : iterable of callable
    history : ErrorHistory, optional
        Errors of an earlier training that this one continues.
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
        """Return what was learned so far."""
        raise NotImplementedError

    def state(self) -> Any:
        """Return all that the rest of the training depends on."""
        raise NotImplementedError

    @property
    def done(self) -> Any:
        """The epochs that are finished, of each layer or of fine-tuning."""
        raise NotImplementedError

    def _save(self, *, final: bool = False) -> None:
        if self.save is not None:
            self.save(self.state, done=self.done, final=final)

    @contextmanager
    def ending(self, request: StopRequest) -> Iterator[None]:
        """Save the state at a stop, and give the error that ends the training the newest stack."""
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
        """Return the newest stack, None if a device that has failed does not give it back."""
        try:
            return self.stack()
        except RuntimeError:
            return None

    def _how_far(self) -> str:
        """Return in words how far a training is that was stopped."""
        raise NotImplementedError


class Driver(Training):
    """Base of one pretraining: everything checked at construction, trained by :meth:`run`.

    Parameters
    ----------
    observers, save
        As of :class:`Training`.
    resume : State, optional
        State of a run of the same settings and data to continue from.
    times : Timeouts
        How long the parts of the run wait for each other.
    """

    settings: PretrainSettings
    slots = 1
    _blas_threads = 1

    def __init__(
        self,
        observers: Iterable[Observer],
        *,
        save: Saver | None = None,
        resume: Any = None,
        times: Timeouts = TIMEOUTS,
    ) -> None:
        super().__init__(observers, save=save)
        self.resume, self._times = resume, times

    def run(self) -> Stack:
        """Train until all is trained; see :func:`syncpretrain.pretrain` for what it raises."""
        # The signals are outermost: an interrupt leaves no BLAS limit behind.
        with stop_on_signals() as request, blas_limit(self._blas_threads), self._opened():
            started = time.monotonic()
            with self.ending(request):
                self._go_on()
                self._emit_start(started)
                self._train(request)
                # A signal that came while the workers were joined: the run is complete, but its
                # caller asked to stop, and must not go on with it.
                if request():
                    raise Stopped
        now = time.monotonic()
        self.emit(RunFinished(now, now - started, self._busy()))
        return self.stack()

    def stack(self) -> Stack:
        """Return the newest layers."""
        info = {
            "syncpretrain": __version__,
            "epochs": list(self.done),
            "pretrain": msgspec.json.decode(msgspec.json.encode(self.settings)),
        }
        return Stack(tuple(self._newest()), info, self.scaling)

    def _build_data(
        self, settings: PretrainSettings, X: ArrayLike, validation: ArrayLike | None
    ) -> Split:
        """Set what follows from settings and data; return the data as the layers take them."""
        self.settings, data, self.scaling = build_data(settings, X, validation)
        self._examples = len(data.train)
        self._seconds = [0.0] * len(self.settings.epochs)  # that each layer trained
        return data

    def _emit_start(self, now: float) -> None:
        s = self.settings
        own = (s.layers, s.epochs, s.schedule, s.pace, s.runtime, self.slots, self._examples)
        self.emit(RunStarted(now, *own, self._past_reads(), s.handoff, s.batch_size))
        if self.resume is not None:
            self.history.resume(self.resume.curves)

    def _how_far(self) -> str:
        done = ", ".join(f"layer {i}: {n}" for i, n in enumerate(self.done, start=1))
        return f"pretraining was stopped; epochs finished: {done}"

    def _opened(self) -> AbstractContextManager[Any]:
        """Return the context that holds all that the run needs."""
        return nullcontext()

    def _go_on(self) -> None:
        """Load the state to resume from, if there is one."""

    def _train(self, request: StopRequest) -> None:
        """Train to the end, or raise Stopped."""

    def _newest(self) -> Sequence[Layer]:
        """Return the newest layers, on the host."""
        raise NotImplementedError

    def _past_reads(self) -> Reads:
        """Return, of each layer, the versions that its epochs before the checkpoint read."""
        raise NotImplementedError

    def _busy(self) -> tuple[float, ...]:
        """Return the seconds that each layer trained."""
        return tuple(self._seconds)
