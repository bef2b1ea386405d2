"""The skeleton of one pretraining, by epochs, streamed, asynchronous, or without any.

A driver is a body for it. :class:`Watch` looks at the epochs that run, for the drivers that wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import msgspec
from numpy.typing import ArrayLike

from syncpretrain import __version__
from syncpretrain.data.scaling import Scaling
from syncpretrain.data.weights import checked_weights
from syncpretrain.errors import SettingsError, StalledError
from syncpretrain.events import Event, Observer, Progress, RunFinished, RunStarted
from syncpretrain.learners.epoch import Stopped
from syncpretrain.models.layer import Layer
from syncpretrain.models.stack import Stack
from syncpretrain.parallel.blas import blas_limit
from syncpretrain.parallel.signals import StopRequest, stop_on_signals
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts
from syncpretrain.pretraining.build_data import build_data
from syncpretrain.schedule.kinds import Reads
from syncpretrain.settings.checks import check_weights
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.workers.activations import Split
from syncpretrain.workers.restarts import Restarts
from syncpretrain.workers.state import Saver
from syncpretrain.workers.training import Training

LONGEST_TICK_SECONDS = 1.0


class Watch:
    """Looks at the running epochs ten times a second.

    A minibatch that takes longer than the limit is a stall too, if no other layer trains one
    meanwhile, unless it is trained by the caller's own thread (the serial runtime): that looks
    between two minibatches only.

    Parameters
    ----------
    emit : callable
        Given a Progress event of each running layer.
    times : Timeouts
        Only ``tick`` and ``stall`` are used: how long no layer may finish a minibatch.
    """

    def __init__(self, emit: Callable[[Event], None], times: Timeouts = TIMEOUTS) -> None:
        self._emit, self._times = emit, times
        self._last_tick = time.monotonic()
        self._trained = -1.0  # epochs of all layers, by the last tick
        self._silent_seconds = 0.0  # since a minibatch was trained

    def tick(
        self, running: Mapping[int, int], finished: int, fraction: Callable[[int], float]
    ) -> None:
        """Report the progress of the running epochs.

        Parameters
        ----------
        running : mapping of int to int
            The epoch of each layer that trains, both counted from 1.
        finished : int
            Epochs finished, of all layers together.
        fraction : callable
            Returns how far the running epoch of a layer is, in [0, 1].

        Raises
        ------
        StalledError
            If none of them has moved for long.
        """
        now = time.monotonic()
        passed = now - self._last_tick
        if passed < self._times.tick:
            return
        self._last_tick = now
        trained = float(finished)
        for layer, epoch in sorted(running.items()):
            share = fraction(layer)
            trained += share
            self._emit(Progress(now, layer, epoch, share))
        if trained != self._trained:
            self._trained, self._silent_seconds = trained, 0.0
            return
        # A process that was suspended sees one long tick, during which no worker was stalled.
        self._silent_seconds += min(passed, LONGEST_TICK_SECONDS)
        if self._silent_seconds > self._times.stall:
            layers = ", ".join(f"layer {layer}" for layer in sorted(running))
            raise StalledError(f"no minibatch was trained for {self._times.stall:g} s, by {layers}")


class Driver(Training):
    """Base of one pretraining: everything checked at construction, trained by :meth:`run`.

    Parameters
    ----------
    settings : PretrainSettings
    X, validation, observers, replay
        See :func:`syncpretrain.pretrain`.
    save : callable, optional
        Called after each epoch, and at a stop with ``final=True``: given a function that returns
        the run's state, and how many epochs each layer has done.
    resume : State, optional
        State of a run of the same settings and data to continue from.
    times : Timeouts
        How long the driver, the runtime and the workers wait for each other.
    restarts : Restarts, optional
        For processes that die.
    weights : array-like of shape (n_examples,), optional
        Weights of the rows of X.

    Attributes
    ----------
    settings : PretrainSettings
        With what followed from the data.
    scaling : Scaling or None
    slots : int
        Layers that may train at a time.
    take_mark : callable or None
        Given the number of a layer, of its updates, and the stack up to it, for each mark of the
        settings, at the end of the epoch.
    """

    slots = 1
    take_mark: Callable[[int, int, Stack], Any] | None = None
    _blas_threads = 1
    _no_replay = ""  # why no recorded reads can be repeated

    def __init__(
        self,
        settings: PretrainSettings,
        X: ArrayLike,
        validation: ArrayLike | None = None,
        *,
        observers: Iterable[Observer] = (),
        replay: Reads | None = None,
        save: Saver | None = None,
        resume: Any = None,
        times: Timeouts = TIMEOUTS,
        restarts: Restarts | None = None,
        weights: ArrayLike | None = None,
    ) -> None:
        if replay is not None and self._no_replay:
            raise SettingsError(f"replay: got one with {self._no_replay}")
        super().__init__(observers, save=save)
        self.resume, self._replay = resume, replay
        self._times, self._restarts = times, restarts
        if weights is not None:
            check_weights(settings)
            settings = msgspec.structs.replace(settings, backend="numpy")
        settings = self._checked(settings)
        self.settings, data, self.scaling = self._prepared(settings, X, validation)
        if weights is not None:  # the settings now say whether values are missing
            check_weights(self.settings)
        self._examples = len(data.train)
        own = checked_weights(weights, self._examples, None)
        self.weights = None if own is None else own[:, 0]
        self._seconds = [0.0] * len(self.settings.epochs)  # that each layer trained
        self._build(data)

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

    def _hand_out(
        self, number: int, marks: Mapping[int, Layer], below: Sequence[Layer] | None = None
    ) -> None:
        """Give a layer after some updates to :attr:`take_mark`, above the layers ``below``.

        None takes the newest.
        """
        if (take := self.take_mark) is None or not marks:
            return
        now = self.stack()
        below = now.layers[: number - 1] if below is None else below
        for update, layer in sorted(marks.items()):
            info = now.info | {"updates": update}
            take(number, update, replace(now, layers=(*below, layer), info=info))

    def _emit_start(self, now: float) -> None:
        s = self.settings
        own = (s.layers, s.epochs, s.schedule, s.pace, s.runtime, self.slots, self._examples)
        self.emit(RunStarted(now, *own, self._past_reads(), s.handoff, s.batch_size))
        if self.resume is not None:
            self.history.resume(self.resume.curves)

    def _how_far(self) -> str:
        done = ", ".join(f"layer {i}: {n}" for i, n in enumerate(self.done, start=1))
        return f"pretraining was stopped; epochs finished: {done}"

    def _checked(self, settings: PretrainSettings) -> PretrainSettings:
        """Return the settings to train by; raise SettingsError where that is impossible."""
        return settings

    def _prepared(
        self, settings: PretrainSettings, X: Any, validation: Any
    ) -> tuple[PretrainSettings, Split, Scaling | None]:
        """Return settings, examples and scaling; see :func:`build_data`."""
        return build_data(settings, X, validation)

    def _build(self, data: Split) -> None:
        """Build what trains the layers."""

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
